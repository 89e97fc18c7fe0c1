"""Tickets on either database."""

from __future__ import annotations

from typing import Any, Protocol

from outlive.ports.storage import Ticket


class Writer(Protocol):
    """A database that reads and writes by single statements."""

    queries: dict[str, str]

    async def fetch(self, statement: str, *values: Any) -> list[Any]: ...

    async def change(self, name: str, statement: str, *values: Any) -> list[Any]:
        """Run one statement that writes, and return the rows that it returns."""
        ...


class SqlTickets:
    def __init__(self, database: Writer) -> None:
        self._database = database

    async def add(self, ticket: Ticket) -> None:
        values = (ticket.id, ticket.owner, ticket.target, ticket.expires_at, ticket.digest)
        await self._database.change("add ticket", self._database.queries["add_ticket"], *values)

    async def remove(self, owner: str, target: str, ticket_id: str) -> bool:
        statement = self._database.queries["remove_ticket"]
        return bool(await self._database.change("remove ticket", statement, ticket_id, owner, target))

    async def find(self, ticket_id: str) -> Ticket | None:
        rows = await self._fetch("find_ticket", ticket_id)
        return Ticket(*rows[0]) if rows else None

    async def find_valid(self, ticket_ids: list[str], at: float) -> set[str]:
        return {row[0] for row in await self._fetch("find_valid_tickets", ticket_ids, at)}

    async def holds(self, ticket: Ticket, response_id: str) -> bool:
        return bool(await self._fetch("find_in_conversation", response_id, ticket.owner, ticket.target))

    async def _fetch(self, name: str, *values: Any) -> list[Any]:
        return await self._database.fetch(self._database.queries[name], *values)

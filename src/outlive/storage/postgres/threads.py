"""Threads of items on Postgres: the history of a response."""

from __future__ import annotations

from outlive.core.events import Json
from outlive.ports.ledger import Position
from outlive.storage.postgres.connection import SQL, Connection, PostgresPort, as_text
from outlive.storage.refusals import refuse


class PostgresHistory(PostgresPort):
    async def before(self, position: Position) -> list[Json]:
        return await self._database.load(SQL["read_history"], position.thread, position.first)

    async def locate(self, owner: str, *, conversation: str | None, parent: str | None) -> Position | None:
        async def work(db: Connection) -> Position | None:
            if conversation is not None:
                row = await db.fetchrow(SQL["locate_in_conversation"], owner, as_text(conversation))
            elif parent is not None:
                row = await db.fetchrow(SQL["locate_after"], owner, as_text(parent))
            else:
                return None
            if row["refusal"] is not None:
                raise refuse(row["refusal"], row["detail"], conversation=conversation, parent=parent)
            if row["thread"] is not None:
                return Position(row["thread"], row["first"])
            return Position(row["parent"], row["fork"])

        return await self._database.read("locate", work)


def ids_of(items: list[Json]) -> list[str]:
    return [as_text(item["id"]) for item in items]

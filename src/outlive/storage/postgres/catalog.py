"""The catalog on Postgres: finding responses, conversations and their items, one owner at a time."""

from __future__ import annotations

from typing import Any

from outlive.core.errors import InvalidRequest, NotFound
from outlive.core.events import Json
from outlive.ports.catalog import Page, Paging, Record
from outlive.storage.postgres.connection import Connection, Database, as_text
from outlive.storage.postgres.threads import SQL, decode, load_all

RUNNING = frozenset({"queued", "in_progress"})


class PostgresCatalog:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def response(self, owner: str, response_id: str) -> Record:
        arguments = (as_text(response_id), owner)
        row = await self._database.read("find", lambda db: db.fetchrow(SQL["find_response"], *arguments))
        if row is None:
            raise NotFound(f"Response with id '{response_id}' not found.")
        return Record(*row)

    async def status(self, owner: str, response_id: str) -> str | None:
        arguments = (as_text(response_id), owner)
        status: str | None = await self._database.read("find", lambda db: db.fetchval(SQL["find_status"], *arguments))
        return status

    async def responses(
        self, owner: str, paging: Paging, *, statuses: list[str], conversation: str | None
    ) -> tuple[list[Record], bool]:
        where, values = ["t.owner = $1", "NOT t.hidden"], [owner]
        if statuses and set(statuses) <= RUNNING:
            # Few run at a time: the leases name them, however many have ended.
            where.append("t.key IN (SELECT response FROM leases)")
        if statuses:
            places = ", ".join(f"${len(values) + n}" for n in range(1, len(statuses) + 1))
            where.append(f"t.status IN ({places})")
            values += statuses
        if conversation is not None:
            values.append(as_text(conversation))
            where.append(f"t.conversation = ${len(values)}")
        select = (
            "SELECT t.id, t.status, t.created_at, s.body FROM responses t LEFT JOIN snapshots s ON s.response = t.key"
        )
        rows = await self._database.read("list", lambda db: _page(db, select, "responses", where, values, paging))
        return [Record(*row) for row in rows[: paging.limit]], len(rows) > paging.limit

    async def queue(self, response_ids: list[str]) -> dict[str, int]:
        ids = list(map(as_text, response_ids))
        rows = await self._database.read("list", lambda db: db.fetch(SQL["find_places"], ids))
        return {row[0]: row[1] for row in rows}

    async def input_items(self, owner: str, response_id: str, paging: Paging) -> Page:
        async def work(db: Connection) -> list[Any]:
            row = await db.fetchrow(SQL["find_input"], as_text(response_id), owner)
            if row is None:
                raise NotFound(f"Response with id '{response_id}' not found.")
            return await _items(db, row[0], (row[1], row[2]), paging)

        return await _as_page(await self._database.read("list input", work), paging)

    async def idempotent(self, owner: str, kind: str, key: str) -> tuple[bytes, str] | None:
        row = await self._database.read("find", lambda db: db.fetchrow(SQL["find_key"], owner, kind, as_text(key)))
        return (row[0], row[1]) if row is not None else None

    async def unanswered(self, owner: str, digest: bytes, since: float) -> list[str]:
        rows = await self._database.read("find", lambda db: db.fetch(SQL["find_unanswered"], owner, digest, since))
        return [row[0] for row in rows]

    async def conversation(self, owner: str, conversation_id: str) -> Json:
        row = await self._database.read("find", lambda db: find_conversation(db, owner, conversation_id))
        return as_conversation(row)

    async def conversations(self, owner: str, paging: Paging) -> Page:
        select, where = "SELECT t.id, t.metadata, t.created_at FROM conversations t", ["t.owner = $1", "NOT t.hidden"]
        rows = await self._database.read("list", lambda db: _page(db, select, "conversations", where, [owner], paging))
        return Page([as_conversation(row) for row in rows[: paging.limit]], len(rows) > paging.limit)

    async def items(self, owner: str, conversation_id: str, paging: Paging) -> Page:
        async def work(db: Connection) -> list[Any]:
            found = await find_conversation(db, owner, conversation_id)
            return await _items(db, found["thread"], None, paging)

        return await _as_page(await self._database.read("list items", work), paging)

    async def item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        async def work(db: Connection) -> list[Any]:
            found = await find_conversation(db, owner, conversation_id)
            return list(await db.fetch(SQL["read_named"], found["thread"], [as_text(item_id)]))

        items = await load_all(await self._database.read("find item", work))
        if not items:
            raise item_not_found(item_id)
        return items[0]

    async def stored_items(self, owner: str, item_ids: list[str]) -> dict[str, Json]:
        ids = list(map(as_text, item_ids))
        rows = await self._database.read("find items", lambda db: db.fetch(SQL["find_items"], ids, owner))
        items = await load_all([row[1:] for row in map(tuple, rows)])
        return {row[0]: item for row, item in zip(rows, items, strict=True)}


async def find_conversation(db: Connection, owner: str, conversation_id: str) -> Any:
    row = await db.fetchrow(SQL["find_conversation"], as_text(conversation_id), owner)
    if row is None:
        raise NotFound(f"Conversation with id '{conversation_id}' not found.")
    return row


def as_conversation(row: Any) -> Json:
    return {
        "id": row["id"],
        "object": "conversation",
        "created_at": int(row["created_at"]),
        "metadata": decode(row["metadata"]),
    }


def item_not_found(item_id: str) -> NotFound:
    return NotFound(f"Item with id '{item_id}' not found.")


async def _page(
    db: Connection, select: str, table: str, where: list[str], given: list[str], paging: Paging
) -> list[Any]:
    """One row more than the page holds, to know whether there are more. Keys grow with time."""
    conditions = [*where]
    values: list[Any] = [*given]
    before = "<" if paging.order == "desc" else ">"
    if paging.after is not None:
        sql = f"SELECT key FROM {table} WHERE id = $1 AND owner IS NOT DISTINCT FROM $2"
        cursor = await db.fetchval(sql, as_text(paging.after), given[0])
        if cursor is None:
            raise _bad_cursor(paging.after)
        values.append(cursor)
        conditions.append(f"t.key {before} ${len(values)}")
    values.append(paging.limit + 1)
    order = f"ORDER BY t.key {paging.order} LIMIT ${len(values)}"
    return list(await db.fetch(f"{select} WHERE {' AND '.join(conditions)} {order}", *values))


async def _items(db: Connection, thread: int, span: tuple[int, int] | None, paging: Paging) -> list[Any]:
    first, end = span or (0, (1 << 31) - 1)
    if paging.after is not None:
        position = await db.fetchval(SQL["item_position"], thread, as_text(paging.after))
        if position is None:
            raise _bad_cursor(paging.after)
        if paging.order == "desc":
            end = min(end, position)
        else:
            first = max(first, position + 1)
    sql = (
        "SELECT body FROM items WHERE thread = $1 AND position >= $2 AND position < $3 "
        f"ORDER BY position {paging.order} LIMIT $4"
    )
    return list(await db.fetch(sql, thread, first, end, paging.limit + 1))


async def _as_page(rows: list[Any], paging: Paging) -> Page:
    return Page(await load_all(rows[: paging.limit]), len(rows) > paging.limit)


def _bad_cursor(after: str) -> InvalidRequest:
    return InvalidRequest(f"There is nothing with id '{after}' in this list to go on from.", param="after")

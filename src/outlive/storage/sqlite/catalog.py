"""The catalog on SQLite: finding responses, conversations and their items, one owner at a time."""

from __future__ import annotations

import sqlite3
from typing import Any

from outlive.core.errors import InvalidRequest, NotFound
from outlive.core.events import Json
from outlive.ports.catalog import Page, Paging, Record
from outlive.storage.sqlite import staging
from outlive.storage.sqlite.connection import Database
from outlive.storage.sqlite.threads import SQL, decode, encode

RUNNING = frozenset({"queued", "in_progress"})


class SqliteCatalog:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def response(self, owner: str, response_id: str) -> Record:
        return await self._database.read("find", lambda db: _response(db, owner, response_id))

    async def status(self, owner: str, response_id: str) -> str | None:
        def work(db: sqlite3.Connection) -> str | None:
            row = db.execute(SQL["find_status"], (response_id, owner)).fetchone()
            return row[0] if row else None

        return await self._database.read("find", work)

    async def responses(
        self, owner: str, paging: Paging, *, statuses: list[str], conversation: str | None
    ) -> tuple[list[Record], bool]:
        def work(db: sqlite3.Connection) -> tuple[list[Record], bool]:
            where, values = ["owner = ?", "hidden = 0"], [owner]
            if statuses and set(statuses) <= RUNNING:
                # Few run at a time: the leases name them, however many have ended.
                where.append("key IN (SELECT response FROM leases)")
            if statuses:
                where.append(f"status IN ({','.join('?' * len(statuses))})")
                values += statuses
            if conversation is not None:
                where.append("conversation = ?")
                values.append(conversation)
            rows = _page(db, "responses", "id, status, created_at, snapshot", (where, values), paging)
            return [Record(*row) for row in rows[: paging.limit]], len(rows) > paging.limit

        return await self._database.read("list", work)

    async def queue(self, response_ids: list[str]) -> dict[str, int]:
        ids = encode(response_ids).decode()
        return await self._database.read("find", lambda db: dict(db.execute(SQL["find_places"], (ids,)).fetchall()))

    async def input_items(self, owner: str, response_id: str, paging: Paging) -> Page:
        def work(db: sqlite3.Connection) -> Page:
            row = db.execute(SQL["find_input"], (response_id, owner)).fetchone()
            if row is None:
                raise NotFound(f"Response with id '{response_id}' not found.")
            return _items(db, row[0], (row[1], row[2]), paging)

        return await self._database.read("list input", work)

    async def idempotent(self, owner: str, kind: str, key: str) -> tuple[bytes, str] | None:
        return await self._database.read("find", lambda db: db.execute(SQL["find_key"], (owner, kind, key)).fetchone())

    async def unanswered(self, owner: str, digest: bytes, since: float) -> list[str]:
        return await self._database.read(
            "find", lambda db: [row[0] for row in db.execute(SQL["find_unanswered"], (owner, digest, since))]
        )

    async def conversation(self, owner: str, conversation_id: str) -> Json:
        return await self._database.read(
            "find", lambda db: as_conversation(find_conversation(db, owner, conversation_id))
        )

    async def conversations(self, owner: str, paging: Paging) -> Page:
        def work(db: sqlite3.Connection) -> Page:
            columns = "key, thread, metadata, created_at, NULL, NULL, id"
            rows = _page(db, "conversations", columns, (["owner = ?", "hidden = 0"], [owner]), paging)
            return Page([as_conversation(row) for row in rows[: paging.limit]], len(rows) > paging.limit)

        return await self._database.read("list", work)

    async def items(self, owner: str, conversation_id: str, paging: Paging) -> Page:
        def work(db: sqlite3.Connection) -> Page:
            thread = find_conversation(db, owner, conversation_id)[1]
            return _items(db, thread, None, paging)

        return await self._database.read("list items", work)

    async def item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        def work(db: sqlite3.Connection) -> Json:
            thread = find_conversation(db, owner, conversation_id)[1]
            row = db.execute(SQL["read_item"], (thread, item_id)).fetchone()
            if row is None:
                raise item_not_found(item_id)
            return staging.load(db, row[0])

        return await self._database.read("find item", work)

    async def stored_items(self, owner: str, item_ids: list[str]) -> dict[str, Json]:
        def work(db: sqlite3.Connection) -> dict[str, Json]:
            rows = {item_id: db.execute(SQL["find_item"], (item_id, owner)).fetchone() for item_id in item_ids}
            return {item_id: staging.load(db, row[0]) for item_id, row in rows.items() if row is not None}

        return await self._database.read("find items", work)


def find_conversation(db: sqlite3.Connection, owner: str, conversation_id: str) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = db.execute(SQL["find_conversation"], (conversation_id, owner)).fetchone()
    if row is None:
        raise NotFound(f"Conversation with id '{conversation_id}' not found.")
    return row


def as_conversation(row: tuple[Any, ...]) -> Json:
    _, _, metadata, created_at, _, _, conversation_id = row
    return {
        "id": conversation_id,
        "object": "conversation",
        "created_at": int(created_at),
        "metadata": decode(metadata),
    }


def item_not_found(item_id: str) -> NotFound:
    return NotFound(f"Item with id '{item_id}' not found.")


def _response(db: sqlite3.Connection, owner: str, response_id: str) -> Record:
    row = db.execute(SQL["find_response"], (response_id, owner)).fetchone()
    if row is None:
        raise NotFound(f"Response with id '{response_id}' not found.")
    return Record(*row)


def _page(
    db: sqlite3.Connection, table: str, columns: str, where: tuple[list[str], list[str]], paging: Paging
) -> list[tuple[Any, ...]]:
    """One row more than the page holds, to know whether there are more. Keys grow with time."""
    conditions, values = [*where[0]], [*where[1]]
    before = "<" if paging.order == "desc" else ">"
    if paging.after is not None:
        cursor = db.execute(
            f"SELECT key FROM {table} WHERE id = ? AND owner = ?", (paging.after, where[1][0])
        ).fetchone()
        if cursor is None:
            raise _bad_cursor(paging.after)
        conditions.append(f"key {before} {int(cursor[0])}")
    sql = f"SELECT {columns} FROM {table} WHERE {' AND '.join(conditions)} ORDER BY key {paging.order} LIMIT ?"
    return db.execute(sql, (*values, paging.limit + 1)).fetchall()


def _items(db: sqlite3.Connection, thread: int, span: tuple[int, int] | None, paging: Paging) -> Page:
    first, end = span or (0, 1 << 62)
    if paging.after is not None:
        row = db.execute(SQL["item_position"], (thread, paging.after)).fetchone()
        if row is None:
            raise _bad_cursor(paging.after)
        if paging.order == "desc":
            end = min(end, row[0])
        else:
            first = max(first, row[0] + 1)
    rows = db.execute(
        "SELECT body FROM items WHERE thread = ? AND position >= ? AND position < ? "
        f"ORDER BY position {paging.order} LIMIT ?",
        (thread, first, end, paging.limit + 1),
    ).fetchall()
    return Page(staging.load_all(db, rows[: paging.limit]), len(rows) > paging.limit)


def _bad_cursor(after: str) -> InvalidRequest:
    return InvalidRequest(f"There is nothing with id '{after}' in this list to go on from.", param="after")

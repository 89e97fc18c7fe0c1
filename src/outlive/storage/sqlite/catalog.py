"""The catalog on SQLite: finds responses, conversations and their items, one owner at a time."""

from __future__ import annotations

import sqlite3
from typing import Any

from outlive.core.events import Json
from outlive.ports.catalog import Page, Paging, Record
from outlive.storage.refusals import bad_cursor, conversation_not_found, item_not_found, response_not_found
from outlive.storage.rows import ListQuery, encode, make_conversation, narrow, query_responses
from outlive.storage.sqlite import staging
from outlive.storage.sqlite.connection import SQL, SqlitePort


class SqliteCatalog(SqlitePort):
    async def response(self, owner: str, response_id: str) -> Record:
        def work(db: sqlite3.Connection) -> Record:
            row = db.execute(SQL["find_response"], (response_id, owner)).fetchone()
            if row is None:
                raise response_not_found(response_id)
            return Record(*row)

        return await self._database.read("find", work)

    async def status(self, owner: str, response_id: str) -> str | None:
        def work(db: sqlite3.Connection) -> str | None:
            row = db.execute(SQL["find_status"], (response_id, owner)).fetchone()
            return row[0] if row else None

        return await self._database.read("find", work)

    async def responses(
        self, owner: str, paging: Paging, *, statuses: list[str], conversation: str | None
    ) -> tuple[list[Record], bool]:
        query = query_responses("?", owner, statuses, conversation)
        select = "SELECT t.id, t.status, t.created_at, t.snapshot FROM responses t"
        rows = await self._database.read("list", lambda db: _page(db, query, "responses", select, paging))
        return [Record(*row) for row in rows[: paging.limit]], len(rows) > paging.limit

    async def queue(self, response_ids: list[str]) -> dict[str, int]:
        ids = encode(response_ids).decode()
        return await self._database.read(
            "find", lambda db: dict(db.execute(SQL["find_queue_places"], (ids,)).fetchall())
        )

    async def input_items(self, owner: str, response_id: str, paging: Paging) -> Page:
        def work(db: sqlite3.Connection) -> Page:
            row = db.execute(SQL["find_input"], (response_id, owner)).fetchone()
            if row is None:
                raise response_not_found(response_id)
            return _items(db, row[0], (row[1], row[2]), paging)

        return await self._database.read("list input", work)

    async def idempotent(self, owner: str, kind: str, key: str) -> tuple[bytes, str] | None:
        return await self._database.read("find", lambda db: db.execute(SQL["find_key"], (owner, kind, key)).fetchone())

    async def unanswered(self, owner: str, digest: bytes, since: float) -> list[str]:
        return await self._database.read(
            "find", lambda db: [row[0] for row in db.execute(SQL["find_unanswered"], (owner, digest, since))]
        )

    async def conversation(self, owner: str, conversation_id: str) -> Json:
        row = await self._database.read("find", lambda db: find_conversation(db, owner, conversation_id))
        return as_conversation(row)

    async def conversations(self, owner: str, paging: Paging) -> Page:
        query, select = ListQuery("?", owner), "SELECT t.id, t.metadata, t.created_at FROM conversations t"
        rows = await self._database.read("list", lambda db: _page(db, query, "conversations", select, paging))
        return Page([make_conversation(*row) for row in rows[: paging.limit]], len(rows) > paging.limit)

    async def items(self, owner: str, conversation_id: str, paging: Paging) -> Page:
        def work(db: sqlite3.Connection) -> Page:
            thread = find_conversation(db, owner, conversation_id)[1]
            return _items(db, thread, (0, 1 << 62), paging)

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
        raise conversation_not_found(conversation_id)
    return row


def as_conversation(row: tuple[Any, ...]) -> Json:
    _, _, metadata, created_at, _, _, conversation_id = row
    return make_conversation(conversation_id, metadata, created_at)


def _page(db: sqlite3.Connection, query: ListQuery, table: str, select: str, paging: Paging) -> list[tuple[Any, ...]]:
    after = None
    if paging.after is not None:
        row = db.execute(f"SELECT key FROM {table} WHERE id = ? AND owner = ?", (paging.after, query.owner)).fetchone()
        if row is None:
            raise bad_cursor(paging.after)
        after = row[0]
    return db.execute(query.make(select, paging, after), query.values).fetchall()


def _items(db: sqlite3.Connection, thread: int, span: tuple[int, int], paging: Paging) -> Page:
    if paging.after is not None:
        row = db.execute(SQL["item_position"], (thread, paging.after)).fetchone()
        if row is None:
            raise bad_cursor(paging.after)
        span = narrow(span, row[0], paging.order)
    rows = db.execute(
        "SELECT body FROM items WHERE thread = ? AND position >= ? AND position < ? "
        f"ORDER BY position {paging.order} LIMIT ?",
        (thread, *span, paging.limit + 1),
    ).fetchall()
    return Page(staging.load_all(db, rows[: paging.limit]), len(rows) > paging.limit)

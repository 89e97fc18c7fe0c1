"""The catalog on Postgres: finds responses, conversations and their items, one owner at a time."""

from __future__ import annotations

from typing import Any

from outlive.core.events import Json
from outlive.ports.catalog import Page, Paging, Record
from outlive.storage.postgres.connection import SQL, Connection, PostgresPort, as_text
from outlive.storage.postgres.threads import load_all
from outlive.storage.refusals import bad_cursor, conversation_not_found, item_not_found, response_not_found
from outlive.storage.rows import ListQuery, make_conversation, narrow, query_responses


class PostgresCatalog(PostgresPort):
    async def response(self, owner: str, response_id: str) -> Record:
        arguments = (as_text(response_id), owner)
        row = await self._database.read("find", lambda db: db.fetchrow(SQL["find_response"], *arguments))
        if row is None:
            raise response_not_found(response_id)
        return Record(*row)

    async def status(self, owner: str, response_id: str) -> str | None:
        arguments = (as_text(response_id), owner)
        status: str | None = await self._database.read("find", lambda db: db.fetchval(SQL["find_status"], *arguments))
        return status

    async def responses(
        self, owner: str, paging: Paging, *, statuses: list[str], conversation: str | None
    ) -> tuple[list[Record], bool]:
        query = query_responses("$", owner, statuses, as_text(conversation) if conversation is not None else None)
        select = (
            "SELECT t.id, t.status, t.created_at, s.body FROM responses t LEFT JOIN snapshots s ON s.response = t.key"
        )
        rows = await self._database.read("list", lambda db: _page(db, query, "responses", select, paging))
        return [Record(*row) for row in rows[: paging.limit]], len(rows) > paging.limit

    async def queue(self, response_ids: list[str]) -> dict[str, int]:
        ids = list(map(as_text, response_ids))
        rows = await self._database.read("list", lambda db: db.fetch(SQL["find_queue_places"], ids))
        return {row[0]: row[1] for row in rows}

    async def input_items(self, owner: str, response_id: str, paging: Paging) -> Page:
        async def work(db: Connection) -> list[Any]:
            row = await db.fetchrow(SQL["find_input"], as_text(response_id), owner)
            if row is None:
                raise response_not_found(response_id)
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
        query, select = ListQuery("$", owner), "SELECT t.id, t.metadata, t.created_at FROM conversations t"
        rows = await self._database.read("list", lambda db: _page(db, query, "conversations", select, paging))
        return Page([make_conversation(*row) for row in rows[: paging.limit]], len(rows) > paging.limit)

    async def items(self, owner: str, conversation_id: str, paging: Paging) -> Page:
        async def work(db: Connection) -> list[Any]:
            found = await find_conversation(db, owner, conversation_id)
            return await _items(db, found["thread"], (0, (1 << 31) - 1), paging)

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
        raise conversation_not_found(conversation_id)
    return row


def as_conversation(row: Any) -> Json:
    return make_conversation(row["id"], row["metadata"], row["created_at"])


async def _page(db: Connection, query: ListQuery, table: str, select: str, paging: Paging) -> list[Any]:
    after = None
    if paging.after is not None:
        sql = f"SELECT key FROM {table} WHERE id = $1 AND owner IS NOT DISTINCT FROM $2"
        after = await db.fetchval(sql, as_text(paging.after), query.owner)
        if after is None:
            raise bad_cursor(paging.after)
    return list(await db.fetch(query.make(select, paging, after), *query.values))


async def _items(db: Connection, thread: int, span: tuple[int, int], paging: Paging) -> list[Any]:
    if paging.after is not None:
        position = await db.fetchval(SQL["item_position"], thread, as_text(paging.after))
        if position is None:
            raise bad_cursor(paging.after)
        span = narrow(span, position, paging.order)
    sql = (
        "SELECT body FROM items WHERE thread = $1 AND position >= $2 AND position < $3 "
        f"ORDER BY position {paging.order} LIMIT $4"
    )
    return list(await db.fetch(sql, thread, *span, paging.limit + 1))


async def _as_page(rows: list[Any], paging: Paging) -> Page:
    return Page(await load_all(rows[: paging.limit]), len(rows) > paging.limit)

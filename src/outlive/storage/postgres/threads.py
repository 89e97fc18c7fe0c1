"""Threads of items on Postgres: the history of a response, and how items are read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from outlive.core.events import Json
from outlive.ports.ledger import Position
from outlive.storage.postgres.connection import SQL, Connection, PostgresPort, as_text
from outlive.storage.refusals import refuse
from outlive.storage.rows import decode

# More than this is decoded in a thread, so that streams do not wait for it.
MANY_BYTES = 256 * 1024


class PostgresHistory(PostgresPort):
    async def before(self, position: Position) -> list[Json]:
        span = (position.thread, position.first)
        return await load_all(await self._database.read("history", lambda db: db.fetch(SQL["read_history"], *span)))

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


async def load_all(rows: Iterable[Any]) -> list[Json]:
    """Decode the items whose bodies are the first column of these rows."""
    bodies: list[bytes] = [row[0] for row in rows]
    if sum(map(len, bodies)) > MANY_BYTES:
        return await asyncio.to_thread(lambda: [decode(body) for body in bodies])
    return [decode(body) for body in bodies]

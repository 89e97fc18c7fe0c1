"""History on Postgres: what a model is given of the turns before."""

from __future__ import annotations

from outlive.core.events import Json
from outlive.ports.ledger import Position
from outlive.storage.postgres.connection import Connection, Database, as_text
from outlive.storage.postgres.threads import SQL, load_all, refuse


class PostgresHistory:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def before(self, position: Position) -> list[Json]:
        rows = await self._database.read(
            "history", lambda db: db.fetch(SQL["read_history"], position.thread, position.first)
        )
        return await load_all(rows)

    async def locate(self, owner: str, *, conversation: str | None, parent: str | None) -> Position | None:
        async def work(db: Connection) -> Position | None:
            if conversation is not None:
                row = await db.fetchrow(SQL["locate_in_conversation"], owner, as_text(conversation))
            elif parent is not None:
                row = await db.fetchrow(SQL["locate_after"], owner, as_text(parent))
            else:
                return None
            assert row is not None
            if row["refusal"] is not None:
                raise refuse(row["refusal"], row["detail"], conversation=conversation, parent=parent)
            if row["thread"] is not None:
                return Position(row["thread"], row["first"])
            return Position(row["parent"], row["fork"])

        return await self._database.read("locate", work)

"""History on SQLite: what a model is given of the turns before."""

from __future__ import annotations

from outlive.core.events import Json
from outlive.ports.ledger import Position
from outlive.storage.sqlite import threads
from outlive.storage.sqlite.connection import Database


class SqliteHistory:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def before(self, position: Position) -> list[Json]:
        return await self._database.read("history", lambda db: threads.read_before(db, position))

    async def locate(self, owner: str, *, conversation: str | None, parent: str | None) -> Position | None:
        return await self._database.read(
            "locate", lambda db: threads.locate(db, owner, conversation, parent, locking=False).position
        )

"""Secrets that the nodes share: made by the first that needs one, kept for as long as the database lives."""

from __future__ import annotations

import os

from outlive.storage.postgres.connection import Connection, Database
from outlive.storage.postgres.threads import SQL

BYTES = 32


async def find_secret(database: Database, name: str) -> bytes:
    """The secret of that name; drawn the first time."""

    async def work(db: Connection) -> bytes:
        await db.execute(SQL["add_secret"], name, os.urandom(BYTES))
        return bytes(await db.fetchval(SQL["find_secret"], name))

    return await database.transact("find a secret", work)

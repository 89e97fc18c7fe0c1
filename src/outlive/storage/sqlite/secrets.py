"""Secrets that the server makes for itself, and keeps for as long as its database lives."""

from __future__ import annotations

import os
import sqlite3

from outlive.storage.sqlite.connection import Database
from outlive.storage.sqlite.threads import SQL

BYTES = 32


async def find_secret(database: Database, name: str) -> bytes:
    """The secret of that name; drawn the first time."""

    def work(db: sqlite3.Connection) -> bytes:
        db.execute(SQL["add_secret"], (name, os.urandom(BYTES)))
        return bytes(db.execute(SQL["find_secret"], (name,)).fetchone()[0])

    return await database.write("find a secret", work)

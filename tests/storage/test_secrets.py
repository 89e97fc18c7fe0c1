"""The server's own secrets are drawn once and stay."""

from __future__ import annotations

import asyncio
from pathlib import Path

from outlive.ports.database import SECRET_BYTES
from outlive.storage.sqlite.connection import SqliteDatabase


def test_a_secret_is_the_same_after_a_restart_and_others_are_others(tmp_path: Path) -> None:
    async def find(*names: str) -> list[bytes]:
        database = SqliteDatabase(str(tmp_path / "outlive.db"))
        try:
            return [await database.find_secret(name) for name in names]
        finally:
            await database.close()

    (first,) = asyncio.run(find("seal"))
    again, other = asyncio.run(find("seal", "other"))
    assert first == again != other
    assert len(first) == SECRET_BYTES

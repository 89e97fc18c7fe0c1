"""A journal in a format of a later version is not read, and nodes announce the format that they read."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from outlive.core.errors import StorageUnavailable
from outlive.storage.packing import JOURNAL_FORMAT
from outlive.storage.postgres.heartbeat import PostgresHeartbeat
from tests.conformance.harness import StorageHarness
from tests.conformance.storages import open_postgres, open_sqlite
from tests.support.postgres import DATABASES

RAISE_FORMAT = f"UPDATE responses SET format = {JOURNAL_FORMAT + 1}"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_journal_in_a_later_format_is_not_read(kind: str, tmp_path: Path) -> None:
    file, url = tmp_path / "outlive.db", DATABASES.borrow(f"{tmp_path}")

    def raise_format() -> None:
        if kind == "postgres":
            DATABASES.server.sql(f"SET search_path = outlive; {RAISE_FORMAT}", url.rpartition("/")[2])
            return
        with closing(sqlite3.connect(file, isolation_level=None)) as db:
            db.execute(RAISE_FORMAT)

    async def go() -> None:
        async with open_sqlite(file) if kind == "sqlite" else open_postgres(url) as storage:
            response_id = await StorageHarness(storage).answer()
            assert await storage.journal.read(response_id, -1, 1000) is not None
            raise_format()
            sentence = f"the journal of {response_id} has format {JOURNAL_FORMAT + 1}, this version reads up to"
            with pytest.raises(StorageUnavailable) as error:
                await storage.journal.read(response_id, -1, 1000)
            assert sentence in error.value.cause
            with pytest.raises(StorageUnavailable):
                await storage.journal.read_many({response_id: -1}, 1000)

    asyncio.run(go())


def test_a_node_announces_the_newest_format_that_it_reads(tmp_path: Path) -> None:
    url = DATABASES.borrow(f"{tmp_path}")

    async def go() -> None:
        heartbeat = PostgresHeartbeat(url, "node-1", 5.0)
        await heartbeat.start()
        assert DATABASES.server.sql("SELECT reads FROM outlive.workers", url.rpartition("/")[2]) == f"{JOURNAL_FORMAT}"
        await heartbeat.stop()

    asyncio.run(go())

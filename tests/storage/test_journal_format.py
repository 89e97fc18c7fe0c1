"""Formats of journals: later ones are not read, nodes announce which they read, and rows are compressed if all do."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.errors import StorageUnavailable
from outlive.core.events import Channel, Delta
from outlive.core.grammar import OUTPUT_TEXT
from outlive.storage.packing import JOURNAL_FORMAT, MOST_SHORT, PLAIN, SHORT, lengthen, shorten
from outlive.storage.postgres.connection import connect
from outlive.storage.postgres.heartbeat import PostgresHeartbeat
from outlive.storage.sqlite.ledger import SHORT_ROW
from tests.conformance.harness import StorageHarness, entry
from tests.conformance.storages import open_postgres, open_sqlite
from tests.support.postgres import DATABASES

LAST_ROW = "SELECT format, frames FROM responses r JOIN events e ON e.response = r.key WHERE r.id = {} AND e.first = 2"
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


def test_rows_are_compressed_only_if_every_node_reads_that(tmp_path: Path) -> None:
    url = DATABASES.borrow(f"{tmp_path}")

    async def go() -> None:
        async with open_postgres(url) as storage:
            harness, connection = StorageHarness(storage), await connect(url)
            found = []
            for reads in (SHORT - 1, SHORT):
                await connection.execute("DELETE FROM workers")
                await connection.execute(f"INSERT INTO workers VALUES ('w', now(), now() + interval '1 hour', {reads})")
                for worker in ("w1", None):  # one that begins to run at once, and one that is queued
                    response_id, admitted = await harness.admit(worker=worker)
                    lease = admitted.lease or (await harness.claim())[0].lease
                    added = entry(lease, 2, 3)
                    await storage.ledger.append([added])
                    journal_format, frames = await connection.fetchrow(LAST_ROW.format("$1"), response_id)
                    found.append((journal_format, frames == added.frames))
                    assert lengthen(frames) == added.frames
            assert found == [(PLAIN, True)] * 2 + [(SHORT, False)] * 2
            await connection.close()

    asyncio.run(go())


def test_first_events_on_postgres_are_stored_as_they_are_if_they_are_long(tmp_path: Path) -> None:
    url = DATABASES.borrow(f"{tmp_path}")

    async def go() -> None:
        async with open_postgres(url) as storage:
            harness = StorageHarness(storage)
            for instructions, is_compressed in (("short", True), ("x" * MOST_SHORT, False)):
                response_id, _ = await harness.admit(instructions=instructions)
                batch = await storage.journal.read(response_id, -1, 1 << 30)
                assert batch is not None and instructions.encode() in batch.frames
                connection = await connect(url)
                stored = await connection.fetchval("SELECT frames FROM events ORDER BY response DESC LIMIT 1")
                await connection.close()
                assert (stored == batch.frames) == (not is_compressed)

    asyncio.run(go())


@pytest.mark.parametrize(("events", "is_compressed"), [(1, False), (9, True)])
def test_rows_on_sqlite_are_compressed_while_the_response_runs_unless_they_are_short(
    events: int, is_compressed: bool, tmp_path: Path
) -> None:
    async def go() -> None:
        async with open_sqlite(tmp_path / "outlive.db") as storage:
            harness = StorageHarness(storage)
            for worker in ("w1", None):
                response_id, admitted = await harness.admit(worker=worker)
                lease = admitted.lease or (await harness.claim())[0].lease
                added = entry(lease, 2, events)
                assert (len(added.frames) > SHORT_ROW) == is_compressed
                await storage.ledger.append([added])
                with closing(sqlite3.connect(tmp_path / "outlive.db")) as db:
                    journal_format, frames = db.execute(LAST_ROW.format("?"), (response_id,)).fetchone()
                assert journal_format == SHORT
                assert (len(frames) < len(added.frames) / 2) == is_compressed
                assert lengthen(frames) == added.frames

    asyncio.run(go())


def test_the_first_and_the_last_row_on_sqlite_are_stored_as_they_are_sent(tmp_path: Path) -> None:
    async def go() -> None:
        async with open_sqlite(tmp_path / "outlive.db") as storage:
            response_id = await StorageHarness(storage).answer()
            with closing(sqlite3.connect(tmp_path / "outlive.db")) as db:
                rows = db.execute("SELECT frames FROM events ORDER BY key").fetchall()
            batch = await storage.journal.read(response_id, -1, 1 << 20)
            assert batch is not None
            assert len(rows) >= 2
            assert b"".join(frames for (frames,) in rows) == batch.frames

    asyncio.run(go())


@given(st.binary())
def test_a_compressed_row_opens_to_the_same_bytes(frames: bytes) -> None:
    assert lengthen(shorten(frames)) == frames


def test_a_row_of_the_first_release_with_compressed_rows_is_opened() -> None:
    """The dictionary is part of the format: with another one, no row of earlier releases could be read."""
    row = "0320b93d0100606d73675f3031206f7474657209fc4ddd544d45a4ab9205f88d3fda4fef3e2081b7ab55d85d03"
    assert lengthen(bytes.fromhex(row)) == Delta(Channel(OUTPUT_TEXT, "msg_01", 0), " otters").frame(7)

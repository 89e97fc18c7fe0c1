"""Space comes back: a SQLite file is reused and shrinks, by itself or by `outlive shrink`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from outlive.core.requests.create import pack
from outlive.storage.sqlite import connection
from outlive.storage.sqlite.ledger import MIN_REQUEST
from tests.cli.test_storage import run_on
from tests.conformance.harness import StorageHarness, message
from tests.conformance.storages import open_sqlite


async def write(harness: StorageHarness, times: int = 60) -> list[str]:
    return [await harness.answer(items=[message(f"msg_{n}", f"{n}" * 20_000)]) for n in range(times)]


async def erase(harness: StorageHarness, response_ids: list[str]) -> None:
    for response_id in response_ids:
        await harness.ledger.delete("ann", response_id)
    while await harness.storage.retention.erase(10):
        pass


def test_a_new_file_shrinks_when_a_large_part_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MIN_FREE_PAGES", 100)
    file = tmp_path / "outlive.db"

    async def go(harness: StorageHarness) -> None:
        written = await write(harness)
        kept = {response_id: await harness.events(response_id) for response_id in written[-5:]}
        await harness.storage.retention.scrub()
        full, steps = file.stat().st_size, 0
        assert not await harness.storage.retention.shrink()
        await erase(harness, written[:-5])
        while await harness.storage.retention.shrink():
            steps += 1
        await harness.storage.retention.scrub()
        assert steps > 2  # each is short
        assert file.stat().st_size < full / 3
        assert {response_id: await harness.events(response_id) for response_id in kept} == kept

    run_on(lambda: open_sqlite(file), go)
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_the_space_of_what_was_erased_is_used_again(tmp_path: Path) -> None:
    file = tmp_path / "outlive.db"

    async def go(harness: StorageHarness) -> None:
        sizes = []
        for _ in range(3):
            written = await write(harness)
            await harness.storage.retention.scrub()
            sizes.append(file.stat().st_size)
            await erase(harness, written)
        assert sizes[2] <= sizes[0] * 1.1

    run_on(lambda: open_sqlite(file), go)


@pytest.mark.parametrize("length", [1, 5_000])
def test_the_row_of_a_response_has_room_for_its_final_object(length: int, tmp_path: Path) -> None:
    file = tmp_path / "outlive.db"

    async def go(harness: StorageHarness) -> None:
        response_id, _ = await harness.admit(worker=None, instructions="i" * length)
        with closing(sqlite3.connect(file)) as db:
            ((stored,),) = db.execute("SELECT request FROM responses WHERE id = ?", (response_id,)).fetchall()
        [claim] = await harness.claim()
        assert claim.request.instructions == "i" * length
        assert stored.rstrip(b" ") == pack(claim.request)
        assert len(stored) == max(len(pack(claim.request)), MIN_REQUEST)

    run_on(lambda: open_sqlite(file), go)

"""The packer compresses journals some time after the end of their responses, and deleting still removes every byte."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from outlive.engine.sweeper import BUSY_REST, REST
from outlive.testing import Script, answer
from tests.engine.harness import Harness, run_with_harness

DONE: Script = [answer(" ".join(f"word-{n}" for n in range(200)))]


def read_blocks(folder: Path) -> list[bytes]:
    (path,) = folder.glob("*.db")
    with closing(sqlite3.connect(path)) as db:
        return [block for (block,) in db.execute("SELECT block FROM packs")]


def count_events(folder: Path) -> int:
    (path,) = folder.glob("*.db")
    with closing(sqlite3.connect(path)) as db:
        (count,) = db.execute("SELECT count(*) FROM events").fetchone()
    return int(count)


def is_on_disk(folder: Path, some: bytes) -> bool:
    return any(some in file.read_bytes() for file in folder.iterdir())


async def pack(harness: Harness, after: float = 60.0) -> None:
    packer = harness.engine.packer
    assert packer is not None
    await packer.pack(harness.clock.now() - after)


def test_a_journal_is_packed_a_minute_after_the_end(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        frames = await harness.frames(final["id"])
        await pack(harness)
        assert not read_blocks(tmp_path)
        harness.clock.time += 61
        await pack(harness)
        assert read_blocks(tmp_path) and not count_events(tmp_path)
        assert await harness.frames(final["id"]) == frames
        counts = harness.engine.services.counts
        assert counts.packed_responses == 1
        assert 0 < counts.packed_bytes["after"] < counts.packed_bytes["before"] / 3

    run_with_harness(tmp_path, body, DONE, pack_after=60.0)


def test_packing_rests_longer_while_responses_run(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        packer, slots = harness.engine.packer, harness.engine.worker.slots
        assert packer is not None
        rests: list[float] = []
        for _ in range(2):
            began, before = harness.clock.monotonic() - 1, harness.clock.now()
            await packer._rest(began)
            rests.append(harness.clock.now() - before)
            slots.take("local")
        slots.release("local")
        slots.release("local")
        assert rests == [REST, BUSY_REST]

    run_with_harness(tmp_path, body, DONE, pack_after=60.0)


def test_deleting_a_packed_response_leaves_no_byte_of_its_blocks(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        harness.clock.time += 61
        await pack(harness)
        (block,) = read_blocks(tmp_path)
        assert is_on_disk(tmp_path, block[100:130])
        await harness.engine.delete("ann", final["id"])
        await harness.sweeper.sweep()
        assert not is_on_disk(tmp_path, block[100:130])

    run_with_harness(tmp_path, body, DONE, pack_after=60.0)

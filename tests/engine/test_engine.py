"""The engine as the wire sees it: deleting, and what is done now and then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outlive.core.errors import NotFound
from outlive.core.events import KEEP_ALIVE_FRAME, read_frame, split_frames
from outlive.testing import Script, answer
from tests.engine.harness import Harness, run_with_harness
from tests.support.scripting import Gate

DONE: Script = [answer("Hello")]


def test_deleting_what_has_ended_hides_it_at_once(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        with pytest.raises(NotFound):
            await harness.engine.delete("bob", final["id"])
        await harness.engine.delete("ann", final["id"])
        for _ in range(2):
            with pytest.raises(NotFound):
                await harness.engine.delete("ann", final["id"])

    run_with_harness(tmp_path, body, DONE)


def test_deleting_what_runs_cancels_it_first(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        cursor = harness.reader.follow(accepted.response_id)
        reading = asyncio.create_task(_read_all(harness, accepted.response_id))
        await cursor.read()
        await harness.engine.delete("ann", accepted.response_id)
        assert (await reading)[-1] == "response.cancelled"
        assert harness.backend.left == 1
        with pytest.raises(NotFound):
            await harness.show(accepted.response_id)
        await harness.sweeper.sweep()
        with pytest.raises(NotFound):
            await harness.frames(accepted.response_id)

    gate = Gate()
    run_with_harness(tmp_path, body, ["Hel", gate])


async def _read_all(harness: Harness, response_id: str) -> list[str]:
    cursor, types = harness.reader.follow(response_id), []
    while frames := await cursor.read():
        types += [read_frame(frame)["type"] for frame in split_frames(frames)]
    return types


def test_tick_wakes_idle_readers_for_their_keep_alive(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        cursor = harness.reader.follow(accepted.response_id, 1)
        reading = asyncio.create_task(cursor.read())
        await asyncio.sleep(0)
        await harness.engine.tick_once()
        await asyncio.sleep(0.01)
        assert not reading.done()
        harness.clock.time += 15
        await harness.engine.tick_once()
        assert await reading == KEEP_ALIVE_FRAME

    run_with_harness(tmp_path, body, [Gate()])


def test_tick_cancels_a_run_without_readers_also_after_a_failure(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        harness.ledger.failing = {"take_over": 1}
        harness.clock.time += 11
        await harness.engine.tick_once()
        assert await harness.show(accepted.response_id) is None
        await harness.engine.tick_once()
        final = await harness.show(accepted.response_id)
        assert final is not None
        assert final["status"] == "cancelled"
        assert harness.ledger.failing == {"take_over": 0}

    run_with_harness(tmp_path, body, [Gate()], abandon_after=10.0)

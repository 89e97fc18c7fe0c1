"""The engine as the wire sees it: deleting, and what is done now and then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from outlive.core.errors import NotFound
from outlive.core.events import KEEP_ALIVE_FRAME, read_frame, split_frames
from outlive.testing import Script, answer
from tests.engine.rig import Rig, play
from tests.support.scripting import Gate

DONE: Script = [answer("Hello")]


def test_deleting_what_has_ended_hides_it_at_once(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        final = await rig.answer()
        with pytest.raises(NotFound):
            await rig.engine.delete("bob", final["id"])
        await rig.engine.delete("ann", final["id"])
        for _ in range(2):
            with pytest.raises(NotFound):
                await rig.engine.delete("ann", final["id"])

    play(tmp_path, scene, DONE)


def test_deleting_what_runs_cancels_it_first(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await rig.create()
        await gate.reached.wait()
        cursor = rig.reader.follow(accepted.response_id)
        reading = asyncio.create_task(_read_all(rig, accepted.response_id))
        await cursor.read()
        await rig.engine.delete("ann", accepted.response_id)
        assert (await reading)[-1] == "response.cancelled"
        assert rig.backend.left == 1
        with pytest.raises(NotFound):
            await rig.show(accepted.response_id)
        await rig.sweeper.sweep()
        with pytest.raises(NotFound):
            await rig.frames(accepted.response_id)

    gate = Gate()
    play(tmp_path, scene, ["Hel", gate])


async def _read_all(rig: Rig, response_id: str) -> list[str]:
    cursor, types = rig.reader.follow(response_id), []
    while frames := await cursor.read():
        types += [read_frame(frame)["type"] for frame in split_frames(frames)]
    return types


def test_now_and_then_idle_readers_are_woken_for_their_keep_alive(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await rig.create()
        cursor = rig.reader.follow(accepted.response_id, 1)
        reading = asyncio.create_task(cursor.read())
        ticking = asyncio.create_task(rig.engine.tick((rig.lives, rig.fleeting_lives), 0.005))
        await asyncio.sleep(0.02)
        assert not reading.done()
        rig.clock.time += 15
        assert await reading == KEEP_ALIVE_FRAME
        ticking.cancel()

    play(tmp_path, scene, [Gate()])


def test_now_and_then_what_nobody_reads_is_cancelled_also_after_a_failure(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await rig.create()
        engine = msgspec.structs.replace(rig.engine, abandon_after=10.0)
        rig.ledger.failing = {"take_over": 1}
        rig.clock.time += 11
        ticking = asyncio.create_task(engine.tick((rig.lives,), 0.005))
        while (final := await rig.show(accepted.response_id)) is None:
            await asyncio.sleep(0.001)
        assert final["status"] == "cancelled"
        assert rig.ledger.failing == {"take_over": 0}
        ticking.cancel()

    play(tmp_path, scene, [Gate()])

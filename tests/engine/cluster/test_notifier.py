"""The crier rings for what is read elsewhere, as long as that is said again, and for nothing else."""

from __future__ import annotations

import asyncio

import pytest

from outlive.engine.cluster.notifier import WANTED_SECONDS
from tests.engine.mirror_harness import ADDED, Stage, deltas, read_to_end
from tests.engine.virtual_clock import pass_time, run_virtually, turn


def test_nobody_rings_for_what_is_read_nowhere_else() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        reading = asyncio.create_task(read_to_end(stage.there.reader.follow("resp_1")))
        await run.commit(ADDED, *deltas(3))
        await turn()
        await run.finish()
        assert await reading == run.bytes
        assert stage.bus.rung == []

    run_virtually(body())


def test_what_nobody_reads_any_more_is_forgotten_on_both_sides() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        cursor = stage.here.reader.follow("resp_1")
        await cursor.read()
        reading = asyncio.create_task(cursor.read())
        await turn(20)
        assert (len(stage.here.mirrors), len(stage.there.notifier), run.live.readers) == (1, 1, 1)
        cursor.stop()
        await reading
        cursor.leave()
        stage.here.mirrors.poll_all()
        assert len(stage.here.mirrors) == 0
        await pass_time(WANTED_SECONDS + 1)
        stage.there.live.wake_all()
        await turn()
        assert (len(stage.there.notifier), run.live.readers) == (0, 0)
        assert run.live.read_at == pytest.approx(stage.there.clock.monotonic())
        rung = len(stage.bus.rung)
        await run.commit(ADDED)
        await turn()
        assert len(stage.bus.rung) == rung

    run_virtually(body())


def test_whoever_reads_on_says_so_again() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        cursor = stage.here.reader.follow("resp_1")
        await cursor.read()
        reading = asyncio.create_task(cursor.read())
        for _ in range(10):
            await pass_time(WANTED_SECONDS / 3)
            stage.here.mirrors.subscribe_all()
            stage.there.live.wake_all()
        await run.commit(ADDED)
        await turn(10)
        assert reading.done()

    run_virtually(body())

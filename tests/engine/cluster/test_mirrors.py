"""Readers of what runs on another node: rung for, or found by looking; one look for all; nothing lost or doubled."""

from __future__ import annotations

import asyncio

import pytest

from outlive.core.events import KEEP_ALIVE_FRAME, split_frames
from outlive.engine.cluster.mirrors import LOOK_SECONDS, PAGE_BYTES, SECOND_LOOK_SECONDS
from outlive.engine.delivery.reader import StreamInterrupted
from outlive.ports.bell import Ring
from tests.engine.mirror_harness import ADDED, Here, Stage, deltas, read_to_end, rounds
from tests.engine.virtual_clock import pass_time, run_virtually, turn

# -- by the bell


def test_a_reader_on_another_node_is_rung_awake_at_once() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        reading = asyncio.create_task(read_to_end(stage.here.reader.follow("resp_1")))
        await turn(10)
        for count in (1, 3, 2):
            await run.commit(ADDED, *deltas(count))
            await turn(10)
        await run.finish()
        assert await reading == run.bytes
        assert asyncio.get_running_loop().time() == 0.0

    run_virtually(body())


def test_many_readers_of_one_response_cost_one_look() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        cursors = [stage.here.reader.follow("resp_1") for _ in range(50)]
        readings = [asyncio.create_task(read_to_end(cursor)) for cursor in cursors]
        await turn(20)
        await pass_time(SECOND_LOOK_SECONDS * 2)
        stage.journal.looks.clear()
        reads = stage.journal.reads
        await run.commit(ADDED, *deltas(3))
        await turn(20)
        assert stage.journal.looks == [1]
        await run.finish()
        assert {await reading for reading in readings} == {run.bytes}
        assert stage.journal.reads == reads

    run_virtually(body())


def test_what_is_committed_before_the_runner_hears_of_us_is_found_by_a_second_look() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        stage.bus.cut = True  # the first word is lost
        cursor = stage.here.reader.follow("resp_1")
        reading = asyncio.create_task(read_to_end(cursor))
        await turn(10)
        await run.commit(ADDED)
        await run.finish()
        assert await reading == run.bytes
        assert asyncio.get_running_loop().time() == pytest.approx(SECOND_LOOK_SECONDS)

    run_virtually(body())


def test_a_node_that_takes_over_is_asked_to_ring() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        reading = asyncio.create_task(read_to_end(stage.here.reader.follow("resp_1")))
        await turn(10)
        third = Here(stage.journal, stage.bus)
        run.move(third)
        stage.bus.bells[0].ring(Ring("taken", "resp_1", 2))
        await turn(10)
        await run.commit(ADDED, *deltas(2))
        await turn(10)
        await run.finish()
        assert await reading == run.bytes
        assert asyncio.get_running_loop().time() == 0.0

    run_virtually(body())


def test_a_run_that_is_over_before_its_new_node_hears_of_us_is_found_by_a_second_look() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        reading = asyncio.create_task(read_to_end(stage.here.reader.follow("resp_1")))
        await pass_time(1.0)
        third = Here(stage.journal, stage.bus)
        run.move(third)
        stage.bus.bells[0].ring(Ring("taken", "resp_1", 2))
        await turn(1)
        stage.bus.cut = True
        await turn(3)
        await run.commit(ADDED)
        await run.finish()
        assert await reading == run.bytes
        assert asyncio.get_running_loop().time() <= 1.0 + SECOND_LOOK_SECONDS

    run_virtually(body())


# -- with the bell dead


def test_with_the_bell_dead_readers_are_at_most_a_second_late_and_lose_nothing() -> None:
    async def body() -> None:
        stage = Stage()
        stage.bus.cut = True
        run = stage.start()
        going = asyncio.create_task(rounds(stage.here))
        cursor = stage.here.reader.follow("resp_1")
        got = await cursor.read()
        for _ in range(5):
            await pass_time(0.7)
            await run.commit(*deltas(3))
            since = asyncio.get_running_loop().time()
            while got != run.bytes:
                got += await cursor.read()
            assert asyncio.get_running_loop().time() - since <= 1.0
        await run.finish()
        assert got + await read_to_end(cursor) == run.bytes
        going.cancel()

    run_virtually(body())


def test_thousands_that_are_idle_cost_one_look_a_second() -> None:
    async def body() -> None:
        stage = Stage()
        runs = [stage.start(f"resp_{n}") for n in range(3000)]
        readings = [asyncio.create_task(read_to_end(stage.here.reader.follow(f"resp_{n}"))) for n in range(3000)]
        await pass_time(1.0)
        going = asyncio.create_task(rounds(stage.here))
        await pass_time(0.5)
        stage.journal.looks.clear()
        reads = stage.journal.reads
        await pass_time(10.0)
        assert sum(stage.journal.looks) == 10 * 3000
        assert len(stage.journal.looks) == 10 * 3
        assert stage.journal.reads == reads
        for run in runs:
            await run.finish()
        await asyncio.gather(*readings)
        going.cancel()

    run_virtually(body())


def test_a_storage_that_is_down_delays_readers_and_cuts_none() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        going = asyncio.create_task(rounds(stage.here))
        reading = asyncio.create_task(read_to_end(stage.here.reader.follow("resp_1")))
        await pass_time(0.2)
        stage.journal.failing = True
        await run.commit(ADDED)
        await run.finish()
        await pass_time(3.0)
        assert not reading.done()
        stage.journal.failing = False
        await pass_time(1.0)
        assert await reading == run.bytes
        going.cancel()

    run_virtually(body())


def test_a_look_that_hangs_is_given_up_for_another() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        going = asyncio.create_task(rounds(stage.here))
        reading = asyncio.create_task(read_to_end(stage.here.reader.follow("resp_1")))
        await pass_time(0.2)
        stage.journal.hangs = True
        await run.commit(ADDED)
        await turn(20)
        stage.journal.hangs = False
        await run.finish()
        assert await reading == run.bytes
        assert asyncio.get_running_loop().time() <= 0.2 + LOOK_SECONDS + 1.0
        going.cancel()

    run_virtually(body())


# -- where readers come in


def test_a_reader_that_comes_late_reads_the_journal_and_then_the_echo() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        first = asyncio.create_task(read_to_end(stage.here.reader.follow("resp_1")))
        await run.commit(ADDED, *deltas(1000, "y" * 500))
        await turn(50)
        late = asyncio.create_task(read_to_end(stage.here.reader.follow("resp_1")))
        resumed = asyncio.create_task(read_to_end(stage.here.reader.follow("resp_1", 700)))
        await turn(50)
        await run.commit(*deltas(10))
        await turn(50)
        await run.finish()
        assert await first == await late == run.bytes
        assert await resumed == b"".join(split_frames(run.bytes)[701:])

    run_virtually(body())


def test_an_echo_that_is_far_behind_catches_up_page_by_page() -> None:
    async def body() -> None:
        stage = Stage()
        stage.bus.cut = True
        run = stage.start()
        cursor = stage.here.reader.follow("resp_1")
        got = await cursor.read()
        reading = asyncio.create_task(read_to_end(cursor))
        await pass_time(1.0)
        for _ in range(5):
            await run.commit(*deltas(100, "z" * 1000))
        assert len(run.bytes) > 5 * PAGE_BYTES
        stage.here.mirrors.poll_all()
        await turn(50)
        await run.finish()
        stage.here.mirrors.poll_all()
        assert got + await reading == run.bytes

    run_virtually(body())


@pytest.mark.parametrize("beyond", [5, 1 << 53])
def test_a_reader_beyond_the_end_disturbs_nobody(beyond: int) -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        ahead = asyncio.create_task(read_to_end(stage.here.reader.follow("resp_1", beyond)))
        await turn(20)
        other = asyncio.create_task(read_to_end(stage.here.reader.follow("resp_1")))
        await turn(20)
        await run.commit(ADDED)
        await turn(20)
        await run.finish()
        assert await other == run.bytes
        assert await ahead == b""
        assert stage.journal.reads < 12

    run_virtually(body())


def test_a_reader_at_the_very_end_goes_on_from_there() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        await run.commit(ADDED)
        reading = asyncio.create_task(read_to_end(stage.here.reader.follow("resp_1", 2)))
        await turn(20)
        await run.commit(*deltas(2))
        await turn(20)
        await run.finish()
        assert await reading == b"".join(split_frames(run.bytes)[3:])

    run_virtually(body())


# -- where it goes on


def test_a_response_that_begins_to_run_here_is_read_here() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        cursor = stage.here.reader.follow("resp_1")
        reading = asyncio.create_task(read_to_end(cursor))
        await turn(20)
        run.move(stage.here)
        await turn(20)
        assert run.live.readers == 1
        assert len(stage.here.mirrors) == 0
        reads, looks = stage.journal.reads, len(stage.journal.looks)
        await run.commit(ADDED, *deltas(2))
        await run.finish()
        assert await reading == run.bytes
        assert (stage.journal.reads, len(stage.journal.looks)) == (reads, looks)

    run_virtually(body())


def test_a_response_that_was_taken_from_here_is_read_as_an_echo() -> None:
    async def body() -> None:
        stage = Stage()
        run = stage.start()
        reading = asyncio.create_task(read_to_end(stage.there.reader.follow("resp_1")))
        await run.commit(ADDED)
        await turn(20)
        run.move(stage.here)
        await turn(20)
        await run.commit(*deltas(3))
        await turn(20)
        await run.finish()
        assert await reading == run.bytes

    run_virtually(body())


def test_a_response_that_is_deleted_cuts_its_readers() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        cursor = stage.here.reader.follow("resp_1")
        await cursor.read()
        reading = asyncio.create_task(read_to_end(cursor))
        await turn(20)
        stage.ledger.forget("resp_1")
        stage.here.mirrors.poll_all()
        with pytest.raises(StreamInterrupted):
            await reading
        assert len(stage.here.mirrors) == 0

    run_virtually(body())


def test_an_idle_reader_of_an_echo_gets_its_keep_alive_and_notices_the_end_of_the_server() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        cursor = stage.here.reader.follow("resp_1")
        await cursor.read()

        async def tick() -> None:
            while True:
                await asyncio.sleep(5.0)
                stage.here.live.wake_all()

        ticking = asyncio.create_task(tick())
        assert await cursor.read() == KEEP_ALIVE_FRAME
        assert asyncio.get_running_loop().time() == pytest.approx(15.0)
        stage.here.draining = True  # only its own runs: what runs elsewhere is followed on
        reading = asyncio.create_task(cursor.read())
        await pass_time(6.0)
        assert not reading.done()
        stage.here.leaving = True
        with pytest.raises(StreamInterrupted):
            await reading
        ticking.cancel()

    run_virtually(body())

"""Readers of a response on another node: rung for or found by polling, one query for all, nothing lost or doubled."""

from __future__ import annotations

import asyncio

import pytest

from outlive.core.errors import StorageUnavailable
from outlive.core.events import KEEP_ALIVE_FRAME, split_frames
from outlive.engine.cluster.mirrors import MAX_QUERIED, PAGE_BYTES, QUERY_SECONDS, SECOND_LOOK_SECONDS
from outlive.engine.delivery.reader import StreamInterrupted
from outlive.ports.bell import Ring
from tests.engine.live_responses import ADDED, deltas, read_to_end
from tests.engine.mirror_harness import TwoNodes
from tests.engine.virtual_clock import elapsed, in_virtual_time, pass_time, turn

# -- with the bell


@in_virtual_time
async def test_a_reader_on_another_node_is_woken_by_the_bell_at_once() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    reading = asyncio.create_task(read_to_end(nodes.reading.follow()))
    await turn(10)
    for count in (1, 3, 2):
        await response.commit(ADDED, *deltas(count))
        await turn(10)
    await response.finish()
    assert await reading == response.bytes
    assert elapsed() == 0.0


@in_virtual_time
async def test_many_readers_of_one_response_share_one_query() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    readings = [asyncio.create_task(read_to_end(nodes.reading.follow())) for _ in range(50)]
    await turn(20)
    await pass_time(SECOND_LOOK_SECONDS * 2)
    nodes.journal.polls.clear()
    reads = nodes.journal.reads
    await response.commit(ADDED, *deltas(3))
    await turn(20)
    assert nodes.journal.polls == [1]
    await response.finish()
    assert {await reading for reading in readings} == {response.bytes}
    assert nodes.journal.reads == reads


@in_virtual_time
async def test_events_committed_before_the_subscription_arrives_are_found_by_a_second_look() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    nodes.bus.cut = True  # the subscription is lost
    reading = asyncio.create_task(read_to_end(nodes.reading.follow()))
    await turn(10)
    await response.commit(ADDED)
    await response.finish()
    assert await reading == response.bytes
    assert elapsed() == pytest.approx(SECOND_LOOK_SECONDS)


@in_virtual_time
async def test_a_node_that_takes_a_response_over_is_subscribed_to() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    reading = asyncio.create_task(read_to_end(nodes.reading.follow()))
    await turn(10)
    third = nodes.add_node()
    response.move(third.live)
    nodes.running.bell.ring(Ring("taken", "resp_1", 2))
    await turn(10)
    await response.commit(ADDED, *deltas(2))
    await turn(10)
    await response.finish()
    assert await reading == response.bytes
    assert elapsed() == 0.0


@in_virtual_time
async def test_a_run_that_ends_before_its_new_node_is_subscribed_to_is_found_by_a_second_look() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    reading = asyncio.create_task(read_to_end(nodes.reading.follow()))
    await pass_time(1.0)
    third = nodes.add_node()
    response.move(third.live)
    nodes.running.bell.ring(Ring("taken", "resp_1", 2))
    await turn(1)
    nodes.bus.cut = True
    await turn(3)
    await response.commit(ADDED)
    await response.finish()
    assert await reading == response.bytes
    assert elapsed() <= 1.0 + SECOND_LOOK_SECONDS


# -- without the bell


@in_virtual_time
async def test_without_the_bell_readers_are_at_most_a_second_late_and_lose_nothing() -> None:
    nodes = TwoNodes()
    nodes.bus.cut = True
    response = nodes.start()
    polling = asyncio.create_task(nodes.reading.poll())
    cursor = nodes.reading.follow()
    frames = await cursor.read()
    for _ in range(5):
        await pass_time(0.7)
        await response.commit(*deltas(3))
        since = elapsed()
        while frames != response.bytes:
            frames += await cursor.read()
        assert elapsed() - since <= 1.0
    await response.finish()
    assert frames + await read_to_end(cursor) == response.bytes
    polling.cancel()


@in_virtual_time
async def test_thousands_of_idle_responses_cost_a_few_queries_a_second() -> None:
    nodes = TwoNodes()
    count = 3 * MAX_QUERIED
    responses = [nodes.start(f"resp_{n}") for n in range(count)]
    readings = [asyncio.create_task(read_to_end(nodes.reading.follow(f"resp_{n}"))) for n in range(count)]
    await pass_time(1.0)
    polling = asyncio.create_task(nodes.reading.poll())
    await pass_time(0.5)
    nodes.journal.polls.clear()
    reads = nodes.journal.reads
    await pass_time(10.0)
    assert sum(nodes.journal.polls) == 10 * count
    assert len(nodes.journal.polls) == 10 * 3
    assert nodes.journal.reads == reads
    for response in responses:
        await response.finish()
    await asyncio.gather(*readings)
    polling.cancel()


@pytest.mark.parametrize("error", [StorageUnavailable("read"), RuntimeError("a mistake of ours")])
@in_virtual_time
async def test_a_query_that_fails_delays_readers_and_interrupts_none(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = TwoNodes()
    response = nodes.start()
    polling = asyncio.create_task(nodes.reading.poll())
    reading = asyncio.create_task(read_to_end(nodes.reading.follow()))
    await pass_time(0.2)
    nodes.journal.error = error
    await response.commit(ADDED)
    await response.finish()
    await pass_time(3.0)
    assert not reading.done()
    nodes.journal.error = None
    await pass_time(1.0)
    assert await reading == response.bytes
    assert ("a mistake of ours" in caplog.text) is isinstance(error, RuntimeError)
    polling.cancel()


@in_virtual_time
async def test_a_query_that_hangs_is_given_up_for_another() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    polling = asyncio.create_task(nodes.reading.poll())
    reading = asyncio.create_task(read_to_end(nodes.reading.follow()))
    await pass_time(0.2)
    nodes.journal.hanging = True
    await response.commit(ADDED)
    await turn(20)
    nodes.journal.hanging = False
    await response.finish()
    assert await reading == response.bytes
    assert elapsed() <= 0.2 + QUERY_SECONDS + 1.0
    polling.cancel()


# -- the position at which readers join


@in_virtual_time
async def test_a_reader_that_comes_late_reads_the_journal_and_then_the_mirror() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    first = asyncio.create_task(read_to_end(nodes.reading.follow()))
    await response.commit(ADDED, *deltas(1000, "y" * 500))
    await turn(50)
    late = asyncio.create_task(read_to_end(nodes.reading.follow()))
    resumed = asyncio.create_task(read_to_end(nodes.reading.follow(after=700)))
    await turn(50)
    await response.commit(*deltas(10))
    await turn(50)
    await response.finish()
    assert await first == await late == response.bytes
    assert await resumed == b"".join(split_frames(response.bytes)[701:])


@in_virtual_time
async def test_a_mirror_that_is_far_behind_catches_up_page_by_page() -> None:
    nodes = TwoNodes()
    nodes.bus.cut = True
    response = nodes.start()
    cursor = nodes.reading.follow()
    frames = await cursor.read()
    reading = asyncio.create_task(read_to_end(cursor))
    await pass_time(1.0)
    for _ in range(5):
        await response.commit(*deltas(100, "z" * 1000))
    assert len(response.bytes) > 5 * PAGE_BYTES
    nodes.reading.mirrors.poll_all()
    await turn(50)
    await response.finish()
    nodes.reading.mirrors.poll_all()
    assert frames + await reading == response.bytes


@pytest.mark.parametrize("beyond", [5, 1 << 53])
@in_virtual_time
async def test_a_reader_beyond_the_newest_event_does_not_disturb_other_readers(beyond: int) -> None:
    nodes = TwoNodes()
    response = nodes.start()
    ahead = asyncio.create_task(read_to_end(nodes.reading.follow(after=beyond)))
    await turn(20)
    other = asyncio.create_task(read_to_end(nodes.reading.follow()))
    await turn(20)
    await response.commit(ADDED)
    await turn(20)
    await response.finish()
    assert await other == response.bytes
    assert await ahead == b""
    assert nodes.journal.reads < 12


@in_virtual_time
async def test_a_reader_that_begins_at_the_newest_event_goes_on_from_there() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    await response.commit(ADDED)
    reading = asyncio.create_task(read_to_end(nodes.reading.follow(after=2)))
    await turn(20)
    await response.commit(*deltas(2))
    await turn(20)
    await response.finish()
    assert await reading == b"".join(split_frames(response.bytes)[3:])


# -- responses that move, end or are deleted


@in_virtual_time
async def test_a_response_that_moves_to_the_readers_node_is_read_from_its_own_tail() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    reading = asyncio.create_task(read_to_end(nodes.reading.follow()))
    await turn(20)
    response.move(nodes.reading.live)
    await turn(20)
    assert response.live.tail.readers == 1
    assert len(nodes.reading.mirrors._tails) == 0
    reads, polls = nodes.journal.reads, len(nodes.journal.polls)
    await response.commit(ADDED, *deltas(2))
    await response.finish()
    assert await reading == response.bytes
    assert (nodes.journal.reads, len(nodes.journal.polls)) == (reads, polls)


@in_virtual_time
async def test_a_response_that_leaves_the_readers_node_is_read_from_a_mirror() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    reading = asyncio.create_task(read_to_end(nodes.running.follow()))
    await response.commit(ADDED)
    await turn(20)
    response.move(nodes.reading.live)
    await turn(20)
    assert len(nodes.running.mirrors._tails) == 1
    await response.commit(*deltas(3))
    await turn(20)
    await response.finish()
    assert await reading == response.bytes


@in_virtual_time
async def test_the_deletion_of_a_response_interrupts_its_readers() -> None:
    nodes = TwoNodes()
    nodes.start()
    cursor = nodes.reading.follow()
    await cursor.read()
    reading = asyncio.create_task(read_to_end(cursor))
    await turn(20)
    nodes.ledger.forget("resp_1")
    nodes.reading.mirrors.poll_all()
    with pytest.raises(StreamInterrupted):
        await reading
    assert len(nodes.reading.mirrors._tails) == 0


@in_virtual_time
async def test_an_idle_reader_of_a_mirror_gets_keep_alives_until_a_shutdown_interrupts_it() -> None:
    nodes = TwoNodes()
    nodes.start()
    cursor = nodes.reading.follow()
    await cursor.read()

    async def tick() -> None:
        while True:
            await asyncio.sleep(5.0)
            nodes.reading.live.wake_all()

    ticking = asyncio.create_task(tick())
    assert await cursor.read() == KEEP_ALIVE_FRAME
    assert elapsed() == pytest.approx(15.0)
    nodes.reading.shutdown.draining = True  # concerns the node's own runs: those of other nodes are followed on
    reading = asyncio.create_task(cursor.read())
    await pass_time(6.0)
    assert not reading.done()
    nodes.reading.shutdown.interrupting = True
    with pytest.raises(StreamInterrupted):
        await reading
    ticking.cancel()

"""Readers follow a response everywhere: in memory, in the journal, before it began, taken over, ended or deleted."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.events import KEEP_ALIVE_FRAME, AnyDraft, Draft, is_last, split_frames
from outlive.engine.delivery.live import LiveResponse, LiveResponses, State
from outlive.engine.delivery.reader import PAGE_BYTES, Cursor, Reader, Shutdown, StreamInterrupted, WriteNow
from outlive.engine.delivery.tail import BATCH_BYTES, TAIL_BYTES
from outlive.engine.ephemeral import MemoryLedger
from tests.engine.harness import FixedClock
from tests.engine.live_responses import ADDED, COMPLETED, CountingJournal, JournaledResponse, deltas, read_to_end
from tests.engine.virtual_clock import elapsed, in_virtual_time, turn


class ReaderHarness:
    """One response, `resp_1`, on a journal in memory, and readers of it."""

    def __init__(self) -> None:
        self.clock = FixedClock()
        self.journal = CountingJournal()
        self.ledger = MemoryLedger(self.journal)
        self.live = LiveResponses()
        self.shutdown = Shutdown()
        self.reader = Reader(self.live, self.journal, self.clock, self.shutdown, 15.0)
        self.response: JournaledResponse

    def admit(self) -> None:
        self.response = JournaledResponse(self.ledger, self.live)

    def start(self) -> LiveResponse:
        """Admit the response and let it run here."""
        self.admit()
        return self.response.start(read_at=self.clock.monotonic(), just_admitted=True)

    async def commit(self, *drafts: AnyDraft) -> None:
        await self.response.commit(*drafts)

    async def finish(self, *, remove: bool = True, last: Draft = COMPLETED) -> None:
        await self.response.finish(remove=remove, last=last)

    def follow(self, after: int = -1) -> Cursor:
        return self.reader.follow("resp_1", after)

    @property
    def frames(self) -> list[bytes]:
        return self.response.frames


# -- a response that runs here


@in_virtual_time
async def test_one_commit_is_one_read() -> None:
    harness = ReaderHarness()
    harness.start()
    cursor = harness.follow()
    assert await cursor.read() == b"".join(harness.frames)
    await harness.commit(ADDED, *deltas(3))
    assert await cursor.read() == b"".join(harness.frames[2:])
    assert harness.journal.reads == 0


@in_virtual_time
async def test_a_reader_that_keeps_up_never_reads_the_journal() -> None:
    harness = ReaderHarness()
    harness.start()
    reading = asyncio.create_task(read_to_end(harness.follow()))
    await harness.commit(ADDED)
    for _ in range(200):
        await harness.commit(*deltas(5, "y" * 100))
        await turn()
    await harness.finish()
    assert await reading == b"".join(harness.frames)
    assert harness.journal.reads == 0


@in_virtual_time
async def test_a_slow_reader_falls_back_to_the_journal_and_misses_nothing() -> None:
    harness = ReaderHarness()
    harness.start()
    cursor = harness.follow()
    parts = [await cursor.read()]
    await harness.commit(ADDED)
    for n in range(400):
        await harness.commit(*deltas(5, "y" * 100))
        if n % 100 == 50:
            parts.append(await cursor.read())
    assert harness.journal.reads > 0
    await harness.finish(remove=False)
    parts.append(await read_to_end(cursor))
    assert b"".join(parts) == b"".join(harness.frames)
    assert all(len(part) <= PAGE_BYTES + TAIL_BYTES for part in parts[:-1])


@pytest.mark.parametrize("after", [-1, 0, 1, 2, 7])
@in_virtual_time
async def test_a_reader_may_begin_after_any_number(after: int) -> None:
    harness = ReaderHarness()
    harness.start()
    await harness.commit(ADDED, *deltas(3))
    await harness.commit(*deltas(3))
    reading = asyncio.create_task(read_to_end(harness.follow(after)))
    await turn()
    await harness.finish()
    from_tail = await reading
    assert from_tail == b"".join(harness.frames[after + 1 :])
    # The journal alone gives the same bytes.
    assert await read_to_end(harness.follow(after)) == from_tail


@in_virtual_time
async def test_readers_are_counted_from_their_first_read_until_they_close() -> None:
    harness = ReaderHarness()
    tail = harness.start().tail
    one, two = harness.follow(), harness.follow()
    await one.read()
    await two.read()
    assert tail.readers == 2
    harness.clock.time += 100
    one.close()
    assert (tail.readers, tail.read_at) == (1, harness.clock.monotonic())
    one.close()
    two.close()
    assert tail.readers == 0


# -- a response that does not run here, or not any more


@in_virtual_time
async def test_a_reader_waits_for_a_response_that_has_not_begun_here() -> None:
    harness = ReaderHarness()
    harness.admit()
    cursor = harness.follow()
    assert await cursor.read() == b"".join(harness.frames)
    reading = asyncio.create_task(cursor.read())
    await turn()
    assert not reading.done()
    harness.response.start()
    await harness.commit(ADDED)
    assert await reading == harness.frames[-1]


@in_virtual_time
async def test_a_response_that_began_and_ended_between_two_reads_is_read_to_its_end() -> None:
    harness = ReaderHarness()
    harness.admit()
    cursor = harness.follow()
    await cursor.read()
    reading = asyncio.create_task(read_to_end(cursor))
    await turn()
    harness.response.start()
    await harness.commit(ADDED)
    await harness.finish()
    assert await reading == b"".join(harness.frames[2:])


@in_virtual_time
async def test_a_reader_goes_on_with_the_run_that_has_taken_over() -> None:
    harness = ReaderHarness()
    first = harness.start()
    reading = asyncio.create_task(read_to_end(harness.follow()))
    await harness.commit(ADDED, *deltas(2))
    await turn()
    second = harness.response.start()
    assert first.state is State.LOST
    await harness.commit(*deltas(2))
    await turn()
    assert (first.tail.readers, second.tail.readers) == (0, 1)
    await harness.finish()
    assert await reading == b"".join(harness.frames)


@pytest.mark.parametrize("beyond", [0, 1, 100])
@in_virtual_time
async def test_a_reader_beyond_the_end_of_a_finished_response_ends_at_once(beyond: int) -> None:
    harness = ReaderHarness()
    harness.start()
    await harness.commit(ADDED)
    await harness.finish()
    cursor = harness.follow(len(harness.frames) - 1 + beyond)
    assert await cursor.read() == b""
    assert cursor.ended


@in_virtual_time
async def test_a_slow_reader_of_a_deleted_response_is_interrupted() -> None:
    harness = ReaderHarness()
    harness.start()
    cursor = harness.follow()
    await cursor.read()
    await harness.commit(ADDED)
    for _ in range(10):
        await harness.commit(*deltas(1, "y" * TAIL_BYTES))
    await harness.finish(remove=False)
    harness.ledger.forget("resp_1")
    with pytest.raises(StreamInterrupted):
        await cursor.read()


@in_virtual_time
async def test_a_reader_of_an_unknown_response_is_interrupted() -> None:
    with pytest.raises(StreamInterrupted):
        await ReaderHarness().reader.follow("resp_none").read()


# -- forwarding


def write_into(written: list[bytes]) -> WriteNow:
    def write_now(frames: bytes) -> bool:
        written.append(frames)
        return True

    return write_now


async def stream_to_end(cursor: Cursor, write_now: WriteNow, written: list[bytes]) -> None:
    """Read and forward in turns, as a connection does it."""
    while frames := await cursor.read():
        written.append(frames)
        if not cursor.ended:
            await cursor.forward_to(write_now)


@in_virtual_time
async def test_events_are_forwarded_in_the_call_that_shows_them_once_and_in_order() -> None:
    harness = ReaderHarness()
    harness.start()
    clients: list[list[bytes]] = [[], []]
    streaming = [
        asyncio.create_task(stream_to_end(harness.follow(), write_into(written), written)) for written in clients
    ]
    await turn()
    for drafts in ([ADDED], deltas(3), deltas(1, "y" * TAIL_BYTES), deltas(2)):
        await harness.commit(*drafts)  # returns from the call that shows them: no reader has had a turn since
        for written in clients:
            assert written[-1] == b"".join(harness.frames[-len(drafts) :])
    await harness.finish()
    await asyncio.gather(*streaming)
    assert [b"".join(written) for written in clients] == [b"".join(harness.frames)] * 2
    assert [len(written) for written in clients] == [6, 6]
    assert harness.journal.reads == 0


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), max_size=20), st.sampled_from([1, 1500]))
@in_virtual_time
async def test_a_client_that_is_slow_at_times_gets_every_event_once(
    commits: list[tuple[int, bool, bool]], size: int
) -> None:
    """Holds whenever the client is slow, however far the reader falls behind, and however large the events are."""
    harness = ReaderHarness()
    harness.start()
    written: list[bytes] = []
    slow = False

    def write_now(frames: bytes) -> bool:
        if not slow:
            written.append(frames)
        return not slow

    streaming = asyncio.create_task(stream_to_end(harness.follow(), write_now, written))
    await turn()
    await harness.commit(ADDED)
    for count, slow, pause in commits:  # noqa: B007 -- `write_now` looks at `slow`
        await harness.commit(*deltas(count, "y" * size))
        if pause:
            await turn()
    await harness.finish(remove=False)
    await streaming
    assert split_frames(b"".join(written)) == harness.frames


@pytest.mark.parametrize("why", ["stopped", "lost", "ended", "interrupting"])
@pytest.mark.parametrize("early", [False, True], ids=["meanwhile", "before"])
@in_virtual_time
async def test_forwarding_returns_when_something_else_is_to_be_done(why: str, early: bool) -> None:
    """Also if that came up before it began, while the last frames were being sent: no other signal may ever follow."""
    harness = ReaderHarness()
    live = harness.start()
    cursor = harness.follow()
    written: list[bytes] = []
    await cursor.read()
    forwarding = asyncio.create_task(cursor.forward_to(write_into(written)))
    if not early:
        await turn()
        await harness.commit(ADDED)
        assert written == [harness.frames[-1]]
    if why == "stopped":
        cursor.stop()
    elif why == "lost":
        live.lose()
    elif why == "ended":
        await harness.finish()
    else:
        harness.shutdown.interrupting = True
        harness.live.wake_all()
    await forwarding
    assert (len(written), live.tail._followers) == (not early, [])
    if why == "stopped":
        assert (await cursor.read(), cursor.ended) == (b"", False)
    elif why == "ended":
        assert (await cursor.read(), cursor.ended) == (harness.frames[-1], True)
    elif why == "interrupting":
        with pytest.raises(StreamInterrupted):
            await cursor.read()


@in_virtual_time
async def test_forwarding_returns_at_once_for_a_reader_that_is_behind() -> None:
    harness = ReaderHarness()
    harness.start()
    cursor = harness.follow()
    await cursor.read()
    await harness.commit(ADDED)
    await cursor.forward_to(lambda _: pytest.fail("this event is for `read`"))
    assert await cursor.read() == harness.frames[-1]


@in_virtual_time
async def test_a_reader_that_waits_for_the_end_reads_at_once_while_the_run_waits_for_it() -> None:
    harness = ReaderHarness()
    live = harness.start()
    cursor = harness.follow()
    await cursor.read()
    read_up_to: list[int] = []
    live.tail.on_read = read_up_to.append
    reading = asyncio.create_task(cursor.read_to_end())
    await turn()
    assert read_up_to == [live.tail.committed]
    reading.cancel()


@in_virtual_time
async def test_a_reader_that_waits_for_the_end_is_woken_by_nothing_before_it() -> None:
    harness = ReaderHarness()
    live = harness.start()
    cursor = harness.follow(live.tail.committed)
    reading = asyncio.create_task(cursor.read_to_end())
    await turn()
    for drafts in ([ADDED], deltas(3), deltas(2)):
        await harness.commit(*drafts)  # returns from the call that shows them: no reader has had a turn since
        assert (cursor.after, live.tail._waiters, reading.done()) == (live.tail.committed, [], False)
    await harness.finish()
    await reading
    assert (cursor.ended, cursor.final, harness.journal.reads) == (True, b"{}", 0)


@in_virtual_time
async def test_a_reader_that_waits_for_the_end_does_not_read_an_end_that_the_tail_is_too_short_for() -> None:
    harness = ReaderHarness()
    live = harness.start()
    cursor = harness.follow(live.tail.committed)
    reading = asyncio.create_task(cursor.read_to_end())
    await turn()
    long = {"id": "resp_1", "status": "completed", "output": "y" * BATCH_BYTES}
    await harness.finish(last=Draft("response.completed", {"response": long}))
    await reading
    assert (cursor.ended, cursor.final, harness.journal.reads) == (True, b"{}", 0)


@in_virtual_time
async def test_a_reader_that_waits_for_the_end_can_be_stopped() -> None:
    harness = ReaderHarness()
    harness.start()
    cursor = harness.follow()
    reading = asyncio.create_task(cursor.read_to_end())
    await turn()
    cursor.stop()
    await reading
    assert not cursor.ended


@in_virtual_time
async def test_a_reader_that_is_cancelled_while_forwarding_is_called_no_more() -> None:
    harness = ReaderHarness()
    live = harness.start()
    cursor = harness.follow()
    written: list[bytes] = []
    await cursor.read()
    forwarding = asyncio.create_task(cursor.forward_to(write_into(written)))
    await turn()
    assert len(live.tail._followers) == 1
    forwarding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forwarding
    assert live.tail._followers == []
    await harness.commit(ADDED)
    assert (written, await cursor.read()) == ([], harness.frames[-1])


@in_virtual_time
async def test_a_write_that_fails_concerns_its_own_reader_only() -> None:
    harness = ReaderHarness()
    live = harness.start()
    cursors = [harness.follow() for _ in range(3)]
    written: list[bytes] = []
    for cursor in cursors:
        await cursor.read()

    def fail(_: bytes) -> bool:
        raise RuntimeError("the handler is closed")

    failing, forwarding = (
        asyncio.create_task(cursor.forward_to(write_now))
        for cursor, write_now in zip(cursors, (fail, write_into(written)), strict=False)
    )
    reading = asyncio.create_task(cursors[2].read())
    await turn()
    await harness.commit(ADDED)
    assert written == [harness.frames[-1]]
    assert await reading == harness.frames[-1]
    with pytest.raises(RuntimeError, match="closed"):
        await failing
    harness.live.wake_all()
    await forwarding
    assert live.tail._followers == []


@in_virtual_time
async def test_an_idle_stream_that_is_forwarded_gets_keep_alives_too() -> None:
    harness = ReaderHarness()
    harness.start()
    written: list[bytes] = []
    streaming = asyncio.create_task(stream_to_end(harness.follow(), write_into(written), written))
    await turn()
    for _ in range(2):
        harness.clock.time += 10
        await harness.commit(ADDED)
        count = len(written)
        for _ in range(3):  # the first tick finds it idle, and the keep-alive is due 15 seconds later
            harness.live.wake_all()
            await turn()
            assert len(written) == count
            harness.clock.time += 5
        harness.live.wake_all()
        await turn()
        assert written[count:] == [KEEP_ALIVE_FRAME]
    streaming.cancel()


# -- keep-alives and shutdown


@in_virtual_time
async def test_an_idle_stream_gets_a_keep_alive_when_one_is_due_and_not_before() -> None:
    harness = ReaderHarness()
    harness.start()
    cursor = harness.follow(1)
    reading = asyncio.create_task(cursor.read())
    for seconds in (5, 5, 4.9):
        await turn()
        harness.clock.time += seconds
        harness.live.wake_all()
    await turn()
    assert not reading.done()
    harness.clock.time += 0.1
    harness.live.wake_all()
    assert await reading == KEEP_ALIVE_FRAME
    # The next one is due as long again, and an event puts it off.
    reading = asyncio.create_task(cursor.read())
    await turn()
    harness.clock.time += 14
    await harness.commit(ADDED)
    assert await reading == harness.frames[-1]
    reading = asyncio.create_task(cursor.read())
    await turn()
    harness.clock.time += 14
    harness.live.wake_all()
    await turn()
    assert not reading.done()
    reading.cancel()


@in_virtual_time
async def test_a_stream_that_waits_for_its_response_to_begin_gets_a_keep_alive() -> None:
    harness = ReaderHarness()
    harness.admit()
    reading = asyncio.create_task(harness.follow(1).read())
    await turn()
    harness.clock.time += 15
    harness.live.wake_all()
    assert await reading == KEEP_ALIVE_FRAME


@in_virtual_time
async def test_a_stream_gets_all_durable_events_before_a_shutdown_interrupts_it() -> None:
    harness = ReaderHarness()
    harness.start()
    cursor = harness.follow()
    harness.shutdown.interrupting = True
    assert await cursor.read() == b"".join(harness.frames)
    with pytest.raises(StreamInterrupted):
        await cursor.read()


@in_virtual_time
async def test_a_waiting_stream_is_interrupted_by_a_shutdown() -> None:
    harness = ReaderHarness()
    harness.start()
    reading = asyncio.create_task(harness.follow(1).read())
    await turn()
    harness.shutdown.interrupting = True
    harness.live.wake_all()
    with pytest.raises(StreamInterrupted):
        await reading


@in_virtual_time
async def test_while_draining_a_running_response_is_followed_and_a_released_one_is_not() -> None:
    harness = ReaderHarness()
    live = harness.start()
    reading = asyncio.create_task(harness.follow(1).read())
    await turn()
    harness.shutdown.draining = True
    harness.live.wake_all()
    await turn()
    assert not reading.done()
    harness.live.remove(live)
    live.lose()
    with pytest.raises(StreamInterrupted):
        await reading


@in_virtual_time
async def test_a_finished_response_can_be_read_to_its_end_during_a_shutdown() -> None:
    harness = ReaderHarness()
    harness.start()
    await harness.finish()
    harness.shutdown.draining = harness.shutdown.interrupting = True
    assert is_last(await read_to_end(harness.follow()))


@pytest.mark.parametrize("runs", [True, False])
@in_virtual_time
async def test_stopping_a_cursor_makes_its_waiting_read_return(runs: bool) -> None:
    harness = ReaderHarness()
    if runs:
        harness.start()
    else:
        harness.admit()
    cursor = harness.follow(1)
    reading = asyncio.create_task(cursor.read())
    await turn()
    cursor.stop()
    assert await reading == b""
    assert (cursor.stopped, cursor.ended) == (True, False)


# -- whole responses


@in_virtual_time
async def test_the_fold_of_a_running_response_comes_from_memory() -> None:
    harness = ReaderHarness()
    live = harness.start()
    await harness.commit(ADDED, *deltas(2))
    assert await harness.reader.fold("resp_1") is live.fold
    assert harness.journal.reads == 0
    live.lose()
    replayed = await harness.reader.fold("resp_1")
    assert replayed.response() == live.fold.response()
    assert harness.journal.reads > 0


@in_virtual_time
async def test_headers_come_from_memory_or_in_one_query_from_the_journal() -> None:
    harness = ReaderHarness()
    live = harness.start()
    elsewhere = [JournaledResponse(harness.ledger, LiveResponses(), f"resp_{n}") for n in (2, 3)]
    ids = ["resp_1", *(each.lease.response_id for each in elsewhere), "resp_none"]
    headers = await harness.reader.headers(ids)
    assert headers == dict.fromkeys(ids[:3], live.fold.header)
    assert headers["resp_1"] is live.fold.header
    assert harness.journal.polls == [3]


@in_virtual_time
async def test_waiting_for_the_end_returns_the_final_object() -> None:
    harness = ReaderHarness()
    live = harness.start()
    waiting = asyncio.create_task(harness.reader.wait_end("resp_1"))
    await harness.commit(ADDED)
    await turn()
    assert not waiting.done()
    await harness.finish()
    assert await waiting == b"{}"
    assert live.tail.readers == 0


@in_virtual_time
async def test_waiting_for_the_end_stops_at_its_time_limit() -> None:
    harness = ReaderHarness()
    live = harness.start()
    assert await harness.reader.wait_end("resp_1", 30) is None
    assert elapsed() == pytest.approx(30)
    assert live.tail.readers == 0


@in_virtual_time
async def test_the_end_of_a_response_that_ended_before_is_found_in_the_journal() -> None:
    harness = ReaderHarness()
    harness.start()
    await harness.finish()
    assert await harness.reader.wait_end("resp_1") is None
    assert split_frames(await read_to_end(harness.follow())) == harness.frames

"""Readers follow a response wherever it is: in memory, in the journal, not begun, taken over, ended or gone."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.events import KEEP_ALIVE_FRAME, AnyDraft, Channel, Delta, Draft, is_last, number, split_frames
from outlive.core.fold import Fold
from outlive.core.grammar import OUTPUT_TEXT
from outlive.engine.delivery.live import TAIL_BYTES, LiveResponse, LiveResponses
from outlive.engine.delivery.reader import PAGE_BYTES, Cursor, Pour, Reader, StreamInterrupted
from outlive.ports.journal import Batch
from outlive.ports.ledger import AppendResult, Closing, Lease
from outlive.storage.memory import MemoryJournal, MemoryLedger
from tests.core.journals import fold_of, frames_of, opening
from tests.engine.harness import FixedClock
from tests.engine.virtual_clock import run_virtually, turn

CHANNEL = Channel(OUTPUT_TEXT, "msg_1", 0)
ADDED = Draft(
    "response.output_item.added", {"output_index": 0, "item": {"id": "msg_1", "type": "message", "content": []}}
)
LAST = Draft("response.completed", {"response": {"id": "resp_1", "status": "completed"}})


class CountingJournal(MemoryJournal):
    reads = 0

    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        self.reads += 1
        return await super().read(response_id, after, max_bytes)


class Stage:
    """A journal in memory, a live response over it, and readers."""

    def __init__(self) -> None:
        self.clock = FixedClock()
        self.journal = CountingJournal()
        self.ledger = MemoryLedger(self.journal)
        self.live = LiveResponses()
        self.draining = self.leaving = False
        self.reader = Reader(self.live, self.journal, self.clock, self, 15.0)
        self.drafts: list[AnyDraft] = []
        self.live: LiveResponse | None = None

    def admit(self) -> Lease:
        self.drafts = opening()
        return self.ledger.admit("resp_1", frames_of(self.drafts), len(self.drafts))

    def start(self) -> LiveResponse:
        self.live = LiveResponse(self.admit(), fold_of(self.drafts), self.clock.monotonic(), frames_of(self.drafts))
        self.live.enter(self.live)
        return self.live

    async def commit(self, *drafts: AnyDraft) -> None:
        assert self.live is not None
        self.live.emit(list(drafts))
        entry, taken = self.live.take(1.0)
        assert await self.ledger.append([entry]) == [AppendResult.WRITTEN]
        self.live.advance(entry, taken)
        self.drafts += drafts

    async def finish(self, leave: bool = True) -> None:
        assert self.live is not None
        self.live.emit([LAST])
        entry, _ = self.live.take(1.0)
        await self.ledger.close(Closing(entry, "completed", b"{}", [], keep_turn=True))
        self.live.finish(entry, b"{}")
        self.drafts.append(LAST)
        if leave:
            self.live.leave(self.live)

    @property
    def frames(self) -> list[bytes]:
        return number(self.drafts, -1)


async def read_to_end(cursor: Cursor) -> bytes:
    parts = []
    while frames := await cursor.read():
        parts.append(frames)
    return b"".join(parts)


def deltas(count: int, text: str = "x") -> list[AnyDraft]:
    return [Delta(CHANNEL, text) for _ in range(count)]


# -- live


def test_one_commit_is_one_read() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        cursor = stage.reader.follow("resp_1")
        assert await cursor.read() == b"".join(stage.frames)
        await stage.commit(ADDED, *deltas(3))
        assert await cursor.read() == b"".join(stage.frames[2:])
        assert stage.journal.reads == 0

    run_virtually(body())


def test_a_reader_that_keeps_up_never_asks_the_journal() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        cursor = stage.reader.follow("resp_1")
        reading = asyncio.create_task(read_to_end(cursor))
        await stage.commit(ADDED)
        for _ in range(200):
            await stage.commit(*deltas(5, "y" * 100))
            await turn()
        await stage.finish()
        assert await reading == b"".join(stage.frames)
        assert stage.journal.reads == 0

    run_virtually(body())


def test_a_slow_reader_falls_back_to_the_journal_and_misses_nothing() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        cursor = stage.reader.follow("resp_1")
        got = [await cursor.read()]
        await stage.commit(ADDED)
        for n in range(400):
            await stage.commit(*deltas(5, "y" * 100))
            if n % 100 == 50:
                got.append(await cursor.read())
        assert stage.journal.reads > 0
        await stage.finish(leave=False)
        got.append(await read_to_end(cursor))
        assert b"".join(got) == b"".join(stage.frames)
        assert all(len(part) <= PAGE_BYTES + TAIL_BYTES for part in got[:-1])

    run_virtually(body())


@pytest.mark.parametrize("after", [-1, 0, 1, 2, 7])
def test_a_reader_may_begin_after_any_number(after: int) -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        await stage.commit(ADDED, *deltas(3))
        await stage.commit(*deltas(3))
        reading = asyncio.create_task(read_to_end(stage.reader.follow("resp_1", after)))
        await turn()
        await stage.finish()
        live_bytes = await reading
        assert live_bytes == b"".join(stage.frames[after + 1 :])
        # And the replay, from the journal alone, is the same bytes.
        assert await read_to_end(stage.reader.follow("resp_1", after)) == live_bytes

    run_virtually(body())


def test_readers_are_counted_while_they_read() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.start()
        one, two = stage.reader.follow("resp_1"), stage.reader.follow("resp_1")
        await one.read()
        await two.read()
        assert live.readers == 2
        stage.clock.time += 100
        one.leave()
        assert (live.readers, live.read_at) == (1, stage.clock.monotonic())
        one.leave()
        two.leave()
        assert live.readers == 0

    run_virtually(body())


# -- elsewhere


def test_a_reader_waits_for_a_response_that_has_not_begun_here() -> None:
    async def body() -> None:
        stage = Stage()
        lease = stage.admit()
        cursor = stage.reader.follow("resp_1")
        assert await cursor.read() == b"".join(stage.frames)
        reading = asyncio.create_task(cursor.read())
        await turn()
        assert not reading.done()
        stage.live = LiveResponse(lease, fold_of(stage.drafts))
        stage.live.enter(stage.live)
        await stage.commit(ADDED)
        assert await reading == stage.frames[-1]

    run_virtually(body())


def test_a_response_that_began_and_ended_between_two_looks_is_read_to_its_end() -> None:
    async def body() -> None:
        stage = Stage()
        stage.admit()
        cursor = stage.reader.follow("resp_1")
        await cursor.read()
        reading = asyncio.create_task(read_to_end(cursor))
        await turn()
        stage.live = LiveResponse(Lease("resp_1", 1, 1), fold_of(stage.drafts))
        stage.live.enter(stage.live)
        await stage.commit(ADDED)
        await stage.finish()
        assert await reading == b"".join(stage.frames[2:])

    run_virtually(body())


def test_a_reader_goes_on_with_whoever_has_taken_over() -> None:
    async def body() -> None:
        stage = Stage()
        first = stage.start()
        cursor = stage.reader.follow("resp_1")
        reading = asyncio.create_task(read_to_end(cursor))
        await stage.commit(ADDED, *deltas(2))
        await turn()
        fold = await stage.reader.replay("resp_1")
        stage.live = LiveResponse(first.lease, fold)
        stage.live.enter(stage.live)
        assert first.lost
        await stage.commit(*deltas(2))
        await turn()
        await stage.finish()
        assert await reading == b"".join(stage.frames)
        assert (first.readers, stage.live.readers) == (0, 1)

    run_virtually(body())


@pytest.mark.parametrize("beyond", [0, 1, 100])
def test_a_reader_beyond_the_end_of_a_finished_response_ends_at_once(beyond: int) -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        await stage.commit(ADDED)
        await stage.finish()
        cursor = stage.reader.follow("resp_1", len(stage.drafts) - 1 + beyond)
        assert await cursor.read() == b""
        assert cursor.ended

    run_virtually(body())


def test_a_slow_reader_of_a_response_that_is_deleted_is_cut() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        cursor = stage.reader.follow("resp_1")
        await cursor.read()
        await stage.commit(ADDED)
        for _ in range(10):
            await stage.commit(*deltas(1, "y" * TAIL_BYTES))
        await stage.finish(leave=False)
        stage.ledger.forget("resp_1")
        with pytest.raises(StreamInterrupted):
            await cursor.read()

    run_virtually(body())


def test_a_reader_of_nothing_is_cut() -> None:
    async def body() -> None:
        with pytest.raises(StreamInterrupted):
            await Stage().reader.follow("resp_none").read()

    run_virtually(body())


# -- passing on


def pour_into(poured: list[bytes]) -> Pour:
    def write_now(frames: bytes) -> bool:
        poured.append(frames)
        return True

    return write_now


async def pass_to_end(cursor: Cursor, write_now: Pour, poured: list[bytes]) -> None:
    """As a stream does it: what is read goes the slow way, and then as much as can be the fast one."""
    while frames := await cursor.read():
        poured.append(frames)
        if not cursor.ended:
            await cursor.forward_to(write_now)


def test_what_is_committed_is_poured_in_that_moment_once_and_in_order() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        cursors = [stage.reader.follow("resp_1") for _ in range(2)]
        gots: list[list[bytes]] = [[], []]
        reading = [
            asyncio.create_task(pass_to_end(cursor, pour_into(got), got))
            for cursor, got in zip(cursors, gots, strict=True)
        ]
        await turn()
        for drafts in ([ADDED], deltas(3), deltas(1, "y" * TAIL_BYTES), deltas(2)):
            await stage.commit(*drafts)  # ends in the call that makes it show, and no reader has had a turn since
            for got in gots:
                assert got[-1] == b"".join(stage.frames[-len(drafts) :])
        await stage.finish()
        await asyncio.gather(*reading)
        assert [b"".join(got) for got in gots] == [b"".join(stage.frames)] * 2
        assert [len(got) for got in gots] == [6, 6]
        assert stage.journal.reads == 0

    run_virtually(body())


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), max_size=20), st.sampled_from([1, 1500]))
def test_what_cannot_be_poured_is_read_and_nothing_is_lost_or_repeated(
    commits: list[tuple[int, bool, bool]], size: int
) -> None:
    """Whenever the client is slow, however far the reader falls behind, and however large the events are."""

    async def body() -> None:
        stage = Stage()
        stage.start()
        got: list[bytes] = []
        slow = False

        def write_now(frames: bytes) -> bool:
            if not slow:
                got.append(frames)
            return not slow

        reading = asyncio.create_task(pass_to_end(stage.reader.follow("resp_1"), write_now, got))
        await turn()
        await stage.commit(ADDED)
        for count, slow, pause in commits:  # noqa: B007 -- `pour` asks how slow it is
            await stage.commit(*deltas(count, "y" * size))
            if pause:
                await turn()
        await stage.finish(leave=False)
        await reading
        assert split_frames(b"".join(got)) == stage.frames

    run_virtually(body())


@pytest.mark.parametrize("why", ["stopped", "lost", "ended", "leaving"])
@pytest.mark.parametrize("early", [False, True], ids=["meanwhile", "before"])
def test_passing_is_over_when_something_else_is_to_be_done(why: str, early: bool) -> None:
    """Also if that came up before it began, while the last frames were being sent: no other ring may ever follow."""

    async def body() -> None:
        stage = Stage()
        live = stage.start()
        cursor = stage.reader.follow("resp_1")
        poured: list[bytes] = []
        await cursor.read()
        passing = asyncio.create_task(cursor.forward_to(pour_into(poured)))
        if not early:
            await turn()
            await stage.commit(ADDED)
            assert poured == [stage.frames[-1]]
        if why == "stopped":
            cursor.stop()
        elif why == "lost":
            live.lose()
        elif why == "ended":
            await stage.finish()
        else:
            stage.leaving = True
            stage.live.wake_all()
        await passing
        assert (len(poured), live._followers) == (not early, [])
        if why == "stopped":
            assert (await cursor.read(), cursor.ended) == (b"", False)
        elif why == "ended":
            assert (await cursor.read(), cursor.ended) == (stage.frames[-1], True)
        elif why == "leaving":
            with pytest.raises(StreamInterrupted):
                await cursor.read()

    run_virtually(body())


def test_a_reader_that_is_behind_has_nothing_to_wait_for() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        cursor = stage.reader.follow("resp_1")
        await cursor.read()
        await stage.commit(ADDED)
        await cursor.forward_to(lambda _: pytest.fail("it is to be read"))
        assert await cursor.read() == stage.frames[-1]

    run_virtually(body())


def test_a_reader_that_is_cancelled_while_it_passes_on_follows_no_more() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.start()
        cursor = stage.reader.follow("resp_1")
        poured: list[bytes] = []
        await cursor.read()
        passing = asyncio.create_task(cursor.forward_to(pour_into(poured)))
        await turn()
        assert len(live._followers) == 1
        passing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await passing
        assert live._followers == []
        await stage.commit(ADDED)
        assert (poured, await cursor.read()) == ([], stage.frames[-1])

    run_virtually(body())


def test_a_pour_that_fails_is_its_readers_trouble_alone() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.start()
        cursors = [stage.reader.follow("resp_1") for _ in range(3)]
        poured: list[bytes] = []
        for cursor in cursors:
            await cursor.read()

        def fail(_: bytes) -> bool:
            raise RuntimeError("the handler is closed")

        failing, passing = (
            asyncio.create_task(cursor.forward_to(write_now))
            for cursor, write_now in zip(cursors, (fail, pour_into(poured)), strict=False)
        )
        reading = asyncio.create_task(cursors[2].read())
        await turn()
        await stage.commit(ADDED)
        assert poured == [stage.frames[-1]]
        assert await reading == stage.frames[-1]
        with pytest.raises(RuntimeError, match="closed"):
            await failing
        stage.live.wake_all()
        await passing
        assert live._followers == []

    run_virtually(body())


def test_an_idle_stream_that_is_passed_on_is_kept_alive_too() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        poured: list[bytes] = []
        reading = asyncio.create_task(pass_to_end(stage.reader.follow("resp_1"), pour_into(poured), poured))
        await turn()
        for _ in range(2):
            stage.clock.time += 10
            await stage.commit(ADDED)
            count = len(poured)
            for _ in range(3):  # the first tick finds it idle, and the keep-alive is due 15 seconds later
                stage.live.wake_all()
                await turn()
                assert len(poured) == count
                stage.clock.time += 5
            stage.live.wake_all()
            await turn()
            assert poured[count:] == [KEEP_ALIVE_FRAME]
        reading.cancel()

    run_virtually(body())


# -- keep-alives and leaving


def test_an_idle_stream_gets_a_keep_alive_when_one_is_due_and_not_before() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        cursor = stage.reader.follow("resp_1", 1)
        reading = asyncio.create_task(cursor.read())
        for seconds in (5, 5, 4.9):
            await turn()
            stage.clock.time += seconds
            stage.live.wake_all()
        await turn()
        assert not reading.done()
        stage.clock.time += 0.1
        stage.live.wake_all()
        assert await reading == KEEP_ALIVE_FRAME
        # The next one is due as long again, and an event puts it off.
        reading = asyncio.create_task(cursor.read())
        await turn()
        stage.clock.time += 14
        await stage.commit(ADDED)
        assert await reading == stage.frames[-1]
        reading = asyncio.create_task(cursor.read())
        await turn()
        stage.clock.time += 14
        stage.live.wake_all()
        await turn()
        assert not reading.done()
        reading.cancel()

    run_virtually(body())


def test_a_stream_that_waits_for_its_response_to_begin_is_kept_alive_too() -> None:
    async def body() -> None:
        stage = Stage()
        stage.admit()
        cursor = stage.reader.follow("resp_1", 1)
        reading = asyncio.create_task(cursor.read())
        await turn()
        stage.clock.time += 15
        stage.live.wake_all()
        assert await reading == KEEP_ALIVE_FRAME

    run_virtually(body())


def test_streams_are_cut_when_the_server_leaves_but_get_what_is_there() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        cursor = stage.reader.follow("resp_1")
        stage.leaving = True
        assert await cursor.read() == b"".join(stage.frames)
        with pytest.raises(StreamInterrupted):
            await cursor.read()

    run_virtually(body())


def test_a_waiting_stream_notices_that_the_server_leaves() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        reading = asyncio.create_task(stage.reader.follow("resp_1", 1).read())
        await turn()
        stage.leaving = True
        stage.live.wake_all()
        with pytest.raises(StreamInterrupted):
            await reading

    run_virtually(body())


def test_while_draining_what_runs_is_followed_and_what_does_not_is_cut() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.start()
        cursor = stage.reader.follow("resp_1", 1)
        reading = asyncio.create_task(cursor.read())
        await turn()
        stage.draining = True
        stage.live.wake_all()
        await turn()
        assert not reading.done()
        # Handed back: it is not here any more.
        stage.live.leave(live)
        live.lose()
        with pytest.raises(StreamInterrupted):
            await reading

    run_virtually(body())


def test_a_finished_response_can_be_read_to_its_end_while_the_server_leaves() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        await stage.finish()
        stage.draining = stage.leaving = True
        frames = await read_to_end(stage.reader.follow("resp_1"))
        assert is_last(frames)

    run_virtually(body())


@pytest.mark.parametrize("begun", [True, False])
def test_stopping_makes_a_waiting_read_come_back(begun: bool) -> None:
    async def body() -> None:
        stage = Stage()
        if begun:
            stage.start()
        else:
            stage.admit()
        cursor = stage.reader.follow("resp_1", 1)
        reading = asyncio.create_task(cursor.read())
        await turn()
        cursor.stop()
        assert await reading == b""
        assert (cursor.stopped, cursor.ended) == (True, False)

    run_virtually(body())


# -- the whole


def test_the_fold_of_what_runs_here_comes_from_memory() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.start()
        await stage.commit(ADDED, *deltas(2))
        assert await stage.reader.fold("resp_1") is live.fold
        assert stage.journal.reads == 0
        live.lose()
        replayed = await stage.reader.fold("resp_1")
        assert replayed.response() == live.fold.response()
        assert stage.journal.reads > 0

    run_virtually(body())


def test_a_replay_is_the_fold_of_every_page() -> None:
    """Not on virtual time: large pages are folded in a thread."""

    async def body() -> None:
        stage = Stage()
        stage.start()
        await stage.commit(ADDED)
        for _ in range(300):
            await stage.commit(*deltas(4, "y" * 1000))
        fold = await stage.reader.replay("resp_1")
        whole = Fold()
        whole.apply(stage.drafts)
        assert fold.response() == whole.response()
        assert fold.last == len(stage.drafts) - 1

    asyncio.run(body())


def test_waiting_for_the_end_gives_the_final_object() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.start()
        waiting = asyncio.create_task(stage.reader.wait_end("resp_1"))
        await stage.commit(ADDED)
        await turn()
        assert not waiting.done()
        await stage.finish()
        assert await waiting == b"{}"
        assert live.readers == 0

    run_virtually(body())


def test_waiting_for_the_end_has_its_limit() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.start()
        assert await stage.reader.wait_end("resp_1", 30) is None
        assert asyncio.get_running_loop().time() == pytest.approx(30)
        assert live.readers == 0

    run_virtually(body())


def test_the_end_of_what_ended_before_is_found_in_the_journal() -> None:
    async def body() -> None:
        stage = Stage()
        stage.start()
        await stage.finish()
        assert await stage.reader.wait_end("resp_1") is None
        assert split_frames(await read_to_end(stage.reader.follow("resp_1"))) == stage.frames

    run_virtually(body())

"""Group commit: nothing shows before it is durable, everything does soon after, and in order."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from outlive.core.errors import Behind, StaleFence, StorageUnavailable
from outlive.core.events import AnyDraft, Channel, Delta, Draft, read_frame, split_frames
from outlive.core.fold import Fold
from outlive.core.grammar import OUTPUT_TEXT
from outlive.engine.delivery.committer import RETRY_SECONDS, Committer
from outlive.engine.delivery.live import LiveResponse, LiveResponses
from outlive.engine.delivery.reader import Reader
from outlive.ports.journal import Batch
from outlive.ports.ledger import AppendResult, AppendResults, Checkpoint, Closing, Entry, Lease
from tests.core.journals import opening
from tests.engine.virtual_clock import VirtualClock, run_virtually, turn

LINGER = 0.005
CHANNEL = Channel(OUTPUT_TEXT, "msg_1", 0)
ADDED = Draft(
    "response.output_item.added", {"output_index": 0, "item": {"id": "msg_1", "type": "message", "content": []}}
)


class HeldLedger:
    """A ledger whose commits end when, and as, the test says; no real one can be held in mid-commit."""

    def __init__(self) -> None:
        self.appends: list[tuple[float, list[Entry], asyncio.Future[AppendResults]]] = []
        self.closings: list[tuple[float, Closing, asyncio.Future[None]]] = []

    def append(self, entries: list[Entry]) -> asyncio.Future[AppendResults]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[AppendResults] = loop.create_future()
        self.appends.append((loop.time(), entries, future))
        return future

    def close(self, closing: Closing) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self.closings.append((loop.time(), closing, future))
        return future

    async def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None: ...

    async def commit(self, kept: AppendResults | None = None) -> list[Entry]:
        """Let the last append succeed; what was in it."""
        _, entries, future = self.appends[-1]
        future.set_result(kept if kept is not None else [AppendResult.WRITTEN] * len(entries))
        await turn()
        return entries

    async def fail(self, error: Exception | None = None) -> None:
        self.appends[-1][2].set_exception(error or StorageUnavailable("append"))
        await turn()

    async def next_append(self, count: int) -> float:
        """When the commit of that number began."""
        while len(self.appends) < count:
            await asyncio.sleep(0.0001)
        return self.appends[count - 1][0]


class NoJournal:
    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        raise AssertionError("everything is in the tail")

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        raise AssertionError("nobody else runs anything")


class Stage:
    def __init__(self) -> None:
        self.ledger = HeldLedger()
        self.committer = Committer(self.ledger, VirtualClock(), LINGER)
        self.live = LiveResponses()
        self.draining = self.leaving = False
        self.reader = Reader(self.live, NoJournal(), VirtualClock(), self, 15.0)

    def live(self, response_id: str = "resp_1", visible: bool = False) -> LiveResponse:
        fold = Fold()
        fold.apply([*opening(), ADDED] if visible else opening())
        live = LiveResponse(Lease(response_id, 1, 1), fold)
        self.live.enter(live)
        return live


def deltas(*texts: str) -> list[AnyDraft]:
    return [Delta(CHANNEL, text) for text in texts]


def numbers(entry: Entry) -> list[int]:
    return [read_frame(frame)["sequence_number"] for frame in split_frames(entry.frames)]


# -- persist, then deliver


def test_a_reader_sees_nothing_before_the_commit_is_over() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.live()
        cursor = stage.reader.follow("resp_1", live.committed)
        reading = asyncio.create_task(cursor.read())
        stage.committer.submit(live, [ADDED, *deltas("Hi")])
        await turn()
        assert len(stage.ledger.appends) == 1
        assert not reading.done()
        assert live.fold.output == []
        (entry,) = await stage.ledger.commit()
        assert reading.done()
        assert reading.result() == entry.frames
        assert len(live.fold.output) == 1

    run_virtually(body())


def test_the_terminal_event_too_shows_only_once_it_is_committed() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.live()
        cursor = stage.reader.follow("resp_1", live.committed)
        reading = asyncio.create_task(cursor.read())
        closing = close(stage, live)
        await turn()
        assert not reading.done()
        assert not live.ended
        stage.ledger.closings[0][2].set_result(None)
        await closing
        assert (await reading) == stage.ledger.closings[0][1].entry.frames
        assert cursor.ended
        assert live.final == b"{}"

    run_virtually(body())


def close(stage: Stage, live: LiveResponse) -> asyncio.Task[None]:
    async def closing() -> None:
        last = Draft("response.completed", {"response": {"status": "completed"}})
        await stage.committer.close(live, [last], status="completed", snapshot=b"{}", turn=[])
        await stage.committer.closed(live)

    return asyncio.create_task(closing())


# -- one flush after the other


def test_an_idle_committer_commits_at_once() -> None:
    async def body() -> None:
        stage = Stage()
        stage.committer.submit(stage.live(), [ADDED])
        assert await stage.ledger.next_append(1) == 0.0

    run_virtually(body())


def test_what_comes_during_a_commit_goes_into_the_next_one_in_order() -> None:
    async def body() -> None:
        stage = Stage()
        one, two = stage.live("resp_1"), stage.live("resp_2")
        stage.committer.submit(one, [ADDED])
        await turn()
        for text in "abc":
            stage.committer.submit(one, deltas(text))
            stage.committer.submit(two, [ADDED] if text == "a" else deltas(text))
        await turn()
        assert len(stage.ledger.appends) == 1
        await stage.ledger.commit()
        await stage.ledger.next_append(2)
        entries = await stage.ledger.commit()
        assert [(entry.lease.response_id, numbers(entry)) for entry in entries] == [
            ("resp_1", [3, 4, 5]),
            ("resp_2", [2, 3, 4]),
        ]
        assert [one.committed, two.committed] == [5, 4]

    run_virtually(body())


def test_under_load_a_commit_waits_for_company_but_never_longer_than_the_linger() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.live(visible=True)
        for count, wait in ((2, 0.0005), (5, 0.002), (100, LINGER)):
            stage.committer.submit(live, deltas(*["x"] * count))
            n = len(stage.ledger.appends)
            await stage.ledger.next_append(n + 1)
            await stage.ledger.commit()
            committed_at = asyncio.get_running_loop().time()
            stage.committer.submit(live, deltas("y"))
            began = await stage.ledger.next_append(n + 2)
            assert began - committed_at == pytest.approx(wait)
            await stage.ledger.commit()
            await asyncio.sleep(1)

    run_virtually(body())


def test_the_first_output_of_a_response_does_not_wait_for_company() -> None:
    async def body() -> None:
        stage = Stage()
        busy, fresh = stage.live("resp_1", visible=True), stage.live("resp_2")
        stage.committer.submit(busy, deltas(*["x"] * 100))
        await turn()
        await stage.ledger.commit()
        now = asyncio.get_running_loop().time()
        stage.committer.submit(busy, deltas("y"))
        stage.committer.submit(fresh, [ADDED])
        assert await stage.ledger.next_append(2) == now

    run_virtually(body())


def test_the_first_output_waits_for_the_commit_under_way_and_no_longer() -> None:
    async def body() -> None:
        stage = Stage()
        busy, fresh = stage.live("resp_1", visible=True), stage.live("resp_2")
        stage.committer.submit(busy, deltas(*["x"] * 100))
        await turn()
        stage.committer.submit(fresh, [ADDED])
        await turn()
        await stage.ledger.commit()
        now = asyncio.get_running_loop().time()
        assert await stage.ledger.next_append(2) == now

    run_virtually(body())


# -- stale and failing


def test_a_stale_response_is_lost_and_the_others_go_on() -> None:
    async def body() -> None:
        stage = Stage()
        one, two = stage.live("resp_1"), stage.live("resp_2")
        stage.committer.submit(one, [ADDED])
        stage.committer.submit(two, [ADDED])
        await turn()
        await stage.ledger.commit([AppendResult.STALE, AppendResult.WRITTEN])
        assert (one.lost, one.committed) == (True, 1)
        assert (two.lost, two.committed) == (False, 2)

    run_virtually(body())


@pytest.mark.parametrize("error", [StorageUnavailable("append"), RuntimeError("a mistake of ours")])
def test_what_could_not_be_committed_goes_first_next_time(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.live(visible=True)
        stage.committer.submit(live, deltas("a", "b"))
        await turn()
        stage.committer.submit(live, deltas("c"))
        await stage.ledger.fail(error)
        assert live.committed == 2
        await stage.ledger.next_append(2)
        (entry,) = await stage.ledger.commit()
        assert numbers(entry) == [3, 4, 5]
        assert live.committed == 5

    run_virtually(body())


def test_a_storage_that_is_down_is_tried_again_less_and_less_often() -> None:
    async def body() -> None:
        stage = Stage()
        live, times = stage.live(visible=True), []
        stage.committer.submit(live, deltas("a"))
        for n in range(6):
            times.append(await stage.ledger.next_append(n + 1))
            await stage.ledger.fail()
            # Neither more events nor a first output make it try sooner.
            stage.committer.submit(live, deltas("b"))
            stage.committer.submit(stage.live(f"resp_{n + 2}"), [ADDED])
        waits = [later - earlier for earlier, later in pairwise(times)]
        assert waits == pytest.approx([*RETRY_SECONDS, RETRY_SECONDS[-1]], abs=0.001)
        await stage.ledger.next_append(7)
        assert len(await stage.ledger.commit()) == 7
        assert live.committed == 9

    run_virtually(body())


# -- settling and closing


def test_settling_waits_for_the_commit_or_for_the_loss() -> None:
    async def body() -> None:
        stage = Stage()
        for kept in AppendResult:
            live = stage.live()
            stage.committer.submit(live, [ADDED])
            settling = asyncio.create_task(stage.committer.flush(live))
            await turn()
            assert not settling.done()
            await stage.ledger.commit([kept])
            await settling
            assert live.lost is (kept is AppendResult.STALE)
            await asyncio.sleep(1)

    run_virtually(body())


def test_closing_takes_along_what_is_pending_and_waits_for_what_is_under_way() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.live(visible=True)
        stage.committer.submit(live, deltas("a"))
        await turn()
        stage.committer.submit(live, deltas("b"))
        closing = close(stage, live)
        await turn()
        assert stage.ledger.closings == []
        await stage.ledger.commit()
        _, closed, done = stage.ledger.closings[0]
        assert numbers(closed.entry) == [4, 5]
        done.set_result(None)
        await closing
        await asyncio.sleep(1)
        assert len(stage.ledger.appends) == 1
        assert live.committed == 5

    run_virtually(body())


def test_closing_after_a_failed_commit_carries_what_failed() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.live(visible=True)
        stage.committer.submit(live, deltas("a"))
        await turn()
        closing = close(stage, live)
        await turn()
        await stage.ledger.fail()
        _, closed, done = stage.ledger.closings[0]
        assert numbers(closed.entry) == [3, 4]
        done.set_result(None)
        await closing
        await asyncio.sleep(5)
        assert len(stage.ledger.appends) == 1

    run_virtually(body())


def test_closing_keeps_trying_while_the_storage_is_down() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.live()
        closing = close(stage, live)
        for n in range(5):
            while len(stage.ledger.closings) <= n:
                await asyncio.sleep(0.01)
            assert not live.ended
            if n < 4:
                stage.ledger.closings[n][2].set_exception(StorageUnavailable("close"))
        stage.ledger.closings[4][2].set_result(None)
        await closing
        assert len({closed.entry.frames for _, closed, _ in stage.ledger.closings}) == 1
        assert live.ended

    run_virtually(body())


def test_closing_under_a_stale_fence_loses_the_response() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.live()
        closing = close(stage, live)
        await turn()
        stage.ledger.closings[0][2].set_exception(StaleFence())
        with pytest.raises(StaleFence):
            await closing
        assert live.lost
        assert not live.ended

    run_virtually(body())


def test_a_run_that_is_cancelled_while_closing_is_closed_all_the_same() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.live()
        closing = close(stage, live)
        await turn()
        closing.cancel()
        await turn()
        assert closing.cancelled()
        settling = asyncio.create_task(stage.committer.flush(live))
        await turn()
        assert not settling.done()
        # Also if the storage is down at first.
        stage.ledger.closings[0][2].set_exception(StorageUnavailable("close"))
        await asyncio.sleep(1)
        stage.ledger.closings[1][2].set_result(None)
        await settling
        assert live.ended

    run_virtually(body())


def test_a_mistake_in_closing_does_not_leave_anybody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.live()
        closing = close(stage, live)
        await turn()
        stage.ledger.closings[0][2].set_exception(RuntimeError("a mistake of ours"))
        with pytest.raises(StaleFence):
            await closing
        assert live.lost

    run_virtually(body())
    assert "a mistake of ours" in caplog.text


# -- when the journal has lost something


def test_what_the_journal_lost_is_appended_again_before_anything_else() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.live()
        ledger = stage.ledger
        stage.committer.submit(live, [ADDED, *deltas("a", "b")])
        await turn()
        (shown,) = await ledger.commit()
        stage.committer.submit(live, deltas("c"))
        await ledger.next_append(2)
        stage.committer.submit(live, deltas("d"))  # comes while the journal is found behind
        await ledger.commit([Behind(2)])
        stage.committer.submit(live, deltas("e"))
        await asyncio.sleep(0.1)
        assert len(ledger.appends) == 3
        (again,) = ledger.appends[-1][1]
        assert numbers(again) == [3, 4]
        assert again.frames == b"".join(split_frames(shown.frames)[1:])
        assert live.committed == 4
        await ledger.commit()
        await ledger.next_append(4)
        (rest,) = await ledger.commit()
        assert numbers(rest) == [5, 6, 7]
        assert live.committed == 7 and live.fold.deltas == 5
        batch = live.slice(1)
        assert batch is not None and batch.frames == shown.frames + rest.frames

    run_virtually(body())


@pytest.mark.parametrize("at_the_end", [True, False])
def test_a_repair_that_fails_is_tried_again_and_a_stale_one_is_given_up(at_the_end: bool) -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.live()
        ledger = stage.ledger
        stage.committer.submit(live, [ADDED])
        await turn()
        await ledger.commit()
        closing: asyncio.Task[None] | None = None
        if at_the_end:
            closing = asyncio.create_task(_expect_stale(close(stage, live)))
            await turn()
            ledger.closings[0][2].set_exception(Behind(1))
        else:
            stage.committer.submit(live, deltas("a"))
            await ledger.next_append(2)
            await ledger.commit([Behind(1)])
        await turn()
        repairs = len(ledger.appends)
        assert numbers(ledger.appends[-1][1][0]) == [2]
        await ledger.fail()
        await asyncio.sleep(2.0)
        if at_the_end:
            ledger.closings[1][2].set_exception(Behind(1))
            await turn()
        else:
            await ledger.commit([Behind(1)])
        assert len(ledger.appends) > repairs
        assert numbers(ledger.appends[-1][1][0]) == [2]
        await ledger.commit([AppendResult.STALE])
        assert live.lost
        if closing is not None:
            await closing

    run_virtually(body())


async def _expect_stale(closing: asyncio.Task[None]) -> None:
    with pytest.raises(StaleFence):
        await closing


def test_what_is_not_known_any_more_is_told_to_whoever_looks_after_that() -> None:
    async def body() -> None:
        stage = Stage()
        live = stage.live(visible=True)
        told_to_model: list[LiveResponse] = []
        stage.committer.on_behind = told_to_model.append
        stage.committer.submit(live, deltas("a"))
        await turn()
        await stage.ledger.commit([Behind(0)])
        assert told_to_model == [live]

    run_virtually(body())

"""Group commit: nothing shows before it is durable, everything does soon after, and in order."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from outlive.core.errors import Behind, InvalidRequest, StaleFence, StorageUnavailable
from outlive.core.events import number, read_frame, split_frames
from outlive.engine.delivery.committer import ENDINGS, RETRY_SECONDS, Committer
from outlive.engine.delivery.live import LiveResponse, LiveResponses, State
from outlive.engine.delivery.reader import Reader, Shutdown
from outlive.engine.ephemeral import MemoryJournal, MemoryLedger
from outlive.engine.run.closer import Closer
from outlive.ports.backend import Backend
from outlive.ports.journal import Batch
from outlive.ports.ledger import AppendResult, Entry
from tests.core.journals import frames_of, opening
from tests.engine.live_responses import ADDED, COMPLETED, HeldLedger, deltas, make_live, texts
from tests.engine.virtual_clock import VirtualClock, elapsed, in_virtual_time, pass_time, turn

LINGER = 0.005


class NoJournal:
    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        raise AssertionError("everything is in the tail")

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        raise AssertionError("nothing runs on another node")


class CommitterHarness:
    """A committer on a ledger that the test holds, with readers of the tails that it feeds."""

    def __init__(self) -> None:
        self.ledger = HeldLedger()
        self.committer = Committer(self.ledger, VirtualClock(), LINGER)
        self.live = LiveResponses()
        self.reader = Reader(self.live, NoJournal(), VirtualClock(), Shutdown(), 15.0)
        self.memory_journal = MemoryJournal()
        self.memory = MemoryLedger(self.memory_journal)

    def start(self, response_id: str = "resp_1", *, visible: bool = False) -> LiveResponse:
        """Start a stored response."""
        durable = [*opening(), ADDED] if visible else opening()
        live = make_live(response_id, ledger=self.ledger, durable=durable)
        self.live.add(live)
        return live

    def start_ephemeral(self, response_id: str = "resp_e") -> LiveResponse:
        """Start a response with `store: false`."""
        lease = self.memory.admit(response_id, frames_of(opening()), len(opening()))
        live = make_live(lease=lease, ledger=self.memory)
        self.live.add(live)
        return live

    def close(self, live: LiveResponse) -> asyncio.Task[None]:
        """Close a response as a closer does it."""

        async def close() -> None:
            live.transition("close")
            while live.pending.in_flight:
                await live.tail.wait()
            frames = number([COMPLETED], live.pending.last)
            self.committer.close(live, frames, status="completed", snapshot=b"{}", turn=[])
            while not live.tail.ended:
                if live.tail.lost:
                    raise StaleFence
                await live.tail.wait()

        return asyncio.create_task(close())


def numbers(entry: Entry) -> list[int]:
    return [read_frame(frame)["sequence_number"] for frame in split_frames(entry.frames)]


# -- durable first, then visible


@in_virtual_time
async def test_a_reader_sees_nothing_before_the_commit_is_over() -> None:
    harness = CommitterHarness()
    live = harness.start()
    cursor = harness.reader.follow("resp_1", live.tail.committed)
    reading = asyncio.create_task(cursor.read())
    harness.committer.submit(live, [ADDED, *texts("Hi")])
    await turn()
    assert len(harness.ledger.appends) == 1
    assert not reading.done()
    assert live.fold.output == []
    (entry,) = await harness.ledger.commit()
    assert reading.done()
    assert reading.result() == entry.frames
    assert len(live.fold.output) == 1


@in_virtual_time
async def test_a_reader_sees_the_terminal_event_once_it_is_committed() -> None:
    harness = CommitterHarness()
    live = harness.start()
    cursor = harness.reader.follow("resp_1", live.tail.committed)
    reading = asyncio.create_task(cursor.read())
    closing = harness.close(live)
    await turn()
    assert not reading.done()
    assert not live.tail.ended
    closed = await harness.ledger.commit_close()
    await closing
    assert await reading == closed.entry.frames
    assert cursor.ended
    assert live.tail.final == b"{}"


# -- one commit after the other


@in_virtual_time
async def test_an_idle_committer_commits_at_once() -> None:
    harness = CommitterHarness()
    harness.committer.submit(harness.start(), [ADDED])
    assert await harness.ledger.wait_append(1) == 0.0


@in_virtual_time
async def test_events_that_come_during_a_commit_go_into_the_next_one_in_order() -> None:
    harness = CommitterHarness()
    one, two = harness.start("resp_1"), harness.start("resp_2")
    harness.committer.submit(one, [ADDED])
    await turn()
    for text in "abc":
        harness.committer.submit(one, texts(text))
        harness.committer.submit(two, [ADDED] if text == "a" else texts(text))
    await turn()
    assert len(harness.ledger.appends) == 1
    await harness.ledger.commit()
    await harness.ledger.wait_append(2)
    entries = await harness.ledger.commit()
    assert [(entry.lease.response_id, numbers(entry)) for entry in entries] == [
        ("resp_1", [3, 4, 5]),
        ("resp_2", [2, 3, 4]),
    ]
    assert [one.tail.committed, two.tail.committed] == [5, 4]


@in_virtual_time
async def test_under_load_a_commit_waits_for_more_events_but_never_longer_than_the_linger() -> None:
    harness = CommitterHarness()
    live = harness.start(visible=True)
    for count, wait in ((2, 0.0005), (5, 0.002), (100, LINGER)):
        harness.committer.submit(live, deltas(count))
        n = len(harness.ledger.appends)
        await harness.ledger.wait_append(n + 1)
        await harness.ledger.commit()
        committed_at = elapsed()
        harness.committer.submit(live, texts("y"))
        began = await harness.ledger.wait_append(n + 2)
        assert began - committed_at == pytest.approx(wait)
        await harness.ledger.commit()
        await pass_time(1)


@in_virtual_time
async def test_the_first_output_of_a_response_does_not_wait_for_more_events() -> None:
    harness = CommitterHarness()
    busy, fresh = harness.start("resp_1", visible=True), harness.start("resp_2")
    harness.committer.submit(busy, deltas(100))
    await turn()
    await harness.ledger.commit()
    now = elapsed()
    harness.committer.submit(busy, texts("y"))
    harness.committer.submit(fresh, [ADDED])
    assert await harness.ledger.wait_append(2) == now


@in_virtual_time
async def test_the_first_output_waits_for_the_commit_under_way_and_no_longer() -> None:
    harness = CommitterHarness()
    busy, fresh = harness.start("resp_1", visible=True), harness.start("resp_2")
    harness.committer.submit(busy, deltas(100))
    await turn()
    harness.committer.submit(fresh, [ADDED])
    await turn()
    await harness.ledger.commit()
    now = elapsed()
    assert await harness.ledger.wait_append(2) == now


# -- stale leases and failing commits


@in_virtual_time
async def test_a_response_with_a_stale_lease_is_lost_and_the_others_go_on() -> None:
    harness = CommitterHarness()
    one, two = harness.start("resp_1"), harness.start("resp_2")
    harness.committer.submit(one, [ADDED])
    harness.committer.submit(two, [ADDED])
    await turn()
    await harness.ledger.commit([AppendResult.STALE, AppendResult.WRITTEN])
    assert (one.state, one.tail.lost, one.tail.committed) == (State.LOST, True, 1)
    assert (two.state, two.tail.lost, two.tail.committed) == (State.OPEN, False, 2)


@pytest.mark.parametrize("error", [StorageUnavailable("append"), RuntimeError("a mistake of ours")])
@in_virtual_time
async def test_events_that_could_not_be_committed_go_first_in_the_next_commit(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    harness = CommitterHarness()
    live = harness.start(visible=True)
    harness.committer.submit(live, texts("a", "b"))
    await turn()
    harness.committer.submit(live, texts("c"))
    await harness.ledger.fail(error)
    assert live.tail.committed == 2
    await harness.ledger.wait_append(2)
    (entry,) = await harness.ledger.commit()
    assert numbers(entry) == [3, 4, 5]
    assert live.tail.committed == 5
    assert ("a mistake of ours" in caplog.text) is isinstance(error, RuntimeError)


@in_virtual_time
async def test_a_storage_that_is_down_is_tried_again_less_and_less_often() -> None:
    harness = CommitterHarness()
    live, times = harness.start(visible=True), []
    harness.committer.submit(live, texts("a"))
    for n in range(6):
        times.append(await harness.ledger.wait_append(n + 1))
        await harness.ledger.fail()
        # Neither more events nor a first output make it try sooner.
        harness.committer.submit(live, texts("b"))
        harness.committer.submit(harness.start(f"resp_{n + 2}"), [ADDED])
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits == pytest.approx([*RETRY_SECONDS, RETRY_SECONDS[-1]], abs=0.001)
    await harness.ledger.wait_append(7)
    assert len(await harness.ledger.commit()) == 7
    assert live.tail.committed == 9


# -- flushing and closing


@pytest.mark.parametrize("result", AppendResult)
@in_virtual_time
async def test_flushing_waits_for_the_commit_or_for_the_loss(result: AppendResult) -> None:
    harness = CommitterHarness()
    live = harness.start()
    harness.committer.submit(live, [ADDED])
    flushing = asyncio.create_task(live.flush())
    await turn()
    assert not flushing.done()
    await harness.ledger.commit([result])
    await flushing
    assert live.tail.lost is (result is AppendResult.STALE)


@in_virtual_time
async def test_closing_writes_pending_events_and_waits_for_the_commit_under_way() -> None:
    harness = CommitterHarness()
    live = harness.start(visible=True)
    harness.committer.submit(live, texts("a"))
    await turn()
    harness.committer.submit(live, texts("b"))
    closing = harness.close(live)
    await turn()
    assert harness.ledger.closings == []
    await harness.ledger.commit()
    closed = await harness.ledger.commit_close()
    assert numbers(closed.entry) == [4, 5]
    await closing
    await pass_time(1)
    assert len(harness.ledger.appends) == 1
    assert live.tail.committed == 5


@in_virtual_time
async def test_closing_after_a_failed_commit_carries_its_events() -> None:
    harness = CommitterHarness()
    live = harness.start(visible=True)
    harness.committer.submit(live, texts("a"))
    await turn()
    closing = harness.close(live)
    await turn()
    await harness.ledger.fail()
    closed = await harness.ledger.commit_close()
    assert numbers(closed.entry) == [3, 4]
    await closing
    await pass_time(5)
    assert len(harness.ledger.appends) == 1


@in_virtual_time
async def test_closing_is_tried_again_while_the_storage_is_down() -> None:
    harness = CommitterHarness()
    live = harness.start()
    closing = harness.close(live)
    await turn()
    for pause in RETRY_SECONDS:
        await harness.ledger.fail_close()
        assert not live.tail.ended
        await pass_time(pause)
    await harness.ledger.commit_close()
    await closing
    times = [time for time, _, _ in harness.ledger.closings]
    assert [later - earlier for earlier, later in pairwise(times)] == pytest.approx(RETRY_SECONDS)
    assert len({closed.entry.frames for _, closed, _ in harness.ledger.closings}) == 1
    assert live.tail.ended


@in_virtual_time
async def test_the_first_try_of_a_closing_is_over_when_it_failed() -> None:
    harness = CommitterHarness()
    live = harness.start()
    live.transition("close")
    frames = number([COMPLETED], live.pending.last)
    harness.committer.close(live, frames, status="completed", snapshot=b"{}", turn=[])
    woken = live.tail.wait()
    await turn()
    assert (live.failed_closings, woken.done()) == (0, False)
    await harness.ledger.fail_close()
    assert (live.failed_closings, woken.done()) == (1, True)
    assert live.state is State.ENDING


@in_virtual_time
async def test_closing_under_a_stale_lease_loses_the_response() -> None:
    harness = CommitterHarness()
    live = harness.start()
    closing = harness.close(live)
    await turn()
    await harness.ledger.fail_close(StaleFence())
    with pytest.raises(StaleFence):
        await closing
    assert live.state is State.LOST
    assert not live.tail.ended


@in_virtual_time
async def test_a_run_that_is_cancelled_while_closing_is_closed_all_the_same() -> None:
    harness = CommitterHarness()
    live = harness.start()
    closing = harness.close(live)
    await turn()
    closing.cancel()
    await turn()
    assert closing.cancelled()
    flushing = asyncio.create_task(live.flush())
    await turn()
    assert not flushing.done()
    # Also if the storage is down at first.
    await harness.ledger.fail_close()
    await pass_time(1)
    await harness.ledger.commit_close()
    await flushing
    assert live.tail.ended


@in_virtual_time
async def test_a_bug_in_closing_is_logged_and_leaves_no_caller_waiting(caplog: pytest.LogCaptureFixture) -> None:
    harness = CommitterHarness()
    live = harness.start()
    closing = harness.close(live)
    await turn()
    await harness.ledger.fail_close(RuntimeError("a mistake of ours"))
    with pytest.raises(StaleFence):
        await closing
    assert live.state is State.LOST
    assert "a mistake of ours" in caplog.text


# -- responses on another ledger (`store: false`)


@in_virtual_time
async def test_events_on_another_ledger_are_durable_and_shown_when_submit_returns() -> None:
    harness = CommitterHarness()
    live = harness.start_ephemeral()
    written: list[bytes] = []

    def write_now(frames: bytes) -> bool:
        written.append(frames)
        return True

    cursor = harness.reader.follow("resp_e", live.tail.committed)
    reading = asyncio.create_task(cursor.read())
    await turn()
    harness.committer.submit(live, [ADDED])
    assert (live.tail.committed, live.is_durable, live.fold.visible) == (2, True, True)
    frames = await reading
    forwarding = asyncio.create_task(cursor.forward_to(write_now))
    await turn()
    for text in "ab":
        harness.committer.submit(live, texts(text))
    # No task has had a turn since: the client's connection was written to in the calls themselves.
    assert len(written) == 2
    batch = await harness.memory_journal.read("resp_e", -1, 1 << 20)
    assert batch is not None and batch.frames == frames_of(opening()) + frames + b"".join(written)
    assert not (live.pending.queued or live.pending.in_flight)
    assert harness.ledger.appends == []
    forwarding.cancel()


@in_virtual_time
async def test_a_storage_that_is_down_does_not_hold_up_another_ledger() -> None:
    harness = CommitterHarness()
    stored, ephemeral = harness.start(), harness.start_ephemeral()
    harness.committer.submit(stored, [ADDED])
    await turn()
    harness.committer.submit(ephemeral, [ADDED])  # a commit of the storage hangs
    assert ephemeral.is_durable
    await harness.ledger.fail()
    harness.committer.submit(ephemeral, texts("a"))  # the storage is down, and tried again later
    assert ephemeral.is_durable
    assert len(harness.ledger.appends) == 1
    await harness.close(ephemeral)
    assert elapsed() == 0.0
    assert (ephemeral.state, ephemeral.tail.committed) == (State.ENDED, 4)
    assert (stored.state, stored.tail.committed) == (State.OPEN, 1)
    assert harness.ledger.closings == []


@in_virtual_time
async def test_endings_that_hang_in_the_storage_do_not_hold_up_another_ledger() -> None:
    harness = CommitterHarness()
    closer = Closer(harness.committer, no_route, VirtualClock())
    stored = [harness.start(f"resp_{n}") for n in range(ENDINGS + 1)]
    hanging = [asyncio.create_task(closer.end(live, "cancelled")) for live in stored]
    await turn()
    assert len(harness.ledger.closings) == ENDINGS
    ephemeral = harness.start_ephemeral()
    async with asyncio.timeout(1.0):
        await closer.end(ephemeral, "cancelled")
    assert ephemeral.state is State.ENDED
    for task in hanging:
        task.cancel()


@in_virtual_time
async def test_a_response_that_its_own_ledger_has_forgotten_is_lost() -> None:
    harness = CommitterHarness()
    live = harness.start_ephemeral()
    harness.memory.forget("resp_e")
    harness.committer.submit(live, [ADDED])
    assert live.state is State.LOST
    assert (live.tail.committed, live.fold.visible) == (1, False)
    with pytest.raises(StaleFence):
        harness.committer.submit(live, texts("a"))


def no_route(model: str) -> tuple[Backend, str]:
    raise InvalidRequest("no upstream is configured")


# -- a journal that has lost committed events


@in_virtual_time
async def test_events_that_the_journal_lost_are_appended_again_before_any_others() -> None:
    harness = CommitterHarness()
    live, ledger = harness.start(), harness.ledger
    harness.committer.submit(live, [ADDED, *texts("a", "b")])
    await turn()
    (shown,) = await ledger.commit()
    harness.committer.submit(live, texts("c"))
    await ledger.wait_append(2)
    harness.committer.submit(live, texts("d"))  # comes while the journal is found to be behind
    await ledger.commit([Behind(2)])
    harness.committer.submit(live, texts("e"))
    await pass_time(0.1)
    assert len(ledger.appends) == 3
    (again,) = ledger.appends[-1][1]
    assert numbers(again) == [3, 4]
    assert again.frames == b"".join(split_frames(shown.frames)[1:])
    assert live.tail.committed == 4
    await ledger.commit()
    await ledger.wait_append(4)
    (rest,) = await ledger.commit()
    assert numbers(rest) == [5, 6, 7]
    assert live.tail.committed == 7 and live.fold.deltas == 5
    batch = live.tail.slice(1)
    assert batch is not None and batch.frames == shown.frames + rest.frames


@pytest.mark.parametrize("at_the_end", [True, False])
@in_virtual_time
async def test_a_repair_that_failed_is_tried_again_and_a_stale_one_loses_the_response(at_the_end: bool) -> None:
    harness = CommitterHarness()
    live, ledger = harness.start(), harness.ledger
    harness.committer.submit(live, [ADDED])
    await turn()
    await ledger.commit()
    closing: asyncio.Task[None] | None = None
    if at_the_end:
        closing = harness.close(live)
        await turn()
        await ledger.fail_close(Behind(1))
    else:
        harness.committer.submit(live, texts("a"))
        await ledger.wait_append(2)
        await ledger.commit([Behind(1)])
    await turn()
    repairs = len(ledger.appends)
    assert numbers(ledger.appends[-1][1][0]) == [2]
    await ledger.fail()
    await pass_time(2.0)
    if at_the_end:
        assert len(ledger.closings) == 2
        await ledger.fail_close(Behind(1))
    else:
        await ledger.commit([Behind(1)])
    assert len(ledger.appends) > repairs
    assert numbers(ledger.appends[-1][1][0]) == [2]
    await ledger.commit([AppendResult.STALE])
    assert live.state is State.LOST
    assert not live.is_behind
    if closing is not None:
        with pytest.raises(StaleFence):
            await closing


@in_virtual_time
async def test_a_response_whose_lost_events_are_not_in_the_tail_is_lost_and_marked_as_behind() -> None:
    harness = CommitterHarness()
    live = harness.start(visible=True)
    harness.committer.submit(live, texts("a"))
    await turn()
    await harness.ledger.commit([Behind(0)])
    assert (live.state, live.is_behind) == (State.LOST, True)
    assert len(harness.ledger.appends) == 1

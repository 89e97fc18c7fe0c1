"""A live response shows what is committed, keeps a short tail of it, and wakes whoever waits."""

from __future__ import annotations

import asyncio
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from outlive.core.events import AnyDraft, Channel, Delta, Draft, number, split_frames
from outlive.core.fold import Fold
from outlive.core.grammar import OUTPUT_TEXT
from outlive.engine.delivery.live import PENDING_BYTES, TAIL_BYTES, LiveResponse, LiveResponses
from outlive.ports.ledger import Lease
from tests.core.journals import fold_of, frames_of, opening
from tests.engine.virtual_clock import run_virtually, turn

CHANNEL = Channel(OUTPUT_TEXT, "msg_1", 0)
ADDED = Draft(
    "response.output_item.added", {"output_index": 0, "item": {"id": "msg_1", "type": "message", "content": []}}
)


def make(response_id: str = "resp_1", frames: bytes = b"") -> LiveResponse:
    return LiveResponse(Lease(response_id, 1, 1), fold_of(opening()), 0.0, frames)


def deltas(count: int, text: str = "x") -> list[AnyDraft]:
    return [Delta(CHANNEL, text) for _ in range(count)]


def commit(live: LiveResponse, drafts: list[AnyDraft]) -> None:
    live.emit(drafts)
    entry, taken = live.take(1.0)
    live.advance(entry, taken)


# -- what shows


def test_what_was_emitted_shows_only_once_it_is_durable() -> None:
    live = make()
    live.emit([ADDED])
    assert (live.committed, live.settled, live.fold.visible) == (1, False, False)
    entry, drafts = live.take(1.0)
    assert (live.committed, live.settled, live.fold.visible) == (1, False, False)
    live.advance(entry, drafts)
    assert (live.committed, live.settled, live.fold.visible) == (2, True, True)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.data())
def test_a_slice_from_any_number_is_what_was_committed_after_it(batches: list[int], data: st.DataObject) -> None:
    live = make(frames=frames_of(opening()))
    drafts = [*opening(), ADDED]
    commit(live, [ADDED])
    for count in batches:
        commit(live, deltas(count))
        drafts += deltas(count)
    after = data.draw(st.integers(-1, live.committed - 1))
    batch = live.slice(after)
    if batch is None:
        assert len(frames_of(drafts)) > TAIL_BYTES
        return
    assert (batch.first, batch.last) == (after + 1, live.committed)
    assert split_frames(batch.frames) == number(drafts, -1)[after + 1 :]


def test_the_tail_is_bounded_and_says_so() -> None:
    live = make(frames=frames_of(opening()))
    commit(live, [ADDED])
    for _ in range(100):
        commit(live, deltas(10, "y" * 100))
    assert live.slice(-1) is None
    assert live.slice(live.committed - 1) is not None
    held = sum(len(batch.frames) for batch in live._tail)
    assert held <= TAIL_BYTES


def test_a_batch_larger_than_the_tail_can_still_be_read_live() -> None:
    live = make()
    commit(live, [ADDED])
    commit(live, deltas(1, "y" * TAIL_BYTES * 2))
    assert live.slice(live.committed - 1) is not None


def test_without_its_first_frames_the_beginning_is_in_the_journal_only() -> None:
    live = make()
    assert live.slice(-1) is None
    assert make(frames=frames_of(opening())).slice(-1) is not None


def test_what_could_not_be_committed_is_taken_first_next_time() -> None:
    live = make()
    live.emit([ADDED, *deltas(1, "a")])
    entry, drafts = live.take(1.0)
    live.emit(deltas(1, "b"))
    live.put_back(entry, drafts)
    again, all_drafts = live.take(2.0)
    assert (again.first, again.count) == (2, 3)
    assert split_frames(again.frames) == number([ADDED, *deltas(1, "a"), *deltas(1, "b")], 1)
    live.advance(again, all_drafts)
    assert live.settled


def test_a_run_that_cannot_be_committed_gets_crowded() -> None:
    live = make()
    live.emit([ADDED])
    assert not live.crowded
    live.emit(deltas(1, "y" * PENDING_BYTES))
    assert live.crowded
    entry, drafts = live.take(1.0)
    assert not live.crowded
    live.put_back(entry, drafts)
    assert live.crowded


def test_finished_items_are_remembered_before_they_are_durable() -> None:
    live = make()
    item = {"id": "msg_1", "type": "message", "status": "completed", "content": []}
    live.emit([ADDED, Draft("response.output_item.done", {"output_index": 0, "item": item})])
    assert live.output == {0: item}


def test_what_was_finished_before_is_in_the_fold() -> None:
    fold: Fold = fold_of([*opening(), ADDED])
    assert list(LiveResponse(Lease("resp_1", 1, 2), fold).output) == [0]


# -- waking


def test_commits_losses_and_rings_wake_whoever_waits() -> None:
    async def body() -> None:
        live = make()
        for wake in (lambda: commit(live, [ADDED]), live.wake, live.lose):
            waiters = [live.wait() for _ in range(3)]
            wake()
            await asyncio.gather(*waiters)
        assert live.settled

    run_virtually(body())


def test_a_waiter_that_gave_up_harms_nobody() -> None:
    async def body() -> None:
        live = make()
        gone, there = live.wait(), live.wait()
        gone.cancel()
        live.wake()
        await there

    run_virtually(body())


def test_a_follower_is_called_at_every_wake_until_it_has_had_enough() -> None:
    live, seen = make(), []

    def follow(name: str, most: int) -> bool:
        seen.append((name, live.committed))
        return sum(each == name for each, _ in seen) < most

    always, twice = partial(follow, "always", 9), partial(follow, "twice", 2)
    live.follow(twice)
    live.follow(always)
    commit(live, [ADDED])
    live.wake()
    live.lose()
    assert seen == [("twice", 2), ("always", 2), ("twice", 2), ("always", 2), ("always", 2)]
    live.unfollow(always)
    live.unfollow(twice)
    live.wake()
    assert len(seen) == 5


# -- all that run here


def test_entering_loses_whoever_was_there_before() -> None:
    async def body() -> None:
        live = LiveResponses()
        first, second = make(), make()
        live.enter(first)
        waiter = first.wait()
        live.enter(second)
        await waiter
        assert first.lost
        assert live.get("resp_1") is second
        live.leave(first)
        assert live.get("resp_1") is second
        live.leave(second)
        assert live.get("resp_1") is None
        assert list(live) == []

    run_virtually(body())


def test_whoever_waits_for_a_response_to_begin_is_rung() -> None:
    async def body() -> None:
        live = LiveResponses()
        waiter, other = live.wait("resp_1"), live.wait("resp_2")
        live.enter(make("resp_1"))
        await waiter
        await turn()
        assert not other.done()
        live.wake_all()
        await other

    run_virtually(body())


def test_nothing_is_kept_of_waiters_that_left() -> None:
    async def body() -> None:
        live = LiveResponses()
        one, two = live.wait("resp_1"), live.wait("resp_1")
        live.forget("resp_1", one)
        live.forget("resp_1", two)
        live.forget("resp_1", two)
        assert live._waiters == {}

    run_virtually(body())

"""A tail holds the newest durable events, says how far back it reaches, and wakes its readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.events import AnyDraft, number, split_frames
from outlive.engine.delivery.tail import BATCH_BYTES, TAIL_BYTES, Tail
from outlive.ports.journal import Batch
from tests.core.journals import frames_of, opening
from tests.engine.live_responses import ADDED, COMPLETED, deltas
from tests.engine.virtual_clock import in_virtual_time


def batch_of(drafts: list[AnyDraft], after: int) -> Batch:
    return Batch(after + 1, after + len(drafts), frames_of(drafts, after))


def push(tail: Tail, drafts: list[AnyDraft]) -> None:
    tail.push(batch_of(drafts, tail.committed))


def make_tail(*, just_admitted: bool = False) -> Tail:
    """Build the tail of a response that was admitted with two events."""
    tail = Tail("resp_1", 1)
    if just_admitted:
        tail.push(batch_of(opening(), -1))
    return tail


# -- how far back it reaches


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12), st.data())
def test_a_slice_after_any_number_holds_what_was_pushed_after_it(batches: list[int], data: st.DataObject) -> None:
    tail = make_tail(just_admitted=True)
    drafts = [*opening(), ADDED]
    push(tail, [ADDED])
    for count in batches:
        push(tail, deltas(count))
        drafts += deltas(count)
    after = data.draw(st.integers(-1, tail.committed - 1))
    batch = tail.slice(after)
    if batch is None:
        assert len(frames_of(drafts)) > TAIL_BYTES
        return
    assert (batch.first, batch.last) == (after + 1, tail.committed)
    assert split_frames(batch.frames) == number(drafts, -1)[after + 1 :]


def test_a_tail_drops_the_oldest_events_beyond_its_limit() -> None:
    tail = make_tail(just_admitted=True)
    push(tail, [ADDED])
    for _ in range(100):
        push(tail, deltas(10, "y" * 100))
    assert tail.slice(-1) is None
    assert tail.slice(tail.committed - 1) is not None
    assert sum(len(batch.frames) for batch in tail._batches) <= TAIL_BYTES


def test_a_batch_larger_than_the_limit_is_kept_until_the_next() -> None:
    tail = make_tail()
    push(tail, [ADDED])
    push(tail, deltas(1, "y" * TAIL_BYTES * 2))
    assert tail.slice(tail.committed - 1) is not None
    push(tail, deltas(1))
    assert tail.slice(tail.committed - 2) is None
    assert tail.slice(tail.committed - 1) is not None


def test_a_huge_batch_is_not_kept_at_all() -> None:
    tail = make_tail()
    push(tail, deltas(1, "y" * BATCH_BYTES))
    assert tail.committed == 2
    assert tail.slice(1) is None
    assert not tail._batches


@given(st.lists(st.integers(1, TAIL_BYTES * 2) | st.integers(BATCH_BYTES - 1, BATCH_BYTES + 1), min_size=1))
def test_a_tail_keeps_as_many_of_the_newest_batches_as_fit_and_the_newest_unless_it_is_huge(sizes: list[int]) -> None:
    tail = Tail("resp_1", -1)
    for n, size in enumerate(sizes):
        tail.push(Batch(n, n, b"y" * size))
    suffixes = [sizes[start:] for start in range(len(sizes) + 1)]
    fitting = next(suffix for suffix in suffixes if sum(suffix) <= TAIL_BYTES)
    kept = fitting or [size for size in sizes[-1:] if size <= BATCH_BYTES]
    assert [len(batch.frames) for batch in tail._batches] == kept


def test_a_tail_without_the_frames_of_the_admission_leaves_them_to_the_journal() -> None:
    assert make_tail().slice(-1) is None
    assert make_tail(just_admitted=True).slice(-1) == batch_of(opening(), -1)


# -- the end


@pytest.mark.parametrize(
    ("drafts", "ended", "committed"),
    [([ADDED], False, 2), ([ADDED, COMPLETED], True, 3), ([], True, 1)],
    ids=["more events", "terminal event", "nothing will follow"],
)
def test_a_mirror_ends_with_a_terminal_event_or_an_empty_batch(
    drafts: list[AnyDraft], ended: bool, committed: int
) -> None:
    tail, woken = make_tail(), 0

    def count() -> bool:
        nonlocal woken
        woken += 1
        return True

    tail.follow(count)
    tail.mirror(batch_of(drafts, 1))
    assert (tail.ended, tail.committed, tail.final, woken) == (ended, committed, None, 1)
    assert tail.slice(1) == (batch_of(drafts, 1) if drafts else None)


# -- waking


@pytest.mark.parametrize(
    "wake",
    [
        lambda tail: push(tail, [ADDED]),
        lambda tail: tail.mirror(batch_of([COMPLETED], 1)),
        Tail.lose,
        Tail.wake,
    ],
    ids=["push", "mirror", "lose", "wake"],
)
@in_virtual_time
async def test_events_and_losses_wake_every_waiter_once(wake: Callable[[Tail], None]) -> None:
    tail = make_tail()
    waiters = [tail.wait() for _ in range(3)]
    wake(tail)
    await asyncio.gather(*waiters)
    assert not tail.wait().done()


@in_virtual_time
async def test_a_cancelled_waiter_does_not_keep_others_from_waking() -> None:
    tail = make_tail()
    cancelled, other = tail.wait(), tail.wait()
    cancelled.cancel()
    tail.wake()
    await other


def test_a_follower_is_called_at_every_wake_until_it_returns_false() -> None:
    tail = make_tail()
    seen: list[tuple[str, int]] = []

    def follow(name: str, most: int) -> bool:
        seen.append((name, tail.committed))
        return sum(each == name for each, _ in seen) < most

    always, twice = partial(follow, "always", 9), partial(follow, "twice", 2)
    tail.follow(twice)
    tail.follow(always)
    push(tail, [ADDED])
    tail.wake()
    tail.lose()
    assert seen == [("twice", 2), ("always", 2), ("twice", 2), ("always", 2), ("always", 2)]
    tail.unfollow(always)
    tail.unfollow(twice)
    tail.wake()
    assert len(seen) == 5

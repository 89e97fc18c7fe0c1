"""Pending events are numbered once, taken whole, and put back in front of what came since."""

from __future__ import annotations

from outlive.core.events import number, split_frames
from outlive.engine.delivery.live import PENDING_BYTES, PendingEvents
from outlive.ports.ledger import Entry, Lease
from tests.engine.live_responses import ADDED, deltas, texts

LEASE = Lease("resp_1", 7, 3)


def test_take_returns_everything_added_as_one_entry() -> None:
    pending = PendingEvents(1)
    drafts = [ADDED, *deltas(2)]
    pending.add(drafts[:1])
    pending.add(drafts[1:])
    entry, taken = pending.take(LEASE, 5.0)
    assert entry == Entry(LEASE, 2, 3, 5.0, b"".join(number(drafts, 1)))
    assert taken == drafts
    assert pending.last == 4


def test_take_leaves_nothing_behind() -> None:
    pending = PendingEvents(1)
    pending.add([ADDED])
    pending.take(LEASE, 5.0)
    entry, drafts = pending.take(LEASE, 6.0)
    assert (entry.first, entry.count, entry.frames, drafts) == (3, 0, b"", [])


def test_an_entry_that_was_put_back_is_taken_before_what_came_since() -> None:
    pending = PendingEvents(1)
    drafts = [ADDED, *texts("a", "b")]
    pending.add(drafts[:2])
    entry, taken = pending.take(LEASE, 1.0)
    pending.add(drafts[2:])
    pending.put_back(entry, taken)
    again, all_taken = pending.take(LEASE, 2.0)
    assert (again.first, again.count) == (2, 3)
    assert split_frames(again.frames) == number(drafts, 1)
    assert all_taken == drafts


def test_pending_events_are_full_beyond_their_limit_until_they_are_taken() -> None:
    pending = PendingEvents(1)
    pending.add([ADDED])
    assert pending.size <= pending.most
    pending.add(deltas(1, "y" * PENDING_BYTES))
    assert pending.size > pending.most
    entry, drafts = pending.take(LEASE, 1.0)
    assert pending.size <= pending.most
    pending.put_back(entry, drafts)
    assert pending.size > pending.most

"""Room: what runs is counted here; what waits too, unless nodes share the line."""

from __future__ import annotations

import pytest

from outlive.core.errors import TooMany
from outlive.engine.slots import Capacity, Slots


def test_places_are_taken_given_back_and_limited_per_owner() -> None:
    room = Slots(Capacity(running=3, waiting=0, running_per_owner=2))
    assert [room.take(owner) for owner in ("ann", "ann", "ann", "bob", "carl")] == [True, True, False, True, False]
    assert room.busy_owners() == {"ann"}
    assert (room.running, room.is_free(), room.is_free("bob")) == (3, False, False)
    room.give_back("ann")
    assert room.busy_owners() == frozenset()
    assert (room.is_free("ann"), room.running) == (True, 2)


def test_a_line_of_ones_own_is_counted_exactly() -> None:
    room = Slots(Capacity(running=1, waiting=3, waiting_per_owner=2))
    for owner in ("ann", "ann", "bob"):
        room.enqueue(owner)
    with pytest.raises(TooMany, match="3 responses are waiting"):
        room.enqueue("carl")
    room.dequeue("bob")
    with pytest.raises(TooMany, match="2 of your responses"):
        room.enqueue("ann")
    room.claim("ann")
    assert (room.running, room.line, room.has_queue) == (1, 1, True)
    room.dequeue("ann")
    assert not room.has_queue


def test_a_line_that_is_shared_is_only_hinted_at() -> None:
    room = Slots(Capacity(running=1, waiting=0), shared=True)
    assert not room.has_queue
    room.enqueue("ann")  # how many may wait, the database knows
    assert room.has_queue
    room.claim("ann")
    room.find_none()
    assert (room.has_queue, room.line) == (False, 0)
    room.hint()
    assert room.has_queue


def test_in_a_shared_line_an_owner_may_wait_for_a_place_of_its_own_that_comes_free() -> None:
    room = Slots(Capacity(running=10, waiting=0, running_per_owner=1), shared=True)
    assert room.take("ann")
    room.find_none()
    room.give_back("ann")
    assert room.has_queue


def test_nobody_waits_in_a_line_of_ones_own_because_another_node_says_so() -> None:
    room = Slots(Capacity(running=1, waiting=1))
    room.hint()
    assert not room.has_queue

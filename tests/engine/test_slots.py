"""Slots: what runs is counted here; so is what is queued, unless nodes share the queue."""

from __future__ import annotations

import pytest

from outlive.core.errors import TooMany
from outlive.core.owners import join
from outlive.engine.slots import OWNER_INPUTS, SMALL_INPUT, Capacity, Slots


def test_slots_are_taken_released_and_limited_per_owner() -> None:
    slots = Slots(Capacity(running=3, queued=0, running_per_owner=2))
    assert [slots.take(owner) for owner in ("ann", "ann", "ann", "bob", "carl")] == [True, True, False, True, False]
    assert slots.busy_owners() == {"ann"}
    assert (slots.running, slots.is_free(), slots.is_free("bob")) == (3, False, False)
    slots.release("ann")
    assert slots.busy_owners() == frozenset()
    assert (slots.is_free("ann"), slots.running) == (True, 2)


def test_a_queue_that_is_not_shared_is_counted_exactly() -> None:
    slots = Slots(Capacity(running=1, queued=3, queued_per_owner=2))
    for owner in ("ann", "ann", "bob"):
        slots.enqueue(owner)
    with pytest.raises(TooMany, match="3 responses are waiting"):
        slots.enqueue("carl")
    slots.dequeue("bob")
    with pytest.raises(TooMany, match="2 of your responses"):
        slots.enqueue("ann")
    slots.take_for_queued("ann")
    assert (slots.running, slots.queued.total(), slots.has_queue) == (1, 1, True)
    slots.dequeue("ann")
    assert not slots.has_queue


def test_a_shared_queue_is_only_hinted_at() -> None:
    slots = Slots(Capacity(running=1, queued=0), shared=True)
    assert not slots.has_queue
    slots.enqueue("ann")  # the database limits how many are queued
    assert slots.has_queue
    slots.take_for_queued("ann")
    slots.hinted = False
    assert (slots.has_queue, slots.queued.total()) == (False, 0)
    slots.hint()
    assert slots.has_queue


def test_releasing_a_slot_hints_at_the_shared_queue_if_owners_have_limits() -> None:
    slots = Slots(Capacity(running=10, queued=0, running_per_owner=1), shared=True)
    assert slots.take("ann")
    slots.hinted = False
    slots.release("ann")
    assert slots.has_queue


def test_a_hint_changes_nothing_for_a_queue_that_is_not_shared() -> None:
    slots = Slots(Capacity(running=1, queued=1))
    slots.hint()
    assert not slots.has_queue


@pytest.mark.parametrize("shared", [False, True])
def test_an_owner_with_many_bytes_running_gets_no_slot_for_a_large_request(shared: bool) -> None:
    slots = Slots(Capacity(running=9, queued=9), shared=shared)
    slots.hold_input("ann", SMALL_INPUT)  # too small to count
    slots.hold_input("ann", OWNER_INPUTS)
    assert [slots.take(*asked) for asked in (("ann", SMALL_INPUT + 1), ("ann", 0), ("bob", OWNER_INPUTS))] == [
        False,
        True,
        True,
    ]
    assert slots.busy_owners() == {"ann"}
    slots.hinted = False
    slots.release_input("ann", OWNER_INPUTS)
    slots.release_input("ann", SMALL_INPUT)
    assert (slots.take("ann", OWNER_INPUTS), slots.busy_owners()) == (True, frozenset())
    assert slots.has_queue == shared  # another node may have queued one


def test_the_end_users_of_an_owner_share_its_slots() -> None:
    slots = Slots(Capacity(running=10, queued=10, running_per_owner=2, queued_per_owner=1))
    users = [join("app", f"user-{number}") for number in range(4)]
    assert [slots.take(user) for user in users] == [True, True, False, False]
    assert slots.busy_owners() == {"app"} and slots.taken == {"app": 2}
    slots.enqueue(users[2])
    with pytest.raises(TooMany):
        slots.enqueue(users[3])
    slots.release(users[0])
    slots.take_for_queued(users[2])
    assert not slots.queued and not slots.is_free(users[3])

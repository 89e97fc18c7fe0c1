"""Slots: the limits on running and queued responses, in all and per owner, and how many there are."""

from __future__ import annotations

from collections import Counter

from outlive.core.errors import TooMany
from outlive.engine.budget import SMALL_ANSWER
from outlive.ports.ledger import Quota

# Bytes of large requests that run, from which on an owner's next large one is queued: each is held in memory while it
# runs. Smaller ones do not count.
OWNER_INPUTS = 32 * 1024 * 1024
SMALL_INPUT = SMALL_ANSWER


class Capacity(Quota, frozen=True, kw_only=True):
    """Limits of one server: those that hold over all nodes, and how many responses it runs."""

    running: int


class Slots:
    """Counts what runs here, and what is queued. Where several nodes share the queue (`shared`), the database keeps its
    limits, and all that is known here is whether something may be queued."""

    def __init__(self, capacity: Capacity, *, shared: bool = False) -> None:
        self._capacity = capacity
        self._shared = shared
        self._taken: Counter[str] = Counter()  # running or about to run, by owner
        self._inputs: Counter[str] = Counter()  # bytes of the large requests that run, by owner
        self._queued: Counter[str] = Counter()
        self._hinted = False  # something may be in the shared queue

    # -- running

    def take(self, owner: str, size: int = 0) -> bool:
        """Take a slot to run a request of so many bytes in, if one is free."""
        if not self.is_free(owner) or (size > SMALL_INPUT and self._inputs[owner] >= OWNER_INPUTS):
            return False
        self._taken[owner] += 1
        return True

    def take_for_queued(self, owner: str) -> None:
        """Take a slot for a response that was queued."""
        self._taken[owner] += 1
        self.dequeue(owner)

    def release(self, owner: str) -> None:
        """Give a slot back."""
        _decrement(self._taken, owner)
        if self._shared and self._capacity.running_per_owner:
            self._hinted = True  # another response of this owner's may be queued for just that

    def hold_input(self, owner: str, size: int) -> None:
        """Count the bytes of a request that begins to run."""
        if size > SMALL_INPUT:
            self._inputs[owner] += size

    def release_input(self, owner: str, size: int) -> None:
        """Count the bytes of a request that runs no more."""
        if size > SMALL_INPUT:
            _decrement(self._inputs, owner, size)
            self.hint()  # another one may be queued for just that

    def is_free(self, owner: str | None = None) -> bool:
        """Return True if a slot is free, for that owner or for anyone."""
        capacity = self._capacity
        if self._taken.total() >= capacity.running:
            return False
        return owner is None or not capacity.running_per_owner or self._taken[owner] < capacity.running_per_owner

    def count_free(self, most: int) -> int:
        """Count the slots that may be filled in one claim, `most` at most."""
        return 1 if self._capacity.running_per_owner else min(self._capacity.running - self._taken.total(), most)

    def busy_owners(self) -> frozenset[str]:
        """Return the owners that have as much running as is allowed."""
        per_owner = self._capacity.running_per_owner
        busy = {owner for owner, n in self._taken.items() if per_owner and n >= per_owner}
        return frozenset(busy.union(owner for owner, size in self._inputs.items() if size >= OWNER_INPUTS))

    @property
    def running(self) -> int:
        """Number of slots taken."""
        return self._taken.total()

    def running_by_owner(self) -> dict[str, int]:
        """Count the slots taken by owner."""
        return dict(self._taken)

    # -- queued

    def enqueue(self, owner: str) -> None:
        """Count one more queued response. Raises TooMany."""
        if self._shared:
            self._hinted = True
            return
        capacity = self._capacity
        if self._queued.total() >= capacity.queued:
            raise TooMany.waiting(capacity.queued)
        if capacity.queued_per_owner and self._queued[owner] >= capacity.queued_per_owner:
            raise TooMany.waiting_of_owner(capacity.queued_per_owner)
        self._queued[owner] += 1

    def dequeue(self, owner: str) -> None:
        """Count one queued response less."""
        if not self._shared:
            _decrement(self._queued, owner)

    def set_queued(self, queued: dict[str, int]) -> None:
        """Set the number of queued responses per owner, as counted in the database."""
        if self._shared:
            self._hinted = True
        else:
            self._queued = Counter(queued)

    def hint(self) -> None:
        """Note that something may be in the shared queue."""
        self._hinted = self._shared

    def clear_hint(self) -> None:
        """Note that the shared queue holds nothing that may run here."""
        self._hinted = False

    @property
    def has_queue(self) -> bool:
        """True if something may be queued."""
        return self._hinted or bool(self._queued)

    @property
    def queued(self) -> int:
        """Number of queued responses; 0 where the queue is shared."""
        return self._queued.total()


def _decrement(counter: Counter[str], owner: str, by: int = 1) -> None:
    counter[owner] -= by
    if counter[owner] <= 0:
        del counter[owner]

"""Slots: the limits on running and queued responses, in all and per owner, and how many there are. An owner's end users
share its limits."""

from collections import Counter

from outlive.core.errors import TooMany
from outlive.core.owners import name_of
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
    """Counts what runs here, and what is queued, by the names of owners. Where several nodes share the queue
    (`shared`), the database keeps its limits, and all that is known here is whether something may be queued."""

    def __init__(self, capacity: Capacity, *, shared: bool = False) -> None:
        self._capacity = capacity
        self._shared = shared
        self.taken: Counter[str] = Counter()  # running or about to run, by owner
        self._inputs: Counter[str] = Counter()  # bytes of the large requests that run, by owner
        self.queued: Counter[str] = Counter()  # by owner; none where the queue is shared
        self.hinted = False  # something that may run here may be in the shared queue

    # -- running

    def take(self, owner: str, size: int = 0) -> bool:
        """Take a slot to run a request of so many bytes in, if one is free."""
        owner = name_of(owner)
        if not self.is_free(owner) or (size > SMALL_INPUT and self._inputs[owner] >= OWNER_INPUTS):
            return False
        self.taken[owner] += 1
        return True

    def take_for_queued(self, owner: str) -> None:
        self.taken[name_of(owner)] += 1
        self.dequeue(owner)

    def release(self, owner: str) -> None:
        _decrement(self.taken, name_of(owner))
        if self._shared and self._capacity.running_of(owner):
            self.hint()  # another response of this owner's may be queued for just that

    def hold_input(self, owner: str, size: int) -> None:
        """Count the bytes of a request that begins to run."""
        if size > SMALL_INPUT:
            self._inputs[name_of(owner)] += size

    def release_input(self, owner: str, size: int) -> None:
        if size > SMALL_INPUT:
            _decrement(self._inputs, name_of(owner), size)
            self.hint()  # another one may be queued for just that

    def is_free(self, owner: str | None = None) -> bool:
        """Return True if a slot is free, for that owner or for anyone."""
        if self.running >= self._capacity.running:
            return False
        most = self._capacity.running_of(owner) if owner is not None else 0
        return owner is None or not most or self.taken[name_of(owner)] < most

    def count_free(self, most: int) -> int:
        """Count the slots that may be filled in one claim, `most` at most."""
        limited = self._capacity.running_per_owner or self._capacity.policies
        return 1 if limited else min(self._capacity.running - self.running, most)

    def busy_owners(self) -> frozenset[str]:
        """Return the owners that have as much running as is allowed."""
        most = self._capacity.running_of
        busy = {owner for owner, n in self.taken.items() if most(owner) and n >= most(owner)}
        return frozenset(busy.union(owner for owner, size in self._inputs.items() if size >= OWNER_INPUTS))

    @property
    def running(self) -> int:
        """Number of slots taken."""
        return self.taken.total()

    # -- queued

    def enqueue(self, owner: str) -> None:
        """Count one more queued response. Raises TooMany."""
        if self._shared:
            self.hint()
            return
        capacity = self._capacity
        if self.queued.total() >= capacity.queued:
            raise TooMany.waiting(capacity.queued)
        owner, most = name_of(owner), capacity.queued_of(owner)
        if most and self.queued[owner] >= most:
            raise TooMany.waiting_of_owner(most)
        self.queued[owner] += 1

    def dequeue(self, owner: str) -> None:
        if not self._shared:
            _decrement(self.queued, name_of(owner))

    def set_queued(self, queued: dict[str, int]) -> None:
        """Set the number of queued responses per owner, as counted in the database."""
        self.hint()
        if not self._shared:
            self.queued = Counter(queued)

    def hint(self) -> None:
        """Note that something may be in the shared queue."""
        self.hinted = self._shared

    @property
    def has_queue(self) -> bool:
        """True if something may be queued."""
        return self.hinted or bool(self.queued)


def _decrement(counter: Counter[str], owner: str, by: int = 1) -> None:
    counter[owner] -= by
    if counter[owner] <= 0:
        del counter[owner]

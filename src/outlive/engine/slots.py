"""Room: how much may run and wait here, in all and per owner, and how much does."""

from __future__ import annotations

from collections import Counter

import msgspec

from outlive.core.errors import TooMany


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """How much may run and wait, in all and per owner; 0 per owner: no limit of its own."""

    running: int
    waiting: int
    running_per_owner: int = 0
    waiting_per_owner: int = 0


class Slots:
    """Counts what runs here. What waits is counted too, unless several nodes share the line (`shared`): then the
    database keeps its limits, and all that is known here is that something may be waiting."""

    def __init__(self, capacity: Capacity, *, shared: bool = False) -> None:
        self._capacity = capacity
        self._shared = shared
        self._taken: Counter[str] = Counter()  # running or about to, by owner
        self._waiting: Counter[str] = Counter()
        self._hinted = False

    def take(self, owner: str) -> bool:
        """Take a place to run in, if there is one."""
        if not self.is_free(owner):
            return False
        self._taken[owner] += 1
        return True

    def claim(self, owner: str) -> None:
        """One that waited runs here now."""
        self._taken[owner] += 1
        self.dequeue(owner)

    def give_back(self, owner: str) -> None:
        """What ran there does so no more."""
        _lessen(self._taken, owner)
        if self._shared and self._capacity.running_per_owner:
            self._hinted = True  # another of this owner's may have waited for just that

    def is_free(self, owner: str | None = None) -> bool:
        capacity = self._capacity
        if self._taken.total() >= capacity.running:
            return False
        return owner is None or not capacity.running_per_owner or self._taken[owner] < capacity.running_per_owner

    def places(self, most: int) -> int:
        """How many may be claimed at once."""
        return 1 if self._capacity.running_per_owner else min(self._capacity.running - self._taken.total(), most)

    def busy_owners(self) -> frozenset[str]:
        """Who has as much running as is allowed."""
        per_owner = self._capacity.running_per_owner
        return frozenset(owner for owner, n in self._taken.items() if per_owner and n >= per_owner)

    # -- the line

    def enqueue(self, owner: str) -> None:
        """Let one wait. Raises TooMany."""
        if self._shared:
            self._hinted = True
            return
        capacity = self._capacity
        if self._waiting.total() >= capacity.waiting:
            raise TooMany.waiting(capacity.waiting)
        if capacity.waiting_per_owner and self._waiting[owner] >= capacity.waiting_per_owner:
            raise TooMany.waiting_of_owner(capacity.waiting_per_owner)
        self._waiting[owner] += 1

    def dequeue(self, owner: str) -> None:
        """One waits no longer."""
        if not self._shared:
            _lessen(self._waiting, owner)

    def set_queued(self, waiting: dict[str, int]) -> None:
        """So many wait already."""
        if self._shared:
            self._hinted = True
        else:
            self._waiting = Counter(waiting)

    def hint(self) -> None:
        """Something may be waiting in a line that is shared."""
        self._hinted = self._shared

    def find_none(self) -> None:
        """Nothing waits in a line that is shared, or nothing that may run here."""
        self._hinted = False

    @property
    def has_queue(self) -> bool:
        return self._hinted or bool(self._waiting)

    @property
    def line(self) -> int:
        return self._waiting.total()

    @property
    def running(self) -> int:
        return self._taken.total()


def _lessen(counter: Counter[str], owner: str) -> None:
    counter[owner] -= 1
    if counter[owner] <= 0:
        del counter[owner]

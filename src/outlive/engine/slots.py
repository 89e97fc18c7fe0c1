"""Slots: the limits on running and queued responses, in all and per owner, and how many there are. An owner's end users
share its limits."""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from outlive.core.errors import StorageUnavailable, TooMany
from outlive.core.owners import name_of
from outlive.engine.budget import SMALL_ANSWER
from outlive.engine.waiting import STORAGE_PAUSE
from outlive.ports.clock import Clock
from outlive.ports.database import Statements, lock_key
from outlive.ports.ledger import Quota

log = logging.getLogger(__name__)

# Bytes of large requests that run, from which on an owner's next large one is queued: each is held in memory while it
# runs. Smaller ones do not count.
OWNER_INPUTS = 32 * 1024 * 1024
SMALL_INPUT = SMALL_ANSWER

# Seconds after which a count that got no answer is not waited for: the run begins by the count of this node alone.
ANSWER_SECONDS = 5.0
# Seconds until an owner at its limit is counted once more: a client that has just read the end of a run on another node
# may ask here before that node has written it.
RELEASE_SECONDS = 0.1


class Capacity(Quota, frozen=True, kw_only=True):
    """Limits of one server: those that hold over all nodes, and how many responses it runs."""

    running: int


class Slots:
    """Counts what runs here, and what is queued, by the names of owners. Where several nodes share the queue
    (`shared`), the database keeps its limits, and all that is known here is whether something may be queued."""

    def __init__(self, capacity: Capacity, *, shared: bool = False) -> None:
        self.capacity = capacity
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

    def release(self, owner: str, *, stored: bool = True) -> None:
        _decrement(self.taken, name_of(owner))
        if stored and self._shared and self.capacity.running_of(owner):
            # Another response of this owner's may be queued for just that. The database does not know yet of the end
            # of one that was not stored.
            self.hint()

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
        if self.running >= self.capacity.running:
            return False
        most = self.capacity.running_of(owner) if owner is not None else 0
        return owner is None or not most or self.taken[name_of(owner)] < most

    def count_free(self, most: int) -> int:
        """Count the slots that may be filled in one claim, `most` at most."""
        limited = self.capacity.running_per_owner or self.capacity.policies
        return 1 if limited else min(self.capacity.running - self.running, most)

    def busy_owners(self) -> frozenset[str]:
        """Return the owners that have as much running as is allowed."""
        most = self.capacity.running_of
        busy = {owner for owner, n in self.taken.items() if most(owner) and n >= most(owner)}
        return frozenset(busy.union(owner for owner, size in self._inputs.items() if size >= OWNER_INPUTS))

    @property
    def running(self) -> int:
        """Number of slots taken."""
        return sum(self.taken.values())

    # -- queued

    def enqueue(self, owner: str) -> None:
        """Count one more queued response. Raises TooMany."""
        if self._shared:
            self.hint()
            return
        capacity = self.capacity
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


@dataclass(slots=True, eq=False)
class OwnerRuns:
    """The runs of one owner here that are not stored."""

    held: int = 0
    written: int = 0  # as the database has it
    failing: bool = False  # the database does not answer: `written` is unknown
    asking: list[asyncio.Future[bool]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None  # which writes; one for each owner, so that no count overtakes a later one


@dataclass(eq=False)
class UnstoredRuns:
    """Counts the runs of this node that are not stored. For owners with a limit the database counts those of all nodes,
    together with stored ones; what is written is how many run here, so that a write which was lost or doubled is
    repaired by the next. Where no other node is, `Slots` alone count."""

    _database: Statements
    _worker: str
    _quota: Quota
    _clock: Clock
    _shared: bool
    _on_free: Callable[[], None]  # responses of an owner wait, and may run now
    _runs: defaultdict[str, OwnerRuns] = field(default_factory=lambda: defaultdict(OwnerRuns))

    async def take(self, owner: str) -> bool:
        """Count one more run of an owner, unless all nodes together have as many as it may run."""
        if not self._shared:
            return True
        name = name_of(owner)
        runs = self._runs[name]
        if runs.failing or not self._quota.running_of(name):
            runs.held += 1
            return True
        if await self._ask(name):
            return True
        await self._clock.sleep(RELEASE_SECONDS)
        return await self._ask(name)

    def release(self, owner: str) -> None:
        """Count one run of an owner less; the database learns of it in the background."""
        if self._shared:
            name = name_of(owner)
            runs = self._runs[name]
            runs.held -= 1
            if runs.written or self._quota.running_of(name):
                self._write_soon(name, runs)
            elif not runs.held and runs.task is None:
                del self._runs[name]

    async def check(self) -> None:
        """Write again what the database has lost: by its crash, or while this node counted as dead."""
        if not self._quota.running_per_owner and not self._quota.policies and not self._runs:
            return
        found = dict(await self._database.fetch("find_running_unstored", self._worker))
        for name in found.keys() | self._runs.keys():
            runs = self._runs[name]
            if runs.task is None and (name in found or self._quota.running_of(name)):
                runs.written = found.get(name, 0)
                self._write_soon(name, runs)

    async def stop(self) -> None:
        """Write no more: what a node has written does not count once it is gone."""
        self._shared = False
        tasks = [runs.task for runs in self._runs.values() if runs.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, name: str) -> bool:
        runs, answer = self._runs[name], asyncio.get_running_loop().create_future()
        runs.asking.append(answer)
        self._write_soon(name, runs)
        try:
            return bool(await answer)
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.result():
                self.release(name)  # cancelled in the moment in which it was counted
            raise

    def _write_soon(self, name: str, runs: OwnerRuns) -> None:
        if runs.task is None:
            runs.task = asyncio.create_task(self._write(name, runs))

    async def _write(self, name: str, runs: OwnerRuns) -> None:
        try:
            while runs.asking or runs.failing or runs.written != runs.held:
                await self._write_once(name, runs)
                if runs.failing:
                    await self._clock.sleep(STORAGE_PAUSE)
        finally:
            runs.task = None
            for answer in runs.asking:
                answer.cancel()  # the server stops
            if not runs.held and not runs.written:
                self._runs.pop(name, None)

    async def _write_once(self, name: str, runs: OwnerRuns) -> None:
        """Write how many run here, and add as many of those that ask as all nodes together may run."""
        sent, held, before, waits = len(runs.asking), runs.held, runs.written, False
        wanted = sum(not answer.done() for answer in runs.asking)
        # The lock is the one of admissions and claims.
        values = (name, self._worker, held, wanted, self._quota.running_of(name), lock_key("running", name))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                ((added, waits),) = await self._database.change("share_running", *values)
            runs.written, runs.failing = held + added, False
        except (StorageUnavailable, TimeoutError) as error:
            if not runs.failing:
                why = str(error) or "no answer in time"
                log.warning("counting an owner's runs on all nodes failed, counting those of this one alone: %s", why)
            sent = added = len(runs.asking)
            runs.failing = True
        for answer in runs.asking[:sent]:
            if not answer.done():  # otherwise its client is gone, and the next write says so
                answer.set_result(added > 0)
                runs.held += added > 0
                added -= 1
        del runs.asking[:sent]
        if waits and held < before:
            self._on_free()

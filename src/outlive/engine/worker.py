"""The worker: claims responses, runs them within its limits, recovers, cancels, and drains before a shutdown."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from outlive.core.errors import NotFound, ShuttingDown, StaleFence, StorageUnavailable, TooMany, UpstreamFault
from outlive.engine.delivery.live import LiveResponse, LiveResponses, State
from outlive.engine.delivery.reader import Shutdown, replay
from outlive.engine.run.run import TOO_LATE, Run, RunServices, make_deadline_fault
from outlive.engine.slots import Capacity, Slots, UnstoredRuns
from outlive.engine.waiting import STORAGE_PAUSE, keep_trying
from outlive.ports.bell import Ring
from outlive.ports.catalog import RUNNING
from outlive.ports.ledger import Claim
from outlive.ports.storage import Storage

log = logging.getLogger(__name__)

CLAIM_BATCH = 50
DRAIN_STEP_SECONDS = 0.25
LAST_SECONDS = 5.0  # for which a storage that is down can delay the shutdown
SHUT_DOWN = "The server was shut down before the answer was complete."


class Running(msgspec.Struct, frozen=True):
    """A run, its task and its live response."""

    task: asyncio.Task[None]
    run: Run
    live: LiveResponse


def stop(task: asyncio.Task[None]) -> None:
    """Cancel a task, once: a second cancel would interrupt the closing of the upstream's connection."""
    if not task.cancelling():
        task.cancel()


@dataclass(eq=False)
class Worker:
    """Runs the stored responses of one server."""

    name: str
    _storage: Storage
    _services: RunServices
    _live: LiveResponses
    _capacity: Capacity
    _shutdown: Shutdown
    _claims: bool = True  # False: stored responses are left to other nodes
    _confirmed: bool = True  # the leases of everything that runs here are known to be held
    _running: dict[str, Running] = field(default_factory=dict)
    _claiming: asyncio.Task[None] | None = None
    _claim_again: bool = False
    _ending: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _releasing: set[asyncio.Task[None]] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __post_init__(self) -> None:
        clock, database, shared = self._services.clock, self._storage.database, self._storage.shared
        self.slots = Slots(self._capacity, shared=shared)
        self.unstored = UnstoredRuns(database, self.name, self._capacity, clock, shared, self.announce_queued)

    # -- slots

    def reserve(self, owner: str, size: int = 0, *, stored: bool = True) -> bool:
        """Reserve a slot for a request of so many bytes: True to run it at once, False to queue it. Raises TooMany."""
        if self._shutdown.draining:
            raise ShuttingDown
        if (not stored or self._may_claim()) and self.slots.take(owner, size):
            return True
        self.slots.enqueue(owner)
        return False

    def release_slot(self, owner: str, runs: bool) -> None:
        if runs:
            self.slots.release(owner)
            self.fill_slots()
        else:
            self.slots.dequeue(owner)

    async def reserve_unstored(self, owner: str, what: str, size: int = 0) -> None:
        """Reserve a slot for work that is not stored, and so cannot be queued. Raises TooMany if there is none."""
        counted = False
        if self.reserve(owner, size, stored=False):
            try:
                counted = await self.unstored.take(owner)
            finally:
                if not counted:
                    self.slots.release(owner, stored=False)
                    self.fill_slots()
        else:
            self.release_slot(owner, runs=False)
        if not counted:
            raise TooMany(f"The server is busy, and {what} cannot be queued.")

    def release_unstored(self, owner: str) -> None:
        self.slots.release(owner, stored=False)
        self.unstored.release(owner)
        self.fill_slots()

    @contextlib.asynccontextmanager
    async def hold_slot(self, owner: str, what: str) -> AsyncIterator[None]:
        """Hold a slot for work that is not stored. Raises TooMany if there is none."""
        await self.reserve_unstored(owner, what)
        try:
            yield
        finally:
            self.release_unstored(owner)

    # -- running

    async def recover(self) -> int:
        """Free the leases of dead workers, and claim what is queued. Returns how many were freed."""
        freed = await self._storage.ledger.free_dead_leases()
        self.slots.set_queued(await self._storage.ledger.count_queued())
        self.fill_slots()
        return freed

    def find_work(self) -> None:
        """Claim what other nodes may have queued."""
        self.slots.hint()
        self.fill_slots()

    def announce_queued(self) -> None:
        """Have a queued response claimed, here or on another node."""
        self.find_work()
        self._storage.bell.ring(Ring("waits"))

    def start(self, live: LiveResponse) -> None:
        """Run a response whose slot is reserved already."""
        self._live.add(live)
        self.slots.hold_input(live.claim.owner, live.claim.size)
        run = Run(self._services, live)
        task = self._loop.create_task(run.run())
        self._running[live.lease.response_id] = Running(task, run, live)
        # Not in the task itself: one that is cancelled before it begins never comes to its end.
        task.add_done_callback(partial(self._on_done, live))
        live.on_lost = partial(stop, task)

    def fill_slots(self) -> None:
        """Claim queued responses while slots are free."""
        if not self.slots.has_queue or self._shutdown.draining or not self._may_claim():
            return
        # A claim under way may have looked before there was something to find.
        self._claim_again = True
        if self._claiming is None or self._claiming.done():
            self._claiming = asyncio.create_task(self._claim_all())

    async def _claim_all(self) -> None:
        slots = self.slots
        while slots.has_queue and slots.is_free() and not self._shutdown.draining and self._may_claim():
            self._claim_again = False
            free, busy = slots.count_free(CLAIM_BATCH), slots.busy_owners()
            try:
                claims = await self._storage.ledger.claim(self.name, free, busy)
            except StorageUnavailable:
                await self._services.clock.sleep(STORAGE_PAUSE)
                continue
            for claim in claims:
                slots.take_for_queued(claim.owner)
            await self._start_all(claims)
            if not claims and not self._claim_again:
                slots.hinted = False
                return

    async def _start_all(self, claims: list[Claim]) -> None:
        """Start the claimed responses. A journal that cannot be folded is a bug, and must not hold up the others."""
        revived = await asyncio.gather(*map(self._revive, claims), return_exceptions=True)
        for claim, live in zip(claims, revived, strict=True):
            if isinstance(live, LiveResponse) and not live.fold.ended:
                if claim.attempts > 1 or live.fold.status != "queued":
                    self._services.counts.takeovers += 1
                    log.info("taking over response", extra=live.describe() | {"attempts": claim.attempts})
                self.start(live)
                self._storage.bell.ring(Ring("taken", claim.lease.response_id, claim.lease.fence))
                continue
            if isinstance(live, BaseException) and not isinstance(live, NotFound):
                log.error("reviving response failed", exc_info=live, extra={"response_id": claim.lease.response_id})
            self.release_slot(claim.owner, runs=True)  # otherwise cancelled or even deleted since it was claimed

    async def _revive(self, claim: Claim) -> LiveResponse:
        """Make the live response from its journal. A claim must be ended, so this waits for a storage that is down."""
        clock, storage = self._services.clock, self._storage
        fold = await keep_trying(partial(replay, storage.journal, claim.lease.response_id), clock)
        return LiveResponse(claim, fold, storage.ledger, read_at=clock.monotonic())

    def _on_done(self, live: LiveResponse, task: asyncio.Task[None]) -> None:
        response_id = live.lease.response_id
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("ending response failed", exc_info=error, extra={"response_id": response_id})
        if (running := self._running.get(response_id)) is not None and running.live is live:
            del self._running[response_id]
        self._live.remove(live)
        self.slots.release_input(live.claim.owner, live.claim.size)
        self.release_slot(live.claim.owner, runs=True)
        self._release_if_behind(live)

    # -- other nodes

    def _may_claim(self) -> bool:
        """Return True if leases taken now would be held. Not without a heartbeat: other nodes would take them over at
        once. Nor before it is known which were lost meanwhile: a worker might claim what it still runs."""
        if not self._storage.heartbeat.is_beating():
            self._confirmed = False
        return self._claims and self._confirmed

    def on_taken(self, response_id: str, fence: int) -> None:
        """Stop running a response whose fence another node has raised to that number."""
        running = self._running.get(response_id)
        if running is not None and running.live.lease.fence < fence and running.live.state is not State.ENDED:
            running.live.lose()

    async def confirm_leases(self) -> None:
        """Stop running what other nodes have taken over: the ring that said so may have been lost."""
        beating = self._storage.heartbeat.is_beating()
        held = [running.live for running in self._running.values() if running.live.state is not State.LOST]
        confirmed = await self._storage.ledger.confirm_leases(self.name, [live.lease for live in held]) if held else []
        for live, is_held in zip(held, confirmed, strict=True):
            if not is_held and live.state is not State.ENDED:
                live.lose()
        self._confirmed = self._confirmed or beating

    def _release_if_behind(self, live: LiveResponse) -> None:
        """Release a response whose journal has lost committed events: the next worker begins with the journal."""
        if live.is_behind:
            log.error("journal lost committed events", extra={"response_id": live.lease.response_id})

            async def release() -> None:
                await keep_trying(partial(self._storage.ledger.release_leases, [live.lease]), self._services.clock)
                self.announce_queued()

            task = asyncio.create_task(release())
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    # -- ending from outside

    async def cancel(self, response_id: str) -> None:
        """End a response as cancelled, wherever it runs; one that has ended stays as it is (D8).
        Concurrent calls wait for the same end, and a caller that stops waiting does not stop it."""
        await self._end_from_outside(response_id, partial(self._services.closer.end, status="cancelled"))

    async def end_overdue(self) -> None:
        """End queued responses whose deadline has passed: to wait for a slot would be in vain."""
        if not self._shutdown.draining:
            for response_id in await self._storage.ledger.find_overdue(self._services.clock.now(), CLAIM_BATCH):
                fail = partial(self._services.closer.fail, fault=make_deadline_fault(TOO_LATE))
                with contextlib.suppress(NotFound):  # erased since
                    await self._end_from_outside(response_id, fail)

    async def _end_from_outside(self, response_id: str, end: Callable[[LiveResponse], Awaitable[None]]) -> None:
        if (task := self._ending.get(response_id)) is None:
            task = self._ending[response_id] = asyncio.create_task(self._take_and_end(response_id, end))
            task.add_done_callback(lambda _: self._ending.pop(response_id))
        await asyncio.shield(task)

    async def _take_and_end(self, response_id: str, end: Callable[[LiveResponse], Awaitable[None]]) -> None:
        claim = await self._storage.ledger.take_over(response_id, self.name)
        if claim is None:
            return
        if (running := self._running.get(response_id)) is not None:
            stop(running.task)
        if claim.was_queued:
            self.slots.dequeue(claim.owner)
        live = await self._revive(claim)
        if running is not None and running.live.lease.fence + 1 == claim.lease.fence:
            live.continue_counting(running.live)
        self._live.add(live)
        # Has the worker that ran it before stop, and the nodes that read it subscribe here. Only now that the live
        # response is registered, as above: a subscription that arrives before would be lost.
        self._storage.bell.ring(Ring("taken", response_id, claim.lease.fence))
        if running is not None and running.live.state is not State.ENDED:
            running.live.lose()  # its run may have ended already, and its readers would wait for it
        try:
            await end(live)
        except StaleFence:
            self._release_if_behind(live)  # otherwise another node ended it at the same time
        finally:
            self._live.remove(live)

    async def abandon(self, owner: str, response_id: str) -> None:
        """Cancel a response that has not ended, for the connection that created it is gone."""
        while not self._shutdown.draining:
            with contextlib.suppress(StorageUnavailable):
                if await self._storage.catalog.status(owner, response_id) in RUNNING:
                    await self._storage.ledger.mark_answered(response_id)  # a silent retry begins anew
                    await self.cancel(response_id)
                return
            await self._services.clock.sleep(STORAGE_PAUSE)

    async def cancel_abandoned(self, seconds: float) -> None:
        """Cancel foreground runs that had no reader for so long (D1)."""
        now = self._services.clock.monotonic()
        for live in [running.live for running in self._running.values()]:
            goes_on = live.claim.background or live.claim.request.outlive.get("on_disconnect") == "continue"
            if not goes_on and live.tail.readers == 0 and now - live.tail.read_at > seconds:
                await self.cancel(live.lease.response_id)

    # -- shutdown

    async def drain(self, grace: float) -> None:
        """Release what loses nothing by it, let the rest run on for `grace` seconds, then end it."""
        if self._claiming is not None:
            # What it has claimed can be released once it has started; otherwise its attempt would count.
            await asyncio.wait([self._claiming], timeout=LAST_SECONDS)
        now = asyncio.get_running_loop().time
        until = now() + grace
        while True:
            await self._release_running()
            self._live.wake_all()
            left = until - now()
            if not self._running or left <= 0:
                break
            # What begins meanwhile, or comes to a point from which it can be continued, is released too.
            tasks = [running.task for running in self._running.values()]
            await asyncio.wait(tasks, timeout=min(left, DRAIN_STEP_SECONDS))
        await asyncio.gather(*(self._end(running) for running in list(self._running.values())))

    async def _release_running(self) -> None:
        """Stop and release the runs that another worker can continue without dropping anything that was shown."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                for live in [running.live for running in self._running.values()]:
                    # A first output may be on its way to the journal: the response is visible in a moment.
                    while not live.fold.visible and not live.is_durable:
                        await live.tail.wait()
                released = [running for running in self._running.values() if _can_release(running)]
                await _stop_all(released)
                for running in released:
                    await running.live.flush()
                if released := [running for running in released if running.live.state is State.OPEN]:
                    await self._release_leases(released)
        except (StorageUnavailable, TimeoutError):
            log.warning("releasing leases failed: database unavailable. The next worker recovers these responses")

    async def _release_leases(self, released: list[Running]) -> None:
        await self._storage.ledger.release_leases([running.live.lease for running in released])
        self._storage.bell.ring(Ring("waits"))
        for running in released:
            running.live.lose()

    async def _end(self, running: Running) -> None:
        """End a response that still runs: release it if another worker can take its next step, else fail it."""
        live = running.live
        if live.state is State.ENDING:
            await asyncio.wait([running.task], timeout=LAST_SECONDS)
        await _stop_all([running])
        if live.state is not State.OPEN:
            return
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await live.flush()
                if running.run.can_resume():
                    await self._release_leases([running])
                else:
                    await self._services.closer.fail(live, UpstreamFault(SHUT_DOWN, retryable=False, reason="shutdown"))
        except StaleFence:
            pass
        except (StorageUnavailable, TimeoutError):
            about = {"response_id": live.lease.response_id}
            log.warning("ending response failed: database unavailable", extra=about)


async def _stop_all(stopped: list[Running]) -> None:
    for running in stopped:
        stop(running.task)
    await asyncio.gather(*(running.task for running in stopped), return_exceptions=True)


def _can_release(running: Running) -> bool:
    """Return True if nothing is shown yet, or another worker can go on where this one stops."""
    live = running.live
    if live.state is not State.OPEN:
        return False
    return running.run.can_release() if live.fold.visible else live.is_durable

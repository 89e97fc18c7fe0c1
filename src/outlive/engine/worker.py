"""The worker: takes responses, runs them within its limits, recovers, cancels, and hands back when it must leave."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import NamedTuple

import msgspec

from outlive.core.errors import NotFound, ShuttingDown, StaleFence, StorageUnavailable, TooMany
from outlive.engine.live import Live, Lives
from outlive.engine.reader import Reader
from outlive.engine.runner import STORAGE_PAUSE, Runner
from outlive.ports.clock import Clock
from outlive.ports.ledger import Claim, Ledger

log = logging.getLogger(__name__)

CLAIM_BATCH = 50
DRAIN_STEP_SECONDS = 0.25
LAST_SECONDS = 5.0  # how long a storage that is down can keep the server from leaving
LEFT = "The server was shut down before the answer was complete."


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """How much may run and wait, in all and per owner; 0 per owner: no limit of its own."""

    running: int
    waiting: int
    running_per_owner: int = 0
    waiting_per_owner: int = 0


class Running(NamedTuple):
    task: asyncio.Task[None]
    claim: Claim
    live: Live


class Worker:
    def __init__(
        self, name: str, ledger: Ledger, runner: Runner, reader: Reader, lives: Lives, clock: Clock, capacity: Capacity
    ) -> None:
        self.name = name
        self.draining = False
        self.leaving = False
        self._ledger = ledger
        self._runner = runner
        self._reader = reader
        self._lives = lives
        self._clock = clock
        self._capacity = capacity
        self._running: dict[str, Running] = {}
        self._taken: Counter[str] = Counter()  # running or about to, by owner
        self._waiting: Counter[str] = Counter()
        self._pumping: asyncio.Task[None] | None = None
        self._pump_again = False
        self._cancelling: dict[str, asyncio.Task[None]] = {}

    # -- limits

    def reserve(self, owner: str) -> bool:
        """Make room for a new response: True to run it at once, False to let it wait. Raises TooMany."""
        if self.draining:
            raise ShuttingDown
        capacity = self._capacity
        if self._has_room(owner):
            self._taken[owner] += 1
            return True
        if self._waiting.total() >= capacity.waiting:
            raise TooMany(f"{capacity.waiting} responses are waiting already. Try again later.", retry_after=5)
        if capacity.waiting_per_owner and self._waiting[owner] >= capacity.waiting_per_owner:
            raise TooMany(f"{capacity.waiting_per_owner} of your responses are waiting already.", retry_after=5)
        self._waiting[owner] += 1
        return False

    def release(self, owner: str, runs: bool) -> None:
        """Give a reservation back."""
        counter = self._taken if runs else self._waiting
        counter[owner] -= 1
        if counter[owner] <= 0:
            del counter[owner]
        if runs:
            self.pump()

    def _has_room(self, owner: str | None = None) -> bool:
        capacity = self._capacity
        if self._taken.total() >= capacity.running:
            return False
        return owner is None or not capacity.running_per_owner or self._taken[owner] < capacity.running_per_owner

    # -- running

    async def recover(self) -> int:
        """Take up what a worker before us left; how many wait for that."""
        await self._ledger.free()
        self._waiting = Counter(await self._ledger.waiting())
        self.pump()
        return self._waiting.total()

    def start(self, claim: Claim, live: Live) -> None:
        """Run a response whose room is reserved already."""
        self._lives.enter(live)
        task = asyncio.create_task(self._run(claim, live))
        self._running[claim.lease.response_id] = Running(task, claim, live)
        # Not in the task itself: one that is cancelled before it begins never comes to its end.
        task.add_done_callback(partial(self._ended, claim, live))
        live.on_lost = partial(_stop, task)

    def pump(self) -> None:
        """See to it that whatever waits is taken as soon as there is room."""
        if not self._waiting or self.draining:
            return
        # A claim under way may have looked before there was something to find.
        self._pump_again = True
        if self._pumping is None or self._pumping.done():
            self._pumping = asyncio.create_task(self._claim_all())

    async def _claim_all(self) -> None:
        while self._waiting and self._has_room() and not self.draining:
            self._pump_again = False
            try:
                claims = await self._claim_some()
            except StorageUnavailable:
                await self._clock.sleep(STORAGE_PAUSE)
                continue
            for claim in claims:
                await self._start_claimed(claim)
            if not claims and not self._pump_again:
                return

    async def _claim_some(self) -> list[Claim]:
        per_owner = self._capacity.running_per_owner
        busy = frozenset(owner for owner, n in self._taken.items() if per_owner and n >= per_owner)
        room = 1 if per_owner else min(self._capacity.running - self._taken.total(), CLAIM_BATCH)
        claims = await self._ledger.claim(self.name, room, busy)
        for claim in claims:
            self._taken[claim.owner] += 1
            self.release(claim.owner, runs=False)
        return claims

    async def _start_claimed(self, claim: Claim) -> None:
        try:
            live = await self._revive(claim)
        except Exception as error:
            # One that cannot be begun must not keep those from beginning that were taken with it.
            if not isinstance(error, NotFound):
                log.exception("taking up %s failed", claim.lease.response_id)
            live = None
        if live is None or live.fold.ended:  # it was cancelled, or even deleted, since it was taken
            self.release(claim.owner, runs=True)
        else:
            self.start(claim, live)

    async def _revive(self, claim: Claim) -> Live:
        """The response as its journal has it. Whoever took it must end it, so this waits for a storage that is down."""
        while True:
            try:
                fold = await self._reader.replay(claim.lease.response_id)
                return Live(claim.lease, fold, self._clock.monotonic())
            except StorageUnavailable:
                await self._clock.sleep(STORAGE_PAUSE)

    async def _run(self, claim: Claim, live: Live) -> None:
        try:
            if not live.lost:
                await self._runner.run(claim, live)
        except StaleFence:
            pass
        except Exception:
            log.exception("running %s failed", claim.lease.response_id)
            await self._end_broken(claim, live)

    def _ended(self, claim: Claim, live: Live, task: asyncio.Task[None]) -> None:
        response_id = claim.lease.response_id
        if (running := self._running.get(response_id)) is not None and running.live is live:
            del self._running[response_id]
        self._lives.leave(live)
        self.release(claim.owner, runs=True)

    async def _end_broken(self, claim: Claim, live: Live) -> None:
        """A mistake of ours must not leave a response without an end."""
        try:
            await self._runner.break_off(claim, live, "The server made a mistake while running this response.")
        except Exception:
            log.exception("ending %s failed", claim.lease.response_id)

    # -- ending from outside

    async def cancel(self, response_id: str) -> None:
        """End a response as cancelled, wherever it runs; one that has ended stays as it is (D8).

        Whoever asks while it is being cancelled waits for the same end, and whoever stops waiting does not stop it.
        """
        task = self._cancelling.get(response_id)
        if task is None:
            task = self._cancelling[response_id] = asyncio.create_task(self._cancel(response_id))
            task.add_done_callback(lambda _: self._cancelling.pop(response_id))
        await asyncio.shield(task)

    async def _cancel(self, response_id: str) -> None:
        claim = await self._ledger.seize(response_id, self.name)
        if claim is None:
            return
        if (running := self._running.get(response_id)) is not None:
            _stop(running.task)
        if claim.waited:
            self.release(claim.owner, runs=False)
        live = await self._revive(claim)
        self._lives.enter(live)
        if running is not None:
            running.live.lose()  # its run may have left already, so that nobody else sends its readers on
        try:
            await self._runner.cancel(claim, live)
        except StaleFence:
            pass  # somebody else cancelled it at the same time
        finally:
            self._lives.leave(live)

    async def cancel_abandoned(self, seconds: float) -> None:
        """Cancel foreground runs that nobody has read for so long (D1)."""
        now = self._clock.monotonic()
        for response_id, (_, claim, live) in list(self._running.items()):
            if not claim.background and live.readers == 0 and now - live.read_at > seconds:
                await self.cancel(response_id)

    # -- leaving

    async def drain(self, grace: float) -> None:
        """Hand back what loses nothing by it, let the rest run on for a while, then end it."""
        self.draining = True
        if self._pumping is not None:
            # What it has claimed can be handed back once it has started; otherwise its attempt would count.
            await asyncio.wait([self._pumping], timeout=LAST_SECONDS)
        now = asyncio.get_running_loop().time
        until = now() + grace
        while True:
            await self._hand_back()
            self._lives.wake_all()
            left = until - now()
            if not self._running or left <= 0:
                break
            # What begins meanwhile, or comes to a place where it can be continued, is handed back too.
            tasks = [running.task for running in self._running.values()]
            await asyncio.wait(tasks, timeout=min(left, DRAIN_STEP_SECONDS))
        await asyncio.gather(*(self._interrupt(running) for running in list(self._running.values())))
        self.leaving = True
        self._lives.wake_all()

    def _may_hand_back(self, running: Running) -> bool:
        """Nothing to be shown yet, or another worker can go on where this one stops."""
        live = running.live
        if not live.fold.visible:
            return live.settled
        return self._runner.can_continue(running.claim, live)

    async def _hand_back(self) -> None:
        """Give up what loses nothing by it."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                for running in list(self._running.values()):
                    await self._first_output(running.live)
                leaving = [running for running in self._running.values() if self._may_hand_back(running)]
                if not leaving:
                    return
                for running in leaving:
                    _stop(running.task)
                await asyncio.gather(*(running.task for running in leaving), return_exceptions=True)
                for running in leaving:
                    await self._runner.committer.settle(running.live)
                await self._ledger.hand_back([running.live.lease for running in leaving if not running.live.ended])
                for running in leaving:
                    running.live.lose()
        except (StorageUnavailable, TimeoutError):
            log.warning("handing back failed: the database is unavailable. The next start takes these up all the same")

    async def _first_output(self, live: Live) -> None:
        """Wait for a first output that is on its way to the journal: it will be visible in a moment."""
        while not live.fold.visible and not live.settled:
            await live.wait()

    async def _interrupt(self, running: Running) -> None:
        _stop(running.task)
        await asyncio.gather(running.task, return_exceptions=True)
        if not running.live.ended and not running.live.lost:
            try:
                async with asyncio.timeout(LAST_SECONDS):
                    await self._runner.break_off(running.claim, running.live, LEFT)
            except StaleFence:
                pass
            except TimeoutError:
                log.warning("%s could not be ended: the database is unavailable", running.claim.lease.response_id)


def _stop(task: asyncio.Task[None]) -> None:
    # Once only: a second cancel would interrupt the closing of the upstream's connection.
    if not task.cancelling():
        task.cancel()

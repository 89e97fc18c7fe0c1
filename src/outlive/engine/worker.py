"""The worker: takes responses, runs them within its limits, recovers, cancels, and hands back when it must leave."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from outlive.core.errors import NotFound, ShuttingDown, StaleFence, StorageUnavailable
from outlive.engine.delivery.live import LiveResponse, LiveResponses
from outlive.engine.delivery.reader import Reader
from outlive.engine.draining import LAST_SECONDS, Drain, Running, stop
from outlive.engine.run.context import STORAGE_PAUSE
from outlive.engine.run.runner import Runner
from outlive.engine.slots import Slots
from outlive.ports.bell import Bell, Ring
from outlive.ports.clock import Clock
from outlive.ports.heartbeat import Heartbeat
from outlive.ports.ledger import Claim, Lease, Ledger

log = logging.getLogger(__name__)

CLAIM_BATCH = 50
DRAIN_STEP_SECONDS = 0.25


class Worker:
    def __init__(
        self,
        name: str,
        ledger: Ledger,
        runner: Runner,
        reader: Reader,
        lives: LiveResponses,
        clock: Clock,
        room: Slots,
        bell: Bell,
        heart: Heartbeat,
        *,
        takes: bool = True,
    ) -> None:
        self.name = name
        self.room = room
        self.draining = False
        self.leaving = False
        self._ledger = ledger
        self._runner = runner
        self._reader = reader
        self._lives = lives
        self._clock = clock
        self._bell = bell
        self._heart = heart
        self._takes = takes  # False: whatever is stored is left to other nodes
        self._sure = True  # that whatever runs here is still ours
        self._running: dict[str, Running] = {}
        self._leaving = Drain(self._running, ledger, runner, bell)
        self._pumping: asyncio.Task[None] | None = None
        self._pump_again = False
        self._cancelling: dict[str, asyncio.Task[None]] = {}
        self._giving_back: set[asyncio.Task[None]] = set()
        runner.committer.on_behind = self._give_back

    # -- limits

    def reserve(self, owner: str, *, stored: bool = True) -> bool:
        """Make room for a new response: True to run it at once, False to let it wait. Raises TooMany."""
        if self.draining:
            raise ShuttingDown
        if (not stored or self._may_take()) and self.room.take(owner):
            return True
        self.room.enqueue(owner)
        return False

    def release(self, owner: str, runs: bool) -> None:
        """Give a reservation back."""
        if runs:
            self.room.give_back(owner)
            self.pump()
        else:
            self.room.dequeue(owner)

    # -- running

    async def recover(self) -> int:
        """Take up what dead workers have left, and what waits; how many were left."""
        freed = await self._ledger.free_dead_leases()
        self.room.set_queued(await self._ledger.count_queued())
        self.pump()
        return freed

    def find_work(self) -> None:
        """Something may be waiting that came from elsewhere."""
        self.room.hint()
        self.pump()

    def offer(self) -> None:
        """Something waits: whoever has room may take it."""
        self.pump()
        self._bell.ring(Ring("waits"))

    def start(self, claim: Claim, live: LiveResponse) -> None:
        """Run a response whose room is reserved already."""
        self._lives.enter(live)
        task = asyncio.create_task(self._run(claim, live))
        self._running[claim.lease.response_id] = Running(task, claim, live)
        # Not in the task itself: one that is cancelled before it begins never comes to its end.
        task.add_done_callback(partial(self._ended, claim, live))
        live.on_lost = partial(stop, task)

    def pump(self) -> None:
        """See to it that whatever waits is taken as soon as there is room."""
        if not self.room.has_queue or self.draining or not self._may_take():
            return
        # A claim under way may have looked before there was something to find.
        self._pump_again = True
        if self._pumping is None or self._pumping.done():
            self._pumping = asyncio.create_task(self._claim_all())

    async def _claim_all(self) -> None:
        while self.room.has_queue and self.room.is_free() and not self.draining and self._may_take():
            self._pump_again = False
            try:
                claims = await self._claim_some()
            except StorageUnavailable:
                await self._clock.sleep(STORAGE_PAUSE)
                continue
            for claim in claims:
                await self._start_claimed(claim)
            if not claims and not self._pump_again:
                self.room.find_none()
                return

    async def _claim_some(self) -> list[Claim]:
        claims = await self._ledger.claim(self.name, self.room.places(CLAIM_BATCH), self.room.busy_owners())
        for claim in claims:
            self.room.claim(claim.owner)
            self._tell_taken(claim.lease)
        return claims

    def _tell_taken(self, lease: Lease) -> None:
        """Whoever ran it before must stop, and whoever reads it elsewhere may want to hear of it from here on."""
        self._bell.ring(Ring("taken", lease.response_id, lease.fence))

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

    async def _revive(self, claim: Claim) -> LiveResponse:
        """The response as its journal has it. Whoever took it must end it, so this waits for a storage that is down."""
        while True:
            try:
                fold = await self._reader.replay(claim.lease.response_id)
                return LiveResponse(claim.lease, fold, self._clock.monotonic())
            except StorageUnavailable:
                await self._clock.sleep(STORAGE_PAUSE)

    async def _run(self, claim: Claim, live: LiveResponse) -> None:
        try:
            if not live.lost:
                await self._runner.run(claim, live)
        except StaleFence:
            pass
        except Exception:
            log.exception("running %s failed", claim.lease.response_id)
            await self._end_broken(claim, live)

    def _ended(self, claim: Claim, live: LiveResponse, task: asyncio.Task[None]) -> None:
        response_id = claim.lease.response_id
        if (running := self._running.get(response_id)) is not None and running.live is live:
            del self._running[response_id]
        self._lives.leave(live)
        self.release(claim.owner, runs=True)

    async def _end_broken(self, claim: Claim, live: LiveResponse) -> None:
        """A mistake of ours must not leave a response without an end."""
        try:
            await self._runner.break_off(claim, live, "The server made a mistake while running this response.")
        except Exception:
            log.exception("ending %s failed", claim.lease.response_id)

    # -- other nodes

    def _may_take(self) -> bool:
        """Not without a beating heart: it would be anybody's at once. Nor before it is known what was lost without one:
        a worker might take from itself what it still runs."""
        if not self._heart.is_beating():
            self._sure = False
        return self._takes and self._sure

    def lose(self, response_id: str, fence: int) -> None:
        """Stop running a response whose fence was raised to this number elsewhere."""
        running = self._running.get(response_id)
        if running is not None and running.live.lease.fence < fence and not running.live.ended:
            running.live.lose()

    async def confirm(self) -> None:
        """Stop running what others have taken meanwhile: word of that may have been lost."""
        beating = self._heart.is_beating()
        held = [running.live for running in self._running.values() if not running.live.lost]
        stand = await self._ledger.confirm_leases(self.name, [live.lease for live in held]) if held else []
        for live, stands in zip(held, stand, strict=True):
            if not stands and not live.ended:
                live.lose()
        self._sure = self._sure or beating

    def _give_back(self, live: LiveResponse) -> None:
        """Its journal has lost what only this process still knew of: whoever claims it next begins with the journal."""
        log.error("the journal of %s has lost events that were committed", live.lease.response_id)
        live.lose()
        task = asyncio.create_task(self._hand_over(live.lease))
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    async def _hand_over(self, lease: Lease) -> None:
        while True:
            try:
                await self._ledger.release_leases([lease])
                break
            except StorageUnavailable:
                await self._clock.sleep(STORAGE_PAUSE)
        self.room.hint()
        self.offer()

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
        claim = await self._ledger.take_over(response_id, self.name)
        if claim is None:
            return
        self._tell_taken(claim.lease)
        if (running := self._running.get(response_id)) is not None:
            stop(running.task)
        if claim.was_queued:
            self.room.dequeue(claim.owner)
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
            await self._leaving.hand_back()
            self._lives.wake_all()
            left = until - now()
            if not self._running or left <= 0:
                break
            # What begins meanwhile, or comes to a place where it can be continued, is handed back too.
            tasks = [running.task for running in self._running.values()]
            await asyncio.wait(tasks, timeout=min(left, DRAIN_STEP_SECONDS))
        await self._leaving.end_all()
        self.leaving = True
        self._lives.wake_all()

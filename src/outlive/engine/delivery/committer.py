"""Group commit: the new events of all running responses go to the ledger together, and show only then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from outlive.core.endings import TerminalStatus
from outlive.core.errors import Behind, StaleFence, StorageUnavailable
from outlive.core.events import AnyDraft, Json
from outlive.engine.delivery.live import LiveResponse
from outlive.ports.clock import Clock
from outlive.ports.ledger import AppendResult, AppendResults, Closing, Entry, RunLedger

log = logging.getLogger(__name__)

Taken = list[tuple[LiveResponse, Entry, list[AnyDraft]]]

# While the storage is down: how long until the next try.
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)


PER_EVENT = 0.0005
# So many responses come to their end at once. When many do, as many others often begin, and should not wait for them.
ENDINGS = 20


class Committer:
    """Commits at once when little happens. After a commit of several events it waits half a millisecond for each but
    the first, `linger` at most, so that under load one carries many; the first output of a response never waits."""

    def __init__(self, ledger: RunLedger, clock: Clock, linger: float) -> None:
        self._ledger = ledger
        self._clock = clock
        self._linger = linger
        self._loop = asyncio.get_running_loop()
        self._dirty: list[LiveResponse] = []
        self._timer: asyncio.Handle | None = None
        self._flight: asyncio.Future[AppendResults] | None = None
        self._next_at = 0.0
        self._failures = 0
        self.ending = asyncio.Semaphore(ENDINGS)  # to be held while an end is made and first tried
        self._closing: set[asyncio.Task[None]] = set()  # what waits for the storage to come back
        self._urgent = False  # a first output waits for the commit under way to be over
        # Called for a response whose journal has lost more than is still known here.
        self.on_behind: Callable[[LiveResponse], None] = LiveResponse.lose

    def submit(self, live: LiveResponse, drafts: list[AnyDraft]) -> None:
        """Emit drafts and see that they are committed soon."""
        first_output = not live.fold.visible
        live.emit(drafts)
        if not live.dirty:
            live.dirty = True
            self._dirty.append(live)
        if self._flight is None:
            # Not against a storage that is down: that is tried again in its own time.
            self._schedule(urgent=first_output and not self._failures)
        elif first_output:
            self._urgent = True

    async def settle(self, live: LiveResponse) -> None:
        """Wait until everything this response has emitted is committed, or its lease is lost."""
        while not live.settled:
            await live.wait()

    async def close(
        self, live: LiveResponse, drafts: list[AnyDraft], *, status: TerminalStatus, snapshot: bytes, turn: list[Json]
    ) -> None:
        """Commit the last events with everything that must change with them: the first try. Then `closed` waits for the
        one that succeeds, for this goes on trying while the storage is down."""
        while live.in_flight:
            await live.wait()
        live.emit(drafts)
        live.dirty = False  # whatever is pending goes into the closing transaction
        entry, _ = live.take(self._clock.now())
        closing = Closing(entry, status, snapshot, turn, keep_turn=status != "failed")
        self._try_close(live, closing)
        while not (live.ended or live.lost or live.held_up):
            await live.wait()

    async def closed(self, live: LiveResponse) -> None:
        while not live.ended:
            if live.lost:
                raise StaleFence
            await live.wait()

    def _try_close(self, live: LiveResponse, closing: Closing, failures: int = 0) -> None:
        # Once the transaction is on its way it counts: the live response learns of it, and it is tried again while the
        # storage is down, even if the run is cancelled meanwhile.
        closed = self._ledger.close(closing)
        closed.add_done_callback(partial(self._closed, live, closing, failures))

    def _closed(self, live: LiveResponse, closing: Closing, failures: int, closed: asyncio.Future[None]) -> None:
        if closed.cancelled():
            return
        error = closed.exception()
        if error is None:
            live.finish(closing.entry, closing.snapshot)
        elif isinstance(error, Behind):
            self._repair(live, error.last, partial(self._try_close, live, closing))
        elif isinstance(error, StorageUnavailable):
            live.held_up = True
            live.wake()
            task = asyncio.create_task(self._close_later(live, closing, failures))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        else:
            if not isinstance(error, StaleFence):
                log.error("closing %s failed", closing.entry.lease.response_id, exc_info=error)
            live.lose()

    async def _close_later(self, live: LiveResponse, closing: Closing, failures: int) -> None:
        await self._clock.sleep(_pause(failures))
        self._try_close(live, closing, failures + 1)

    # -- one flush after the other

    def _schedule(self, urgent: bool = False) -> None:
        if self._timer is not None:
            if not urgent:
                return
            self._timer.cancel()
        loop = self._loop
        wait = 0.0 if urgent else self._next_at - loop.time()
        self._timer = loop.call_later(wait, self._flush) if wait > 0 else loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._timer = None
        now = self._clock.now()
        taken: Taken = []
        for live in self._dirty:
            if live.dirty:
                live.dirty, live.in_flight = False, True
                taken.append((live, *live.take(now)))
        self._dirty = []
        if taken:
            self._flight = self._ledger.append([entry for _, entry, _ in taken])
            self._flight.add_done_callback(partial(self._committed, taken))

    def _committed(self, taken: Taken, flight: asyncio.Future[AppendResults]) -> None:
        self._flight = None
        if flight.cancelled():
            return
        urgent, self._urgent = self._urgent, False
        if (error := flight.exception()) is not None:
            urgent = False
            self._put_back(taken, error)
        else:
            self._advance(taken, flight.result())
        if self._dirty:
            self._schedule(urgent)

    def _advance(self, taken: Taken, results: AppendResults) -> None:
        self._failures = 0
        count = 0
        for (live, entry, drafts), result in zip(taken, results, strict=True):
            live.in_flight = False
            count += entry.count
            try:
                if result is AppendResult.WRITTEN:
                    live.advance(entry, drafts)
                elif result is AppendResult.STALE:
                    live.lose()
                else:
                    self._repair(live, result.last, partial(self._return, live, entry, drafts))
            except Exception:
                # A mistake of ours in one response must not hold up the others of its commit.
                log.exception("showing events of %s failed", entry.lease.response_id)
        self._next_at = self._loop.time() + min((count - 1) * PER_EVENT, self._linger)

    def _put_back(self, taken: Taken, error: BaseException) -> None:
        if not isinstance(error, StorageUnavailable):
            log.error("committing events failed", exc_info=error)
        self._next_at = self._loop.time() + _pause(self._failures)
        self._failures += 1
        for live, entry, drafts in taken:
            live.in_flight = False
            self._return(live, entry, drafts)

    def _return(self, live: LiveResponse, entry: Entry, drafts: list[AnyDraft]) -> None:
        """What was not committed goes into the next commit."""
        live.put_back(entry, drafts)
        if not live.dirty:
            live.dirty = True
            self._dirty.append(live)
        live.wake()

    # -- when the journal has lost something

    def _repair(self, live: LiveResponse, last: int, then: Callable[[], None]) -> None:
        """Append again what was committed after that number and is there no more, while it is still known here."""
        lost = live.slice(last)
        if lost is None:
            self.on_behind(live)
            return
        # Nothing else of it is committed meanwhile.
        self._dirty = [each for each in self._dirty if each is not live]
        live.in_flight = live.dirty = True
        count = lost.last - lost.first + 1
        repair = self._ledger.append([Entry(live.lease, lost.first, count, self._clock.now(), lost.frames)])
        repair.add_done_callback(partial(self._repaired, live, then))

    def _repaired(self, live: LiveResponse, then: Callable[[], None], repair: asyncio.Future[AppendResults]) -> None:
        live.in_flight = live.dirty = False
        if repair.cancelled():
            return
        if repair.exception() is None and repair.result() == [AppendResult.STALE]:
            live.lose()
            return
        then()  # if this did not help, whatever is tried next will say so
        if self._dirty and self._flight is None:
            self._schedule()


def _pause(failures: int) -> float:
    return RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]

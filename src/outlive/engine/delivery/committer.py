"""Group commit: the pending events of all live responses go to the ledger together, and show only then."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import msgspec

from outlive.core.counts import Counts
from outlive.core.endings import Outcome, TerminalStatus
from outlive.core.errors import Behind, StaleFence, StorageUnavailable
from outlive.core.events import AnyDraft, Json
from outlive.core.usage import UsageRecord
from outlive.engine.delivery.live import LiveResponse, State
from outlive.engine.waiting import keep_trying
from outlive.ports.clock import Clock
from outlive.ports.ledger import AppendResult, AppendResults, Closing, Entry, RunLedger
from outlive.ports.tracing import Tracer

log = logging.getLogger(__name__)

Taken: TypeAlias = list[tuple[LiveResponse, Entry, list[AnyDraft]]]

# While the storage is down: seconds until the next try.
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)
# Seconds that a commit waits for more, for each event but the first of the commit before.
PER_EVENT = 0.0005
# Bytes of events that the reader of a response with `store: false` has not read, beyond which its run waits.
UNREAD_BYTES = 64 * 1024
# Responses that end at the same time. When many end, as many others often begin, and should not wait for all of them.
ENDINGS = 20


@dataclass(eq=False)
class Committer:
    """Commits at once when little happens. After a commit of several events it waits half a millisecond for each but
    the first, `linger` at most, so that under load one commit carries many; the first output of a response never waits.

    Events of a response that is not stored go to the ledger in memory in the call that submits them.
    """

    _ledger: RunLedger
    clock: Clock
    _linger: float
    _counts: Counts = field(default_factory=Counts)
    _tracer: Tracer = field(default_factory=Tracer)
    _count_usage: Callable[[UsageRecord, bool], object] = lambda record, stored: None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _queue: list[LiveResponse] = field(default_factory=list)
    _timer: asyncio.Handle | None = None
    _flight: asyncio.Future[AppendResults] | None = None
    _next_at: float = 0.0
    _sent_at: float = 0.0  # time at which the commit under way was sent
    _failures: int = 0
    _urgent: bool = False  # a first output waits for the commit under way to be over
    endings: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, ENDINGS))
    memory_endings: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, ENDINGS))
    on_end: Callable[[], None] = lambda: None  # called when a terminal event is durable

    def submit(self, live: LiveResponse, drafts: list[AnyDraft]) -> None:
        """Emit drafts and see that they are committed soon. Raises StaleFence if the response is lost."""
        first_output = not live.fold.visible
        live.emit(drafts)
        if first_output and live.asked_at is not None and live.output_at is None:
            live.output_at = self.clock.monotonic()
        if live.ledger is not self._ledger:
            self._commit_now(live)
            return
        if not live.pending.queued:
            live.pending.queued = True
            self._queue.append(live)
        urgent = first_output and not self._failures  # a storage that is down is tried again in its own time
        if self._flight is not None:
            self._urgent = self._urgent or first_output
        elif self._timer is None or urgent:
            self._schedule(urgent)

    async def save_checkpoint(self, live: LiveResponse, **changes: Any) -> None:
        """Change the checkpoint that the next worker would start from, and save it. Waits for a storage that is down:
        that must not end a run."""
        live.checkpoint = msgspec.structs.replace(live.checkpoint, paid=live.paid, **changes)

        async def save() -> None:
            if not live.tail.lost:
                await live.ledger.save_checkpoint(live.lease, live.checkpoint)

        await keep_trying(save, self.clock)

    def _commit_now(self, live: LiveResponse) -> None:
        """Commit to the ledger in memory, which answers at once; later if the reader is behind."""
        if live.tail.on_read is not None:
            return
        entry, drafts = live.pending.take(live.lease, self.clock.now())
        if live.ledger.append([entry]).result() == [AppendResult.WRITTEN]:
            live.advance(entry, drafts)
            self._counts.events += entry.count
            if live.output_at is not None:
                self._count_first_token(live)
            live.unread += len(entry.frames)
            if live.unread > UNREAD_BYTES and live.trim is not None:
                live.tail.on_read = partial(self._on_read, live, live.trim)
                live.tail.wake()  # a reader that has read it all says so
        else:
            live.lose()

    def _on_read(self, live: LiveResponse, trim: Callable[[int], int], after: int) -> None:
        """Drop what was read, and commit what had to wait for that."""
        live.unread = trim(after)
        if live.unread <= UNREAD_BYTES:
            live.tail.on_read = None
            if not live.is_durable and live.state is State.OPEN:
                self._commit_now(live)

    def _count_first_token(self, live: LiveResponse) -> None:
        """Count the time that this server has added to the first output, which shows now."""
        if live.output_at is not None and live.asked_at is not None:
            if live.received_at is not None:
                asked = live.asked_at - live.received_at
                self._counts.first_token_added_seconds.add(asked + self.clock.monotonic() - live.output_at)
            live.output_at = live.asked_at = None
            live.first_token_at = self.clock.now()

    # -- the last commit of a response

    def ending_slot(self, live: LiveResponse) -> asyncio.Semaphore:
        """Return the semaphore to hold while a closing is rendered and first tried. Each ledger has its own: closings
        that hang in the storage must not hold up those of responses that are not stored."""
        return self.endings if live.ledger is self._ledger else self.memory_endings

    def close(
        self,
        live: LiveResponse,
        frames: list[bytes],
        status: TerminalStatus,
        *,
        snapshot: bytes,
        turn: list[Json],
        usage: UsageRecord | None = None,
    ) -> None:
        """Send the last events together with everything that must change with them, in one transaction. While the
        storage is down, further tries follow by themselves."""
        live.pending.append(frames)
        live.pending.queued = False  # what is pending goes into the closing transaction
        entry, _ = live.pending.take(live.lease, self.clock.now())
        self._try_close(live, Closing(entry, status, snapshot, turn, status != "failed", usage))

    def _try_close(self, live: LiveResponse, closing: Closing) -> None:
        # A transaction that was sent counts: the live response learns of its commit, and it is tried again while the
        # storage is down, even if the run is cancelled meanwhile.
        live.ledger.close(closing).add_done_callback(partial(self._on_close, live, closing))

    def _on_close(self, live: LiveResponse, closing: Closing, sent: asyncio.Future[None]) -> None:
        if sent.cancelled():
            return
        error = sent.exception()
        if error is None:
            live.finish(closing.entry, closing.snapshot)
            self._counts.events += closing.entry.count
            if live.output_at is not None:
                self._count_first_token(live)
            if closing.usage is not None:
                self._count_usage(closing.usage, live.ledger is self._ledger)
            self.on_end()
            if live.outcome is not None:
                self._counts.count_end(live.claim.owner, live.claim.request.model, live.outcome)
                _log_end(live, live.outcome, self.clock.now())
                self._tracer.end_response(live.claim, live.outcome, self.clock.now())
        elif isinstance(error, Behind):
            self._repair(live, error.last, partial(self._try_close, live, closing))
        elif isinstance(error, StorageUnavailable) and live.state is not State.LOST:
            live.transition("retry")
            self._loop.call_later(_pause(live.failed_closings), self._try_close, live, closing)
            live.failed_closings += 1
            live.tail.wake()
        else:
            if not isinstance(error, StaleFence | StorageUnavailable):
                log.error("closing response failed", exc_info=error, extra=live.describe())
            live.lose()

    # -- one commit after the other

    def _schedule(self, urgent: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = self._loop
        wait = 0.0 if urgent else self._next_at - loop.time()
        self._timer = loop.call_later(wait, self._commit) if wait > 0 else loop.call_soon(self._commit)

    def _commit(self) -> None:
        self._timer = None
        now = self.clock.now()
        taken: Taken = []
        entries: list[Entry] = []
        for live in self._queue:
            pending = live.pending
            if pending.queued:
                pending.queued, pending.in_flight = False, True
                entry, drafts = pending.take(live.lease, now)
                entries.append(entry)
                taken.append((live, entry, drafts))
        self._queue = []
        if taken:
            self._sent_at = self.clock.monotonic()  # the loop counts whole milliseconds
            self._flight = self._ledger.append(entries)
            self._flight.add_done_callback(partial(self._on_commit, taken))

    def _on_commit(self, taken: Taken, flight: asyncio.Future[AppendResults]) -> None:
        self._flight = None
        if flight.cancelled():
            return
        urgent, self._urgent = self._urgent, False
        if (error := flight.exception()) is not None:
            self._put_back(taken, error)
            return
        self._failures = 0
        self._counts.commit_seconds.add(self.clock.monotonic() - self._sent_at)
        for (live, entry, drafts), result in zip(taken, flight.result(), strict=True):
            live.pending.in_flight = False
            try:
                if result is AppendResult.WRITTEN:
                    live.advance(entry, drafts)
                    self._counts.events += entry.count
                    if live.output_at is not None:
                        self._count_first_token(live)
                elif isinstance(result, Behind):
                    self._repair(live, result.last, partial(self._return, live, entry, drafts))
                else:
                    live.lose()
            except Exception:
                # A bug in one response must not hold up the others of its commit.
                log.exception("showing events failed", extra=live.describe())
        count = sum([entry.count for _, entry, _ in taken])
        self._counts.commit_events.add(count)
        self._next_at = self._loop.time() + min((count - 1) * PER_EVENT, self._linger)
        if self._queue:
            self._schedule(urgent)

    def _put_back(self, taken: Taken, error: BaseException) -> None:
        """Put all entries of a commit that failed into the next."""
        if not isinstance(error, StorageUnavailable):
            log.error("committing events failed", exc_info=error)
        self._counts.commits_failed += 1
        self._next_at = self._loop.time() + _pause(self._failures)
        self._failures += 1
        for live, entry, drafts in taken:
            live.pending.in_flight = False
            self._return(live, entry, drafts)
        self._schedule()

    def _return(self, live: LiveResponse, entry: Entry, drafts: list[AnyDraft]) -> None:
        """Put an entry that was not committed into the next commit."""
        live.pending.put_back(entry, drafts)
        if not live.pending.queued:
            live.pending.queued = True
            self._queue.append(live)
        live.tail.wake()

    # -- a journal that lost committed events (a standby was promoted that lacked them)

    def _repair(self, live: LiveResponse, last: int, then: Callable[[], None]) -> None:
        """Append again what was committed after that number, if the tail still holds it; otherwise give the run up."""
        missing = live.tail.slice(last)
        if missing is None:
            live.is_behind = True
            live.lose()
            return
        # Nothing else of this response is committed meanwhile.
        self._queue = [each for each in self._queue if each is not live]
        live.pending.in_flight = live.pending.queued = True
        count = missing.last - missing.first + 1
        repair = live.ledger.append([Entry(live.lease, missing.first, count, self.clock.now(), missing.frames)])
        repair.add_done_callback(partial(self._on_repair, live, then))

    def _on_repair(self, live: LiveResponse, then: Callable[[], None], repair: asyncio.Future[AppendResults]) -> None:
        live.pending.in_flight = live.pending.queued = False
        if repair.cancelled():
            return
        if repair.exception() is None and repair.result() == [AppendResult.STALE]:
            live.lose()
            return
        then()  # if the repair failed, the next try of the original write reports it
        if self._queue and self._flight is None and self._timer is None:
            self._schedule()


def _log_end(live: LiveResponse, outcome: Outcome, now: float) -> None:
    """Log a response whose terminal event is durable."""
    level = logging.WARNING if outcome.status == "failed" else logging.INFO
    if not log.isEnabledFor(level):
        return
    began = live.claim.request.origin.at or float(live.fold.header.get("created_at") or now)
    usage, shown_at = outcome.usage or {}, live.first_token_at
    fields = live.describe() | {
        "status": outcome.status,
        "code": outcome.error["code"] if outcome.error is not None else outcome.reason,
        "duration_ms": round((now - began) * 1000),
        "first_token_ms": None if shown_at is None else round((shown_at - began) * 1000),
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "attempts": outcome.attempts,
    }
    log.handle(log.makeRecord(log.name, level, "", 0, "response ended", (), None, extra={"fields": fields}))


def _pause(failures: int) -> float:
    return RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]

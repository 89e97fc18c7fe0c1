"""Reading a response: from the tail where it runs here, from the journal where it does not. No reader owns a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from outlive.core.errors import NotFound, UpstreamFault
from outlive.core.events import KEEP_ALIVE_FRAME, Json, is_last
from outlive.core.fold import Fold
from outlive.engine.budget import OWNER_ANSWERS, ByteBudget, Reservation
from outlive.engine.cluster.mirrors import Mirrors
from outlive.engine.delivery.live import LiveResponses
from outlive.engine.delivery.tail import Tail
from outlive.ports.clock import Clock
from outlive.ports.journal import Batch, Journal

# One page of a replay; also all that a slow reader can make the server hold.
PAGE_BYTES = 64 * 1024
# Read at once to take a response over; more than INLINE_BYTES of it is folded in a thread.
FOLD_BYTES = 1024 * 1024
INLINE_BYTES = 64 * 1024
# Seconds for which a fold is kept after it was last asked for: longer than clients are asked to wait between two polls.
KEEP_SECONDS = 15.0
MAX_FOLDS = 1000
# Folded at a time while streams wait for the event loop: one or two milliseconds' work.
FOLD_PAGE_BYTES = 32 * 1024

WriteNow = Callable[[bytes], bool]  # writes at once and returns True, or returns False and writes nothing


class Shutdown:
    """Progress of the server's shutdown, as readers need to know it."""

    draining = False  # nothing new begins here, and what was released is not followed any more
    interrupting = False  # every stream is interrupted


class StreamInterrupted(Exception):
    """The stream must stop without a clean end, so that its reader notices and asks again (D11): the server is shutting
    down, or the response was deleted."""


@dataclass(slots=True, eq=False)
class Cursor:
    """The position of one reader in one response."""

    _reader: Reader
    id: str  # of the response
    after: int  # number of the last event read
    _began: int  # the number after which it was asked to begin
    _reservation: Reservation | None = None  # for what is read from the journal
    ended: bool = False
    stopped: bool = False
    _tail: Tail | None = None
    _idle_since: float = 0.0
    _write_now: WriteNow = field(init=False)
    _forwarding: asyncio.Future[None] = field(init=False)

    async def read(self) -> bytes:
        """Return the next frames, or a keep-alive comment; empty when the response has ended or the cursor was stopped.
        Raises StreamInterrupted."""
        if self._reservation is not None:
            self._reservation.release()  # what was read before is sent
        while not self.ended and not self.stopped:
            tail = self._join()
            if tail is not None and tail.on_read is not None:
                tail.on_read(self.after)
            if tail is None:
                frames = await self._read_idle()
            elif tail.committed <= self.after:
                self.ended = tail.ended
                frames = b"" if tail.ended else await self._wait(tail.wait())
            elif (batch := tail.slice(self.after)) is not None:
                self.after, self.ended, self._idle_since = batch.last, tail.ended, 0.0
                return batch.frames
            else:
                frames = await self._read_journal()
            if frames:
                return frames
        return b""

    async def forward_to(self, write_now: WriteNow) -> None:
        """Pass new frames to `write_now` in the call that made them durable, for as long as nothing else is to be done.
        That spares each event a task's wake-up. Anything out of the ordinary makes this return; `read` handles it."""
        tail = self._join()
        if tail is None or tail.ended or tail.committed > self.after:
            return
        if self.stopped or self._reader.shutdown.interrupting:
            return  # signalled while the last frames were being sent; the signal is not repeated
        self._write_now, self._forwarding = write_now, self._reader.loop.create_future()
        tail.follow(self._forward)
        try:
            await self._forwarding
        finally:
            tail.unfollow(self._forward)

    def _forward(self) -> bool:
        tail = self._tail
        try:
            if tail is not None and tail.committed > self.after and not (tail.ended or tail.lost or self.stopped):
                batch = tail.slice(self.after)
                if batch is not None and self._write_now(batch.frames):
                    self.after, self._idle_since = batch.last, 0.0
                    return True
        except Exception as error:
            # Whatever one client's connection raises is its own: the other readers and the run still need this wake-up.
            if not self._forwarding.done():
                self._forwarding.set_exception(error)
        if not self._forwarding.done():
            self._forwarding.set_result(None)
        return False

    async def read_to_end(self) -> None:
        """Wait until the response has ended or the cursor was stopped, without waking a task for each event. Raises
        StreamInterrupted."""
        while not self.ended and not self.stopped:
            if self._tail is None or self._tail.on_read is None:  # otherwise its run waits for `read`
                await self.forward_to(lambda frames: True)
            self.ended = self._tail is not None and self._tail.ended  # what is left to read is not wanted
            if not self.ended:
                await self.read()

    def stop(self) -> None:
        """Make a waiting `read` return."""
        self.stopped = True
        if self._tail is not None:
            self._tail.wake()
        self._reader.live.notify(self.id)

    def close(self) -> None:
        """Leave the tail. For use when the reader goes away."""
        if self._reservation is not None:
            self._reservation.release()
        if self._tail is not None:
            self._tail.readers -= 1
            self._tail.read_at = self._reader.clock.monotonic()
            self._tail = None

    @property
    def final(self) -> bytes | None:
        """The final object, if the response ended in this process."""
        return self._tail.final if self._tail is not None else None

    @property
    def cause(self) -> UpstreamFault | None:
        """Why the response failed, if it did so in this process."""
        return self._tail.cause if self._tail is not None else None

    def _join(self) -> Tail | None:
        """Return the tail at hand or, if that was lost, the one that has taken its place here."""
        tail = self._tail
        if tail is None or tail.lost:
            self.close()
            if (tail := self._reader.live.tail(self.id)) is not None:
                self._tail = tail
                tail.readers += 1
        return tail

    async def _wait(self, waiter: asyncio.Future[None]) -> bytes:
        """Wait for more events; return a keep-alive comment if there were none for long."""
        reader = self._reader
        if reader.shutdown.interrupting or (reader.shutdown.draining and self._tail is None):
            raise StreamInterrupted
        now = reader.clock.monotonic()
        self._idle_since = self._idle_since or now
        if now - self._idle_since >= reader.keep_alive:
            self._idle_since = now
            return KEEP_ALIVE_FRAME
        await waiter
        return b""

    # -- from the journal

    async def _read_idle(self) -> bytes:
        """Read a response that does not run here from its journal, or wait for it to begin here or go on elsewhere."""
        live, mirrors, after = self._reader.live, self._reader.mirrors, self.after
        waiter = live.wait(self.id)  # from here on: it may begin, and even end, while the journal is read
        try:
            if (frames := await self._read_journal()) or self.ended or live.tail(self.id) is not None:
                return frames
            if mirrors is None:
                return await self._wait(waiter)
            # The mirror begins at a number in the journal; a client may have asked for one beyond.
            if after == self._began and after >= 0:
                batch = await self._read_page(after - 1, 1)
                after = after if batch is not None and batch.frames else -1
            if live.tail(self.id) is None:
                self._tail = mirrors.join(self.id, after)
                self._tail.readers += 1
            return b""
        finally:
            live.stop_waiting(self.id, waiter)

    async def _read_journal(self) -> bytes:
        if self._reservation is not None:
            await self._reservation.reserve()
        batch = await self._read_page(self.after, PAGE_BYTES)
        if self._reservation is not None:
            self._reservation.settle(len(batch.frames) if batch is not None else 0)
        if batch is None:
            return b""
        self._idle_since = 0.0
        self.after = batch.last
        self.ended = not batch.frames or is_last(batch.frames)
        return batch.frames

    async def _read_page(self, after: int, max_bytes: int) -> Batch | None:
        try:
            return await self._reader.journal.read(self.id, after, max_bytes)
        except NotFound:
            raise StreamInterrupted from None  # deleted while being read: no terminal event will come


async def replay(journal: Journal, response_id: str) -> Fold:
    """Make a new fold of a response from its journal."""
    fold = Fold()
    while (batch := await journal.read(response_id, fold.last, FOLD_BYTES)) is not None and batch.frames:
        if len(batch.frames) > INLINE_BYTES:
            await asyncio.to_thread(fold.replay, batch.frames)
        else:
            fold.replay(batch.frames)
    return fold


@dataclass(eq=False)
class RemoteFolds:
    """Keeps the folds of responses that run on other nodes, so that each poll folds only the new events."""

    _journal: Journal
    _clock: Clock
    _folds: dict[str, tuple[Fold, float]] = field(default_factory=dict)  # least recently asked for first

    async def get(self, response_id: str) -> Fold:
        journal, known = self._journal, self._folds.pop(response_id, None)
        fold = known[0] if known is not None else await replay(journal, response_id)
        self._folds[response_id] = (fold, self._clock.monotonic())
        if len(self._folds) > MAX_FOLDS:
            del self._folds[next(iter(self._folds))]
        if known is None:
            return fold
        while (batch := await journal.read(response_id, fold.last, FOLD_PAGE_BYTES)) is not None and batch.frames:
            # Of two polls at the same time, which read the same page, the first to come back folds it.
            if batch.first == fold.last + 1:
                fold.replay(batch.frames)
            await asyncio.sleep(0)
        return fold

    def drop_old(self) -> None:
        """Drop the folds that were not asked for in KEEP_SECONDS, and those that have ended."""
        before = self._clock.monotonic() - KEEP_SECONDS
        self._folds = {key: kept for key, kept in self._folds.items() if kept[1] >= before and not kept[0].ended}


@dataclass(eq=False)
class Reader:
    """Gives out cursors, and folds of running responses."""

    live: LiveResponses
    journal: Journal
    clock: Clock
    shutdown: Shutdown
    keep_alive: float
    mirrors: Mirrors | None = None  # None on a single server: what does not run here runs nowhere
    answers: ByteBudget = field(default_factory=lambda: ByteBudget(OWNER_ANSWERS))
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __post_init__(self) -> None:
        self.remote_folds = RemoteFolds(self.journal, self.clock) if self.mirrors is not None else None

    def follow(self, response_id: str, after: int = -1, owner: str | None = None) -> Cursor:
        """Return a cursor behind that event; that of an `owner` reads within the owner's budget."""
        return Cursor(self, response_id, after, after, Reservation(self.answers, owner) if owner is not None else None)

    def count_readers(self) -> int:
        return self.live.count_readers() + (self.mirrors.count_readers() if self.mirrors is not None else 0)

    async def fold(self, response_id: str) -> Fold:
        """Return the fold of the durable events: from memory where the response runs here, else from its journal."""
        live = self.live.get(response_id)
        if live is not None and not live.tail.lost:
            return live.fold
        if self.remote_folds is None:
            return await replay(self.journal, response_id)
        return await self.remote_folds.get(response_id)

    async def headers(self, response_ids: list[str]) -> dict[str, Json]:
        """Return the headers (the object without its output) of those responses that are running, in one query."""
        here = [live for each in response_ids if (live := self.live.get(each)) is not None and not live.tail.lost]
        found = {live.lease.response_id: live.fold.header for live in here}
        others = {each: -1 for each in response_ids if each not in found}
        first = await self.journal.read_many(others, 1) if others else {}
        for each, batch in first.items():
            if batch is not None:
                fold = Fold()
                fold.replay(batch.frames)
                found[each] = fold.header
        return found

    async def wait_end(self, response_id: str, seconds: float | None = None) -> bytes | None:
        """Wait until the response has ended, that long at most. Returns its final object if it ended in this process.
        Raises StreamInterrupted."""
        tail = self.live.tail(response_id)
        cursor = self.follow(response_id, tail.committed if tail is not None else -1)
        try:
            async with asyncio.timeout(seconds):
                await cursor.read_to_end()
                return cursor.final
        except TimeoutError:
            return None
        finally:
            cursor.close()

"""Reading a response: live from memory where it runs, from the journal where it does not. No reader owns a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from outlive.core.errors import NotFound, UpstreamFault
from outlive.core.events import KEEP_ALIVE_FRAME, Json, is_last
from outlive.core.fold import Fold
from outlive.engine.cluster.mirrors import Mirrors
from outlive.engine.delivery.live import LiveResponse, LiveResponses
from outlive.engine.delivery.snapshots import Folds
from outlive.ports.clock import Clock
from outlive.ports.journal import Batch, Journal

# One page of a replay; also all that a slow reader can make the server hold.
PAGE_BYTES = 64 * 1024
FOLD_BYTES = 1024 * 1024


Pour = Callable[[bytes], bool]  # sends at once, or says that it cannot


class StreamInterrupted(Exception):
    """The stream must end without a clean end, so that its reader notices and asks again (D11): the server is leaving,
    or the response was deleted."""


class Gate(Protocol):
    """Whether the server is going away."""

    @property
    def draining(self) -> bool:
        """No new runs, and what was handed back is not followed any more."""
        ...

    @property
    def leaving(self) -> bool:
        """Every stream is cut."""
        ...


class Cursor:
    """One reader's place in one response."""

    __slots__ = (
        "_began",
        "_clock",
        "_echoes",
        "_gate",
        "_idle_since",
        "_journal",
        "_keep_alive",
        "_live",
        "_lives",
        "_passing",
        "_pour",
        "after",
        "ended",
        "id",
        "stopped",
    )

    def __init__(self, reader: Reader, response_id: str, after: int) -> None:
        self.id = response_id
        self.after = after
        self.ended = False
        self.stopped = False
        self._began = after
        self._lives = reader.lives
        self._echoes = reader.echoes
        self._journal = reader.journal
        self._clock = reader.clock
        self._gate = reader.gate
        self._keep_alive = reader.keep_alive
        self._live: LiveResponse | None = None
        self._idle_since = 0.0

    async def read(self) -> bytes:
        """The next frames, or a keep-alive comment; empty when the response has ended or the reader was stopped.

        Raises Cut when the server is leaving.
        """
        while not self.ended and not self.stopped:
            live = self._join()
            if live is None:
                frames = await self._read_idle()
            elif live.committed > self.after:
                frames = self._read_live(live) or await self._read_journal()
            else:
                self.ended = live.ended
                frames = b"" if live.ended else await self._wait(live.wait())
            if frames:
                return frames
        return b""

    async def forward_to(self, write_now: Pour) -> None:
        """Give new frames to `pour` in the moment they are durable, for as long as nothing else is to be done.

        That spares each event the way through a task; whatever is out of the ordinary is left to `read`.
        """
        live = self._live
        if live is None or live.lost or live.ended or live.committed > self.after:
            return
        if self.stopped or self._gate.leaving:
            return  # that was said while the last frames were being sent, and is not said again
        self._pour, self._passing = write_now, asyncio.get_running_loop().create_future()
        live.follow(self._pass)
        try:
            await self._passing
        finally:
            live.unfollow(self._pass)

    def _pass(self) -> bool:
        live = self._live
        try:
            if live is not None and live.committed > self.after and not (live.ended or live.lost or self.stopped):
                batch = live.slice(self.after)
                if batch is not None and self._pour(batch.frames):
                    self.after, self._idle_since = batch.last, 0.0
                    return True
        except Exception as error:
            # One reader's trouble is its own: all others, and the run, must still hear of this commit.
            if not self._passing.done():
                self._passing.set_exception(error)
        if not self._passing.done():
            self._passing.set_result(None)
        return False

    async def _read_idle(self) -> bytes:
        """It does not run here: read the journal, and wait for it to begin here or to go on elsewhere."""
        if (frames := await self._read_journal()) or self.ended:
            return frames
        if self._echoes is not None:
            await self._join_echo(self._echoes)
            return b""
        waiter = self._lives.wait(self.id)
        try:
            # It may have begun, and even ended, since that read and before we began to wait.
            if (live := self._lives.get(self.id)) is not None and not live.lost:
                return b""
            if (frames := await self._read_journal()) or self.ended:
                return frames
            return await self._wait(waiter)
        finally:
            self._lives.forget(self.id, waiter)

    async def _join_echo(self, echoes: Mirrors) -> None:
        """Read on as the node hears of it. An echo begins with a number that is in the journal, and a client may have
        asked for what comes after one that is not there yet."""
        after = self.after
        if after == self._began and after >= 0:
            batch = await self._journal_page(after - 1, 1)
            after = after if batch is not None and batch.frames else -1
        live = self._lives.get(self.id)
        if live is None or live.lost:
            self._live = echoes.join(self.id, after)
            self._live.readers += 1

    async def _wait(self, waiter: asyncio.Future[None]) -> bytes:
        """Wait for more; a keep-alive comment if there was none for long."""
        if self._gate.leaving or (self._gate.draining and self._live is None):
            raise StreamInterrupted
        now = self._clock.monotonic()
        self._idle_since = self._idle_since or now
        if now - self._idle_since >= self._keep_alive:
            self._idle_since = now
            return KEEP_ALIVE_FRAME
        await waiter
        return b""

    @property
    def final(self) -> bytes | None:
        """The final object, if the response ended in this process."""
        return self._live.final if self._live is not None else None

    @property
    def cause(self) -> UpstreamFault | None:
        """Why the response failed, if it did so in this process."""
        return self._live.cause if self._live is not None else None

    def leave(self) -> None:
        """The reader goes away."""
        if self._live is not None:
            self._live.readers -= 1
            self._live.read_at = self._clock.monotonic()
            self._live = None

    def stop(self) -> None:
        """Make a waiting `read` come back."""
        self.stopped = True
        if self._live is not None:
            self._live.wake()
        self._lives.ring(self.id)

    def _join(self) -> LiveResponse | None:
        """The live response to read from: the one at hand, or the one that has taken its place."""
        live = self._live
        if live is None or live.lost:
            self.leave()
            live = self._lives.get(self.id)
            if live is None or live.lost:
                return None
            self._live = live
            live.readers += 1
        return live

    def _read_live(self, live: LiveResponse) -> bytes:
        batch = live.slice(self.after)
        if batch is None:
            return b""
        self._idle_since = 0.0
        self.after = batch.last
        self.ended = live.ended and batch.last == live.committed
        return batch.frames

    async def _journal_page(self, after: int, max_bytes: int) -> Batch | None:
        try:
            return await self._journal.read(self.id, after, max_bytes)
        except NotFound:
            raise StreamInterrupted from None  # deleted while being read: no terminal event will come

    async def _read_journal(self) -> bytes:
        batch = await self._journal_page(self.after, PAGE_BYTES)
        if batch is None:
            return b""
        self._idle_since = 0.0
        self.after = batch.last
        self.ended = not batch.frames or is_last(batch.frames)
        return batch.frames


class Reader:
    """Gives out cursors over one home's responses."""

    def __init__(
        self,
        lives: LiveResponses,
        journal: Journal,
        clock: Clock,
        gate: Gate,
        keep_alive: float,
        echoes: Mirrors | None = None,
    ) -> None:
        self.lives = lives
        self.journal = journal
        self.clock = clock
        self.gate = gate
        self.keep_alive = keep_alive
        self.echoes = echoes  # None: what does not run here runs nowhere
        self.folds = Folds(journal, self.replay, clock) if echoes is not None else None

    def follow(self, response_id: str, after: int = -1) -> Cursor:
        return Cursor(self, response_id, after)

    async def fold(self, response_id: str) -> Fold:
        """The response as of its last committed event: from memory where it runs here, else from its journal."""
        live = self.lives.get(response_id)
        if live is not None and not live.lost:
            return live.fold
        return await (self.replay(response_id) if self.folds is None else self.folds.get(response_id))

    async def headers(self, response_ids: list[str]) -> dict[str, Json]:
        """The running ones among these as they stand, without what they have said: one look for all of them."""
        lives = {each: live for each in response_ids if (live := self.lives.get(each)) is not None and not live.lost}
        others = {each: -1 for each in response_ids if each not in lives}
        first = await self.journal.read_many(others, 1) if others else {}
        found = {each: live.fold.header for each, live in lives.items()}
        for each, batch in first.items():
            if batch is not None:
                fold = Fold()
                fold.replay(batch.frames)
                found[each] = fold.header
        return found

    async def replay(self, response_id: str) -> Fold:
        """A fold of one's own, made from the journal."""
        fold = Fold()
        while (batch := await self.journal.read(response_id, fold.last, FOLD_BYTES)) is not None and batch.frames:
            if len(batch.frames) > PAGE_BYTES:
                await asyncio.to_thread(fold.replay, batch.frames)
            else:
                fold.replay(batch.frames)
        return fold

    async def wait_end(self, response_id: str, seconds: float | None = None) -> bytes | None:
        """Wait until the response has ended, or so long; its final object if that is at hand. Raises Cut."""
        live = self.lives.get(response_id)
        cursor = self.follow(response_id, live.committed if live is not None else -1)
        try:
            async with asyncio.timeout(seconds):
                while not cursor.ended:
                    await cursor.read()
                return cursor.final
        except TimeoutError:
            return None
        finally:
            cursor.leave()

"""Live responses for tests, written by hand instead of by a worker's run, and ledgers and journals to watch them on."""

from __future__ import annotations

import asyncio

from outlive.core.errors import StorageUnavailable
from outlive.core.events import AnyDraft, Channel, Delta, Draft, number
from outlive.core.grammar import OUTPUT_TEXT
from outlive.engine.delivery.live import LiveResponse, LiveResponses
from outlive.engine.delivery.reader import Cursor
from outlive.engine.ephemeral import MemoryJournal, MemoryLedger
from outlive.ports.journal import Batch
from outlive.ports.ledger import (
    NO_CHECKPOINT,
    AppendResult,
    AppendResults,
    Checkpoint,
    Claim,
    Closing,
    Entry,
    Lease,
    Position,
    RunLedger,
)
from tests.core.journals import REQUEST, fold_of, frames_of, opening
from tests.engine.virtual_clock import turn

CHANNEL = Channel(OUTPUT_TEXT, "msg_1", 0)
ADDED = Draft(
    "response.output_item.added", {"output_index": 0, "item": {"id": "msg_1", "type": "message", "content": []}}
)
COMPLETED = Draft("response.completed", {"response": {"id": "resp_1", "status": "completed"}})


def deltas(count: int, text: str = "x") -> list[AnyDraft]:
    return [Delta(CHANNEL, text) for _ in range(count)]


def texts(*each: str) -> list[AnyDraft]:
    return [Delta(CHANNEL, text) for text in each]


# -- live responses


def make_live(
    response_id: str = "resp_1",
    *,
    lease: Lease | None = None,
    ledger: RunLedger | None = None,
    durable: list[AnyDraft] | None = None,
    read_at: float = 0.0,
    just_admitted: bool = False,
) -> LiveResponse:
    """Build a live response whose journal holds the `durable` drafts: by default those of its admission."""
    drafts = opening() if durable is None else durable
    claim = Claim(lease or Lease(response_id, 1, 1), "ann", REQUEST, Position(1, 0), 1, NO_CHECKPOINT, False)
    frames = frames_of(drafts) if just_admitted else b""
    ledger = ledger or MemoryLedger(MemoryJournal())
    return LiveResponse(claim, fold_of(drafts), ledger, read_at=read_at, frames=frames)


def commit(live: LiveResponse, drafts: list[AnyDraft]) -> None:
    """Emit drafts and show them, as if a ledger had written them."""
    live.emit(drafts)
    live.advance(*live.pending.take(live.lease, 1.0))


class JournaledResponse:
    """A response on a ledger in memory, registered as running on one node."""

    def __init__(self, ledger: MemoryLedger, node: LiveResponses, response_id: str = "resp_1") -> None:
        self.drafts = opening()
        self.lease = ledger.admit(response_id, frames_of(self.drafts), len(self.drafts))
        self._ledger = ledger
        self._node = node
        self.live: LiveResponse

    def start(self, *, read_at: float = 0.0, just_admitted: bool = False) -> LiveResponse:
        """Let it run on its node."""
        self.live = make_live(
            lease=self.lease, ledger=self._ledger, durable=self.drafts, read_at=read_at, just_admitted=just_admitted
        )
        self._node.add(self.live)
        return self.live

    def move(self, node: LiveResponses) -> None:
        """Let another node take it over."""
        self.live.lose()
        self._node.remove(self.live)
        self._node = node
        self.start()

    async def commit(self, *drafts: AnyDraft) -> None:
        self.live.emit(list(drafts))
        entry, taken = self.live.pending.take(self.lease, 1.0)
        assert await self._ledger.append([entry]) == [AppendResult.WRITTEN]
        self.drafts += drafts
        self.live.advance(entry, taken)

    async def finish(self, *, remove: bool = True, last: Draft = COMPLETED) -> None:
        self.live.transition("close")
        self.live.pending.add([last])
        entry, _ = self.live.pending.take(self.lease, 1.0)
        await self._ledger.close(Closing(entry, "completed", b"{}", [], keep_turn=True))
        self.drafts.append(last)
        self.live.finish(entry, b"{}")
        if remove:
            self._node.remove(self.live)

    @property
    def frames(self) -> list[bytes]:
        """Frames of all durable events."""
        return number(self.drafts, -1)

    @property
    def bytes(self) -> bytes:
        return b"".join(self.frames)


async def read_to_end(cursor: Cursor) -> bytes:
    parts = []
    while frames := await cursor.read():
        parts.append(frames)
    cursor.close()
    return b"".join(parts)


# -- storage


class CountingJournal(MemoryJournal):
    """Counts its reads, and fails or hangs on demand when it is polled for several responses."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.polls: list[int] = []  # number of responses in each poll
        self.error: Exception | None = None  # raised by each poll
        self.hanging = False

    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        self.reads += 1
        return await super().read(response_id, after, max_bytes)

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        self.polls.append(len(after))
        if self.hanging:
            await asyncio.get_running_loop().create_future()
        if self.error is not None:
            raise self.error
        reads, found = self.reads, await super().read_many(after, max_bytes)
        self.reads = reads
        return found


class HeldLedger:
    """A ledger whose transactions end when a test ends them; no real one can be held in the middle of a commit."""

    def __init__(self) -> None:
        self.appends: list[tuple[float, list[Entry], asyncio.Future[AppendResults]]] = []
        self.closings: list[tuple[float, Closing, asyncio.Future[None]]] = []

    def append(self, entries: list[Entry]) -> asyncio.Future[AppendResults]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[AppendResults] = loop.create_future()
        self.appends.append((loop.time(), entries, future))
        return future

    def close(self, closing: Closing) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self.closings.append((loop.time(), closing, future))
        return future

    async def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None: ...

    async def commit(self, results: AppendResults | None = None) -> list[Entry]:
        """Let the newest append succeed, and return its entries."""
        _, entries, future = self.appends[-1]
        future.set_result(results if results is not None else [AppendResult.WRITTEN] * len(entries))
        await turn()
        return entries

    async def fail(self, error: Exception | None = None) -> None:
        """Let the newest append fail."""
        self.appends[-1][2].set_exception(error or StorageUnavailable("append"))
        await turn()

    async def commit_close(self) -> Closing:
        """Let the newest closing succeed."""
        _, closing, future = self.closings[-1]
        future.set_result(None)
        await turn()
        return closing

    async def fail_close(self, error: Exception | None = None) -> None:
        """Let the newest closing fail."""
        self.closings[-1][2].set_exception(error or StorageUnavailable("close"))
        await turn()

    async def wait_append(self, count: int) -> float:
        """Wait until so many appends were sent, and return the time of the last of them."""
        while len(self.appends) < count:
            await asyncio.sleep(0.0001)
        return self.appends[count - 1][0]

"""Two nodes in one process, on one journal in memory: one that runs responses, and one where they are read."""

from __future__ import annotations

import asyncio

from outlive.core.errors import StorageUnavailable
from outlive.core.events import KEEP_ALIVE_FRAME, AnyDraft, Channel, Delta, Draft, number
from outlive.core.grammar import OUTPUT_TEXT
from outlive.engine.cluster.mirrors import Mirrors
from outlive.engine.cluster.notifier import ProgressNotifier
from outlive.engine.delivery.live import LiveResponse, LiveResponses
from outlive.engine.delivery.reader import Cursor, Reader
from outlive.ports.bell import Ring
from outlive.ports.journal import Batch
from outlive.ports.ledger import AppendResult, Closing
from outlive.storage.memory import MemoryJournal, MemoryLedger
from tests.core.journals import fold_of, frames_of, opening
from tests.engine.bus import Bus
from tests.engine.virtual_clock import VirtualClock

CHANNEL = Channel(OUTPUT_TEXT, "msg_1", 0)
ADDED = Draft(
    "response.output_item.added", {"output_index": 0, "item": {"id": "msg_1", "type": "message", "content": []}}
)
LAST = Draft("response.completed", {"response": {"id": "resp_1", "status": "completed"}})


class WatchedJournal(MemoryJournal):
    """Counts who asks how often, and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.looks: list[int] = []  # how many responses each look asked for
        self.failing = False
        self.hangs = False

    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        self.reads += 1
        return await super().read(response_id, after, max_bytes)

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        self.looks.append(len(after))
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.failing:
            raise StorageUnavailable("read", "a test says so")
        reads, found = self.reads, await super().read_many(after, max_bytes)
        self.reads = reads
        return found


class Here:
    """The node that reads."""

    def __init__(self, journal: WatchedJournal, bus: Bus) -> None:
        self.draining = self.leaving = False
        self.clock, bell = VirtualClock(), bus.bell()
        self.live = LiveResponses()
        self.mirrors = Mirrors(journal, self.live, bell)
        self.reader = Reader(self.live, journal, self.clock, self, 15.0, self.mirrors)
        self.notifier = ProgressNotifier(self.live, bell, self.clock)
        bell.listen(self.on_chunks)

    def on_chunks(self, ring: Ring) -> None:
        match ring.kind:
            case "advanced":
                self.mirrors.advanced(ring.response_id, ring.number)
            case "taken":
                self.mirrors.taken(ring.response_id)
            case "wanted":
                self.notifier.wanted(ring.response_id, ring.number)


class Run:
    """One response on the node that runs it."""

    def __init__(self, there: Here, ledger: MemoryLedger, response_id: str) -> None:
        self.drafts: list[AnyDraft] = opening()
        lease = ledger.admit(response_id, frames_of(self.drafts), len(self.drafts))
        self.live = LiveResponse(lease, fold_of(self.drafts), 0.0, frames_of(self.drafts))
        self._there, self._ledger = there, ledger
        there.live.enter(self.live)

    async def commit(self, *drafts: AnyDraft) -> None:
        self.live.emit(list(drafts))
        entry, taken = self.live.take(1.0)
        assert await self._ledger.append([entry]) == [AppendResult.WRITTEN]
        self.live.advance(entry, taken)
        self.drafts += drafts

    async def finish(self) -> None:
        self.live.emit([LAST])
        entry, _ = self.live.take(1.0)
        await self._ledger.close(Closing(entry, "completed", b"{}", [], keep_turn=True))
        self.live.finish(entry, b"{}")
        self.drafts.append(LAST)
        self._there.live.leave(self.live)

    def move(self, there: Here) -> None:
        """Another node takes it over."""
        lost, self.live = self.live, LiveResponse(self.live.lease, fold_of(self.drafts))
        lost.lose()
        self._there.live.leave(lost)
        self._there = there
        there.live.enter(self.live)

    @property
    def bytes(self) -> bytes:
        return b"".join(number(self.drafts, -1))


class Stage:
    """A node that runs, a node that reads, a bell between them."""

    def __init__(self) -> None:
        self.bus, self.journal = Bus(), WatchedJournal()
        self.ledger = MemoryLedger(self.journal)
        self.there, self.here = Here(self.journal, self.bus), Here(self.journal, self.bus)

    def start(self, response_id: str = "resp_1") -> Run:
        return Run(self.there, self.ledger, response_id)


def deltas(count: int, text: str = "x") -> list[AnyDraft]:
    return [Delta(CHANNEL, text) for _ in range(count)]


async def read_to_end(cursor: Cursor) -> bytes:
    parts = []
    while frames := await cursor.read():
        parts.append(frames if frames != KEEP_ALIVE_FRAME else b"")
    cursor.leave()
    return b"".join(parts)


async def rounds(here: Here) -> None:
    while True:
        here.mirrors.poll_all()
        await asyncio.sleep(1.0)

"""Two nodes in one process, on one journal in memory: one that runs responses, and one where they are read."""

from __future__ import annotations

import asyncio

from outlive.engine.cluster.mirrors import Mirrors, ProgressNotifier
from outlive.engine.delivery.live import LiveResponses
from outlive.engine.delivery.reader import Cursor, Reader, Shutdown
from outlive.engine.ephemeral import MemoryLedger
from outlive.ports.bell import Ring
from outlive.ports.journal import Journal
from tests.engine.bus import Bus
from tests.engine.live_responses import CountingJournal, JournaledResponse
from tests.engine.virtual_clock import VirtualClock


class ReadingNode:
    """The part of a node that serves readers: its own, and those of other nodes."""

    def __init__(self, journal: Journal, bus: Bus) -> None:
        self.clock, self.bell = VirtualClock(), bus.bell()
        self.live, self.shutdown = LiveResponses(), Shutdown()
        self.mirrors = Mirrors(journal, self.live, self.bell)
        self.reader = Reader(self.live, journal, self.clock, self.shutdown, 15.0, self.mirrors)
        self.notifier = ProgressNotifier(self.live, self.bell, self.clock)
        self.bell.listen(self.on_ring)

    def on_ring(self, ring: Ring) -> None:
        match ring.kind:
            case "advanced":
                self.mirrors.on_advanced(ring.response_id, ring.number)
            case "taken":
                self.mirrors.on_taken(ring.response_id)
            case "wanted":
                self.notifier.on_wanted(ring.response_id, ring.number)

    def follow(self, response_id: str = "resp_1", after: int = -1) -> Cursor:
        return self.reader.follow(response_id, after)

    async def poll(self) -> None:
        """Poll for lost rings once a second, like a whole node, until cancelled."""
        while True:
            self.mirrors.poll_all()
            await asyncio.sleep(1.0)


class TwoNodes:
    """A node that runs responses, a node that reads them, and a bell between the two."""

    def __init__(self) -> None:
        self.bus, self.journal = Bus(), CountingJournal()
        self.ledger = MemoryLedger(self.journal)
        self.running, self.reading = self.add_node(), self.add_node()

    def add_node(self) -> ReadingNode:
        return ReadingNode(self.journal, self.bus)

    def start(self, response_id: str = "resp_1") -> JournaledResponse:
        """Start a response on the node that runs them."""
        response = JournaledResponse(self.ledger, self.running.live, response_id)
        response.start(just_admitted=True)
        return response

"""A node of a cluster: it answers the bell, sends its heartbeat, and takes over what dead nodes left."""

import asyncio
import logging
from dataclasses import dataclass, field

from outlive.core.errors import StorageUnavailable
from outlive.engine.cluster.mirrors import Mirrors, ProgressNotifier
from outlive.engine.delivery.reader import RemoteFolds
from outlive.engine.retries import PendingCreates
from outlive.engine.waiting import wait
from outlive.engine.worker import Worker
from outlive.ports.bell import Ring
from outlive.ports.storage import Storage

log = logging.getLogger(__name__)

# Seconds between two polls for lost rings and dead nodes. Readers are late by that much at most.
POLL_SECONDS = 1.0
# A poll that takes longer hangs in a connection that is dead without knowing it; the next takes another one.
MAX_POLL_SECONDS = 5.0
# Polls after which subscriptions to other nodes' responses are renewed.
SUBSCRIBE_EVERY = 5


@dataclass(eq=False)
class Node:
    """Acts on rings, and polls for what a lost ring would have said: the database alone holds the truth."""

    _storage: Storage
    _worker: Worker
    _mirrors: Mirrors
    _remote_folds: RemoteFolds
    notifier: ProgressNotifier
    _creates: PendingCreates
    _poll_now: asyncio.Event = field(default_factory=asyncio.Event)
    _polls: int = 0
    _failing: bool = False

    async def start(self) -> None:
        """Join the cluster: send heartbeats and listen to the bell."""
        await self._storage.heartbeat.start()
        self._storage.bell.listen(self.on_ring)

    async def run(self) -> None:
        """Tick and poll until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick())
            group.create_task(self._poll())

    async def stop(self) -> None:
        """Leave the cluster: what this node still holds is free for the others at once."""
        await self._worker.unstored.stop()
        await self._storage.heartbeat.stop()
        self._storage.bell.ring(Ring("waits"))

    def on_ring(self, ring: Ring) -> None:
        """Act on the ring of another node."""
        match ring.kind:
            case "advanced":
                self._mirrors.on_advanced(ring.response_id, ring.number)
            case "wanted":
                self.notifier.on_wanted(ring.response_id, ring.number)
            case "taken":
                self._worker.on_taken(ring.response_id, ring.number)
                self._mirrors.on_taken(ring.response_id)
            case "waits":
                self._worker.find_work()
            case "asking":
                self._creates.on_asked(ring.response_id)
            case "answering":
                self._creates.on_answer(ring.response_id)
            case "missed":
                self._polls = 0
                self._poll_now.set()

    async def _tick(self) -> None:
        # Apart from the polls: one that waits for the database must not make the event loop look hung.
        while True:
            self._storage.heartbeat.tick()
            await asyncio.sleep(POLL_SECONDS)

    async def _poll(self) -> None:
        while True:
            try:
                async with asyncio.timeout(MAX_POLL_SECONDS):
                    await self.poll_once()
                self._failing = False
            except (StorageUnavailable, TimeoutError) as error:
                if not self._failing:
                    log.warning("cluster poll failed: %s", str(error) or "no answer in time")
                self._failing = True
            await wait(self._poll_now, POLL_SECONDS)

    async def poll_once(self) -> None:
        """Find by polling everything that rings would have said, and take over what dead nodes left."""
        self._mirrors.poll_all()
        if self._polls % SUBSCRIBE_EVERY == 0:
            self._mirrors.subscribe_all()
        self._polls += 1
        self._remote_folds.drop_old()
        await self._worker.confirm_leases()
        if freed := await self._storage.ledger.free_dead_leases():
            log.warning("node died or is unreachable: taking over its responses", extra={"count": freed})
            self._storage.bell.ring(Ring("waits"))
        await self._worker.unstored.check()
        self._worker.find_work()

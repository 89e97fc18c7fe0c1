"""One node among several on a database: it hears the bell, says that it lives, and looks after what others left."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from outlive.core.errors import StorageUnavailable
from outlive.engine.cluster.notifier import ProgressNotifier
from outlive.engine.delivery.reader import Reader
from outlive.engine.retries import PendingCreates
from outlive.engine.worker import Worker
from outlive.ports.bell import Bell, Ring
from outlive.ports.heartbeat import Heartbeat
from outlive.ports.ledger import Ledger

log = logging.getLogger(__name__)

# How often to look whether a ring was lost, and whether a node has died. Readers are at most so late.
ROUND_SECONDS = 1.0
# A round that takes longer stands in a connection that is dead without knowing it; the next takes another one.
LONGEST_SECONDS = 5.0
# How many rounds pass until the others are told again what is read here.
WANT_EVERY = 5


class Node:
    """Truth is in the database: one that hears nothing does the same as one that hears all, a second later."""

    def __init__(
        self,
        worker: Worker,
        reader: Reader,
        crier: ProgressNotifier,
        answering: PendingCreates,
        ledger: Ledger,
        bell: Bell,
        heart: Heartbeat,
    ) -> None:
        assert reader.echoes is not None
        assert reader.folds is not None
        self._worker = worker
        self._echoes = reader.echoes
        self._folds = reader.folds
        self._crier = crier
        self._answering = answering
        self._ledger = ledger
        self._bell = bell
        self._heart = heart
        self._again = asyncio.Event()
        self._rounds = 0
        self._down = False

    async def start(self) -> None:
        """From here on this node counts as alive, and hears."""
        await self._heart.start()
        self._bell.listen(self.on_chunks)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tick())
            group.create_task(self._go_round())

    async def stop(self) -> None:
        """This node is gone: what it still holds is free for the others at once."""
        await self._heart.stop()
        self._bell.ring(Ring("waits"))

    def on_chunks(self, ring: Ring) -> None:
        match ring.kind:
            case "advanced":
                self._echoes.advanced(ring.response_id, ring.number)
            case "wanted":
                self._crier.wanted(ring.response_id, ring.number)
            case "taken":
                self._worker.lose(ring.response_id, ring.number)
                self._echoes.taken(ring.response_id)
            case "waits":
                self._worker.find_work()
            case "asking":
                self._answering.asked(ring.response_id)
            case "answering":
                self._answering.told(ring.response_id)
            case "missed":
                self._rounds = 0
                self._again.set()

    async def _tick(self) -> None:
        # By itself: a round may have to wait for the database, and that is no reason to be taken for hung.
        while True:
            self._heart.tick()
            await asyncio.sleep(ROUND_SECONDS)

    async def _go_round(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LONGEST_SECONDS):
                    await self.go_round()
                self._down = False
            except (StorageUnavailable, TimeoutError) as error:
                if not self._down:
                    log.warning("out of touch with the other nodes: %s", str(error) or "no answer in time")
                self._down = True
            except Exception:
                log.exception("looking after the other nodes failed")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ROUND_SECONDS):
                    await self._again.wait()
            self._again.clear()

    async def go_round(self) -> None:
        """Everything that a ring would have said, found by looking."""
        self._echoes.look_at_all()
        if self._rounds % WANT_EVERY == 0:
            self._echoes.want_all()
        self._rounds += 1
        self._folds.drop_old()
        await self._worker.confirm()
        if freed := await self._ledger.free_dead_leases():
            log.warning("a node has died or is cut off: what it ran (%d responses) is taken over", freed)
            self._bell.ring(Ring("waits"))
        self._worker.find_work()

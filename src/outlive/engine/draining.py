"""Draining a worker before it shuts down: release what another worker can continue, end the rest."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from outlive.core.errors import StaleFence, StorageUnavailable, UpstreamFault
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponse, State
from outlive.engine.run.closer import Closer
from outlive.engine.run.run import Run
from outlive.ports.bell import Bell, Ring
from outlive.ports.ledger import Ledger

log = logging.getLogger(__name__)

LAST_SECONDS = 5.0  # for which a storage that is down can delay the shutdown
SHUT_DOWN = "The server was shut down before the answer was complete."


class Running(NamedTuple):
    """A run, its task and its live response."""

    task: asyncio.Task[None]
    run: Run
    live: LiveResponse


def stop(task: asyncio.Task[None]) -> None:
    """Cancel a task, once: a second cancel would interrupt the closing of the upstream's connection."""
    if not task.cancelling():
        task.cancel()


class Drain:
    """Empties a worker's table of running responses."""

    def __init__(
        self, running: dict[str, Running], ledger: Ledger, committer: Committer, closer: Closer, bell: Bell
    ) -> None:
        self._running = running
        self._ledger = ledger
        self._committer = committer
        self._closer = closer
        self._bell = bell

    async def release(self) -> None:
        """Stop and release the runs that another worker can continue without dropping anything that was shown."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                for running in list(self._running.values()):
                    await _wait_for_first_output(running.live)
                released = [running for running in self._running.values() if _can_release(running)]
                if not released:
                    return
                for running in released:
                    stop(running.task)
                await asyncio.gather(*(running.task for running in released), return_exceptions=True)
                for running in released:
                    await self._committer.flush(running.live)
                await self._release([running for running in released if running.live.state is State.OPEN])
        except (StorageUnavailable, TimeoutError):
            log.warning("releasing leases failed: database unavailable. The next worker recovers these responses")

    async def end_all(self) -> None:
        """End what still runs: release it if another worker can at least take the next step, else end it."""
        await asyncio.gather(*(self._end(running) for running in list(self._running.values())))

    async def _release(self, released: list[Running]) -> None:
        await self._ledger.release_leases([running.live.lease for running in released])
        self._bell.ring(Ring("waits"))
        for running in released:
            running.live.lose()

    async def _end(self, running: Running) -> None:
        live = running.live
        if live.state is State.ENDING:
            await asyncio.wait([running.task], timeout=LAST_SECONDS)
        stop(running.task)
        await asyncio.gather(running.task, return_exceptions=True)
        if live.state is not State.OPEN:
            return
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._committer.flush(live)
                if running.run.can_resume():
                    await self._release([running])
                else:
                    await self._closer.fail(live, UpstreamFault(SHUT_DOWN, retryable=False))
        except StaleFence:
            pass
        except (StorageUnavailable, TimeoutError):
            log.warning("ending response failed response=%s: database unavailable", live.lease.response_id)


def _can_release(running: Running) -> bool:
    """Return True if nothing is shown yet, or another worker can go on where this one stops."""
    live = running.live
    if live.state is not State.OPEN:
        return False
    return running.run.can_release() if live.fold.visible else live.is_durable


async def _wait_for_first_output(live: LiveResponse) -> None:
    """Wait for a first output that is on its way to the journal: the response is visible in a moment."""
    while not live.fold.visible and not live.is_durable:
        await live.tail.wait()

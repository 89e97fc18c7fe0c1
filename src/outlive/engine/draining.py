"""Leaving: giving up what runs here, handed back where that loses nothing, ended where it must."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from outlive.core.errors import StaleFence, StorageUnavailable
from outlive.engine.delivery.live import LiveResponse
from outlive.engine.run.runner import Runner
from outlive.ports.bell import Bell, Ring
from outlive.ports.ledger import Claim, Ledger

log = logging.getLogger(__name__)

LAST_SECONDS = 5.0  # how long a storage that is down can keep the server from leaving
LEFT = "The server was shut down before the answer was complete."


class Running(NamedTuple):
    task: asyncio.Task[None]
    claim: Claim
    live: LiveResponse


def stop(task: asyncio.Task[None]) -> None:
    # Once only: a second cancel would interrupt the closing of the upstream's connection.
    if not task.cancelling():
        task.cancel()


class Drain:
    """What a worker that goes away does with what it runs."""

    def __init__(self, running: dict[str, Running], ledger: Ledger, runner: Runner, bell: Bell) -> None:
        self._running = running
        self._ledger = ledger
        self._runner = runner
        self._bell = bell

    async def hand_back(self) -> None:
        """Give up what loses nothing by it."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                for running in list(self._running.values()):
                    await _wait_for_first_output(running.live)
                leaving = [running for running in self._running.values() if self._loses_nothing(running)]
                if not leaving:
                    return
                for running in leaving:
                    stop(running.task)
                await asyncio.gather(*(running.task for running in leaving), return_exceptions=True)
                for running in leaving:
                    await self._runner.committer.settle(running.live)
                await self._give([running for running in leaving if not running.live.ended])
        except (StorageUnavailable, TimeoutError):
            log.warning("handing back failed: the database is unavailable. Whoever comes next takes these up")

    async def end_all(self) -> None:
        """The time is over: what another worker can go on with is handed back all the same, the rest is ended."""
        await asyncio.gather(*(self._end(running) for running in list(self._running.values())))

    def _loses_nothing(self, running: Running) -> bool:
        """Nothing to be shown yet, or another worker can go on where this one stops."""
        live = running.live
        if live.ending:
            return False
        if not live.fold.visible:
            return live.settled
        return self._runner.can_continue(running.claim, live)

    async def _give(self, leaving: list[Running]) -> None:
        await self._ledger.release_leases([running.live.lease for running in leaving])
        self._bell.ring(Ring("waits"))
        for running in leaving:
            running.live.lose()

    async def _end(self, running: Running) -> None:
        if running.live.ending:
            await asyncio.wait([running.task], timeout=LAST_SECONDS)
        stop(running.task)
        await asyncio.gather(running.task, return_exceptions=True)
        if running.live.ended or running.live.lost:
            return
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._runner.committer.settle(running.live)
                if self._runner.can_go_on(running.claim, running.live):
                    await self._give([running])
                else:
                    await self._runner.break_off(running.claim, running.live, LEFT)
        except StaleFence:
            pass
        except (StorageUnavailable, TimeoutError):
            log.warning("%s could not be ended: the database is unavailable", running.claim.lease.response_id)


async def _wait_for_first_output(live: LiveResponse) -> None:
    """One that is on its way to the journal will be visible in a moment."""
    while not live.fold.visible and not live.settled:
        await live.wait()

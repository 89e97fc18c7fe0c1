"""`store: false`: the same path with a ledger in memory. When the connection goes, nothing of it is left (D4)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from outlive.core.errors import StaleFence
from outlive.engine.delivery.live import LiveResponse, LiveResponses
from outlive.engine.run.runner import Runner
from outlive.ports.ledger import Claim, EphemeralLedger, Lease, Memory

log = logging.getLogger(__name__)


class EphemeralRuns:
    """Runs responses that are not stored, and tells their readers when the server leaves."""

    draining = False  # nothing of it is ever handed back

    def __init__(self, ledger: EphemeralLedger, runner: Runner, lives: LiveResponses) -> None:
        self._ledger = ledger
        self._runner = runner
        self._lives = lives
        self.leaving = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._claims: dict[str, Claim] = {}

    def start(self, claim: Claim, live: LiveResponse, ended: Callable[[], None]) -> None:
        """Run it; `ended` is called when it does not run any more."""
        self._lives.enter(live)
        task = asyncio.create_task(self._run(claim, live))
        task.add_done_callback(lambda _: ended())
        self._tasks[claim.lease.response_id] = task
        self._claims[claim.lease.response_id] = claim

    def admit(self, response_id: str, frames: bytes, count: int) -> Lease:
        return self._ledger.admit(response_id, frames, count)

    def remember(self, response_id: str) -> Memory | None:
        """What it takes to continue a response that has ended; None when it failed, so that there is nothing to
        continue."""
        claim, live = self._claims[response_id], self._lives.get(response_id)
        if live is None or live.cause is not None or not live.ended:
            return None
        # Calls that never became whole are remembered too: their outputs are to be left out, not refused (D6b).
        items = [*claim.request.input, *(item for _, item in sorted(live.output.items()))]
        if (before := claim.memory) is not None:
            return Memory([*before.items, *items], before.position, before.conversation, before.parent)
        request = claim.request
        if request.conversation is None and request.previous_response_id is None:
            return Memory(items)
        return Memory(items, claim.position, request.conversation, request.previous_response_id)

    def stop(self, response_id: str) -> None:
        """Its reader is gone, or has everything: end the upstream call and forget it all."""
        self._claims.pop(response_id, None)
        if (task := self._tasks.pop(response_id, None)) is not None:
            task.cancel()
        if (live := self._lives.get(response_id)) is not None:
            self._lives.leave(live)
        self._ledger.forget(response_id)

    async def drain(self, grace: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace)
        self.leaving = True
        self._lives.wake_all()

    async def _run(self, claim: Claim, live: LiveResponse) -> None:
        try:
            await self._runner.run(claim, live)
        except StaleFence:
            pass
        except Exception:
            log.exception("running a response that is not stored failed")
            await self._runner.break_off(claim, live, "The server made a mistake while running this response.")

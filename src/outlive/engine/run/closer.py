"""The closer: writes the terminal event of a response, for its run or for an ending from outside."""

from __future__ import annotations

import asyncio

from outlive.core import endings
from outlive.core.endings import Outcome, TerminalStatus
from outlive.core.errors import InvalidRequest, StaleFence, UpstreamFault
from outlive.core.events import AnyDraft, Json, Renaming
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponse, State
from outlive.ports.backend import Ending, Route
from outlive.ports.clock import Clock

CUT_OFF = "The answer was cut off."


class Closer:
    """Ends responses. Each method returns once the terminal event is durable, and raises StaleFence if another worker
    has taken the response over."""

    def __init__(self, committer: Committer, route: Route, clock: Clock) -> None:
        self._committer = committer
        self._route = route
        self._clock = clock

    async def finish(
        self, live: LiveResponse, drafts: list[AnyDraft], ending: Ending, usage: Json | None, attempts: int
    ) -> None:
        """End a response as its model ended: with its last events, and what it used."""
        outcome = Outcome(
            status=ending.status,
            at=int(self._clock.now()),
            usage=usage,
            model=ending.model,
            service_tier=ending.service_tier,
            reason=ending.reason,
            **_history(live, attempts),
        )
        await self._close(live, drafts, outcome)

    async def fail(self, live: LiveResponse, fault: UpstreamFault, attempts: int | None = None) -> None:
        """End a response that cannot go on: as `failed` if nothing was visible, else as `incomplete` (D10)."""
        await self._committer.flush(live)
        if live.fold.visible:
            await self.end(live, "incomplete", message=f"{CUT_OFF} {fault.message}", attempts=attempts)
        else:
            # The frames in its traceback hold the request, and lead to the live response, which holds the fault.
            fault.__traceback__ = fault.__cause__ = fault.__context__ = None
            live.tail.cause = fault
            await self.end(live, "failed", error={"code": fault.code, "message": fault.message}, attempts=attempts)

    async def end(
        self,
        live: LiveResponse,
        status: TerminalStatus,
        *,
        message: str | None = None,
        error: Json | None = None,
        attempts: int | None = None,
    ) -> None:
        """End a response as it stands: open items are closed as incomplete."""
        await self._committer.flush(live)
        outcome = Outcome(
            status=status,
            at=int(self._clock.now()),
            usage=live.known_usage(),
            reason="interrupted" if status == "incomplete" else None,
            message=message,
            error=error,
            **_history(live, attempts),
        )
        await self._close(live, endings.close_open(live.fold), outcome)

    async def _close(self, live: LiveResponse, drafts: list[AnyDraft], outcome: Outcome) -> None:
        live.transition("close")
        sent: asyncio.Future[None] | None = None
        try:
            async with self._committer.ending_slot(live):
                await self._committer.wait_idle(live)
                sent = self._send(live, drafts, outcome)
                await self._committer.wait_tried(live, sent)
        finally:
            if sent is None and live.state is State.ENDING:
                live.transition("reopen")
        # Outside the semaphore: one closing that cannot be committed must not block the others.
        await self._committer.wait_closed(live)
        self._dismiss_upstream_run(live, outcome)

    def _send(self, live: LiveResponse, drafts: list[AnyDraft], outcome: Outcome) -> asyncio.Future[None]:
        """Render the terminal event and send it to the ledger with the last drafts."""
        if live.state is State.LOST:
            raise StaleFence
        if live.claim.request.event_names != "openai":
            drafts = Renaming().rename(drafts)
        live.outcome = outcome
        live.collect(drafts)
        output = [item for _, item in sorted(live.output.items())]
        terminal = endings.terminal(endings.end(live.fold.header, output, outcome))
        snapshot = endings.snapshot_of(terminal)
        turn = endings.turn(output)
        return self._committer.close(live, [*drafts, terminal], status=outcome.status, snapshot=snapshot, turn=turn)

    def _dismiss_upstream_run(self, live: LiveResponse, outcome: Outcome) -> None:
        """Have the upstream delete its copy of a background run, and stop the run if it goes on there."""
        run_id = live.checkpoint.upstream
        if run_id is None:
            return
        try:
            backend, _ = self._route(live.claim.request.model)
        except InvalidRequest:
            return  # the upstream is not configured any more
        if backend.background_runs is not None:
            over = outcome.status == "completed" or (outcome.status == "incomplete" and outcome.message is None)
            backend.background_runs.dismiss(run_id, running=not over)


def _history(live: LiveResponse, attempts: int | None) -> Json:
    resumed_at = live.checkpoint.resumed_at
    # Each resumption is another attempt, also one that was not counted: in an earlier process, or after a release.
    counted = attempts if attempts is not None else max(live.claim.attempts, 1)
    return {"attempts": max(counted, len(resumed_at) + 1), "resumed_at": resumed_at}

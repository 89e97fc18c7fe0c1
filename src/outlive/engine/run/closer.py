"""The closer: writes the terminal event of a response, for its run or for an ending from outside."""

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from outlive.core import endings
from outlive.core.context.window import estimate_item, estimate_request
from outlive.core.endings import Outcome, TerminalStatus
from outlive.core.errors import InvalidRequest, StaleFence, UpstreamFault
from outlive.core.events import AnyDraft, Json, number, rename
from outlive.core.usage import UsageRecord, add_usage, count_tokens
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponse, State
from outlive.engine.slots import SMALL_INPUT
from outlive.ports.backend import Backend, Ending, Route
from outlive.ports.clock import Clock

CUT_OFF = "The answer was cut off."


@dataclass(eq=False)
class Closer:
    """Ends responses: each ending returns once the terminal event is durable, and raises StaleFence if another worker
    has taken the response over."""

    _committer: Committer
    _route: Route
    _clock: Clock

    async def finish(
        self, live: LiveResponse, drafts: list[AnyDraft], ending: Ending, usage: Json | None, attempts: int
    ) -> None:
        """End a response as its model ended: with its last events, and what it used."""
        outcome = Outcome(
            status=ending.status,
            usage=usage,
            model=ending.model,
            service_tier=ending.service_tier,
            reason=ending.reason,
            attempts=attempts,
        )
        await self._close(live, drafts, outcome)

    async def fail(self, live: LiveResponse, fault: UpstreamFault, attempts: int | None = None) -> None:
        """End a response that cannot go on: as `failed` if nothing was visible, else as `incomplete` (D10)."""
        await live.flush()
        if live.fold.visible:
            message = f"{CUT_OFF} {fault.message}"
            await self.end(live, "incomplete", attempts, ended_by=fault.reason, message=message)
        else:
            # The frames in its traceback hold the request, and lead to the live response, which holds the fault.
            fault.__traceback__ = fault.__cause__ = fault.__context__ = None
            live.tail.cause = fault
            error = {"code": fault.code, "message": fault.message}
            await self.end(live, "failed", attempts, ended_by=fault.reason, error=error)

    async def end(self, live: LiveResponse, status: TerminalStatus, attempts: int | None = None, **why: Any) -> None:
        """End a response as it stands, with the fields of its outcome that say why: open items are closed as
        incomplete."""
        await live.flush()
        reason = "interrupted" if status == "incomplete" else None
        counted = live.claim.attempts if attempts is None else attempts
        outcome = Outcome(status=status, reason=reason, usage=live.known_usage(), attempts=counted, **why)
        await self._close(live, endings.close_open(live.fold), outcome)

    async def _close(self, live: LiveResponse, drafts: list[AnyDraft], outcome: Outcome) -> None:
        live.transition("close")
        resumed_at = live.checkpoint.resumed_at
        # Each resumption is another attempt, also one that was not counted: in an earlier process, or after a release.
        at, attempts = int(self._clock.now()), max(outcome.attempts, len(resumed_at) + 1)
        outcome = msgspec.structs.replace(outcome, at=at, attempts=attempts, resumed_at=resumed_at)
        sent = False
        try:
            async with self._committer.ending_slot(live):
                while live.pending.in_flight:
                    await live.tail.wait()
                await self._send(live, drafts, outcome)
                sent = True
                while not (live.failed_closings or live.tail.ended or live.tail.lost):
                    await live.tail.wait()
        finally:
            if not sent and live.state is State.ENDING:
                live.transition("reopen")
        # Outside the semaphore: one closing that cannot be committed must not block the others.
        while not live.tail.ended:
            if live.tail.lost:
                raise StaleFence
            await live.tail.wait()
        run_id = live.checkpoint.upstream
        if run_id is not None and (backend := self._find_backend(live)) is not None and backend.background_runs:
            # The upstream deletes its copy of a background run, and stops the run if it goes on there.
            over = outcome.status == "completed" or (outcome.status == "incomplete" and outcome.message is None)
            backend.background_runs.dismiss(run_id, running=not over)

    async def _send(self, live: LiveResponse, drafts: list[AnyDraft], outcome: Outcome) -> None:
        """Render the terminal event and send it to the ledger with the last drafts; in a thread if they are long."""
        if live.claim.request.event_names != "openai":
            drafts = rename(drafts)
        live.outcome = outcome
        live.collect(drafts)
        is_long = max(live.fold.size, live.pending.size, live.claim.size) > SMALL_INPUT
        frames, snapshot, output = await asyncio.to_thread(_render, live, drafts) if is_long else _render(live, drafts)
        while live.pending.in_flight:  # a commit may have begun meanwhile
            await live.tail.wait()
        if live.tail.lost:
            raise StaleFence
        turn, usage = endings.turn(output), self.make_record(live, outcome, output)
        self._committer.close(live, frames, outcome.status, snapshot=snapshot, turn=turn, usage=usage)

    def make_record(self, live: LiveResponse, outcome: Outcome, output: list[Json]) -> UsageRecord:
        """Make the record of what a response used, as far as upstreams have reported it, and estimated otherwise."""
        asked_here = live.attempt is not None or live.step_usage is not None
        live.count_attempt()
        request, estimated = live.claim.request, live.estimated
        # The output that no usage counts. Finished steps end with their calls; what follows is of a step that this
        # process did not see.
        uncounted = output if outcome.usage is None else []
        if outcome.usage is not None and not asked_here:
            calls = [index for index, item in enumerate(output) if _is_call(item)]
            uncounted = output[calls[-1] + 1 :] if calls else []
        if uncounted or (outcome.usage is None and any(estimated)):
            written = sum(map(estimate_item, uncounted))
            before = output[: len(output) - len(uncounted)]
            given = estimated[0] or estimate_request(request, [*request.input, *before])
            estimated = given, max(estimated[1], written)
        backend = self._find_backend(live)
        reported = add_usage(live.checkpoint.compaction, live.paid)
        return UsageRecord(
            response_id=live.lease.response_id,
            owner=live.claim.owner,
            model=request.model,
            upstream=backend.name if backend is not None else "",
            ended_at=self._clock.now(),
            status=outcome.status,
            tokens=count_tokens(outcome.usage, reported, estimated),
            attempts=outcome.attempts,
            tool_calls=sum(map(_is_call, output)),
        )

    def _find_backend(self, live: LiveResponse) -> Backend | None:
        try:
            return self._route(live.claim.request.model)[0]
        except InvalidRequest:
            return None  # not configured any more


def _render(live: LiveResponse, drafts: list[AnyDraft]) -> tuple[list[bytes], bytes, list[Json]]:
    """Return the last frames, the final object, and its items."""
    assert live.outcome is not None
    output = [live.output[index] for index in sorted(live.output)]
    terminal = endings.terminal(endings.end(live.fold.header, output, live.outcome))
    return number([*drafts, terminal], live.pending.last), bytes(terminal.fields["response"]), output


def _is_call(item: Json) -> bool:
    return str(item.get("type")).endswith("_call")

"""The durable tool loop: model, tools, model, ... within one response, all of it in the journal as it happens."""

import asyncio
import logging
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

import msgspec

from outlive import failpoints
from outlive.core import toolcalls
from outlive.core.counts import Counts
from outlive.core.errors import BrokenSeal, StaleFence, UpstreamFault
from outlive.core.events import AnyDraft, Json
from outlive.core.recovery import OpenText
from outlive.core.requests.tools import purpose_of, unpack_secrets
from outlive.core.toolcalls import ToolCall, ToolOutcome
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponse
from outlive.engine.run.context import ContextLoader
from outlive.engine.run.plans import CallTools, Finish, ScheduledCall, StepResult, ToolPlan
from outlive.engine.slots import SMALL_INPUT
from outlive.ports.backend import Ending, ModelCall
from outlive.ports.ledger import Claim
from outlive.ports.toolbox import Invocation, SessionRequest, Tool, ToolProgress, Tools, ToolSession
from outlive.ports.tracing import Tracer

logger = logging.getLogger(__name__)

# Calls of one response that are made at the same time.
MAX_PARALLEL = 16
# Progress reports that a tool may send at once, and per second in the long run.
REPORTS = 20
REPORTS_PER_SECOND = 10.0
MAX_MESSAGE = 500
# Seconds that a cancelled call may take to stop.
STOP_SECONDS = 1.0

OTHER_SEAL = "The secrets of this response's tools were sealed with a key that this server does not have."
NOT_JSON = "This call was not made: its arguments are not a JSON object."
NO_TOOL = "This call was not made: there is no such tool any more."
BROKEN = "The tool broke."
ERROR_TOO_LONG = "The call failed, with an error that is too long to be shown."
UNKNOWN_EFFECT = "It may or may not have taken effect."

_decode = msgspec.json.Decoder(dict[str, Any]).decode


@dataclass(eq=False)
class ToolLoop:
    """The part of a run that makes the calls of the server's own tools."""

    _live: LiveResponse
    _committer: Committer
    _context: ContextLoader
    _tools: Tools
    _model: str
    _counts: Counts
    _tracer: Tracer
    _past: list[Json] = field(default_factory=list)
    _ignored: list[tuple[int, Json]] = field(default_factory=list)  # as in the checkpoint
    names: Container[str] = ()  # under which the model calls the server's tools
    _session: ToolSession = field(init=False)
    _plan: ToolPlan = field(init=False)

    # -- steps

    async def open(self) -> None:
        """Open the tools. Raises UpstreamFault if they cannot be opened."""
        live, claim = self._live, self._live.claim
        await live.flush()
        # A call of a step whose end was not journaled stands beyond the output: that step is taken again.
        shown = len(live.fold.output)
        self._ignored = [each for each in live.checkpoint.ignored if each[0] <= shown]
        self._past = await self._context.history()
        session_request = SessionRequest(
            response_id=live.lease.response_id,
            owner=claim.owner,
            request=claim.request,
            lists=[*await self._context.find_lists(), *live.fold.output],
            secrets=_open_secrets(claim, self._tools),
        )
        self._session = await self._tools.toolbox.open(session_request)
        self.names = self._session.tools
        self._plan = ToolPlan(claim.request, self._session, self._tools.ids, self._tools.max_steps)

    async def close(self) -> None:
        await self._session.close()

    async def resume(self) -> Finish | None:
        """Do what comes before the next step. Returns the end of the response if an earlier worker had come to it."""
        live, plan = self._live, self._plan
        revived = live.fold.visible
        open_calls = plan.resume(self._past, live.fold, live.checkpoint)
        # A call that kills the server each time must not be repeated for ever.
        if begun := [call.item_id for call, _ in open_calls.calls if call.begun]:
            before = live.checkpoint.repeats
            repeats = before | {each: before.get(each, 0) + 1 for each in begun}
            await self._committer.save_checkpoint(live, repeats=repeats)
        if open_calls.drafts or open_calls.calls:
            await self._make_all(open_calls)
        if revived and plan.is_clients_turn(live.fold):
            return Finish([], Ending("completed", usage=live.checkpoint.usage))
        return None

    async def make_call(self, text: OpenText | None) -> ModelCall:
        """Return the call that asks the model for the next step, or to continue the open text."""
        live = self._live
        output = live.fold.output if text is None else live.fold.output[: text.output_index]
        request = self._plan.offer(output, live.fold, live.checkpoint)
        specs = {alias: tool.spec for alias, tool in self._session.tools.items()}
        names = {(spec.label, spec.name): alias for alias, spec in specs.items() if alias != spec.name}
        # The model sees also the calls that no item shows, each with the reason.
        seen = list(output)
        for index, item in reversed(self._ignored):
            seen.insert(index, item)
        items = await self._context.assemble(seen, names)
        large = self._context.is_large or sum(len(item.get("output") or "") for item in output) > SMALL_INPUT
        return ModelCall(self._model, request, items, text, len(output), large=large)

    async def take(self, step: StepResult) -> Finish | None:
        """Make the calls that a step asks for. Returns the end of the response, or None for a next step."""
        live = self._live
        following = self._plan.next(step, live.fold, live.checkpoint)
        if isinstance(following, Finish):
            return following
        self._ignored += following.ignored
        live.step_usage = None
        live.count_attempt()
        steps, usage = live.checkpoint.steps + 1, following.ending.usage
        await self._committer.save_checkpoint(live, usage=usage, steps=steps, ignored=self._ignored)
        failpoints.hit("before-call-journaled")
        await self._make_all(following)
        return self._plan.after_calls(following, live.fold)

    def can_release(self) -> bool | None:
        """Return True if another worker could make the open calls, False if not, None if no call is open."""
        open_calls = toolcalls.find_open(self._live.fold)
        if not open_calls:
            return None
        return all(self._plan.may_repeat(call, self._live.checkpoint) for call in open_calls if call.begun)

    # -- calls

    async def _make_all(self, following: CallTools) -> None:
        """Emit the drafts, make the calls and emit their outcomes, all durable. Raises StaleFence if it is lost."""
        width = MAX_PARALLEL if self._live.claim.request.parallel_tool_calls is not False else 1
        now, waiting = following.calls[:width], deque(following.calls[width:])
        await self._write([*following.drafts, *(toolcalls.begin(call) for call, _ in now)])
        if now and not self._live.tail.lost:
            failpoints.hit("after-call-journaled")
            async with asyncio.TaskGroup() as group:
                for call, tool in now:
                    group.create_task(self._make_in_turn(call, tool, waiting))
        if self._live.tail.lost:
            raise StaleFence

    async def _make_in_turn(self, call: ToolCall, tool: Tool | None, waiting: deque[ScheduledCall]) -> None:
        """Make one call, then those that wait, one after the other."""
        while not self._live.tail.lost:
            with self._tracer.start_tool_call(self._live.claim.request.origin, call) as span:
                outcome = await self._make(call, tool, span.headers)
                if outcome.error is not None:
                    span.note({"error.type": outcome.error.get("type", "error")})
            self._counts.tool_calls["ok" if outcome.error is None else "failed"] += 1
            failpoints.hit("before-output-journaled")
            drafts, more = toolcalls.finish(call, outcome), bool(waiting)
            if more:
                call, tool = waiting.popleft()
                drafts.append(toolcalls.begin(call))
            await self._write(drafts)
            failpoints.hit("after-output-journaled")
            if not more:
                return

    async def _make(self, call: ToolCall, tool: Tool | None, headers: dict[str, str]) -> ToolOutcome:
        if tool is None:
            return toolcalls.fail(NO_TOOL)
        try:
            arguments = _decode(call.arguments.strip() or "{}")
        except msgspec.DecodeError:
            return toolcalls.fail(NOT_JSON)
        response_id, reports = self._live.lease.response_id, _Reports(self._live, self._committer, call)
        invocation = Invocation(
            arguments=arguments,
            key=f"{response_id}/{call.item_id}",
            response_id=response_id,
            owner=self._live.claim.owner,
            repeated=call.begun,
            report=reports.take,
            headers=headers,
        )
        try:
            outcome = await _wait(asyncio.ensure_future(tool.call(invocation)), tool.seconds)
        except Exception as error:
            # A tool is code of users or of other servers, and may raise anything.
            about = {"tool": f"{tool.spec.label}/{tool.spec.name}", "response_id": response_id}
            logger.error("tool failed", exc_info=error, extra=about)
            return toolcalls.fail(BROKEN)
        finally:
            reports.over = True
        if outcome is None:
            return toolcalls.fail(f"The call took longer than {tool.seconds:g} s, and was given up. {UNKNOWN_EFFECT}")
        return _bound(outcome, self._tools.max_output)

    async def _write(self, drafts: list[AnyDraft]) -> None:
        if drafts and not self._live.tail.lost:
            self._committer.submit(self._live, drafts)
        await self._live.flush()


def _bound(outcome: ToolOutcome, most: int) -> ToolOutcome:
    """Shorten an output that is too long for the model and the journal."""
    if outcome.error is not None and len(msgspec.json.encode(outcome.error)) > most:
        return toolcalls.fail(ERROR_TOO_LONG)
    output = outcome.output or ""
    if len(output) > most:
        note = f"\n[Cut off: these are the first {most} of {len(output)} characters.]"
        return msgspec.structs.replace(outcome, output=output[:most] + note)
    return msgspec.structs.replace(outcome, output=output) if outcome.error is None else outcome


def _open_secrets(claim: Claim, tools: Tools) -> dict[str, Json]:
    if claim.sealed is None or claim.request.secrets:
        return claim.request.secrets
    try:
        if tools.seal is None:
            raise BrokenSeal
        return unpack_secrets(tools.seal.open(claim.sealed, purpose_of(claim.lease.response_id)))
    except BrokenSeal:
        raise UpstreamFault(OTHER_SEAL, retryable=False) from None


class _Reports:
    """Emits a tool's progress reports, not too many, and none after its call has ended."""

    def __init__(self, live: LiveResponse, committer: Committer, call: ToolCall) -> None:
        self._live = live
        self._committer = committer
        self._call = call
        self._left = float(REPORTS)
        self._at = committer.clock.monotonic()
        self.over = False

    def take(self, progress: ToolProgress) -> None:
        now = self._committer.clock.monotonic()
        self._left = min(float(REPORTS), self._left + (now - self._at) * REPORTS_PER_SECOND)
        self._at = now
        if not self.over and self._left >= 1.0:
            self._left -= 1.0
            if not self._live.tail.lost:
                message = progress.message and progress.message[:MAX_MESSAGE]
                shown = {"progress": progress.progress, "total": progress.total, "message": message}
                self._committer.submit(self._live, [toolcalls.report(self._call, shown)])


async def _wait(task: asyncio.Future[ToolOutcome], seconds: float) -> ToolOutcome | None:
    """Return the outcome of a call, or None after that many seconds. A call that cannot be stopped is left alone."""
    try:
        await asyncio.wait([task], timeout=seconds)
        if task.cancelled():
            raise RuntimeError("the tool has cancelled its own call")
        return task.result() if task.done() else None
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=STOP_SECONDS)

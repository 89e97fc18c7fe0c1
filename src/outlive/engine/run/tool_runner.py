"""The tool runner: makes calls. Each is durable as begun before it is made, and its outcome before it counts."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from outlive import failpoints
from outlive.core.events import AnyDraft, Json
from outlive.core.toolcalls import calls
from outlive.core.toolcalls.calls import ToolCall, ToolOutcome
from outlive.engine.run.log import RunLog
from outlive.engine.run.plans import ScheduledCall
from outlive.ports.clock import Clock
from outlive.ports.toolbox import Invocation, Tool, ToolProgress

log = logging.getLogger(__name__)

# Calls of one response that are made at the same time.
MAX_PARALLEL = 16
# Progress reports that a tool may send at once, and per second in the long run.
REPORTS = 20
REPORTS_PER_SECOND = 10.0
MAX_MESSAGE = 500
# Seconds that a cancelled call may take to stop.
STOP_SECONDS = 1.0

NOT_JSON = "This call was not made: its arguments are not a JSON object."
NO_TOOL = "This call was not made: there is no such tool any more."
BROKEN = "The tool broke."
ERROR_TOO_LONG = "The call failed, with an error too long to be told."
MAY_HAVE_TAKEN_EFFECT = "It may or may not have taken effect."

_JSON = msgspec.json.Decoder()


class ToolRunner:
    """Makes the calls of one run."""

    def __init__(self, run_log: RunLog, max_output: int) -> None:
        self._log = run_log
        self._max_output = max_output

    async def run(self, drafts: list[AnyDraft], scheduled: list[ScheduledCall], *, parallel: bool) -> None:
        """Emit the drafts, make the calls and emit their outcomes. Returns when all of that is durable, or the response
        is lost."""
        width = MAX_PARALLEL if parallel else 1
        now, waiting = scheduled[:width], deque(scheduled[width:])
        await self._write([*drafts, *(calls.begin(call) for call, _ in now)])
        if now and not self._log.is_lost:
            failpoints.hit("after-call-journaled")
            async with asyncio.TaskGroup() as group:
                for call, tool in now:
                    group.create_task(self._make_in_turn(call, tool, waiting))

    async def _make_in_turn(self, call: ToolCall, tool: Tool | None, waiting: deque[ScheduledCall]) -> None:
        """Make one call, then those that wait, one after the other."""
        while not self._log.is_lost:
            outcome = await self._make(call, tool)
            failpoints.hit("before-output-journaled")
            drafts = calls.finish(call, outcome)
            if not waiting:
                await self._write(drafts)
                failpoints.hit("after-output-journaled")
                return
            call, tool = waiting.popleft()
            await self._write([*drafts, calls.begin(call)])
            failpoints.hit("after-output-journaled")

    async def _make(self, call: ToolCall, tool: Tool | None) -> ToolOutcome:
        arguments = _read_arguments(call.arguments)
        if arguments is None or tool is None:
            return calls.fail(NO_TOOL if tool is None else NOT_JSON)
        reports = _Reports(self._log.clock, lambda progress: self._report(call, progress))
        invocation = Invocation(
            arguments=arguments,
            key=f"{self._log.response_id}/{call.item_id}",
            response_id=self._log.response_id,
            owner=self._log.claim.owner,
            repeated=call.begun,
            report=reports.take,
        )
        try:
            outcome = await _wait(asyncio.ensure_future(tool.call(invocation)), tool.seconds)
        except Exception as error:
            # A tool is code of users or of other servers, and may raise anything.
            log.error("tool failed tool=%s server=%s", tool.spec.name, tool.spec.label, exc_info=error)
            return calls.fail(BROKEN)
        finally:
            reports.over = True
        if outcome is None:
            return calls.fail(
                f"The call took longer than {tool.seconds:g} s, and was given up. {MAY_HAVE_TAKEN_EFFECT}"
            )
        return self._bound(outcome)

    def _report(self, call: ToolCall, progress: ToolProgress) -> None:
        if not self._log.is_lost:
            self._log.emit([calls.report(call, _show_progress(progress))])

    def _bound(self, outcome: ToolOutcome) -> ToolOutcome:
        """Shorten an output that is too long for the model and the journal."""
        most = self._max_output
        if outcome.error is not None and len(msgspec.json.encode(outcome.error)) > most:
            return calls.fail(ERROR_TOO_LONG)
        output = outcome.output or ""
        if len(output) > most:
            note = f"\n[Cut off: these are the first {most} of {len(output)} characters.]"
            return msgspec.structs.replace(outcome, output=output[:most] + note)
        return msgspec.structs.replace(outcome, output=output) if outcome.error is None else outcome

    async def _write(self, drafts: list[AnyDraft]) -> None:
        if drafts and not self._log.is_lost:
            self._log.emit(drafts)
        await self._log.flush()


class _Reports:
    """Limits the rate of a tool's progress reports, and drops those that come after its call has ended."""

    def __init__(self, clock: Clock, show: Callable[[ToolProgress], None]) -> None:
        self._clock = clock
        self._show = show
        self._left = float(REPORTS)
        self._at = clock.monotonic()
        self.over = False

    def take(self, progress: ToolProgress) -> None:
        now = self._clock.monotonic()
        self._left = min(float(REPORTS), self._left + (now - self._at) * REPORTS_PER_SECOND)
        self._at = now
        if not self.over and self._left >= 1.0:
            self._left -= 1.0
            self._show(progress)


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


def _show_progress(progress: ToolProgress) -> Json:
    message = progress.message if progress.message is None else progress.message[:MAX_MESSAGE]
    return {"progress": progress.progress, "total": progress.total, "message": message}


def _read_arguments(text: str) -> Json | None:
    try:
        arguments = _JSON.decode(text.strip() or "{}")
    except msgspec.DecodeError:
        return None
    return arguments if isinstance(arguments, dict) else None

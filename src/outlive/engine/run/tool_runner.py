"""Making the calls of one response: each is in the journal before it is made, and its outcome before it counts."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from outlive import failpoints
from outlive.core.events import AnyDraft, Json
from outlive.core.toolcalls import calls as wire
from outlive.core.toolcalls.calls import ToolCall, ToolOutcome
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponse
from outlive.ports.clock import Clock
from outlive.ports.ledger import Claim
from outlive.ports.toolbox import Invocation, Tool, ToolProgress

log = logging.getLogger(__name__)

# So many calls of one response are made at the same time.
WIDTH = 16
# A tool may report its progress so often at once, and so often per second in the long run.
REPORTS = 20
REPORTS_PER_SECOND = 10.0
MAX_MESSAGE = 500
# How long a call that is stopped may take to stop.
STOP_SECONDS = 1.0

NOT_JSON = "This call was not made: its arguments are not a JSON object."
NO_TOOL = "This call was not made: there is no such tool any more."
BROKEN = "The tool broke."
ERROR_TOO_LONG = "The call failed, with an error too long to be told."

Ordered: TypeAlias = tuple[ToolCall, Tool | None]

_JSON = msgspec.json.Decoder()


class Calls:
    """Makes the calls of one run."""

    def __init__(self, claim: Claim, live: LiveResponse, committer: Committer, clock: Clock, max_output: int) -> None:
        self._claim = claim
        self._live = live
        self._committer = committer
        self._clock = clock
        self._max_output = max_output

    async def make(self, drafts: list[AnyDraft], calls: list[Ordered], *, parallel: bool) -> None:
        """Journal the drafts, make the calls and journal what came of them; back when all of that is durable."""
        width = WIDTH if parallel else 1
        now, waiting = calls[:width], deque(calls[width:])
        await self._journal([*drafts, *(wire.begin(call) for call, _ in now)])
        if now and not self._live.lost:
            failpoints.hit("after-call-journaled")
            async with asyncio.TaskGroup() as group:
                for call, tool in now:
                    group.create_task(self._make_in_turn(call, tool, waiting))

    async def _make_in_turn(self, call: ToolCall, tool: Tool | None, waiting: deque[Ordered]) -> None:
        """Make one call, and then of those that wait, one after the other."""
        while not self._live.lost:
            outcome = await self._make(call, tool)
            failpoints.hit("before-output-journaled")
            drafts = wire.finish(call, outcome)
            if not waiting:
                await self._journal(drafts)
                failpoints.hit("after-output-journaled")
                return
            call, tool = waiting.popleft()
            await self._journal([*drafts, wire.begin(call)])
            failpoints.hit("after-output-journaled")

    async def _make(self, call: ToolCall, tool: Tool | None) -> ToolOutcome:
        arguments = _read_arguments(call.arguments)
        if arguments is None or tool is None:
            return wire.fail(NO_TOOL if tool is None else NOT_JSON)
        response_id = self._claim.lease.response_id
        reports = _Reports(self._clock, lambda progress: self._report(call, progress))
        calling = Invocation(
            arguments=arguments,
            key=f"{response_id}/{call.item_id}",
            response_id=response_id,
            owner=self._claim.owner,
            repeated=call.begun,
            report=reports.take,
        )
        try:
            outcome = await _wait(asyncio.ensure_future(tool.call(calling)), tool.seconds)
        except Exception as error:
            log.error("the tool %s of %s broke", tool.spec.name, tool.spec.label, exc_info=error)
            return wire.fail(BROKEN)
        finally:
            reports.over = True
        if outcome is None:
            return wire.fail(f"The call took longer than {tool.seconds:g} s, and was given up. {_MAYBE}")
        return self._bound(outcome)

    def _report(self, call: ToolCall, progress: ToolProgress) -> None:
        if not self._live.lost:
            self._committer.submit(self._live, [wire.report(call, _show_progress(progress))])

    def _bound(self, outcome: ToolOutcome) -> ToolOutcome:
        """No output is so long that it drowns the model, or the journal."""
        most = self._max_output
        if outcome.error is not None and len(msgspec.json.encode(outcome.error)) > most:
            return wire.fail(ERROR_TOO_LONG)
        output = outcome.output or ""
        if len(output) > most:
            note = f"\n[Cut off: these are the first {most} of {len(output)} characters.]"
            return msgspec.structs.replace(outcome, output=output[:most] + note)
        return msgspec.structs.replace(outcome, output=output) if outcome.error is None else outcome

    async def _journal(self, drafts: list[AnyDraft]) -> None:
        if drafts:
            self._committer.submit(self._live, drafts)
        await self._committer.settle(self._live)


class _Reports:
    """Lets a tool's reports through as long as they are not too many, and none after its call is over."""

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


_MAYBE = "It may or may not have taken effect."


async def _wait(task: asyncio.Future[ToolOutcome], seconds: float) -> ToolOutcome | None:
    """What a call comes to, or None when its time is over. One that will not be stopped is left alone."""
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

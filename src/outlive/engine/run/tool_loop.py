"""The durable tool loop: model, tools, model, ... within one response, all of it in the journal as it happens."""

from __future__ import annotations

from collections.abc import Sequence

from outlive import failpoints
from outlive.core.errors import BrokenSeal, StaleFence, UpstreamFault
from outlive.core.events import AnyDraft, Json
from outlive.core.recovery import OpenText
from outlive.core.requests.secrets import purpose_of, unpack_secrets
from outlive.core.toolcalls import calls
from outlive.core.toolcalls.buffer import RequestedCall, ToolCallBuffer
from outlive.engine.run.context import ContextLoader
from outlive.engine.run.log import RunLog
from outlive.engine.run.plans import AskAgain, CallTools, Finish, StepResult, ToolPlan
from outlive.engine.run.tool_runner import ToolRunner
from outlive.ports.backend import Ending, ModelCall, Translator
from outlive.ports.ledger import Claim
from outlive.ports.toolbox import SessionRequest, Tools, ToolSession

OTHER_SEAL = "The secrets of this response's tools were sealed with a key that this server does not have."


class BufferingTranslator:
    """A translator that holds back calls of server tools until the step has ended."""

    def __init__(self, translator: Translator, buffer: ToolCallBuffer) -> None:
        self._translator = translator
        self._buffer = buffer

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        """Return the drafts that may be shown at once."""
        return self._buffer.feed(self._translator.feed(chunk))

    def end(self) -> tuple[Sequence[AnyDraft | RequestedCall], Ending]:
        """Return everything held back, with requested calls in the place of their drafts."""
        drafts, ending = self._translator.end()
        return self._buffer.end(drafts), ending


class ToolLoop:
    """The part of a run that makes the calls of the server's own tools."""

    def __init__(self, log: RunLog, context: ContextLoader, tools: Tools, model: str) -> None:
        self._log = log
        self._context = context
        self._tools = tools
        self._model = model
        self._past: list[Json] = []
        self._session: ToolSession
        self._plan: ToolPlan
        self._runner = ToolRunner(log, tools.max_output)

    async def open(self) -> None:
        """Open the tools. Raises UpstreamFault if they cannot be opened."""
        await self._log.flush()
        claim = self._log.claim
        self._past = await self._context.history()
        session_request = SessionRequest(
            response_id=self._log.response_id,
            owner=claim.owner,
            request=claim.request,
            items=[*self._past, *claim.request.input, *self._log.fold.output],
            secrets=_open_secrets(claim, self._tools),
        )
        self._session = await self._tools.toolbox.open(session_request)
        self._plan = ToolPlan(claim.request, self._session, self._tools.ids, self._tools.max_steps)

    async def close(self) -> None:
        """Close the tools."""
        await self._session.close()

    async def resume(self) -> Finish | None:
        """Do what comes before the next step. Returns the end of the response if an earlier worker had come to it."""
        log, plan = self._log, self._plan
        revived = log.fold.visible
        open_calls = plan.resume(self._past, log.fold, log.checkpoint)
        # A call that kills the server each time must not be repeated for ever.
        if begun := [call.item_id for call, _ in open_calls.calls if call.begun]:
            repeats = log.checkpoint.repeats
            await log.save_checkpoint(repeats=repeats | {each: repeats.get(each, 0) + 1 for each in begun})
        if open_calls.drafts or open_calls.calls:
            await self._make(open_calls)
        if revived and plan.is_clients_turn(log.fold):
            return Finish([], Ending("completed", usage=log.checkpoint.usage))
        return None

    async def make_call(self, text: OpenText | None) -> ModelCall:
        """Return the call that asks the model for the next step, or to continue the open text."""
        log = self._log
        output = log.fold.output if text is None else log.fold.output[: text.output_index]
        request = self._plan.offer(output, log.fold, log.checkpoint)
        specs = {alias: tool.spec for alias, tool in self._session.tools.items()}
        names = {(spec.label, spec.name): alias for alias, spec in specs.items() if alias != spec.name}
        items = await self._context.assemble(output, names)
        return ModelCall(self._model, request, items, text, len(output))

    def buffer(self, translator: Translator) -> BufferingTranslator:
        """Wrap the translator of the next step."""
        return BufferingTranslator(translator, ToolCallBuffer(self._session.tools))

    async def take(self, step: StepResult) -> Finish | None:
        """Make the calls that a step asks for. Returns the end of the response, or None for a next step."""
        log = self._log
        following = self._plan.next(step, log.fold, log.checkpoint)
        if isinstance(following, Finish):
            return following
        await log.save_checkpoint(usage=following.ending.usage, steps=log.checkpoint.steps + 1)
        failpoints.hit("before-call-journaled")
        await self._make(following)
        after = self._plan.after_calls(following, log.fold)
        return None if isinstance(after, AskAgain) else after

    def can_release(self) -> bool | None:
        """Return True if another worker could make the open calls, False if not, None if no call is open."""
        open_calls = calls.find_open(self._log.fold)
        if not open_calls:
            return None
        return all(self._plan.may_repeat(call, self._log.checkpoint) for call in open_calls if call.begun)

    async def _make(self, following: CallTools) -> None:
        parallel = self._log.claim.request.parallel_tool_calls is not False
        await self._runner.run(following.drafts, following.calls, parallel=parallel)
        if self._log.is_lost:
            raise StaleFence


def _open_secrets(claim: Claim, tools: Tools) -> dict[str, Json]:
    if claim.sealed is None or claim.request.secrets:
        return claim.request.secrets
    try:
        if tools.seal is None:
            raise BrokenSeal
        return unpack_secrets(tools.seal.open(claim.sealed, purpose_of(claim.lease.response_id)))
    except BrokenSeal:
        raise UpstreamFault(OTHER_SEAL, retryable=False) from None

"""The durable loop: model, tools, model, ... within one response, all of it in the journal as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from outlive import failpoints
from outlive.core.errors import BrokenSeal, UpstreamFault
from outlive.core.events import AnyDraft, Json
from outlive.core.recovery import OpenText
from outlive.core.requests.secrets import purpose_of, unpack_secrets
from outlive.core.toolcalls import calls as wire
from outlive.core.toolcalls.approvals import find_approved
from outlive.core.toolcalls.buffer import RequestedCall, ToolCallBuffer
from outlive.core.toolcalls.calls import ToolCall
from outlive.core.toolcalls.offer import add_server_tools
from outlive.core.usage import add_usage
from outlive.engine.run.tool_runner import Calls, Ordered
from outlive.ports.backend import Backend, Ending, ModelCall, Translator
from outlive.ports.toolbox import SessionRequest, Tool, Tools, ToolSession

if TYPE_CHECKING:
    from outlive.engine.run.run import Run

# How often a call of an idempotent tool is made again before it counts as one that cannot be made.
MAX_REPEATS = 2
OTHER_SEAL = "The secrets of this response's tools were sealed with a key that this server does not have."
OVER_LIMIT = "This call was not made: the response may make no more calls of tools."

# Items of an answer that its model has not said.
_NOT_SAID = frozenset({"mcp_list_tools", "compaction"})
_CALLS_OF_CLIENTS = frozenset({"function_call", "custom_tool_call"})


class BufferingTranslator:
    """A translator of which only what may be shown at once comes out; the rest is there when it has ended."""

    def __init__(self, translator: Translator, sieve: ToolCallBuffer) -> None:
        self._translator = translator
        self._sieve = sieve
        self.rest: list[AnyDraft | RequestedCall] = []

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        return self._sieve.feed(self._translator.feed(chunk))

    def end(self) -> tuple[list[AnyDraft], Ending]:
        drafts, ending = self._translator.end()
        self.rest = self._sieve.end(drafts)
        return [], ending


class Steps:
    """One run that uses the server's own tools."""

    def __init__(self, run: Run, tools: Tools, backend: Backend, model: str) -> None:
        self._run = run
        self._tools = tools
        self._backend = backend
        self._model = model
        self._past: list[Json] = []
        self._bench: ToolSession
        self._calls: Calls
        self._sifting: BufferingTranslator

    async def go(self) -> None:
        run = self._run
        await run.committer.settle(run.live)
        self._past = await run.history()
        claim = run.claim
        try:
            secrets = self._open_secrets()
        except BrokenSeal:
            await run.give_up(UpstreamFault(OTHER_SEAL, retryable=False))
            return
        order = SessionRequest(
            response_id=claim.lease.response_id,
            owner=claim.owner,
            request=claim.request,
            items=[*self._past, *claim.request.input, *run.live.fold.output],
            secrets=secrets,
        )
        try:
            self._bench = await self._tools.toolbox.open(order)
        except UpstreamFault as fault:
            await run.give_up(fault)
            return
        self._calls = Calls(claim, run.live, run.committer, run.clock, self._tools.max_output)
        stepping = run.runner.stepping
        stepping[claim.lease.response_id] = self
        try:
            await self._go()
        finally:
            stepping.pop(claim.lease.response_id, None)
            await self._bench.close()

    async def _go(self) -> None:
        run = self._run
        revived = run.live.fold.visible
        await self._catch_up()
        if revived and self._is_the_clients_turn():
            await run.finish([], Ending("completed", usage=run.notes.usage))
            return
        if not revived:
            run.begin_step()
        while (said := await run.ask(self._backend, self._make_call, self._sift)) is not None:
            if not await self._take(said[1]):
                return
            run.begin_step()
            failpoints.hit("between-steps")

    def may_be_handed_back(self) -> bool:
        """Whether another worker would lose nothing by going on from here."""
        run = self._run
        calls = wire.find_open(run.live.fold)
        if calls:
            return all(self._may_repeat(call) for call in calls if call.begun)
        return run.live.settled and run.can_continue()

    def _open_secrets(self) -> dict[str, Json]:
        claim, seal = self._run.claim, self._tools.seal
        if claim.sealed is None or claim.request.secrets:
            return claim.request.secrets
        if seal is None:
            raise BrokenSeal
        return unpack_secrets(seal.open(claim.sealed, purpose_of(claim.lease.response_id)))

    # -- asking the model

    async def _make_call(self, text: OpenText | None) -> ModelCall:
        run, request = self._run, self._run.claim.request
        specs = {alias: tool.spec for alias, tool in self._bench.tools.items()}
        names = {(spec.label, spec.name): alias for alias, spec in specs.items() if alias != spec.name}
        output = run.live.fold.output
        if text is not None:
            output = output[: text.output_index]
        asked = add_server_tools(
            request,
            specs,
            first=self._is_first(output),
            spent=self._is_spent(),
            max_output_tokens=self._tokens_left(),
        )
        return ModelCall(self._model, asked, await run.context(output, names), text, len(output))

    def _sift(self, translator: Translator) -> Translator:
        self._sifting = BufferingTranslator(translator, ToolCallBuffer(self._bench.tools))
        return self._sifting

    def _is_first(self, output: list[Json]) -> bool:
        """Whether the model has said nothing yet: what it was told, and what others decided, are none of its words."""
        return all(item["type"] in _NOT_SAID or item.get("approval_request_id") for item in output)

    def _calls_left(self) -> int | None:
        most = self._run.claim.request.max_tool_calls
        return None if most is None else max(0, most - wire.count_made(self._run.live.fold))

    def _is_spent(self) -> bool:
        return self._calls_left() == 0 or self._run.notes.steps >= self._tools.max_steps

    def _tokens_left(self) -> int | None:
        most, usage = self._run.claim.request.max_output_tokens, self._run.notes.usage
        return most if most is None or usage is None else max(0, most - usage["output_tokens"])

    # -- what it says

    async def _take(self, ending: Ending) -> bool:
        """Make the calls that the model asks for; whether there is a next step."""
        run, request = self._run, self._run.claim.request
        usage = add_usage(run.notes.usage, ending.usage)
        ending = msgspec.structs.replace(ending, usage=usage)
        spent = self._is_spent()
        drafts, calls, asks = self._sort(self._sifting.rest, ending, spent)
        wants = any(isinstance(piece, RequestedCall) for piece in self._sifting.rest)
        if not wants or ending.status == "incomplete" or (spent and not calls and not asks):
            await run.finish(drafts, ending)
            return False
        await run.note(usage=usage, steps=run.notes.steps + 1)
        failpoints.hit("before-call-journaled")
        await self._calls.make(drafts, calls, parallel=request.parallel_tool_calls is not False)
        if run.live.lost:
            return False
        if asks or self._is_the_clients_turn():
            await run.finish([], ending)
            return False
        if self._tokens_left() == 0:
            ending = msgspec.structs.replace(ending, status="incomplete", reason="max_output_tokens")
            await run.finish([], ending)
            return False
        return True

    def _sort(
        self, rest: list[AnyDraft | RequestedCall], ending: Ending, spent: bool
    ) -> tuple[list[AnyDraft], list[Ordered], bool]:
        """What is to be journaled, the calls that are to be made, and whether a person must be asked first."""
        drafts: list[AnyDraft] = []
        calls: list[Ordered] = []
        asks = False
        left = self._calls_left()
        for piece in rest:
            if not isinstance(piece, RequestedCall):
                drafts.append(piece)
                continue
            tool = self._bench.tools[piece.name]
            call = self._new_call(piece.output_index, tool.spec.label, tool.spec.name, piece.arguments)
            if not piece.whole or ending.status == "incomplete" or spent:
                drafts += [*wire.announce(call), wire.close_unmade(call)]
            elif tool.needs_approval:
                drafts += wire.ask_approval(call, self._tools.ids.new("mcpr"))
                asks = True
            elif left is not None and len(calls) >= left:
                drafts += [*wire.announce(call), *wire.finish(call, wire.fail(OVER_LIMIT))]
            else:
                drafts += wire.announce(call)
                calls.append((call, tool))
        return drafts, calls, asks

    def _new_call(self, index: int, label: str, name: str, arguments: str, approval: str | None = None) -> ToolCall:
        item_id = self._tools.ids.new("mcp")
        return ToolCall(
            item_id=item_id, output_index=index, label=label, name=name, arguments=arguments, approval=approval
        )

    def _is_the_clients_turn(self) -> bool:
        """Whether the model called something of the client's, or a person must be asked: then the response is over."""
        kinds = {item["type"] for item in self._run.live.fold.output}
        return not kinds.isdisjoint(_CALLS_OF_CLIENTS) or "mcp_approval_request" in kinds

    # -- what was there before this worker

    async def _catch_up(self) -> None:
        """Show the lists of tools, end the calls that a worker before this left open, and make those now approved."""
        run = self._run
        drafts: list[AnyDraft] = []
        shown = {item["id"] for item in run.live.fold.output}
        index = len(run.live.fold.output)
        for item in self._bench.lists:
            if item["id"] not in shown:
                drafts += wire.show_list(item, index)
                index += 1
        calls: list[Ordered] = []
        for call in wire.find_open(run.live.fold):
            if call.begun and not self._may_repeat(call):
                drafts += wire.finish(call, wire.fail(wire.INTERRUPTED))
            else:
                calls.append((call, self._find(call.label, call.name)))
        for item in find_approved(self._past, run.claim.request.input, run.live.fold.output):
            call = self._new_call(index, item["server_label"], item["name"], item["arguments"], item["id"])
            drafts += wire.announce(call)
            calls.append((call, self._find(call.label, call.name)))
            index += 1
        await self._count_repeats([call for call, _ in calls if call.begun])
        if drafts or calls:
            await self._calls.make(drafts, calls, parallel=run.claim.request.parallel_tool_calls is not False)

    def _may_repeat(self, call: ToolCall) -> bool:
        tool = self._find(call.label, call.name)
        return tool is not None and tool.idempotent and self._run.notes.repeats.get(call.item_id, 0) < MAX_REPEATS

    async def _count_repeats(self, calls: list[ToolCall]) -> None:
        """A call that kills its server every time must not be repeated for ever."""
        if calls:
            repeats = self._run.notes.repeats
            await self._run.note(repeats=repeats | {call.item_id: repeats.get(call.item_id, 0) + 1 for call in calls})

    def _find(self, label: str, name: str) -> Tool | None:
        tools = self._bench.tools.values()
        return next((tool for tool in tools if (tool.spec.label, tool.spec.name) == (label, name)), None)

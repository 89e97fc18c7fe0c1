"""Plans: what follows a step of a run. Pure: values in, values out."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from outlive.core import toolcalls
from outlive.core.context.assemble import is_call, is_output
from outlive.core.events import AnyDraft, Json, move
from outlive.core.fold import Fold
from outlive.core.ids import IdSource
from outlive.core.recovery import OpenText
from outlive.core.requests.create import CreateResponse
from outlive.core.toolcalls import RequestedCall, ToolCall, add_server_tools, find_approved
from outlive.core.usage import add_usage
from outlive.ports.backend import Ending, ModelCall, OnChunks
from outlive.ports.ledger import Checkpoint
from outlive.ports.toolbox import Tool, ToolSession

# Times that a call of an idempotent tool is repeated before it counts as one that cannot be made.
MAX_REPEATS = 2
OVER_LIMIT = "This call was not made: the response may make no more calls of tools."

# Items of a response that its model has not written.
_NOT_THE_MODELS = frozenset({"mcp_list_tools", "compaction"})
# An upstream may run some of these itself: then their output is there, too.
_CLIENT_CALLS = frozenset(
    {"apply_patch_call", "computer_call", "custom_tool_call", "function_call", "local_shell_call", "shell_call",
     "tool_search_call"}
)  # fmt: skip

ScheduledCall: TypeAlias = tuple[ToolCall, Tool | None]
MakeCall: TypeAlias = Callable[[OpenText | None], Awaitable[ModelCall]]
OpenStream: TypeAlias = Callable[[OnChunks], AsyncGenerator[list[bytes], None]]


class StepResult(msgspec.Struct, frozen=True):
    """The end of one step: the drafts not emitted yet, with calls of server tools among them, and how it ended."""

    drafts: Sequence[AnyDraft | RequestedCall]
    ending: Ending


class Finish(msgspec.Struct, frozen=True):
    """End the response with these drafts."""

    drafts: list[AnyDraft]
    ending: Ending


class CallTools(msgspec.Struct, frozen=True):
    """Emit the drafts and make the calls."""

    drafts: list[AnyDraft]
    calls: list[ScheduledCall]
    ending: Ending  # of the step, with the usage of all steps so far
    asks_approval: bool = False  # a person must be asked before the run can go on
    ignored: list[tuple[int, Json]] = []  # calls beyond `max_tool_calls`, as in the checkpoint


@dataclass(eq=False)
class ToolPlan:
    """Decides over the steps of a run that uses the server's own tools."""

    _request: CreateResponse
    _session: ToolSession
    _ids: IdSource
    _max_steps: int

    # -- before a step

    def offer(self, output: list[Json], fold: Fold, checkpoint: Checkpoint) -> CreateResponse:
        """Return the request for the next step, which continues `output`."""
        return add_server_tools(
            self._request,
            {alias: tool.spec for alias, tool in self._session.tools.items()},
            first=all(item["type"] in _NOT_THE_MODELS or item.get("approval_request_id") for item in output),
            spent=self._is_spent(fold, checkpoint),
            max_output_tokens=self._tokens_left(checkpoint.usage),
        )

    def resume(self, past: list[Json], fold: Fold, checkpoint: Checkpoint) -> CallTools:
        """Return what comes before the next step: lists of tools to show, calls left open, and calls approved since."""
        drafts: list[AnyDraft] = []
        shown = {item["id"] for item in fold.output}
        index = len(fold.output)
        for item in self._session.lists:
            if item["id"] not in shown:
                drafts += toolcalls.show_list(item, index)
                index += 1
        scheduled: list[ScheduledCall] = []
        for call in toolcalls.find_open(fold):
            if call.begun and not self.may_repeat(call, checkpoint):
                drafts += toolcalls.finish(call, toolcalls.fail(toolcalls.INTERRUPTED))
            else:
                scheduled.append((call, self._find(call.label, call.name)))
        for item in find_approved(past, self._request.input, fold.output):
            call = self._new_call(index, item["server_label"], item["name"], item["arguments"], item["id"])
            drafts += toolcalls.announce(call)
            scheduled.append((call, self._find(call.label, call.name)))
            index += 1
        return CallTools(drafts, scheduled, Ending("completed", usage=checkpoint.usage))

    def may_repeat(self, call: ToolCall, checkpoint: Checkpoint) -> bool:
        """Return True if a call that was begun and interrupted may be made again."""
        tool = self._find(call.label, call.name)
        return tool is not None and tool.idempotent and checkpoint.repeats.get(call.item_id, 0) < MAX_REPEATS

    # -- after a step

    def next(self, step: StepResult, fold: Fold, checkpoint: Checkpoint) -> Finish | CallTools:
        """Decide what follows a step of the model."""
        ending = msgspec.structs.replace(step.ending, usage=add_usage(checkpoint.usage, step.ending.usage))
        spent, left = self._is_spent(fold, checkpoint), self._calls_left(fold)
        drafts: list[AnyDraft] = []
        scheduled: list[ScheduledCall] = []
        ignored: list[tuple[int, Json]] = []
        requested = asks = False
        for draft in step.drafts:
            if not isinstance(draft, RequestedCall):
                drafts.append(move(draft, len(ignored)) if ignored else draft)
                continue
            requested = True
            tool, index = self._session.tools[draft.name], draft.output_index - len(ignored)
            call = self._new_call(index, tool.spec.label, tool.spec.name, draft.arguments)
            if left is not None and len(scheduled) >= left:
                ignored.append((index, toolcalls.make_ended(call, toolcalls.fail(OVER_LIMIT))))
            elif not draft.whole or ending.status == "incomplete" or spent:
                drafts += [*toolcalls.announce(call), toolcalls.close_unmade(call)]
            elif tool.needs_approval:
                drafts += toolcalls.ask_approval(call, self._ids.new("mcpr"))
                asks = True
            else:
                drafts += toolcalls.announce(call)
                scheduled.append((call, tool))
        useless = spent and not scheduled and not asks
        if not requested or ending.status == "incomplete" or useless:
            return Finish(drafts, ending)
        return CallTools(drafts, scheduled, ending, asks, ignored)

    def after_calls(self, made: CallTools, fold: Fold) -> Finish | None:
        """Decide what follows the calls that `next` asked for: the end, or None for the model's next step."""
        if made.asks_approval or self.is_clients_turn(fold):
            return Finish([], made.ending)
        if self._tokens_left(made.ending.usage) == 0:
            return Finish([], msgspec.structs.replace(made.ending, status="incomplete", reason="max_output_tokens"))
        return None

    def is_clients_turn(self, fold: Fold) -> bool:
        """Return True if the model called a tool of the client's, or a person must approve a call."""
        answered = {item.get("call_id") for item in fold.output if is_output(item)}
        return any(
            item["type"] == "mcp_approval_request"
            or (item["type"] in _CLIENT_CALLS and is_call(item) and item["call_id"] not in answered)
            for item in fold.output
        )

    # -- limits

    def _calls_left(self, fold: Fold) -> int | None:
        most = self._request.max_tool_calls
        if most is None:
            return None
        made: int = sum(item.get("type") == "mcp_call" for item in fold.output)
        return max(0, most - made)

    def _is_spent(self, fold: Fold, checkpoint: Checkpoint) -> bool:
        return self._calls_left(fold) == 0 or checkpoint.steps >= self._max_steps

    def _tokens_left(self, usage: Json | None) -> int | None:
        most = self._request.max_output_tokens
        return most if most is None or usage is None else max(0, most - usage["output_tokens"])

    def _new_call(self, index: int, label: str, name: str, arguments: str, approval: str | None = None) -> ToolCall:
        item_id = self._ids.new("mcp")
        return ToolCall(
            item_id=item_id, output_index=index, label=label, name=name, arguments=arguments, approval=approval
        )

    def _find(self, label: str, name: str) -> Tool | None:
        tools = self._session.tools.values()
        return next((tool for tool in tools if (tool.spec.label, tool.spec.name) == (label, name)), None)

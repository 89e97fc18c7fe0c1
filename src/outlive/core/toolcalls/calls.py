"""Calls that this server makes by itself: the items they are on the wire, and what a journal tells of them.

Whoever runs the tool, an MCP server or a function of this server's own, a call is one `mcp_call` item: the item type
that clients know to be none of their business to answer. Its life in the journal:

    output_item.added, mcp_call_arguments.delta, mcp_call_arguments.done    announced: the model wants it
    mcp_call.in_progress                                                    begun: from here on it may have an effect
    mcp_call.completed or mcp_call.failed, output_item.done                 over, with its output or its error in it

What was announced is journaled whole, together with the end of the model's step, so no crash leaves half a call; and
what was never begun can be made without a second thought, however often the server was restarted.
"""

from __future__ import annotations

import msgspec

from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json
from outlive.core.fold import Fold

PROGRESS_EVENT = "outlive:tool.progress"

# What the fold shows of a call that was begun.
BEGUN = "calling"


INTERRUPTED = (
    "The server was interrupted while this call was being made. It may or may not have taken effect, and it was not "
    "made again."
)


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as a model and a client are told of it."""

    label: str  # of whoever has it: an MCP server, or this server
    name: str
    description: str = ""
    parameters: Json = {}  # JSON schema


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call that the model asked for, with its place in the response."""

    item_id: str
    output_index: int
    label: str
    name: str
    arguments: str
    approval: str | None = None  # the id of the request that a person approved
    begun: bool = False  # only of a call found in a journal


class ToolOutcome(msgspec.Struct, frozen=True):
    """What came of a call: an output, or an error in one of the wire's three shapes."""

    output: str | None = None
    error: Json | None = None


def fail(message: str) -> ToolOutcome:
    """The outcome of a call that came to nothing; the model is told why."""
    return ToolOutcome(error={"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": message}]})


def announce(call: ToolCall) -> list[AnyDraft]:
    """The call as the model asked for it, whole."""
    place = _place(call)
    drafts: list[AnyDraft] = [
        Draft("response.output_item.added", {"output_index": call.output_index, "item": _item(call, "")})
    ]
    if call.arguments:
        channel = Channel("response.mcp_call_arguments.delta", call.item_id, call.output_index)
        drafts.append(Delta(channel, call.arguments))
    drafts.append(Draft("response.mcp_call_arguments.done", place | {"arguments": call.arguments}))
    return drafts


def begin(call: ToolCall) -> Draft:
    """Must be durable before the call is made."""
    return Draft("response.mcp_call.in_progress", _place(call))


def finish(call: ToolCall, outcome: ToolOutcome) -> list[AnyDraft]:
    status = "completed" if outcome.error is None else "failed"
    item = _item(call, call.arguments) | {"status": status, "output": outcome.output, "error": outcome.error}
    return [
        Draft(f"response.mcp_call.{status}", _place(call)),
        Draft("response.output_item.done", {"output_index": call.output_index, "item": item}),
    ]


def close_unmade(call: ToolCall) -> Draft:
    """End a call that was announced and will not be made, because the response ends."""
    item = _item(call, call.arguments) | {"status": "incomplete"}
    return Draft("response.output_item.done", {"output_index": call.output_index, "item": item})


def fail_open(fold: Fold) -> list[AnyDraft]:
    """The end of all calls without an outcome, where nobody can make them again."""
    return [draft for call in find_open(fold) for draft in finish(call, fail(INTERRUPTED))]


def report(call: ToolCall, progress: Json) -> Draft:
    """How far a call has come; clients may ignore it."""
    return Draft(PROGRESS_EVENT, _place(call) | progress)


def ask_approval(call: ToolCall, request_id: str) -> list[AnyDraft]:
    """In place of the call: the question whether it may be made. The next turn answers it."""
    item: Json = {"id": request_id, "type": "mcp_approval_request", "server_label": call.label}
    item |= {"name": call.name, "arguments": call.arguments}
    fields: Json = {"output_index": call.output_index, "item": item}
    return [Draft("response.output_item.added", fields), Draft("response.output_item.done", fields)]


def show_list(item: Json, output_index: int) -> list[AnyDraft]:
    """A server's list of tools, or the error in place of it."""
    place: Json = {"item_id": item["id"], "output_index": output_index}
    empty: Json = {"output_index": output_index, "item": {**item, "tools": []}}
    ending = "completed" if item.get("error") is None else "failed"
    return [
        Draft("response.output_item.added", empty),
        Draft("response.mcp_list_tools.in_progress", place),
        Draft(f"response.mcp_list_tools.{ending}", place),
        Draft("response.output_item.done", {"output_index": output_index, "item": item}),
    ]


def find_open(fold: Fold) -> list[ToolCall]:
    """The calls without an outcome, by output index."""
    return [_read(index, item) for index, item, _ in fold.open_items() if item.get("type") == "mcp_call"]


def count_made(fold: Fold) -> int:
    """How many calls there have been so far, whatever came of them."""
    return sum(item.get("type") == "mcp_call" for item in fold.output)


def _read(output_index: int, item: Json) -> ToolCall:
    return ToolCall(
        item_id=item["id"],
        output_index=output_index,
        label=item["server_label"],
        name=item["name"],
        arguments=item["arguments"],
        approval=item.get("approval_request_id"),
        begun=item.get("status") == BEGUN,
    )


def _place(call: ToolCall) -> Json:
    return {"item_id": call.item_id, "output_index": call.output_index}


def _item(call: ToolCall, arguments: str) -> Json:
    return {
        "id": call.item_id,
        "type": "mcp_call",
        "status": "in_progress",
        "approval_request_id": call.approval,
        "arguments": arguments,
        "error": None,
        "name": call.name,
        "output": None,
        "server_label": call.label,
    }

"""Calls that this server makes: their items and events, and their state in a journal.

A call of an MCP server's tool and a call of a function in this server are both one `mcp_call` item: the item type that
clients do not answer themselves. Its events in the journal:

    output_item.added, mcp_call_arguments.delta, mcp_call_arguments.done    announced: the model asked for it
    mcp_call.in_progress                                                    begun: from here on it may have an effect
    mcp_call.completed or mcp_call.failed, output_item.done                 over, with its output or its error in it

A call is announced whole, in one commit with the end of the model's step, so no crash leaves half a call. A call that
was not begun can simply be made, however often the server was restarted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from outlive.core.errors import InvalidRequest
from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json, add_item, end_item
from outlive.core.fold import CALLING, Fold
from outlive.core.grammar import CALL_BEGUN, MCP_ARGUMENTS

PROGRESS_EVENT = "outlive:tool.progress"
MAX_ERROR = 1000  # characters of a failed call's message

INTERRUPTED = (
    "The server was interrupted while this call was being made. It may or may not have taken effect, and it was not "
    "made again."
)
UNKNOWN_APPROVAL = "There is no approval request '{}' in what this turn continues."


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool as models and clients see it."""

    label: str  # of the MCP server that has it, or of this server
    name: str
    description: str = ""
    parameters: Json = {}  # JSON schema


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model asked for, with its position in the response."""

    item_id: str
    output_index: int
    label: str
    name: str
    arguments: str
    approval: str | None = None  # the id of the approval request that was approved
    begun: bool = False  # set only for a call that was read from a journal


class ToolOutcome(msgspec.Struct, frozen=True):
    """The result of a call: an output, or an error in one of the wire's three shapes."""

    output: str | None = None
    error: Json | None = None


def fail(message: str) -> ToolOutcome:
    """Make the outcome of a call that failed; the model reads the message."""
    return ToolOutcome(error={"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": message}]})


def describe_error(error: BaseException) -> str:
    """Return the reason why a user's tool failed, as the model reads it."""
    return f"{type(error).__name__}: {error}"[:MAX_ERROR]


def render_result(result: object) -> str:
    """Return what a user's tool or agent returned as text: a text as it is, anything else as JSON."""
    if result is None:
        return ""
    return result if isinstance(result, str) else msgspec.json.encode(result, enc_hook=_dump).decode()


def _dump(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


# -- events


def announce(call: ToolCall) -> list[AnyDraft]:
    """Return the events of the call as the model asked for it, whole."""
    channel = Channel(MCP_ARGUMENTS, call.item_id, call.output_index)
    deltas: list[AnyDraft] = [Delta(channel, call.arguments)] if call.arguments else []
    return [add_item(call.output_index, _item(call, "")), *deltas, channel.end(call.arguments)]


def begin(call: ToolCall) -> Draft:
    """Return the event that must be durable before the call is made."""
    return Draft(CALL_BEGUN, _place(call))


def finish(call: ToolCall, outcome: ToolOutcome) -> list[AnyDraft]:
    status = "completed" if outcome.error is None else "failed"
    item = _item(call, call.arguments) | {"status": status, "output": outcome.output, "error": outcome.error}
    return [Draft(f"response.mcp_call.{status}", _place(call)), end_item(call.output_index, item)]


def close_unmade(call: ToolCall) -> Draft:
    """End a call that was announced and will not be made, because the response ends."""
    return end_item(call.output_index, _item(call, call.arguments) | {"status": "incomplete"})


def fail_open(fold: Fold) -> list[AnyDraft]:
    """End all calls without an outcome, where they cannot be made again."""
    return [draft for call in find_open(fold) for draft in finish(call, fail(INTERRUPTED))]


def report(call: ToolCall, progress: Json) -> Draft:
    """Report the progress of a call; clients may ignore it."""
    return Draft(PROGRESS_EVENT, _place(call) | progress)


def ask_approval(call: ToolCall, request_id: str) -> list[AnyDraft]:
    """Ask, in place of the call, for its approval; the next turn's input answers."""
    item: Json = {"id": request_id, "type": "mcp_approval_request", "server_label": call.label}
    item |= {"name": call.name, "arguments": call.arguments}
    return [add_item(call.output_index, item), end_item(call.output_index, item)]


def show_list(item: Json, output_index: int) -> list[AnyDraft]:
    """Show an MCP server's list of tools, or the error in place of it."""
    place: Json = {"item_id": item["id"], "output_index": output_index}
    ending = "completed" if item.get("error") is None else "failed"
    return [
        add_item(output_index, {**item, "tools": []}),
        Draft("response.mcp_list_tools.in_progress", place),
        Draft(f"response.mcp_list_tools.{ending}", place),
        end_item(output_index, item),
    ]


# -- in a journal, or a context


def find_open(fold: Fold) -> list[ToolCall]:
    """Return the calls without an outcome, by output index."""
    return [_read(index, item) for index, item, _ in fold.open_items() if item.get("type") == "mcp_call"]


def count_made(fold: Fold) -> int:
    """Count the calls so far, whatever their outcome."""
    return sum(item.get("type") == "mcp_call" for item in fold.output)


def find_approved(past: Sequence[Json], given: Sequence[Json], output: Sequence[Json]) -> list[Json]:
    """Return the approval requests that a turn's input approves and that have no call yet, in this turn or before.

    A client may send an approval twice, or the whole conversation with each request.

    Raises InvalidRequest for an answer to a request that does not exist.
    """
    before = [*past, *given]
    requests = {item["id"]: item for item in before if item.get("type") == "mcp_approval_request"}
    made = {item.get("approval_request_id") for item in (*before, *output) if item.get("type") == "mcp_call"}
    answers = {item["approval_request_id"]: item for item in given if item.get("type") == "mcp_approval_response"}
    for request_id in answers.keys() - made - requests.keys():
        raise InvalidRequest(UNKNOWN_APPROVAL.format(request_id), param="input")
    return [
        item
        for request_id, item in requests.items()
        if request_id not in made and answers.get(request_id, {}).get("approve") is True
    ]


def _read(output_index: int, item: Json) -> ToolCall:
    return ToolCall(
        item_id=item["id"],
        output_index=output_index,
        label=item["server_label"],
        name=item["name"],
        arguments=item["arguments"],
        approval=item.get("approval_request_id"),
        begun=item.get("status") == CALLING,
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

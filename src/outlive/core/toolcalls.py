"""Calls of the server's own tools: the tools offered to the model, the calls in its answer, their items and events, and
their state in a journal.

A call of an MCP server's tool and a call of a function in this server are both one `mcp_call` item: the item type that
clients do not answer themselves. Its events in the journal:

    output_item.added, mcp_call_arguments.delta, mcp_call_arguments.done    announced: the model asked for it
    mcp_call.in_progress                                                    begun: from here on it may have an effect
    mcp_call.completed or mcp_call.failed, output_item.done                 over, with its output or its error in it

A call is announced whole, in one commit with the end of the model's step, so no crash leaves half a call. A call that
was not begun can simply be made, however often the server was restarted.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import msgspec

from outlive.core.context.assemble import approval_of
from outlive.core.errors import InvalidRequest
from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json, add_item, end_item
from outlive.core.fold import CALLING, Fold
from outlive.core.grammar import CALL_BEGUN, ITEM_ADDED, ITEM_DONE, MCP_ARGUMENTS
from outlive.core.requests.create import CreateResponse

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

    def as_function(self, alias: str) -> Json:
        described = {"description": self.description, "parameters": self.parameters}
        return {"type": "function", "name": alias, **described, "strict": False}


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model asked for, with its position in the response."""

    item_id: str
    output_index: int
    label: str
    name: str
    arguments: str
    approval: str | None = None  # the id of the approval request that was approved
    begun: bool = False  # set only for a call that was read from a journal

    @property
    def place(self) -> Json:
        return {"item_id": self.item_id, "output_index": self.output_index}

    def item(self, **changed: Any) -> Json:
        """Make the item of the call, as it is announced but for what has changed since."""
        return {
            "id": self.item_id,
            "type": "mcp_call",
            "status": "in_progress",
            "approval_request_id": self.approval,
            "arguments": self.arguments,
            "error": None,
            "name": self.name,
            "output": None,
            "server_label": self.label,
            **changed,
        }


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
    return [add_item(call.output_index, call.item(arguments="")), *deltas, channel.end(call.arguments)]


def begin(call: ToolCall) -> Draft:
    """Return the event that must be durable before the call is made."""
    return Draft(CALL_BEGUN, call.place)


def finish(call: ToolCall, outcome: ToolOutcome) -> list[AnyDraft]:
    item = make_ended(call, outcome)
    return [Draft(f"response.mcp_call.{item['status']}", call.place), end_item(call.output_index, item)]


def make_ended(call: ToolCall, outcome: ToolOutcome) -> Json:
    status = "completed" if outcome.error is None else "failed"
    return call.item(status=status, output=outcome.output, error=outcome.error)


def close_unmade(call: ToolCall) -> Draft:
    """End a call that was announced and will not be made, because the response ends."""
    return end_item(call.output_index, call.item(status="incomplete"))


def fail_open(fold: Fold) -> list[AnyDraft]:
    """End all calls without an outcome, where they cannot be made again."""
    return [draft for call in find_open(fold) for draft in finish(call, fail(INTERRUPTED))]


def report(call: ToolCall, progress: Json) -> Draft:
    """Report the progress of a call; clients may ignore it."""
    return Draft(PROGRESS_EVENT, call.place | progress)


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
    return [
        ToolCall(
            item_id=item["id"],
            output_index=index,
            label=item["server_label"],
            name=item["name"],
            arguments=item["arguments"],
            approval=item.get("approval_request_id"),
            begun=item.get("status") == CALLING,
        )
        for index, item, _ in fold.open_items()
        if item.get("type") == "mcp_call"
    ]


def find_approved(past: Sequence[Json], given: Sequence[Json], output: Sequence[Json]) -> list[Json]:
    """Return the approval requests that a turn's input approves and that have no call yet, in this turn or before.

    A client may send an approval twice, or the whole conversation with each request.

    Raises InvalidRequest for an answer to a request that does not exist.
    """
    before = [*past, *given]
    asked = (item for item in before if item.get("type") == "mcp_approval_request")
    # An older version may have stored requests without all that their calls need.
    needed = ("server_label", "name", "arguments")
    requests = {item["id"]: item for item in asked if all(isinstance(item.get(name), str) for name in needed)}
    made = {approval_of(item) for item in (*before, *output) if item.get("type") == "mcp_call"}
    answers = {approval_of(item): item for item in given if item.get("type") == "mcp_approval_response"}
    if unknown := answers.keys() - made - requests.keys():
        raise InvalidRequest(UNKNOWN_APPROVAL.format(unknown.pop()), param="input")
    open_requests = (item for request_id, item in requests.items() if request_id not in made)
    return [item for item in open_requests if answers.get(item["id"], {}).get("approve") is True]


# -- the tools in a request to the model: the client's tools as they are, the server's as functions

# The type of the tools in a request that this server calls itself.
SERVER_TOOL_TYPE = "mcp"


def without_server_tools(request: CreateResponse) -> CreateResponse:
    if not any(tool["type"] == SERVER_TOOL_TYPE for tool in request.tools):
        return request
    tools = [tool for tool in request.tools if tool["type"] != SERVER_TOOL_TYPE]
    return msgspec.structs.replace(request, tools=tools, tool_choice="auto")


def add_server_tools(
    request: CreateResponse, specs: Mapping[str, ToolSpec], *, first: bool, spent: bool, max_output_tokens: int | None
) -> CreateResponse:
    """Return the request for one step, with the server's tools as functions.

    `first`: it is the first step. A choice that makes the model call a tool counts only there, or it would never end.
    `spent`: no more calls of server tools may be made.
    """
    client_tools = [tool for tool in request.tools if tool["type"] != SERVER_TOOL_TYPE]
    choice = _resolve_choice(request.tool_choice, specs)
    if not first and isinstance(choice, dict) and choice["type"] == "allowed_tools":
        choice = {**choice, "mode": "auto"}
    elif not first:
        choice = "none" if choice == "none" else "auto"
    if spent and not client_tools:
        choice = "none"
    elif spent:
        specs = {}
        choice = choice if choice == "none" else "auto"
    tools = [*client_tools, *(spec.as_function(alias) for alias, spec in specs.items())]
    return msgspec.structs.replace(request, tools=tools, tool_choice=choice, max_output_tokens=max_output_tokens)


def _resolve_choice(choice: str | Json, specs: Mapping[str, ToolSpec]) -> str | Json:
    """Return the choice with the server's tools under the names that the model knows."""
    if isinstance(choice, str):
        return choice
    if choice["type"] == SERVER_TOOL_TYPE:
        choice = {"type": "allowed_tools", "mode": "required", "tools": [choice]}
    if choice["type"] != "allowed_tools":
        return choice
    tools: list[Json] = []
    for entry in choice["tools"]:
        if entry["type"] != SERVER_TOOL_TYPE:
            tools.append(entry)
            continue
        label, name = entry.get("server_label"), entry.get("name")
        found = [alias for alias, spec in specs.items() if spec.label == label and name in (None, spec.name)]
        tools += [{"type": "function", "name": alias} for alias in found]
    return {**choice, "tools": tools}


# -- the calls in the model's answer


class RequestedCall(msgspec.Struct, frozen=True):
    """A call of a server tool, at its position among the drafts."""

    output_index: int
    name: str  # the tool's name as the model knows it
    arguments: str
    whole: bool  # False: the model was cut off before its arguments ended


class ToolCallBuffer(msgspec.Struct, eq=False):
    """Buffers the drafts of a model's step: holds back calls of the server's tools, and the end of each item.

    A call that this server makes is never shown half: from its first draft on everything is held until the step has
    ended, when its arguments are whole. And the end of an item is held until something follows it. So a journal in
    which nothing is open means that the model had more to do, and it can simply be asked again; had it been done, the
    response's end would stand in the same commit.
    """

    names: Container[str]  # of the server tools
    _held: list[AnyDraft] = []
    _stopped: bool = False  # a call of a server tool has begun: nothing more is released

    def feed(self, drafts: list[AnyDraft]) -> list[AnyDraft]:
        """Return the drafts that may be shown, of these and of those held before."""
        shown: list[AnyDraft] = []
        for draft in drafts:
            if self._stopped:
                self._held.append(draft)
            elif type(draft) is Delta:
                shown += self._release()
                shown.append(draft)
            elif draft.type.endswith(".done"):
                self._held.append(draft)
            else:
                shown += self._release()
                self._stopped = self._is_server_call(draft)
                (self._held if self._stopped else shown).append(draft)
        return shown

    def end(self, drafts: list[AnyDraft]) -> list[AnyDraft | RequestedCall]:
        """End the step: return all other drafts, in order, with calls of server tools in place of their drafts."""
        held = [*self._release(), *drafts]
        server_calls = {_index_of(draft) for draft in held if self._is_server_call(draft)}
        done = {
            draft.fields["output_index"]: draft.fields["item"]
            for draft in held
            if type(draft) is Draft and draft.type == ITEM_DONE
        }
        rest: list[AnyDraft | RequestedCall] = []
        for draft in held:
            index = _index_of(draft)
            if index not in server_calls:
                rest.append(draft)
            elif draft.type == ITEM_ADDED:
                item = done[index]
                whole = item.get("status") == "completed"
                rest.append(RequestedCall(index, item["name"], item["arguments"], whole))
        return rest

    def _release(self) -> list[AnyDraft]:
        held, self._held = self._held, []
        return held

    def _is_server_call(self, draft: AnyDraft) -> bool:
        if type(draft) is not Draft or draft.type != ITEM_ADDED:
            return False
        item = draft.fields["item"]
        # A member of a namespace is the client's, also if it has the name of a server's tool.
        return item["type"] == "function_call" and item["name"] in self.names and item.get("namespace") is None


def _index_of(draft: AnyDraft) -> int:
    """Return the index of the item that a draft is about; -1 for an unknown event about none."""
    return int(draft.channel.output_index if isinstance(draft, Delta) else draft.fields.get("output_index", -1))

"""The request to a Responses upstream, with the whole context in it.

This server keeps the state, so the upstream is always sent everything and asked to keep nothing. What it made itself
(reasoning with its `encrypted_content`, calls of its hosted tools, item types that are unknown here) goes back as it
came, in the order in which it came.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlive.core.context.assemble import UNFINISHED, is_call, is_output
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.dialects.request import CallIds, read_role
from outlive.dialects.translator import PLAIN_SEAL
from outlive.ports.backend import ModelCall, Upstream

ENCRYPTED = "reasoning.encrypted_content"

# Fields that are sent as they are when they were given.
_SAME = (
    "instructions", "max_output_tokens", "max_tool_calls", "temperature", "top_p", "top_logprobs", "presence_penalty",
    "frequency_penalty", "parallel_tool_calls", "service_tier", "prompt_cache_key", "prompt_cache_retention",
    "prompt_cache_options", "safety_identifier", "user",
)  # fmt: skip

# Items that are sent without their ids: most are ours, and the upstream may refuse or look up an id it does not know.
_NAMELESS = frozenset({"custom_tool_call", "custom_tool_call_output", "function_call", "function_call_output"})
# Longest id of a message, or of reasoning, that servers take.
_MOST_ID = 64
# Beginnings of `encrypted_content` of other dialects, which no server of this one can read.
_FOREIGN = ("anthropic:", PLAIN_SEAL)


def render(call: ModelCall, upstream: Upstream, *, encrypted: bool = True, background: bool = False) -> Json:
    """Render the body to send.

    Without `encrypted`, encrypted reasoning is neither asked for nor sent. A `background` run goes on when the
    connection breaks, and its server has to store it until it is over.
    """
    request = call.request
    body: Json = {
        **request.extra,  # first, because extras never override what is set here (D13)
        "model": call.model,
        "input": render_items(call, upstream, encrypted=encrypted),
        "stream": True,
        "store": background,
    }
    if background:
        body["background"] = True
    for field in _SAME:
        if (value := getattr(request, field)) is not None:
            body[field] = value
    body |= _render_form(request) | _render_tools(request)
    include: list[str] = [name for name in request.include if name != ENCRYPTED]
    # With encrypted reasoning, a server that keeps nothing can go on from its reasoning later.
    if encrypted and (upstream.reasoning_input != "plain" or ENCRYPTED in request.include):
        include.append(ENCRYPTED)
    if include:
        body["include"] = include
    if call.resume is not None and request.max_output_tokens is not None:
        body["max_output_tokens"] = max(1, request.max_output_tokens - call.resume.deltas)
    return body


def render_items(call: ModelCall, upstream: Upstream, *, encrypted: bool = True) -> list[Json]:
    """Render the context as input items."""
    backwards: list[Json] = []
    if call.resume is not None:
        part = {"type": "output_text", "text": call.resume.text, "annotations": []}
        # Servers that continue a last message want its status to be incomplete.
        head: Json = {"id": _name(call.resume.item_id, "msg"), "type": "message", "status": "incomplete"}
        backwards.append(head | {"role": "assistant", "content": [part]})
    for item in reversed(_rename_calls(call.items)):
        rendered = _render_item(item, backwards[-1] if backwards else None, upstream, encrypted)
        if rendered is not None:
            backwards.append(rendered)
    return backwards[::-1]


def _rename_calls(items: Iterable[Json]) -> list[Json]:
    """Give each call whose `call_id` an earlier call has one of its own, and its output the same."""
    ids = CallIds()
    renamed: list[Json] = []
    for item in items:
        call_id = item.get("call_id")
        if isinstance(call_id, str):
            sent = ids.add(call_id, call_id) if is_call(item) else ids.find(call_id)
            renamed.append(item if sent == call_id else {**item, "call_id": sent})
        else:
            renamed.append(item)
    return renamed


def is_encrypted(item: Json) -> bool:
    """Return True if an item is reasoning that a server of this dialect has encrypted."""
    sealed = item.get("encrypted_content")
    return item.get("type") == "reasoning" and bool(sealed) and not str(sealed).startswith(_FOREIGN)


def _render_item(item: Json, following: Json | None, upstream: Upstream, encrypted: bool) -> Json | None:
    kind = item.get("type")
    if kind == "message":
        return _render_message(item, upstream)
    if kind == "reasoning":
        return _render_reasoning(item, following, upstream, encrypted)
    if kind in _NAMELESS:
        return {name: value for name, value in item.items() if name != "id" and value is not None}
    return item


def _render_message(item: Json, upstream: Upstream) -> Json:
    role, content = read_role(item), item.get("content")
    if not isinstance(content, str):
        parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
        # No model reads log probabilities.
        content = [{name: part[name] for name in part if name != "logprobs"} for part in parts]
    if role == "assistant":
        return {**item, "id": _name(item.get("id"), "msg"), "content": content}
    rest = {name: value for name, value in item.items() if name not in ("id", "status")}
    rest |= {"role": "system" if role == "developer" and not upstream.developer_role else role, "content": content}
    return rest


def _render_reasoning(item: Json, following: Json | None, upstream: Upstream, encrypted: bool) -> Json | None:
    """Render reasoning in a form that the server takes; None where there is none, or where nothing that it led to is
    here.

    OpenAI refuses reasoning that nothing follows, and reasoning in plain text; servers of open models know no other.
    """
    if item.get("status") in UNFINISHED or following is None or not _is_made(following):
        return None
    sealed = encrypted and upstream.reasoning_input != "plain" and is_encrypted(item)
    plain = upstream.reasoning_input != "encrypted" and bool(item.get("content"))
    if not sealed and not plain:
        return None
    left_out = {"status"} | (set() if sealed else {"encrypted_content"}) | (set() if plain else {"content"})
    rest = {name: value for name, value in item.items() if name not in left_out and value is not None}
    return rest | {"id": _name(item.get("id"), "rs")}


def _is_made(item: Json) -> bool:
    """Return True if a model made this: its answer, its call, its reasoning."""
    if item.get("type") == "message":
        return item.get("role") == "assistant"
    return not is_output(item)


def _name(item_id: object, prefix: str) -> str:
    """Return the id under which an item is sent. A server may refuse one that does not look like its own."""
    if isinstance(item_id, str) and item_id.startswith(f"{prefix}_") and len(item_id) <= _MOST_ID:
        return item_id
    return f"{prefix}_{str(item_id)[-_MOST_ID // 2 :]}"


def _render_form(request: CreateResponse) -> Json:
    fields: Json = {}
    if request.text:
        fields["text"] = dict(request.text)
        if form := request.text.get("format"):
            fields["text"]["format"] = {name: value for name, value in form.items() if value is not None}
    if reasoning := {name: value for name, value in (request.reasoning or {}).items() if value is not None}:
        fields["reasoning"] = reasoning
    return fields


def _render_tools(request: CreateResponse) -> Json:
    fields: Json = {}
    if request.tools:
        fields["tools"] = [_render_tool(tool) for tool in request.tools]
    if request.tool_choice != "auto":
        fields["tool_choice"] = request.tool_choice
    return fields


def _render_tool(tool: Json) -> Json:
    """Render a tool as it was given: a type that is unknown here is the server's own."""
    if tool["type"] in ("function", "custom") and tool.get("description") is None:
        return {name: value for name, value in tool.items() if name != "description"}
    return tool

"""The request to a Responses upstream, with the whole context in it.

This server keeps the state, so the upstream is always sent everything and asked to keep nothing. What it made itself
(reasoning with its `encrypted_content`, calls of its hosted tools, item types that are unknown here) goes back as it
came, in the order in which it came.
"""

from functools import partial
from types import GenericAlias
from typing import Annotated, Any, Literal

import msgspec

from outlive.core.context.assemble import UNFINISHED, is_call, is_made_up, is_output, is_pair
from outlive.core.events import Json
from outlive.dialects import request as shared
from outlive.dialects.request import keep
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
    """Render the body to send. Without `encrypted`, encrypted reasoning is neither asked for nor sent. A `background`
    run goes on when the connection breaks, and its server has to store it until it is over."""
    request = call.request
    body: Json = {
        **request.extra,  # first, because extras never override what is set here (D13)
        "model": call.model,
        "input": _render_items(call, upstream, encrypted),
        "stream": True,
        "store": background,
    }
    if background:
        body["background"] = True
    body |= shared.read_given(request, _SAME)
    if request.text:
        form = request.text.get("format")
        body["text"] = request.text | ({"format": keep(form)} if form else {})
    if reasoning := keep(request.reasoning or {}):
        body["reasoning"] = reasoning
    if request.tools:  # as they were given: a type that is unknown here is the server's
        body["tools"] = [_render_tool(tool) for tool in request.tools]
    if request.tool_choice != "auto":
        body["tool_choice"] = request.tool_choice
    include: list[str] = [name for name in request.include if name != ENCRYPTED]
    # With encrypted reasoning, a server that keeps nothing can go on from its reasoning later.
    if encrypted and (upstream.reasoning_input != "plain" or ENCRYPTED in request.include):
        include.append(ENCRYPTED)
    if include:
        body["include"] = include
    if request.max_output_tokens is not None:
        body["max_output_tokens"] = shared.read_limit(call, request.max_output_tokens)
    return body


def _render_items(call: ModelCall, upstream: Upstream, encrypted: bool) -> list[Json]:
    backwards: list[Json] = []
    if call.resume is not None:
        part = {"type": "output_text", "text": call.resume.text, "annotations": []}
        # Servers that continue a last message want its status to be incomplete.
        head: Json = {"id": _name(call.resume.item_id, "msg"), "type": "message", "status": "incomplete"}
        backwards.append(head | {"role": "assistant", "content": [part]})
    for item in reversed(_as_functions(_rename_calls(call.items))):
        kind, rendered = item.get("type"), None
        if kind == "message":
            rendered = _render_message(item, upstream)
        elif kind == "reasoning":
            rendered = _render_reasoning(item, backwards[-1] if backwards else None, upstream, encrypted)
        elif not is_made_up(item) and _fits(item):
            # A server that knows a type that is unknown here needs no output made up for its calls.
            rendered = keep(item, "id") if kind in _NAMELESS else item
        if rendered is not None:
            backwards.append(rendered)
    return backwards[::-1]


def _rename_calls(items: list[Json]) -> list[Json]:
    """Give each call whose `call_id` an earlier call has one of its own, and its output the same."""
    ids, renamed = shared.CallIds(), items[:]
    for n, item in enumerate(items):
        if isinstance(call_id := item.get("call_id"), str):
            sent = ids.add(call_id, call_id) if is_call(item) else ids.find(call_id)
            renamed[n] = item if sent == call_id else {**item, "call_id": sent}
    return renamed


def is_encrypted(item: Json) -> bool:
    """Return True if an item is reasoning that a server of this dialect has encrypted."""
    sealed = item.get("encrypted_content")
    return item.get("type") == "reasoning" and bool(sealed) and not str(sealed).startswith(_FOREIGN)


def _render_message(item: Json, upstream: Upstream) -> Json:
    role, content = shared.read_role(item), item.get("content")
    if not isinstance(content, str):
        # No model reads log probabilities.
        parts = _render_parts(content, "output_text" if role == "assistant" else "input_text")
        content = [{name: part[name] for name in part if name != "logprobs"} for part in parts]
    if role == "assistant":
        return keep(item) | {"id": _name(item.get("id"), "msg"), "content": content}
    role = "system" if role == "developer" and not upstream.developer_role else role
    return keep(item, "id", "status") | {"role": role, "content": content}


def _render_reasoning(item: Json, following: Json | None, upstream: Upstream, encrypted: bool) -> Json | None:
    """Render reasoning in a form that the server takes; None where there is none. OpenAI refuses reasoning that nothing
    follows, and reasoning in plain text; servers of open models know no other."""
    if item.get("status") in UNFINISHED or following is None:
        return None
    is_answer = following.get("type") != "message" or following.get("role") == "assistant"
    if not is_answer or is_output(following):
        return None  # the model did not make what follows
    sealed = encrypted and upstream.reasoning_input != "plain" and is_encrypted(item)
    plain = upstream.reasoning_input != "encrypted" and bool(item.get("content"))
    if not sealed and not plain:
        return None
    rest = keep(item, "status", "" if sealed else "encrypted_content", "" if plain else "content")
    if plain:
        rest["content"] = _render_parts(rest["content"], "reasoning_text")
    return rest | {"id": _name(item.get("id"), "rs"), "summary": _render_parts(item.get("summary"), "summary_text")}


# -- items that an older version stored as they came (D25)

# The fields of a part, by its type: one of them is a string.
_PART_FIELDS = {
    **dict.fromkeys(shared.TEXTS, ("text",)),
    **dict.fromkeys(("input_image", "computer_screenshot"), ("image_url", "file_id")),
    "refusal": ("refusal",),
    "input_file": ("file_data", "file_url", "file_id"),
}


def _is_part(part: object) -> bool:
    """Return True for a part that can be sent. A type that is unknown here is the server's own."""
    if not isinstance(part, dict) or not isinstance(kind := part.get("type"), str):
        return False
    return kind not in _PART_FIELDS or any(isinstance(part.get(name), str) for name in _PART_FIELDS[kind])


def _render_parts(parts: object, text_type: str) -> list[Json]:
    """Return the parts, with a text that names it for each that cannot be sent."""
    listed = parts if isinstance(parts, list) else ()
    return [part if _is_part(part) else {"type": text_type, "text": shared.name_unsendable(part)} for part in listed]


def _as_input(part: Json) -> Json:
    """Return a part of the types that a function's output may have."""
    if (kind := part["type"]) == "computer_screenshot":
        return {**part, "type": "input_image"}
    text = part.get("refusal" if kind == "refusal" else "text")
    return {"type": "input_text", "text": text} if isinstance(text, str) else part


def _shape(**fields: Any) -> Any:
    return msgspec.defstruct("Shape", list(fields.items()))


_call = partial(_shape, call_id=str)
_list_of = partial(GenericAlias, list)
_NAME = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]+$")]
_COMMAND = _shape(stdout=str, stderr=str, outcome=_shape(type=Literal["exit", "timeout"]))
_SCREENSHOT = _shape(type=Literal["computer_screenshot", "input_image"])
# The shapes that items may have, by their type: what servers check of the fields, as far as this one makes use of them.
_SHAPES: dict[str, tuple[Any, ...]] = {
    "function_call": (_call(name=_NAME, arguments=str),),
    "function_call_output": (_call(output=str | list[Json]),),
    "custom_tool_call": (_call(name=_NAME, input=str),),
    "custom_tool_call_output": (_call(output=str | list[Json]),),
    "shell_call": (_call(action=_shape(commands=list[str])),),
    "shell_call_output": (_call(output=_list_of(_COMMAND)),),
    "local_shell_call": (_call(action=_shape(type=Literal["exec"], command=list[str], env=dict[str, str])),),
    "local_shell_call_output": (_call(output=str),),
    "apply_patch_call": (
        _call(operation=_shape(type=Literal["delete_file"], path=str)),
        _call(operation=_shape(type=Literal["create_file", "update_file"], path=str, diff=str)),
    ),
    "apply_patch_call_output": (_call(status=Literal["completed", "failed"]),),
    "computer_call": (_call(action=_shape(type=str)), _call(actions=_list_of(_shape(type=str)))),
    "computer_call_output": (_call(output=_SCREENSHOT),),
    "tool_search_output": (_shape(tools=list[Json]),),
    "program": (_call(code=str),),
    "program_output": (_call(result=str),),
}
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def _fits(item: Json) -> bool:
    kind, output = item.get("type"), item.get("output")
    if not isinstance(kind, str) or (kind == "computer_call_output" and not _is_part(output)):
        return False
    if kind in _OUTPUTS and isinstance(output, list):
        return _converts(item, *_SHAPES[kind]) and all(_is_part(part) and _as_input(part) == part for part in output)
    return kind not in _SHAPES or any(_converts(item, shape) for shape in _SHAPES[kind])


def _converts(item: Json, shape: Any) -> bool:
    try:
        msgspec.convert(item, shape)
    except msgspec.ValidationError:
        return False
    return True


def _as_functions(items: list[Json]) -> list[Json]:
    """Replace each call that does not fit its type, or whose output does not, and that output, by those of a function:
    a function may be given anything, and return any text."""
    calls = {item["call_id"]: item for item in items if is_call(item)}
    odd = {call_id for call_id, item in calls.items() if not _fits(item)}
    for item in items:
        call = calls.get(item["call_id"]) if is_output(item) and not is_made_up(item) else None
        if call is not None and not (_fits(item) and is_pair(call, item)):
            odd.add(item["call_id"])
    return [_as_function(item, odd) for item in items] if odd else items


def _as_function(item: Json, odd: set[str]) -> Json:
    answers = is_output(item)
    if not (answers or is_call(item)) or item["call_id"] not in odd:
        return item
    if answers:
        given = shared.read_output(item, _PART_FIELDS, {})
        output = given if isinstance(given, str) else list(map(_as_input, _render_parts(given, "input_text")))
        return {"type": "function_call_output", "call_id": item["call_id"], "output": output}
    name, arguments = shared.read_call(item, {})
    called = {"name": name, "arguments": shared.write_arguments(arguments), "status": "completed"}
    return {"type": "function_call", "call_id": item["call_id"], **called}


def _name(item_id: object, prefix: str) -> str:
    """Return the id under which an item is sent. A server may refuse one that does not look like its own."""
    if isinstance(item_id, str) and item_id.startswith(f"{prefix}_") and len(item_id) <= _MOST_ID:
        return item_id
    return f"{prefix}_{str(item_id)[-_MOST_ID // 2 :]}"


def _render_tool(tool: Json) -> Json:
    if tool["type"] in ("function", "custom") and tool.get("description") is None:
        return {name: value for name, value in tool.items() if name != "description"}
    return tool

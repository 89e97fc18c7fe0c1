"""Items as callers send them, made whole: each with an id, a type and, where its type has one, a status."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from outlive.core.events import Json
from outlive.core.ids import IdSource, item_prefix
from outlive.core.requests.checks import (
    check_depth,
    check_enum,
    check_id,
    check_list,
    check_str,
    refuse,
    refuse_missing,
    refuse_type,
    refuse_unsupported,
    shorten,
)
from outlive.core.requests.content import check_text, parse_content
from outlive.core.requests.limits import Limits

MAX_CALL_ID = 128  # twice what the wire's reference says, because other providers' ids are longer
MAX_NAME = 256

_ROLES = ("user", "assistant", "system", "developer")
_STATUSES = ("in_progress", "completed", "incomplete")

# Kinds that ask the server to do something. As parts of a request they are acted on; to keep them would mean nothing.
TRIGGER = "compaction_trigger"
REFERENCE = "item_reference"
COMPACTION = "compaction"
STANDING_IN = frozenset({REFERENCE, COMPACTION})
_CONTROLS = {
    TRIGGER: "it asks for a compaction; send it as the last item of a response's 'input'.",
    REFERENCE: "send the item itself; only a response's 'input' can refer to another.",
}

# Every other kind is kept as it comes: history made elsewhere, tools that others run, kinds newer than this server.
_KIND = re.compile(r"[A-Za-z0-9_.-]{1,64}(:[A-Za-z0-9_.-]{1,64})?\Z")

# Completes the server's own copy of an item, or refuses it.
Completion: TypeAlias = Callable[[Json, str, Limits], None]


def parse_input(value: object, param: str, ids: IdSource, limits: Limits) -> list[Json]:
    """The items of a request's input: among them may be references, and a trigger at the end."""
    return _parse_all(value, param, ids, limits, in_request=True)


def parse_items(value: object, param: str, ids: IdSource, limits: Limits, at_most: int | None = None) -> list[Json]:
    """The items in an array, to be kept."""
    if at_most is not None:
        limits = msgspec.structs.replace(limits, max_items=min(at_most, limits.max_items))
    return _parse_all(value, param, ids, limits, in_request=False)


def _parse_all(value: object, param: str, ids: IdSource, limits: Limits, in_request: bool) -> list[Json]:
    """The items in an array, each once: an item given again, with the same id, is the same item."""
    given = check_list(value, param, limits.max_items, "items")
    check_depth(given, param, limits.max_depth)
    items: list[Json] = []
    kinds: dict[str, str] = {}
    for n, element in enumerate(given):
        item = parse_item(element, f"{param}[{n}]", ids, limits)
        if element.get("id") is not None and _is_repeat(item, kinds, f"{param}[{n}].id"):
            continue
        if item["type"] in _CONTROLS:
            _check_control(item["type"], f"{param}[{n}]", in_request, n == len(given) - 1)
        items.append(item)
    return items


def parse_item(value: object, param: str, ids: IdSource, limits: Limits) -> Json:
    if type(value) is not dict:
        refuse_type(value, param, "an object")
    kind = _kind_of(value, param)
    item: Json = {"id": None, "type": kind, **value}
    item["type"] = kind
    complete = _COMPLETIONS.get(kind)
    if complete is not None:
        complete(item, param, limits)
    else:
        _check_foreign(item, param)
    item["id"] = ids.new(item_prefix(kind)) if item["id"] is None else check_id(item["id"], f"{param}.id")
    return item


def user_message(text: str, ids: IdSource) -> Json:
    """The item that a plain string as input stands for."""
    return {
        "id": ids.new("msg"),
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
        "status": "completed",
    }


def _kind_of(item: Json, param: str) -> str:
    kind = item.get("type")
    if kind is None:
        if "role" in item:
            return "message"
        if item.keys() - {"type"} != {"id"}:
            refuse_missing(f"{param}.type")
        kind = REFERENCE
    if type(kind) is not str:
        refuse_type(kind, f"{param}.type", "a string")
    return kind


def _is_repeat(item: Json, kinds: dict[str, str], param: str) -> bool:
    """Whether this id came before. Two kinds of item under one id are refused: to drop one would lose it."""
    kind = kinds.get(item["id"])
    if kind is None or (kind == REFERENCE and item["type"] != REFERENCE):
        kinds[item["id"]] = item["type"]
        return False
    if item["type"] not in (kind, REFERENCE):
        refuse(f"'{item['id']}' is the id of two different items, a '{kind}' and a '{shorten(item['type'])}'.", param)
    return True


def _check_control(kind: str, param: str, in_request: bool, is_last: bool) -> None:
    if not in_request:
        refuse_unsupported(f"{param}.type", f"items of type '{kind}' cannot be kept: {_CONTROLS[kind]}")
    if kind == TRIGGER and not is_last:
        refuse(f"'{TRIGGER}' must be the last item of the input.", param)


def _check_foreign(item: Json, param: str) -> None:
    kind: str = item["type"]
    if _KIND.match(kind) is None:
        refuse(f"'{shorten(kind)}' is not a type of item.", f"{param}.type")
    if item.get("status") is not None:
        check_str(item["status"], f"{param}.status")


def _complete_message(item: Json, param: str, limits: Limits) -> None:
    if item.get("role") is None:
        refuse_missing(f"{param}.role")
    role = check_enum(item["role"], f"{param}.role", _ROLES)
    content = item.get("content")
    if type(content) is str:
        check_text(content, f"{param}.content", limits)
        if role == "assistant":
            item["content"] = [{"type": "output_text", "text": content, "annotations": []}]
        else:
            item["content"] = [{"type": "input_text", "text": content}]
    elif content is None:
        refuse_missing(f"{param}.content")
    elif type(content) is not list:
        refuse_type(content, f"{param}.content", "a string or an array of parts")
    else:
        item["content"] = parse_content(content, f"{param}.content", limits)
    _complete_status(item, param)


def _complete_call(item: Json, param: str, limits: Limits) -> None:
    _check_call_id(item, param)
    if item.get("name") is None:
        refuse_missing(f"{param}.name")
    check_str(item["name"], f"{param}.name", least=1, most=MAX_NAME)
    field = "arguments" if item["type"] == "function_call" else "input"
    check_text(item.get(field), f"{param}.{field}", limits)
    _complete_status(item, param)


def _complete_output(item: Json, param: str, limits: Limits) -> None:
    _check_call_id(item, param)
    output = item.get("output")
    if type(output) is list:
        item["output"] = parse_content(output, f"{param}.output", limits)
    elif output is not None and type(output) is not str:
        refuse_type(output, f"{param}.output", "a string or an array of parts")
    else:
        check_text(output, f"{param}.output", limits)
    _complete_status(item, param)


def _complete_reasoning(item: Json, param: str, limits: Limits) -> None:
    summary = item.get("summary")
    item["summary"] = [] if summary is None else parse_content(summary, f"{param}.summary", limits)
    if item.get("content") is not None:
        item["content"] = parse_content(item["content"], f"{param}.content", limits)
    if item.get("encrypted_content") is not None:
        check_text(item["encrypted_content"], f"{param}.encrypted_content", limits)
    if item.get("status") is not None:
        check_enum(item["status"], f"{param}.status", _STATUSES)


def _complete_compaction(item: Json, param: str, limits: Limits) -> None:
    if item.get("encrypted_content") is None:
        refuse_missing(f"{param}.encrypted_content")
    check_text(item["encrypted_content"], f"{param}.encrypted_content", limits)


def _complete_reference(item: Json, param: str, limits: Limits) -> None:
    if item["id"] is None:
        refuse_missing(f"{param}.id")


def _complete_status(item: Json, param: str) -> None:
    if item.get("status") is None:
        item["status"] = "completed"
    else:
        check_enum(item["status"], f"{param}.status", _STATUSES)


def _check_call_id(item: Json, param: str) -> None:
    if item.get("call_id") is None:
        refuse_missing(f"{param}.call_id")
    check_str(item["call_id"], f"{param}.call_id", least=1, most=MAX_CALL_ID)


_COMPLETIONS: dict[str, Completion] = {
    "message": _complete_message,
    "function_call": _complete_call,
    "function_call_output": _complete_output,
    "custom_tool_call": _complete_call,
    "custom_tool_call_output": _complete_output,
    "reasoning": _complete_reasoning,
    COMPACTION: _complete_compaction,
    REFERENCE: _complete_reference,
}

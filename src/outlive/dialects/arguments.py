"""The arguments of calls: whether they are whole, what a custom tool makes of them, and how a call ends with them."""

from __future__ import annotations

from typing import Any

import msgspec

from outlive.core.events import AnyDraft
from outlive.dialects.open_items import GrowingCall, ItemStatus

_JSON = msgspec.json.Decoder()


def is_whole(arguments: str) -> bool:
    """Whether the arguments are JSON to the end."""
    try:
        _JSON.decode(arguments)
    except msgspec.DecodeError:
        return False
    return True


def is_whole_object(arguments: str) -> bool:
    """Whether nothing can follow: a number may have more digits to come, an object that has ended has ended."""
    return arguments.rstrip().endswith("}") and is_whole(arguments)


def read_input(arguments: str) -> str:
    """The free text of a custom tool's call, out of the function arguments that carry it."""
    try:
        value: Any = _JSON.decode(arguments)
    except msgspec.DecodeError:
        return arguments  # the model wrote its text without the JSON around it
    if isinstance(value, dict) and isinstance(value.get("input"), str):
        return str(value["input"])
    return value if isinstance(value, str) else arguments


def close_call(call: GrowingCall, status: ItemStatus, custom: bool) -> list[AnyDraft]:
    """The drafts that end a call. What was cut short is incomplete; a call whose arguments had ended was not."""
    whole = call.arguments
    if status == "incomplete" and is_whole(whole):
        status = "completed"
    if custom:
        return call.close(status, read_input(whole) if status == "completed" else "")
    drafts: list[AnyDraft] = []
    if status == "completed" and not whole.strip():
        call.grow("{}")  # a function without parameters; clients parse what they get
        drafts, whole = call.flush(), call.arguments
    return drafts + call.close(status, whole)

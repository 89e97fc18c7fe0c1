"""How a response ends: closing what is open, the terminal event, and what its conversation keeps of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlive.core.events import AnyDraft, Draft, Json
from outlive.core.fold import Fold, Part

TerminalStatus = Literal["completed", "incomplete", "failed", "cancelled"]

TERMINAL_STATUSES = frozenset({"completed", "incomplete", "failed", "cancelled"})

# Calls that never got whole are of no use to anybody's history. One that failed says so in it.
_OVER = ("completed", "failed")
_CALL_TYPES = frozenset({"function_call", "custom_tool_call", "mcp_call"})
# What calls of tools that a model's server runs itself may be at.
_UNFINISHED = frozenset({"in_progress", "searching", "interpreting", "generating", "incomplete"})
# How an item that was cut off ends, where its type knows no `incomplete`.
_CUT_OFF = {"image_generation_call": "failed"}


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a terminal event says beyond what the events before it said."""

    status: TerminalStatus
    at: int  # unix seconds
    usage: Json | None = None
    model: str | None = None
    service_tier: str | None = None
    reason: str | None = None  # why incomplete
    message: str | None = None  # why interrupted, for people
    error: Json | None = None  # code and message, when failed
    attempts: int = 1
    resumed_at: list[int] = []


def end(header: Json, output: list[Json], outcome: Outcome) -> Json:
    """The final Response object."""
    response = {
        **header,
        "status": outcome.status,
        "completed_at": outcome.at if outcome.status == "completed" else None,
        "error": outcome.error,
        "incomplete_details": None,
        "output": output,
        "usage": outcome.usage,
        "service_tier": outcome.service_tier or _settled_tier(header.get("service_tier")),
    }
    if outcome.status == "incomplete":
        details = {"reason": outcome.reason}
        response["incomplete_details"] = details | ({"message": outcome.message} if outcome.message else {})
    if outcome.model:
        response["model"] = outcome.model
    if outcome.attempts > 1:
        response["outlive"] = {"attempts": outcome.attempts, "resumed_at": outcome.resumed_at}
    return response


def terminal(response: Json) -> Draft:
    """The terminal event; its snapshot is rendered here, once, for the journal and for GET."""
    return Draft(f"response.{response['status']}", {"response": msgspec.Raw(msgspec.json.encode(response))})


def snapshot_of(draft: Draft) -> bytes:
    """The final Response object as the bytes that its terminal event carries."""
    return bytes(draft.fields["response"])


def close_open(fold: Fold) -> list[AnyDraft]:
    """The events that end every open item as `incomplete`, with what it holds so far."""
    drafts: list[AnyDraft] = []
    for output_index, item, parts in fold.open_items():
        place: Json = {"item_id": item.get("id"), "output_index": output_index}
        for list_name, index in parts:
            drafts += _close_part(fold, item, (list_name, index), place)
        drafts += _close_call(fold, item, place)
        ended = {**item, "status": _CUT_OFF.get(item.get("type", ""), "incomplete")}
        drafts.append(Draft("response.output_item.done", {"output_index": output_index, "item": ended}))
    return drafts


def turn(output: list[Json]) -> list[Json]:
    """The output items that a conversation or chain keeps: unfinished calls are left out."""
    return [item for item in output if _is_kept(item)]


def _is_kept(item: Json) -> bool:
    kind, status = str(item.get("type")), item.get("status")
    if kind in _CALL_TYPES:
        return status in _OVER
    return not (kind.endswith("_call") and status in _UNFINISHED)


def _settled_tier(tier: object) -> object:
    return "default" if tier in (None, "auto") else tier


# Per type of call: the name of its text's events, and the field that holds the text.
_CALL_TEXTS = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
    "mcp_call": ("mcp_call_arguments", "arguments"),
}


def _close_call(fold: Fold, item: Json, place: Json) -> list[AnyDraft]:
    text = _CALL_TEXTS.get(item.get("type", ""))
    if text is None or fold.is_said(f"response.{text[0]}.delta", place["output_index"]):
        return []
    name = {"name": item.get("name")} if item["type"] == "function_call" else {}
    return [Draft(f"response.{text[0]}.done", {**place, **name, text[1]: item.get(text[1]) or ""})]


# Per type of part: the name of its text's events, and the field that holds the text.
_PART_TEXTS = {
    "output_text": ("output_text", "text"),
    "refusal": ("refusal", "refusal"),
    "reasoning_text": ("reasoning_text", "text"),
    "summary_text": ("reasoning_summary_text", "text"),
}


def _close_part(fold: Fold, item: Json, where: Part, place: Json) -> list[AnyDraft]:
    list_name, index = where
    part = item[list_name][index]
    event, index_name = (
        ("content_part", "content_index") if list_name == "content" else ("reasoning_summary_part", "summary_index")
    )
    at = {**place, index_name: index}
    drafts: list[AnyDraft] = []
    text = _PART_TEXTS.get(part.get("type", ""))
    if text is not None and not fold.is_said(f"response.{text[0]}.delta", place["output_index"], index):
        logprobs = {"logprobs": part.get("logprobs") or []} if text[0] == "output_text" else {}
        drafts.append(Draft(f"response.{text[0]}.done", {**at, text[1]: part.get(text[1]) or "", **logprobs}))
    drafts.append(Draft(f"response.{event}.done", {**at, "part": part}))
    return drafts

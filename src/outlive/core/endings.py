"""The end of a response: closing open items, the terminal event, and the items that its conversation keeps."""

from typing import Literal

import msgspec

from outlive.core.errors import EndCode
from outlive.core.events import AnyDraft, Channel, Draft, Json, end_item
from outlive.core.fold import Fold
from outlive.core.grammar import ITEM_TEXTS, PART_LISTS, PART_TEXTS

TerminalStatus = Literal["completed", "incomplete", "failed", "cancelled"]

# A history keeps no call whose arguments never ended. A failed call has its error in it.
_OVER = ("completed", "failed")
# Statuses of unfinished calls of tools that an upstream runs itself.
_UNFINISHED = frozenset({"in_progress", "searching", "interpreting", "generating", "incomplete"})
# The last status of an item that was cut off, for types that have no `incomplete`: a patch has only two.
_CUT_OFF = {"image_generation_call": "failed", "apply_patch_call": "in_progress"}


class EndReason(msgspec.Struct, frozen=True):
    """A code for what ended a run before its answer was whole; retryable: the same request may well succeed later."""

    code: EndCode
    retryable: bool


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a terminal event adds to the events before it."""

    status: TerminalStatus
    at: int = 0  # unix seconds
    usage: Json | None = None
    model: str | None = None
    service_tier: str | None = None
    reason: str | None = None  # why incomplete
    message: str | None = None  # why interrupted, in a sentence
    error: Json | None = None  # code and message, when failed
    ended_by: EndCode | None = None
    attempts: int = 1
    resumed_at: list[int] = []


def end(header: Json, output: list[Json], outcome: Outcome) -> Json:
    """Return the final Response object."""
    tier = header.get("service_tier")
    response = {
        **header,
        "status": outcome.status,
        "completed_at": outcome.at if outcome.status == "completed" else None,
        "error": outcome.error,
        "incomplete_details": None,
        "output": output,
        "usage": outcome.usage,
        "service_tier": outcome.service_tier or ("default" if tier in (None, "auto") else tier),
    }
    if outcome.status == "incomplete":
        why = {"reason": outcome.reason}
        response["incomplete_details"] = why | ({"message": outcome.message} if outcome.message else {})
    if outcome.model:
        response["model"] = outcome.model
    details: Json = {}
    if outcome.attempts > 1:
        details = {"attempts": outcome.attempts, "resumed_at": outcome.resumed_at}
    if outcome.ended_by is not None:
        details["reason"] = EndReason(outcome.ended_by, outcome.ended_by != "deadline_exceeded")
    return add_details(response, details) if details else response


def add_details(response: Json, details: Json) -> Json:
    """Return the response with these fields in its extension object."""
    return {**response, "outlive": {**(response.get("outlive") or {}), **details}}


def terminal(response: Json) -> Draft:
    """Return the terminal event; its snapshot is rendered here, once, for the journal and for GET."""
    return Draft(f"response.{response['status']}", {"response": msgspec.Raw(msgspec.json.encode(response))})


def close_open(fold: Fold) -> list[AnyDraft]:
    """Return the events that end every open item as `incomplete`, with its content so far."""
    drafts: list[AnyDraft] = []
    for output_index, item, open_parts in fold.open_items():
        place = {"item_id": item.get("id"), "output_index": output_index}
        for list_name, index in open_parts:
            part, parts = item[list_name][index], PART_LISTS[list_name]
            text = PART_TEXTS.get(part.get("type", ""))
            if text is not None and text.parts is parts and not fold.is_text_done(text, output_index, index):
                channel = Channel(text, item["id"], output_index, index)
                drafts.append(channel.end(part.get(text.field) or "", part.get("logprobs") or []))
            drafts.append(Draft(parts.done, {**place, parts.index_field: index, "part": part}))
        text = ITEM_TEXTS.get(item.get("type", ""))
        if text is not None and not fold.is_text_done(text, output_index):
            # The name before the arguments, as every version has written it.
            beside = {} if text.beside is None else {text.beside: item.get("name")}
            drafts.append(Draft(text.done, {**place, **beside, text.field: item.get(text.field) or ""}))
        drafts.append(end_item(output_index, {**item, "status": _CUT_OFF.get(item.get("type", ""), "incomplete")}))
    return drafts


def turn(output: list[Json]) -> list[Json]:
    """Return the output items that a conversation or chain keeps: all but unfinished calls."""
    kept: list[Json] = []
    for item in output:
        kind, status = str(item.get("type")), item.get("status")
        is_open = kind.endswith("_call") and status in _UNFINISHED
        if not (status not in _OVER if kind in ITEM_TEXTS else is_open):
            kept.append(item)
    return kept

"""Frames of a WebSocket: one JSON object each, the events as they are journaled, and errors beside them."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from outlive.core.errors import OutliveError
from outlive.core.events import Json
from outlive.core.requests.checks import check_id, refuse, refuse_missing, refuse_type
from outlive.http.errors import describe

_LANE = re.compile(r"[A-Za-z0-9_.-]{1,256}")


def event_text(payload: bytes, lane: str | None) -> str:
    """Render an event as its journal has it; on a named lane with that name added."""
    if lane is None:
        return payload.decode()
    return f'{payload[:-1].decode()},"stream_id":"{lane}"}}'


def error_text(error: OutliveError, lane: str | None) -> str:
    """Render an error that belongs to no response: the envelope of HTTP, with its status and headers inside."""
    status, envelope, headers = describe(error)
    if headers:
        envelope["error"]["headers"] = headers
    return _text({"type": "error", "status": status, **envelope}, lane)


def steer_failed_text(steer: Json, number: int, lane: str | None) -> str:
    """Render the answer to a steer: not supported here, with the input to send in a turn of its own."""
    error = {
        "type": "invalid_request_error",
        "code": "steering_not_supported",
        "message": "A running response cannot be steered here. Cancel it, or send this input when it has ended.",
    }
    return _text({"type": "response.steer.failed", "sequence_number": number, "steer": steer, "error": error}, lane)


def read_lane(body: Json) -> str | None:
    """Remove the lane's name from a create and return it; None is the lane without a name."""
    lane = body.pop("stream_id", None)
    if lane is None:
        return None
    if type(lane) is not str or _LANE.fullmatch(lane) is None:
        refuse(
            "'stream_id' must be 1 to 256 letters, digits, '_', '-' or '.'. Leave it out for the lane without a name.",
            "stream_id",
            "invalid_stream_id",
        )
    return lane


def read_steer(body: Json) -> Json:
    """Read a steer, refusing every other field."""
    for name in ("previous_response_id", "input"):
        if body.get(name) is None:
            refuse_missing(name)
    for name in body:
        if name not in ("previous_response_id", "input"):
            refuse(f"'{name}' is not a field of 'response.steer'.", name, "unknown_parameter")
    check_id(body["previous_response_id"], "previous_response_id")
    if type(body["input"]) not in (str, list):
        refuse_type(body["input"], "input", "a string or an array of messages")
    return body


def _text(event: dict[str, Any], lane: str | None) -> str:
    if lane is not None:
        event["stream_id"] = lane
    return msgspec.json.encode(event).decode()

"""Checks for every stream: its framing, the order of its events, and the official types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from outlive.core.events import Json
from tests.support import nesting

DONE = b"data: [DONE]\n\n"

_official: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def split(raw: bytes) -> list[bytes]:
    """Return the frames of a complete stream without comments and without `[DONE]`, which must be the last."""
    assert raw.endswith(b"\n\n")
    frames = [frame + b"\n\n" for frame in raw.split(b"\n\n")[:-1]]
    assert frames[-1] == DONE
    return [frame for frame in frames[:-1] if not frame.startswith(b":")]


def read(frame: bytes) -> Json:
    """Return the event in a frame, after a check of the framing (D11)."""
    first, second, *rest = frame.split(b"\n")
    assert rest == [b"", b""], frame
    assert first.startswith(b"event: ") and second.startswith(b"data: "), frame
    event: Json = json.loads(second.removeprefix(b"data: "))
    assert event["type"].encode() == first.removeprefix(b"event: ")
    return event


def read_all(raw: bytes) -> list[Json]:
    """Check a complete stream and return its events."""
    events = [read(frame) for frame in split(raw)]
    check(events)
    return events


def check(events: Sequence[Json], *, finished: bool = True) -> None:
    """Check the rules of streams and the official types, with the two exceptions that the decisions name."""
    nesting.check(events, finished=finished)
    for event in events:
        check_event(event)


def check_event(event: Json) -> None:
    if event["type"].startswith("outlive:"):
        # An extension of this server: clients may ignore it, and it is numbered like any other event.
        assert isinstance(event["sequence_number"], int)
        return
    if event["type"] == "response.cancelled":
        assert set(event) == {"type", "sequence_number", "response"}
        check_response(event["response"])
        return
    if event["type"] == "response.incomplete":
        check_response(event["response"])
        event = {**event, "response": _without_reason(event["response"])}
    parsed = _official.validate_python(event)
    assert parsed.type == event["type"]


def check_response(response: Json) -> None:
    """Check a Response object against the official types, and that no required field is missing."""
    Response.model_validate(_without_reason(response))
    missing = REQUIRED - set(response)
    assert not missing, missing


def _without_reason(response: Json) -> Json:
    details = response.get("incomplete_details")
    if details is not None and details["reason"] == "interrupted":
        return {**response, "incomplete_details": None}
    return response


def types(events: Sequence[Json]) -> list[str]:
    return [str(event["type"]).removeprefix("response.") for event in events]


def text_of(events: Sequence[Json]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


REQUIRED = frozenset(
    {
        "id", "object", "created_at", "status", "background", "completed_at", "error", "incomplete_details",
        "instructions", "max_output_tokens", "max_tool_calls", "model", "output", "parallel_tool_calls",
        "previous_response_id", "prompt_cache_key", "reasoning", "safety_identifier", "service_tier", "store",
        "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "usage", "user",
        "metadata", "presence_penalty", "frequency_penalty",
    }
)  # fmt: skip

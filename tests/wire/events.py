"""What every stream must be: frames as the wire has them, events in order, each one known to the official types."""

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
    """The frames of a whole stream without comments and without the `[DONE]`, which must be its last."""
    assert raw.endswith(b"\n\n")
    frames = [frame + b"\n\n" for frame in raw.split(b"\n\n")[:-1]]
    assert frames[-1] == DONE
    return [frame for frame in frames[:-1] if not frame.startswith(b":")]


def read(frame: bytes) -> Json:
    """The event in a frame, after a look at how it is framed (D11)."""
    first, second, *rest = frame.split(b"\n")
    assert rest == [b"", b""], frame
    assert first.startswith(b"event: ") and second.startswith(b"data: "), frame
    event: Json = json.loads(second.removeprefix(b"data: "))
    assert event["type"].encode() == first.removeprefix(b"event: ")
    return event


def read_all(raw: bytes) -> list[Json]:
    """The events of a whole stream, checked."""
    events = [read(frame) for frame in split(raw)]
    check(events)
    return events


def check(events: Sequence[Json], *, finished: bool = True) -> None:
    """Rules of the stream, and the official types; the two exceptions are those that the decisions name."""
    nesting.check(events, finished=finished)
    for event in events:
        check_event(event)


def check_event(event: Json) -> None:
    if event["type"].startswith("outlive:"):
        # An extension of ours: whoever does not know it can leave it out, but must be able to count it.
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
    """A Response object as the official types have it, with every field that the contract asks for."""
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

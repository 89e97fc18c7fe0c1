"""What is read of a message as a whole: its usage, and the events that one would have been that came in one piece."""

from __future__ import annotations

from typing import Any

import msgspec

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import Json
from outlive.core.recovery import OpenText
from outlive.core.requests.body import decode_body
from outlive.dialects.faults import read_fault


def read_usage(usage: Json, resume: OpenText | None) -> Json | None:
    """Usage in the shape of the Responses API, whose input counts what came from a cache or went into one."""
    if not usage:
        return None
    read, made = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
    given = _count(usage, "input_tokens") + read + made
    written = _count(usage, "output_tokens") + (resume.deltas if resume is not None else 0)
    thought = _count(usage.get("output_tokens_details"), "thinking_tokens")
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": read, "cache_write_tokens": made},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": given + written,
    }


def _count(counts: object, name: str) -> int:
    number = counts.get(name) if isinstance(counts, dict) else None
    return number if isinstance(number, int) else 0


def to_events(raw: bytes) -> list[bytes]:
    """The events that say what the message says. Raises UpstreamFault when it is an error, or no message."""
    try:
        message: Any = decode_body(raw)
    except InvalidRequest as error:
        raise UpstreamFault("The model's server answered with something that is not JSON.") from error
    if isinstance(message, dict) and message.get("error"):
        raise read_fault(message["error"])
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        raise UpstreamFault("The model's server answered with something that is not a message.")
    events: list[Json] = [{"type": "message_start", "message": {**message, "content": []}}]
    for index, block in enumerate(message["content"]):
        place = {"index": index}
        events.append({"type": "content_block_start", **place, "content_block": block})
        if isinstance(block, dict) and block.get("signature"):
            delta = {"type": "signature_delta", "signature": block["signature"]}
            events.append({"type": "content_block_delta", **place, "delta": delta})
        events.append({"type": "content_block_stop", **place})
    end = {"stop_reason": message.get("stop_reason") or "end_turn", "stop_details": message.get("stop_details")}
    events.append({"type": "message_delta", "delta": end})
    return [msgspec.json.encode(event) for event in events]

"""Parts of a message of Anthropic's API: a whole message as its events, and token counts."""

from __future__ import annotations

import msgspec

from outlive.core.events import Json
from outlive.core.recovery import OpenText
from outlive.dialects.faults import read_fault
from outlive.dialects.translator import decode_answer, make_usage, not_an_answer, read_count


def to_events(body: bytes) -> list[bytes]:
    """Make events of a message that came whole, although a stream was asked for. Raises UpstreamFault."""
    message = decode_answer(body, "a message")
    if message.get("error"):
        raise read_fault(message["error"])
    if not isinstance(message.get("content"), list):
        raise not_an_answer("a message")
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


def read_usage(usage: Json, resume: OpenText | None) -> Json | None:
    """Translate usage to the shape of the Responses API, whose input counts what a cache gave or took."""
    if not usage:
        return None
    read, made = read_count(usage, "cache_read_input_tokens"), read_count(usage, "cache_creation_input_tokens")
    return make_usage(
        resume,
        given=read_count(usage, "input_tokens") + read + made,
        written=read_count(usage, "output_tokens"),
        cached=read,
        cache_write=made,
        reasoning=read_count(usage.get("output_tokens_details"), "thinking_tokens"),
    )

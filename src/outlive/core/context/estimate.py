"""Estimates of token counts, for upstreams that cannot count.

Four bytes of UTF-8 count as a token: about right for most languages and tokenizers, and too much for some. Images and
files count by their kind.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse

BYTES_PER_TOKEN = 4
PER_ITEM = 4  # the tokens that a chat template puts around a message
PER_IMAGE = 1000
PER_IMAGE_LOW = 85
# For a file or a recording, in characters of base64; most of it is not text.
CHARACTERS_PER_TOKEN = 16

_encode = msgspec.json.Encoder().encode

# Fields that describe an item itself and are not for the model.
_ENVELOPE = frozenset({"id", "type", "status", "role", "call_id", "encrypted_content", "logprobs", "annotations"})


def estimate_request(request: CreateResponse, items: Iterable[Json]) -> int:
    """Estimate everything that the model would read."""
    total = sum(map(estimate_item, items)) + sum(map(_estimate_tool, request.tools))
    if request.instructions:
        total += PER_ITEM + _text(request.instructions)
    form = request.text.get("format") or {}
    return total + (_json(form["schema"]) if "schema" in form else 0)


def estimate_item(item: Json) -> int:
    return PER_ITEM + sum(_value(value) for name, value in item.items() if name not in _ENVELOPE)


def _estimate_tool(tool: Json) -> int:
    return PER_ITEM + _json({name: value for name, value in tool.items() if name not in ("type", "strict")})


def _value(value: object) -> int:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return sum(_part(part) if isinstance(part, dict) else _value(part) for part in value)
    return 0 if value is None else _part(value) if isinstance(value, dict) else _json(value)


def _part(part: Json) -> int:
    if "image_url" in part or part.get("type") == "input_image":
        return PER_IMAGE_LOW if part.get("detail") == "low" else PER_IMAGE
    data = part.get("file_data") or part.get("video_url")
    if data is None and isinstance(part.get("input_audio"), dict):
        data = part["input_audio"].get("data")
    if isinstance(data, str):
        return PER_ITEM + len(data) // CHARACTERS_PER_TOKEN
    text = part.get("text")
    return _text(text) if isinstance(text, str) else _json({k: v for k, v in part.items() if k not in _ENVELOPE})


def _text(text: str) -> int:
    length = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return -(-length // BYTES_PER_TOKEN)


def _json(value: object) -> int:
    return -(-len(_encode(value)) // BYTES_PER_TOKEN)

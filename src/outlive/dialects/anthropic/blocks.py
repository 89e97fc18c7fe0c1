"""Content blocks of Anthropic's API: parts of messages and of outputs, and thoughts that can be sent back.

A thought is kept as a reasoning item whose `encrypted_content` is its seal: the kind of block, and the data that the
API must get back unchanged. Its prefix distinguishes it from the seals of other vendors, whose items may stand in the
same history.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.dialects.request import TEXT_PARTS, read_image_url, read_parts, refuse_file_id

# Prefixes of a seal; the API's data follows.
SIGNATURE, REDACTED = "anthropic:signature:", "anthropic:redacted:"

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*?(;base64)?,", re.I)
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_PDF = "application/pdf"
_TEXT_ENDINGS = (".txt", ".md", ".csv", ".json", ".xml", ".html", ".yaml", ".yml", ".toml", ".py", ".js", ".ts", ".log")
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/yaml", "application/x-yaml")
_LONG = frozenset({"1h", "12h", "24h", "30m"})  # longer than the default, five minutes


def open_seal(item: Json) -> Json | None:
    """Return the block that a reasoning item was made of; None when it was made elsewhere, or was never finished."""
    seal = item.get("encrypted_content")
    if not isinstance(seal, str):
        return None
    if seal.startswith(REDACTED):
        return {"type": "redacted_thinking", "data": seal.removeprefix(REDACTED)}
    if not seal.startswith(SIGNATURE):
        return None
    summary = item.get("summary")
    parts = [part for part in summary if isinstance(part, dict)] if isinstance(summary, list) else []
    thought = "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    return {"type": "thinking", "thinking": thought, "signature": seal.removeprefix(SIGNATURE)}


def read_blocks(content: object, field: str = "content", *, strict: bool = False) -> list[Json]:
    """Translate content to blocks. Blank blocks, which the API refuses, are left out. Raises InvalidRequest for a part
    that there is no block for; unless `strict`, a text stands for it."""
    return [
        _mark(block, part)
        for part, block in read_parts(content, field, PARTS, strict=strict)
        if block["type"] != "text" or block["text"].strip()
    ]


def render_cache(ttl: object) -> Json:
    return {"type": "ephemeral", "ttl": "1h"} if ttl in _LONG else {"type": "ephemeral"}


def _mark(block: Json, part: Json) -> Json:
    mark = part.get("prompt_cache_breakpoint")
    return {**block, "cache_control": render_cache(mark.get("ttl"))} if isinstance(mark, dict) else block


def _read_image(part: Json) -> Json:
    url = read_image_url(part)
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    kind, data = _open_data_url(url)
    kind = "image/jpeg" if kind == "image/jpg" else kind
    if kind not in _IMAGES or data is None:
        raise InvalidRequest(
            "An image in a data URL must be JPEG, PNG, GIF or WebP, in base64, for this model's server.",
            param="image_url",
        )
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def _read_file(part: Json) -> Json:
    refuse_file_id(part)
    name = part.get("filename")
    title = {"title": name} if isinstance(name, str) and name else {}
    if part.get("file_url") and not part.get("file_data"):
        return {"type": "document", "source": {"type": "url", "url": part["file_url"]}, **title}
    return {"type": "document", "source": _read_source(str(part.get("file_data")), str(name or "")), **title}


def _read_source(given: str, name: str) -> Json:
    kind, data = _open_data_url(given) if given.startswith("data:") else (None, given)
    if data is not None and (kind == _PDF or (kind is None and data.startswith("JVBERi0"))):  # "%PDF-" in base64
        return {"type": "base64", "media_type": _PDF, "data": data}
    if (kind is not None and kind.startswith(_TEXT_TYPES)) or name.lower().endswith(_TEXT_ENDINGS):
        text = _decode_text(data)
        if text is not None:
            return {"type": "text", "media_type": "text/plain", "data": text}
    raise InvalidRequest("A file must be a PDF or text, as base64, for this model's server.", param="file_data")


def _open_data_url(url: str) -> tuple[str | None, str | None]:
    """Return the media type and the base64 of a data URL, each None where there is none."""
    match = _DATA_URL.match(url)
    if match is None or not match[2]:
        return None, None
    return (match[1] or "").lower() or None, url[match.end() :]


def _decode_text(data: str | None) -> str | None:
    try:
        return base64.b64decode(data or "", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


PARTS: dict[str, Callable[[Json], Json]] = {
    **TEXT_PARTS,
    "input_image": _read_image,
    "computer_screenshot": _read_image,
    "input_file": _read_file,
}

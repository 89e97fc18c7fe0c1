"""A chat completion that came whole, although a stream was asked for, as the one chunk that it would have been."""

from __future__ import annotations

from typing import Any

import msgspec

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.recovery import OpenText
from outlive.core.requests.body import decode_body
from outlive.dialects.faults import read_fault


def to_chunk(completion: bytes, resume: OpenText | None) -> bytes:
    """The chunk that says what the completion says. Raises UpstreamFault when it is an error, or no completion."""
    try:
        whole: Any = decode_body(completion)
    except InvalidRequest as error:
        raise UpstreamFault("The model's server answered with something that is not JSON.") from error
    if isinstance(whole, dict) and whole.get("error"):
        raise read_fault(whole["error"])
    try:
        choice = whole["choices"][0]
        message = choice["message"]
    except (LookupError, TypeError) as error:
        raise UpstreamFault("The model's server answered with something that is not a chat completion.") from error
    if resume is not None and isinstance(message.get("content"), str):
        # Where a stream has only what comes after the text so far, a whole answer repeats it.
        message = {**message, "content": message["content"].removeprefix(resume.text)}
    chunk = {**whole, "choices": [{**choice, "delta": message, "finish_reason": choice.get("finish_reason") or "stop"}]}
    return msgspec.json.encode(chunk)

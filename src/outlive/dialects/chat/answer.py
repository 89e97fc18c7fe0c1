"""Parts of a Chat Completions answer: a whole answer as one chunk, token counts, log probabilities."""

from __future__ import annotations

from typing import Any

import msgspec

from outlive.core.events import Json
from outlive.core.recovery import OpenText
from outlive.dialects.faults import read_fault
from outlive.dialects.translator import decode_answer, make_usage, not_an_answer, read_count


def to_chunk(body: bytes, resume: OpenText | None) -> bytes:
    """Make one chunk of an answer that came whole, although a stream was asked for. Raises UpstreamFault."""
    answer = decode_answer(body, "a chat completion")
    if answer.get("error"):
        raise read_fault(answer["error"])
    try:
        choice = answer["choices"][0]
        message = choice["message"]
    except (LookupError, TypeError) as error:
        raise not_an_answer("a chat completion") from error
    if resume is not None and isinstance(message.get("content"), str):
        # Where a stream has only what comes after the text so far, a whole answer repeats it.
        message = {**message, "content": message["content"].removeprefix(resume.text)}
    delta = {**choice, "delta": message, "finish_reason": choice.get("finish_reason") or "stop"}
    return msgspec.json.encode({**answer, "choices": [delta]})


def read_usage(usage: Json | None, resume: OpenText | None) -> Json | None:
    """Translate usage to the shape of the Responses API."""
    if usage is None:
        return None
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return make_usage(
        resume,
        given=read_count(usage, "prompt_tokens"),
        written=read_count(usage, "completion_tokens"),
        cached=read_count(prompt, "cached_tokens") or read_count(usage, "prompt_cache_hit_tokens"),  # DeepSeek's
        cache_write=read_count(prompt, "cache_write_tokens"),
        reasoning=read_count(completion, "reasoning_tokens"),
    )


def read_logprobs(logprobs: object) -> list[Json]:
    """Translate a choice's log probabilities, with every field that a finished part must have."""
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(entries, list):
        return []
    return [
        _entry(entry) | {"top_logprobs": [_entry(other) for other in entry.get("top_logprobs") or ()]}
        for entry in entries
    ]


def _entry(entry: Any) -> Json:
    token = str(entry.get("token", ""))
    spelled = entry.get("bytes")
    return {
        "token": token,
        "bytes": list(token.encode()) if spelled is None else spelled,
        "logprob": entry.get("logprob", 0.0),
    }

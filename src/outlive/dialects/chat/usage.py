"""The numbers in a Chat Completions answer: tokens used, and log probabilities."""

from __future__ import annotations

from typing import Any

from outlive.core.events import Json
from outlive.core.recovery import OpenText


def read_usage(usage: Json | None, resume: OpenText | None) -> Json | None:
    """Usage in the shape of the Responses API; what an earlier attempt wrote is counted too."""
    if usage is None:
        return None
    given = _count(usage, "prompt_tokens")
    written = _count(usage, "completion_tokens") + (resume.deltas if resume is not None else 0)
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    cached = _count(prompt, "cached_tokens") or _count(usage, "prompt_cache_hit_tokens")  # the latter is DeepSeek's
    return {
        "input_tokens": given,
        "input_tokens_details": {
            "cached_tokens": cached,
            "cache_write_tokens": _count(prompt, "cache_write_tokens"),
        },
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": _count(completion, "reasoning_tokens")},
        "total_tokens": given + written,
    }


def read_logprobs(logprobs: object) -> list[Json]:
    """A choice's log probabilities, with everything that a finished part has to have."""
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


def _count(counts: object, name: str) -> int:
    number = counts.get(name) if isinstance(counts, dict) else None
    return number if isinstance(number, int) else 0

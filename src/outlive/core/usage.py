"""Token counts in the shape of the Responses API, and their sums."""

from __future__ import annotations

from outlive.core.events import Json
from outlive.core.recovery import OpenText


def make_usage(
    resume: OpenText | None, *, given: int, written: int, cached: int, cache_write: int, reasoning: int
) -> Json:
    """Make the usage object of the Responses API; what an earlier attempt wrote is counted, too."""
    written += resume.deltas if resume is not None else 0
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": cache_write},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": given + written,
    }


# The usage of a response that did not ask a model.
NOTHING_USED = make_usage(None, given=0, written=0, cached=0, cache_write=0, reasoning=0)


def add_usage(one: Json | None, other: Json | None) -> Json | None:
    """Add two usages; a count that one of them lacks is 0."""
    if one is None or other is None:
        return other if one is None else one
    total: Json = {}
    for name in {**one, **other}:
        left, right = one.get(name), other.get(name)
        if isinstance(left, dict) or isinstance(right, dict):
            total[name] = add_usage(left, right)
        else:
            total[name] = (left or 0) + (right or 0)
    return total

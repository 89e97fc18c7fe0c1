"""Token counts in the shape of the Responses API, and their sums."""

from __future__ import annotations

from outlive.core.events import Json

# The usage of a response that did not ask a model.
NOTHING_USED: Json = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


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

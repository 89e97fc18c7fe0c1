"""Token counts add up over the steps of a response."""

from __future__ import annotations

from outlive.core.events import Json
from outlive.core.usage import add_usage

ONE: Json = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 1}, "output_tokens": 2, "total_tokens": 7}


def test_counts_add_up_field_by_field() -> None:
    assert add_usage(ONE, ONE) == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 4,
        "total_tokens": 14,
    }


def test_missing_counts_are_zero() -> None:
    assert add_usage(None, ONE) == add_usage(ONE, None) == ONE
    assert add_usage(None, None) is None
    assert add_usage({"input_tokens": 1}, {"output_tokens": None}) == {"input_tokens": 1, "output_tokens": 0}

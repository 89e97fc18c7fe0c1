"""Token counts add up over the steps of a response."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from outlive.core.events import Json
from outlive.core.usage import MOST_TOKENS, add_usage, count_tokens

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


ODD = st.one_of(st.integers(-3, 99), st.just(MOST_TOKENS + 1), st.none(), st.text(max_size=1), st.booleans())
DETAILS = st.one_of(ODD, st.dictionaries(st.sampled_from(["cached_tokens", "reasoning_tokens"]), ODD))
USAGES = st.fixed_dictionaries(
    {},
    optional={
        "input_tokens": ODD, "output_tokens": ODD, "input_tokens_details": DETAILS, "output_tokens_details": DETAILS,
    },
)  # fmt: skip
ESTIMATES = st.tuples(st.integers(0, 99), st.integers(0, 99))


@given(st.one_of(st.none(), USAGES), ESTIMATES)
def test_a_usage_that_is_shown_as_reported_counts_like_one_that_is_equal(
    usage: Json | None, estimated: tuple[int, int]
) -> None:
    assert count_tokens(usage, usage, estimated) == count_tokens(copy.copy(usage), usage, estimated)

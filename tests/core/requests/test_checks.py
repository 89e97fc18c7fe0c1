"""Every check gives back what it was given, or names the field that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from outlive.core.errors import InvalidRequest
from outlive.core.requests.checks import (
    MAX_INTEGER,
    check_bool,
    check_depth,
    check_enum,
    check_id,
    check_int,
    check_list,
    check_name,
    check_number,
    check_object,
    check_str,
    listing,
    shorten,
)

CHECKS: dict[str, tuple[Callable[[Any, str], object], list[Any], list[tuple[Any, str]]]] = {
    "bool": (check_bool, [True, False], [(1, "invalid_type"), ("true", "invalid_type"), (None, "invalid_type")]),
    "str": (
        partial(check_str, least=1, most=3),
        ["a", "abc"],
        [(1, "invalid_type"), ("", "string_below_min_length"), ("abcd", "string_above_max_length")],
    ),
    "int": (
        partial(check_int, least=1),
        [1, MAX_INTEGER],
        [
            (True, "invalid_type"),
            (1.0, "invalid_type"),
            (0, "integer_below_min_value"),
            (MAX_INTEGER + 1, "integer_above_max_value"),
        ],
    ),
    "number": (
        partial(check_number, least=0, most=2),
        [0, 1.5, 2],
        [(False, "invalid_type"), (-0.1, "decimal_below_min_value"), (2.1, "decimal_above_max_value")],
    ),
    "enum": (partial(check_enum, values=("a", "b")), ["a"], [("c", "invalid_value"), (1, "invalid_type")]),
    "object": (check_object, [{}, {"a": 1}], [([], "invalid_type"), (None, "invalid_type")]),
    "list": (partial(check_list, most=1), [[], [1]], [({}, "invalid_type"), ([1, 2], "array_above_max_length")]),
    "id": (check_id, ["resp_1", "a-B_9"], [("", "invalid_value"), ("a b", "invalid_value"), (1, "invalid_type")]),
    "name": (
        partial(check_name, most=4),
        ["ab_1"],
        [("a.b", "invalid_value"), ("", "string_below_min_length"), ("abcde", "string_above_max_length")],
    ),
}


@pytest.mark.parametrize(("check", "value"), [(check, value) for check, good, _ in CHECKS.values() for value in good])
def test_a_good_value_is_given_back(check: Callable[[Any, str], object], value: object) -> None:
    assert check(value, "field") == value


@pytest.mark.parametrize(
    ("check", "value", "code"), [(check, value, code) for check, _, bad in CHECKS.values() for value, code in bad]
)
def test_a_bad_value_is_refused_by_the_path_of_its_field(
    check: Callable[[Any, str], object], value: object, code: str
) -> None:
    with pytest.raises(InvalidRequest, match=r"input\[3\]\.x") as caught:
        check(value, "input[3].x")
    assert (caught.value.param, caught.value.code) == ("input[3].x", code)


def test_depth_is_measured_without_recursion() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="100 levels"):
        check_depth(deep, "x", 100)


def test_depth_counts_levels() -> None:
    check_depth({"a": [1, {"b": 2}]}, "x", 3)
    with pytest.raises(InvalidRequest):
        check_depth({"a": [1, {"b": 2}]}, "x", 2)


def test_a_refused_value_is_not_repeated_at_length() -> None:
    assert shorten("x" * 60) == "x" * 60
    assert len(shorten("x" * 1000)) < 70
    assert listing(["a", "b"]) == "'a', 'b'"

"""Every type makes a check that gives back what it was given, or names the field that is wrong."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import UNSET, Meta, Struct, field

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import (
    MAX_INTEGER,
    REFERRED,
    Given,
    Id,
    Limits,
    Text,
    WrongField,
    check_conversation_id,
    check_depth,
    check_enum,
    check_response_id,
    check_value,
    drop_nulls,
    make_check,
    name_of,
    one_of,
    refuse_missing,
    refuse_type,
    refuse_unsupported,
    shaped,
    shorten,
    some,
)

LIMITS = Limits(max_text=5, max_tools=2)

TYPES: dict[str, tuple[Any, list[Any], list[tuple[Any, str]]]] = {
    "bool": (bool, [True, False], [(1, "invalid_type"), ("true", "invalid_type"), (None, "invalid_type")]),
    "str": (
        Annotated[str, Meta(min_length=1, max_length=3)],
        ["a", "abc"],
        [(1, "invalid_type"), ("", "string_below_min_length"), ("abcd", "string_above_max_length")],
    ),
    "text": (Text, ["", "fives"], [(1, "invalid_type"), ("longer", "string_above_max_length")]),
    "int": (
        Annotated[int, Meta(ge=1)],
        [1, MAX_INTEGER],
        [
            (True, "invalid_type"),
            (1.0, "invalid_type"),
            (0, "integer_below_min_value"),
            (MAX_INTEGER + 1, "integer_above_max_value"),
        ],
    ),
    "number": (
        Annotated[float, Meta(ge=0, le=2)],
        [0, 1.5, 2],
        [(False, "invalid_type"), (-0.1, "decimal_below_min_value"), (2.1, "decimal_above_max_value")],
    ),
    "enum": (Literal["a", "b"], ["a"], [("c", "invalid_value"), (1, "invalid_type"), ([], "invalid_type")]),
    "object": (dict[str, Any], [{}, {"a": 1}], [([], "invalid_type"), (None, "invalid_type")]),
    "list": (
        Annotated[list[Any], Meta(max_length=1)],
        [[], [1]],
        [({}, "invalid_type"), ([1, 2], "array_above_max_length")],
    ),
    "limited list": (
        Annotated[list[Any], some("tools", "max_tools")],
        [[1, 2]],
        [([1, 2, 3], "array_above_max_length")],
    ),
    "id": (Id, ["resp_1", "a-B_9"], [("", "invalid_value"), ("a b", "invalid_value"), (1, "invalid_type")]),
    "name": (
        Annotated[str, name_of(4)],
        ["ab_1"],
        [("a.b", "invalid_value"), ("", "string_below_min_length"), ("abcde", "string_above_max_length")],
    ),
    "union": (str | list[Any], ["a", [1]], [(1, "invalid_type"), ({}, "invalid_type")]),
    "null": (int | None, [1], [("a", "invalid_type")]),
}


class Plain(Struct):
    type: Literal["plain", "simple"]
    size: Annotated[int, Meta(ge=1)]
    note: Given[str] = UNSET
    colour: Literal["red", "blue"] = "red"
    marks: list[str] = []


class Ruled(Struct):
    type: Literal["ruled"]
    name: str
    lines: Json = field(default_factory=lambda: {"count": 1})

    @staticmethod
    def hint(value: Json) -> str:
        return " Look again."

    @staticmethod
    def complete(value: Json) -> None:
        drop_nulls(value)
        if value["name"] == "none":
            refuse_unsupported(".name", "it is none.")


class Other(Struct):
    type: str


KNOWN = Annotated[Json, one_of(Plain, Ruled)]
ANY = Annotated[Json, one_of(Plain, other=Other)]
RULED = Annotated[Json, shaped(Ruled)]
# /openapi.json describes every shape that is referred to; these are not for it.
REFERRED[:] = [shape for shape in REFERRED if shape not in (Plain, Ruled, Other)]


@pytest.mark.parametrize(
    ("described", "value"), [(described, value) for described, good, _ in TYPES.values() for value in good]
)
def test_a_good_value_is_given_back(described: Any, value: object) -> None:
    assert make_check(described)(value, LIMITS) == value


@pytest.mark.parametrize(
    ("described", "value", "code"),
    [(described, value, code) for described, _, bad in TYPES.values() for value, code in bad],
)
def test_a_bad_value_is_refused_by_the_path_of_its_field(described: Any, value: object, code: str) -> None:
    with pytest.raises(InvalidRequest, match=r"'input\[3\]\.x' ") as caught:
        check_value(make_check(described), value, "input[3].x", LIMITS)
    assert (caught.value.param, caught.value.code) == ("input[3].x", code)


def test_a_number_becomes_a_float() -> None:
    assert type(make_check(Annotated[float, Meta(ge=0, le=2)])(1, LIMITS)) is float


def test_an_object_is_completed_and_the_given_one_is_not_changed() -> None:
    given = {"type": "plain", "size": 1, "colour": None, "vendor": [1]}
    kept = make_check(KNOWN)(given, LIMITS)
    assert kept == {"type": "plain", "size": 1, "colour": "red", "vendor": [1], "marks": []}
    assert given == {"type": "plain", "size": 1, "colour": None, "vendor": [1]}
    assert make_check(KNOWN)(given, LIMITS)["marks"] is not kept["marks"]


def test_a_shape_may_have_rules_of_its_own() -> None:
    check = make_check(RULED)
    assert check({"name": "x", "vendor": None}, LIMITS) == {"name": "x", "lines": {"count": 1}}
    with pytest.raises(InvalidRequest, match=r"'x\.name' is not supported by this server: it is none\."):
        check_value(check, {"name": "none"}, "x")
    with pytest.raises(InvalidRequest, match=r"'x\.name' is required\. Look again\."):
        check_value(check, {"name": None}, "x")


@pytest.mark.parametrize(
    ("described", "value", "param", "code"),
    [
        (KNOWN, 1, "x", "invalid_type"),
        (KNOWN, {}, "x.type", "missing_required_parameter"),
        (KNOWN, {"type": []}, "x.type", "invalid_type"),
        (KNOWN, {"type": "round"}, "x.type", "invalid_value"),
        (KNOWN, {"type": "simple"}, "x.size", "missing_required_parameter"),
        (KNOWN, {"type": "plain", "size": 0}, "x.size", "integer_below_min_value"),
        (KNOWN, {"type": "plain", "size": 1, "note": 1}, "x.note", "invalid_type"),
        (KNOWN, {"type": "plain", "size": 1, "marks": ["a", 1]}, "x.marks[1]", "invalid_type"),
        (ANY, {"type": 1}, "x.type", "invalid_type"),
        (list[KNOWN], [{"type": "plain", "size": 1}, {"type": "ruled"}], "x[1].name", "missing_required_parameter"),
        (dict[str, int], {"a": 1, "b": "c"}, "x.b", "invalid_type"),
    ],
)
def test_a_wrong_field_inside_is_refused_by_its_whole_path(described: Any, value: Any, param: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_value(make_check(described), value, "x")
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.message.startswith(f"'{param}' ")


def test_an_unknown_kind_is_checked_by_the_shape_for_the_others() -> None:
    assert make_check(ANY)({"type": "round", "a": None}, LIMITS) == {"type": "round", "a": None}


def test_depth_is_measured_without_recursion() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match="100 levels"):
        check_depth(deep, 100)


def test_depth_counts_levels() -> None:
    check_depth({"a": [1, {"b": 2}]}, 3)
    with pytest.raises(InvalidRequest):
        check_depth({"a": [1, {"b": 2}]}, 2)


def test_a_path_grows_from_the_inside_out() -> None:
    wrong = WrongField("is wrong.", ".text", "some_code").under("[3]").under("input")
    assert (wrong.param, wrong.code, wrong.message) == ("input[3].text", "some_code", "'input[3].text' is wrong.")


def test_refusals_name_the_field_and_the_reason() -> None:
    with pytest.raises(InvalidRequest, match=r"'a' must be a string, not null\."):
        refuse_type(None, "a", "a string")
    with pytest.raises(InvalidRequest, match=r"'a' is required\. Try b\."):
        refuse_missing("a", " Try b.")
    with pytest.raises(InvalidRequest, match=r"'a' cannot be 'c'; it can be 'a', 'b'\."):
        check_enum("c", "a", ["a", "b"])


def test_an_id_can_be_checked_alone() -> None:
    assert check_response_id("resp_1", "id") == "resp_1"
    with pytest.raises(InvalidRequest, match="'id' is not an id"):
        check_response_id("resp no id", "id")


def test_an_id_of_another_kind_is_refused_in_openais_words() -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_conversation_id("wa_10", "conversation")
    assert refused.value.message == "Invalid 'conversation': 'wa_10'. Expected an ID that begins with 'conv'."
    assert (refused.value.param, refused.value.code) == ("conversation", "invalid_value")
    with pytest.raises(InvalidRequest, match=r"^Invalid 'a': '{}'\. Expected an ID that begins with 'resp'\.$"):
        check_response_id("{}", "a")


def test_a_refused_value_is_not_repeated_at_length() -> None:
    assert shorten("x" * 60) == "x" * 60
    assert len(shorten("x" * 1000)) < 70


def test_limits_have_defaults() -> None:
    assert Limits() == Limits(max_items=10_000, max_depth=100, max_text=10_485_760, max_tools=512)


def test_limits_cannot_be_changed_while_the_server_runs() -> None:
    with pytest.raises(AttributeError):
        Limits().max_items = 1  # type: ignore[misc]


def test_limits_can_be_read_from_settings() -> None:
    assert msgspec.convert({"max_items": 5}, Limits) == Limits(max_items=5)

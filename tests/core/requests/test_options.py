"""Options with a structure of their own: kept when they can be honoured, refused by name when they cannot."""

from __future__ import annotations

from typing import get_args

import pytest

from outlive.core.errors import InvalidRequest
from outlive.core.requests.checks import Limits
from outlive.core.requests.create import Includable, parse_create, parse_metadata
from tests.support.scripting import CountingIds

GOOD: list[tuple[str, object, object]] = [
    ("metadata", None, {}),
    ("metadata", {"k" * 64: "v" * 512}, {"k" * 64: "v" * 512}),
    ("include", ["reasoning.encrypted_content"], ["reasoning.encrypted_content"]),
    ("conversation", "conv_1", "conv_1"),
    ("conversation", {"id": "conv_1"}, "conv_1"),
    ("text", {"format": None, "verbosity": "low"}, {"verbosity": "low"}),
    ("text", {"format": {"type": "json_object"}}, {"format": {"type": "json_object"}}),
    (
        "text",
        {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        {"format": {"type": "json_schema", "description": None, "name": "n", "schema": {}, "strict": False}},
    ),
    ("reasoning", {"effort": "low", "summary": None}, {"effort": "low", "summary": None}),
    ("prompt_cache_options", {"mode": "implicit", "ttl": "30m"}, {"mode": "implicit", "ttl": "30m"}),
    ("stream_options", {"include_obfuscation": False}, None),
    ("truncation", "disabled", "disabled"),
    ("truncation", "auto", "auto"),
    ("context_management", [], None),
    ("context_management", [{"type": "compaction"}], 0),
    ("context_management", [{"type": "compaction", "compact_threshold": 1000}], 1000),
    ("image", {"context_compression": "auto"}, None),
]

BAD: list[tuple[str, object, str, str]] = [
    ("metadata", {str(n): "" for n in range(17)}, "", "object_above_max_properties"),
    ("metadata", {"a": 1}, ".a", "invalid_type"),
    ("metadata", {"a": "v" * 513}, ".a", "string_above_max_length"),
    ("metadata", {"k" * 65: ""}, f".{'k' * 60}...", "string_above_max_length"),
    ("include", ["everything"], "[0]", "invalid_value"),
    ("conversation", {}, ".id", "missing_required_parameter"),
    ("conversation", 7, "", "invalid_type"),
    ("conversation", "no id", "", "invalid_value"),
    ("text", {"verbosity": "loud"}, ".verbosity", "invalid_value"),
    ("text", {"format": {}}, ".format.type", "missing_required_parameter"),
    ("text", {"format": {"type": "json_schema"}}, ".format.name", "missing_required_parameter"),
    ("reasoning", {"effort": "some"}, ".effort", "invalid_value"),
    ("prompt_cache_options", {"prewarm": "yes"}, ".prewarm", "invalid_type"),
    ("truncation", "some", "", "invalid_value"),
    ("context_management", {}, "", "invalid_type"),
    ("context_management", [3], "[0]", "invalid_type"),
    ("context_management", [{}], "[0].type", "missing_required_parameter"),
    ("context_management", [{"type": "pruning"}], "[0].type", "unsupported_parameter"),
    (
        "context_management",
        [{"type": "compaction", "compact_threshold": 999}],
        "[0].compact_threshold",
        "integer_below_min_value",
    ),
    ("prompt", {"id": "p"}, "", "unsupported_parameter"),
    ("moderation", {}, "", "unsupported_parameter"),
    ("multi_agent", {}, "", "unsupported_parameter"),
    ("image", {"context_compression": "enabled"}, ".context_compression", "unsupported_parameter"),
]


@pytest.mark.parametrize(("name", "value", "kept"), GOOD)
def test_an_option_that_can_be_honoured_is_kept(name: str, value: object, kept: object) -> None:
    request = parse_create({"model": "m", "input": "Hi", name: value}, CountingIds(), Limits())
    assert getattr(request, name, None) == kept
    assert request.extra == {}


@pytest.mark.parametrize(("name", "value", "path", "code"), BAD)
def test_an_option_that_cannot_be_honoured_is_refused_by_its_path(
    name: str, value: object, path: str, code: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_create({"model": "m", "input": "Hi", name: value}, CountingIds(), Limits())
    assert (caught.value.param, caught.value.code) == (name + path, code)


def test_metadata_can_be_parsed_alone() -> None:
    assert parse_metadata(None) == {}
    assert parse_metadata({"a": "b"}) == {"a": "b"}
    with pytest.raises(InvalidRequest) as caught:
        parse_metadata({"a": 1})
    assert caught.value.param == "metadata.a"


def test_includable_values_are_those_of_the_reference() -> None:
    assert len(get_args(Includable)) == 8
    assert "reasoning.encrypted_content" in get_args(Includable)

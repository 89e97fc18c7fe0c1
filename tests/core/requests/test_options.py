"""Options with a structure of their own: kept when they can be honoured, refused by name when they cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outlive.core.errors import InvalidRequest
from outlive.core.requests import options

GOOD: list[tuple[Callable[[Any, str], object], object, object]] = [
    (options.parse_metadata, None, {}),
    (options.parse_metadata, {"k" * 64: "v" * 512}, {"k" * 64: "v" * 512}),
    (options.parse_include, ["reasoning.encrypted_content"], ["reasoning.encrypted_content"]),
    (options.parse_conversation, "conv_1", "conv_1"),
    (options.parse_conversation, {"id": "conv_1"}, "conv_1"),
    (options.parse_text, {"format": None, "verbosity": "low"}, {"verbosity": "low"}),
    (options.parse_text, {"format": {"type": "json_object"}}, {"format": {"type": "json_object"}}),
    (
        options.parse_text,
        {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        {"format": {"type": "json_schema", "description": None, "name": "n", "schema": {}, "strict": False}},
    ),
    (options.parse_reasoning, {"effort": "low", "summary": None}, {"effort": "low", "summary": None}),
    (options.parse_cache_options, {"mode": "implicit", "ttl": "30m"}, {"mode": "implicit", "ttl": "30m"}),
    (options.parse_stream_options, {"include_obfuscation": False}, {"include_obfuscation": False}),
    (options.parse_truncation, "disabled", "disabled"),
    (options.parse_truncation, "auto", "auto"),
    (options.parse_context_management, [], None),
    (options.parse_context_management, [{"type": "compaction"}], 0),
    (options.parse_context_management, [{"type": "compaction", "compact_threshold": 1000}], 1000),
    (options.refuse_compression, {"context_compression": "auto"}, None),
]

BAD: list[tuple[Callable[[Any, str], object], object, str, str]] = [
    (options.parse_metadata, {str(n): "" for n in range(17)}, "o", "object_above_max_properties"),
    (options.parse_metadata, {"a": 1}, "o.a", "invalid_type"),
    (options.parse_metadata, {"a": "v" * 513}, "o.a", "string_above_max_length"),
    (options.parse_metadata, {"k" * 65: ""}, f"o.{'k' * 60}...", "string_above_max_length"),
    (options.parse_include, ["everything"], "o[0]", "invalid_value"),
    (options.parse_conversation, {}, "o.id", "missing_required_parameter"),
    (options.parse_conversation, 7, "o", "invalid_type"),
    (options.parse_conversation, "no id", "o", "invalid_value"),
    (options.parse_text, {"verbosity": "loud"}, "o.verbosity", "invalid_value"),
    (options.parse_text, {"format": {}}, "o.format.type", "missing_required_parameter"),
    (options.parse_text, {"format": {"type": "json_schema"}}, "o.format.name", "missing_required_parameter"),
    (options.parse_reasoning, {"effort": "some"}, "o.effort", "invalid_value"),
    (options.parse_cache_options, {"prewarm": "yes"}, "o.prewarm", "invalid_type"),
    (options.parse_truncation, "some", "o", "invalid_value"),
    (options.parse_context_management, {}, "o", "invalid_type"),
    (options.parse_context_management, [3], "o[0]", "invalid_type"),
    (options.parse_context_management, [{}], "o[0].type", "missing_required_parameter"),
    (options.parse_context_management, [{"type": "pruning"}], "o[0].type", "unsupported_parameter"),
    (
        options.parse_context_management,
        [{"type": "compaction", "compact_threshold": 999}],
        "o[0].compact_threshold",
        "integer_below_min_value",
    ),
    (options.refuse_prompt, {"id": "p"}, "o", "unsupported_parameter"),
    (options.refuse_moderation, {}, "o", "unsupported_parameter"),
    (options.refuse_agents, {}, "o", "unsupported_parameter"),
    (options.refuse_compression, {"context_compression": "enabled"}, "o.context_compression", "unsupported_parameter"),
]


@pytest.mark.parametrize(("parse", "value", "kept"), GOOD)
def test_what_can_be_honoured_is_kept(parse: Callable[[Any, str], object], value: object, kept: object) -> None:
    assert parse(value, "o") == kept


@pytest.mark.parametrize(("parse", "value", "param", "code"), BAD)
def test_what_cannot_be_honoured_is_refused_by_name(
    parse: Callable[[Any, str], object], value: object, param: str, code: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(value, "o")
    assert (caught.value.param, caught.value.code) == (param, code)

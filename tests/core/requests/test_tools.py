"""Tools, those of MCP servers among them, and the choice among all of them."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import Limits, check_value, make_check
from outlive.core.requests.create import header, pack, parse_create, unpack
from outlive.core.requests.tools import (
    Tools,
    allows,
    needs_approval,
    pack_secrets,
    purpose_of,
    split_secrets,
    unpack_secrets,
)
from tests.support.scripting import CountingIds

LIMITS = Limits()
check_tools = make_check(Tools)


def parse_tools(tools: Any, limits: Limits) -> list[Json]:
    return list(check_value(check_tools, tools, "tools", limits))


def parse_tool_choice(choice: Any, tools: list[Json]) -> Any:
    body = {"model": "m", "input": "Hi", "tools": tools, "tool_choice": choice}
    return parse_create(body, CountingIds(), LIMITS).tool_choice


TOOLS = parse_tools([{"type": "function", "name": "f"}, {"type": "custom", "name": "c"}], LIMITS)


def refusal(tools: Any, limits: Limits = LIMITS) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_tools(tools, limits)
    return caught.value


def test_a_function_tool_is_echoed_with_its_defaults():
    assert TOOLS[0] == {"type": "function", "name": "f", "description": None, "parameters": None, "strict": False}


def test_a_custom_tool_is_echoed_with_its_defaults():
    assert TOOLS[1] == {"type": "custom", "name": "c", "description": None, "format": {"type": "text"}}


def test_given_fields_of_tools_are_kept_unknown_ones_too():
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
    function = {
        "type": "function",
        "name": "f",
        "description": "d",
        "parameters": {"type": "object"},
        "strict": True,
        "x": 1,
    }
    custom = {"type": "custom", "name": "c", "description": "d", "format": grammar, "x": [1]}
    assert parse_tools([function, custom], LIMITS) == [function, custom]


@pytest.mark.parametrize(
    ("tool", "param", "code"),
    [
        (1, "", "invalid_type"),
        ({}, ".type", "missing_required_parameter"),
        ({"type": 1}, ".type", "invalid_type"),
        ({"type": ""}, ".type", "string_below_min_length"),
        ({"type": "t" * 129}, ".type", "string_above_max_length"),
        ({"type": "function"}, ".name", "missing_required_parameter"),
        ({"type": "function", "name": ""}, ".name", "string_below_min_length"),
        ({"type": "function", "name": "a b"}, ".name", "invalid_value"),
        ({"type": "function", "name": "a\n"}, ".name", "invalid_value"),
        ({"type": "function", "name": "a" * 129}, ".name", "string_above_max_length"),
        ({"type": "function", "name": "f", "parameters": "{}"}, ".parameters", "invalid_type"),
        ({"type": "function", "name": "f", "strict": 1}, ".strict", "invalid_type"),
        ({"type": "function", "name": "f", "description": 1}, ".description", "invalid_type"),
        ({"type": "custom", "name": "f", "format": "text"}, ".format", "invalid_type"),
        ({"type": "custom", "name": "f", "format": {}}, ".format.type", "missing_required_parameter"),
        ({"type": "custom", "name": "f", "format": {"type": "x"}}, ".format.type", "invalid_value"),
        (
            {"type": "custom", "name": "f", "format": {"type": "grammar"}},
            ".format.syntax",
            "missing_required_parameter",
        ),
        (
            {"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "x", "definition": "y"}},
            ".format.syntax",
            "invalid_value",
        ),
    ],
)
def test_a_wrong_tool_is_refused_by_its_path(tool: Any, param: str, code: str):
    error = refusal([{"type": "function", "name": "good"}, tool])
    assert (error.param, error.code) == ("tools[1]" + param, code)


@pytest.mark.parametrize("kind", ["web_search", "mcp", "namespace", "shell", "a_kind_of_next_year", "acme:search"])
def test_tools_that_others_run_are_kept_whole(kind: str):
    tool = {"type": kind, "server_label": "x", "filters": {"a": [None]}}
    assert parse_tools([tool], LIMITS) == [tool]


def test_a_tool_in_the_shape_of_chat_completions_gets_a_hint():
    assert "flat" in refusal([{"type": "function", "function": {"name": "f"}}]).message


def test_more_tools_than_the_limit_are_refused():
    error = refusal(TOOLS, Limits(max_tools=1))
    assert (error.param, error.code) == ("tools", "array_above_max_length")


@pytest.mark.parametrize(
    "choice", ["none", "auto", "required", {"type": "function", "name": "f"}, {"type": "custom", "name": "c"}]
)
def test_choices_that_can_be_honoured_are_kept(choice: Any):
    assert parse_tool_choice(choice, TOOLS) == choice


@pytest.mark.parametrize(
    ("choice", "tool"),
    [
        ({"type": "web_search_preview"}, {"type": "web_search"}),
        ({"type": "computer"}, {"type": "computer_use_preview"}),
        ({"type": "shell"}, {"type": "shell"}),
        ({"type": "mcp", "server_label": "x"}, {"type": "mcp", "server_label": "x"}),
        ({"type": "mcp", "server_label": "x", "name": "roll"}, {"type": "mcp", "server_label": "x"}),
    ],
)
def test_a_hosted_tool_is_chosen_by_its_type_and_a_server_by_its_label(choice: Any, tool: Any):
    assert parse_tool_choice(choice, [*TOOLS, tool]) == choice
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [choice, {"type": "function", "name": "f"}]}
    assert parse_tool_choice(allowed, [*TOOLS, tool]) == allowed


def test_allowed_tools_are_kept_with_their_mode():
    named = [{"type": "function", "name": "f"}]
    choice = parse_tool_choice({"type": "allowed_tools", "tools": named}, TOOLS)
    assert choice == {"type": "allowed_tools", "tools": named, "mode": "auto"}


@pytest.mark.parametrize(
    ("choice", "param", "code"),
    [
        (1, "tool_choice", "invalid_type"),
        ("always", "tool_choice", "invalid_value"),
        ({}, "tool_choice.type", "missing_required_parameter"),
        ({"type": []}, "tool_choice.type", "invalid_type"),
        ({"type": "web_search_preview"}, "tool_choice.type", "invalid_value"),
        ({"type": "mcp"}, "tool_choice.server_label", "missing_required_parameter"),
        ({"type": "mcp", "server_label": "y"}, "tool_choice.server_label", "invalid_value"),
        ({"type": "function"}, "tool_choice.name", "missing_required_parameter"),
        ({"type": "function", "name": 1}, "tool_choice.name", "invalid_type"),
        ({"type": "function", "name": "c"}, "tool_choice.name", "invalid_value"),
        ({"type": "allowed_tools"}, "tool_choice.tools", "missing_required_parameter"),
        ({"type": "allowed_tools", "tools": []}, "tool_choice.tools", "empty_array"),
        ({"type": "allowed_tools", "mode": "none", "tools": []}, "tool_choice.mode", "invalid_value"),
        ({"type": "allowed_tools", "tools": ["f"]}, "tool_choice.tools[0]", "invalid_type"),
        (
            {"type": "allowed_tools", "tools": [{"type": "function", "name": "g"}]},
            "tool_choice.tools[0].name",
            "invalid_value",
        ),
    ],
)
def test_a_wrong_choice_is_refused_by_its_path(choice: Any, param: str, code: str):
    with pytest.raises(InvalidRequest) as caught:
        parse_tool_choice(choice, TOOLS)
    assert (caught.value.param, caught.value.code) == (param, code)


def test_no_tool_can_be_required_when_there_is_none():
    with pytest.raises(InvalidRequest) as caught:
        parse_tool_choice("required", [])
    assert caught.value.param == "tool_choice"


# -- MCP servers


def entry(**fields: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "docs", **fields}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"server_url": "https://docs.example/mcp", "headers": {"x": "y"}, "authorization": "t"},
        {"allowed_tools": ["search"]},
        {"allowed_tools": {"tool_names": ["search"], "read_only": True}},
        {"allowed_tools": None, "require_approval": None, "headers": None},
        {"require_approval": "never"},
        {"require_approval": {"never": {"tool_names": ["search"]}, "always": {"read_only": False}}},
        {"server_description": "Documents."},
    ],
)
def test_an_entry_for_a_server_is_kept_without_its_nulls(fields: dict[str, Any]) -> None:
    given = {name: value for name, value in fields.items() if value is not None}
    assert parse_tools([entry(**fields)], LIMITS) == [entry(**given)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"server_label": None}, "tools[0].server_label"),
        ({"server_label": "a b"}, "tools[0].server_label"),
        ({"server_url": 5}, "tools[0].server_url"),
        ({"headers": ["x"]}, "tools[0].headers"),
        ({"headers": {"x": 5}}, "tools[0].headers.x"),
        ({"headers": {"": "x"}}, "tools[0].headers"),
        ({"headers": {str(n): "" for n in range(65)}}, "tools[0].headers"),
        ({"authorization": 5}, "tools[0].authorization"),
        ({"allowed_tools": "search"}, "tools[0].allowed_tools"),
        ({"allowed_tools": [5]}, "tools[0].allowed_tools[0]"),
        ({"allowed_tools": {"read_only": "yes"}}, "tools[0].allowed_tools.read_only"),
        ({"require_approval": "sometimes"}, "tools[0].require_approval"),
        ({"require_approval": {"always": "search"}}, "tools[0].require_approval.always"),
    ],
)
def test_a_wrong_entry_for_a_server_is_refused_by_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_tools([entry(**fields)], LIMITS)
    assert refused.value.param == param


def test_a_refusal_does_not_repeat_a_secret() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_tools([entry(authorization="canary" * 10_000)], LIMITS)
    assert "canary" not in refused.value.message


@pytest.mark.parametrize(
    ("allowed", "search", "write"),
    [
        (None, True, True),
        (["search"], True, False),
        ([], False, False),
        ({"tool_names": ["write"]}, False, True),
        ({"read_only": True}, True, False),
        ({"read_only": True, "tool_names": ["write"]}, False, False),
        ({}, True, True),
    ],
)
def test_a_filter_allows_tools_by_name_and_by_reading_only(allowed: Any, search: bool, write: bool) -> None:
    given = entry() if allowed is None else entry(allowed_tools=allowed)
    assert (allows(given, "search", True), allows(given, "write", False)) == (search, write)


@pytest.mark.parametrize(
    ("wish", "default", "search", "write"),
    [
        (None, "always", True, True),
        (None, "never", False, False),
        ("always", "never", True, True),
        ("never", "always", False, False),
        ({"never": {"tool_names": ["search"]}}, "never", False, True),
        ({"always": {"tool_names": ["write"]}}, "always", False, True),
        ({"always": {"read_only": False}, "never": {"tool_names": ["search"]}}, "always", False, True),
        ({"always": {"tool_names": ["search"]}, "never": {"tool_names": ["search"]}}, "never", True, True),
        ({}, "never", True, True),
    ],
)
def test_a_person_is_asked_unless_never_names_the_tool(wish: Any, default: str, search: bool, write: bool) -> None:
    given = entry() if wish is None else entry(require_approval=wish)
    asked = (needs_approval(given, "search", True, default), needs_approval(given, "write", False, default))
    assert asked == (search, write)


def test_a_server_can_be_chosen_by_its_label() -> None:
    tools = parse_tools([entry()], LIMITS)
    choice = {"type": "mcp", "server_label": "docs", "name": "search"}
    assert parse_tool_choice(choice, tools) == choice
    with pytest.raises(InvalidRequest):
        parse_tool_choice({"type": "mcp", "server_label": "other"}, tools)


FUNCTION: Json = {"type": "function", "name": "f", "parameters": {}}
SERVER: Json = {
    "type": "mcp",
    "server_label": "docs",
    "server_url": "https://docs.example/mcp",
    "headers": {"x-key": "canary-1"},
    "authorization": "canary-2",
}


def test_secrets_are_split_off_by_the_label_of_their_server() -> None:
    tools, secrets = split_secrets([FUNCTION, SERVER, {"type": "mcp", "server_label": "plain", "headers": {}}])
    assert tools[0] is FUNCTION
    assert tools[1] == {"type": "mcp", "server_label": "docs", "server_url": "https://docs.example/mcp"}
    assert tools[2] == {"type": "mcp", "server_label": "plain"}
    assert secrets == {"docs": {"headers": {"x-key": "canary-1"}, "authorization": "canary-2"}}
    assert unpack_secrets(pack_secrets(secrets)) == secrets


def test_packed_and_echoed_requests_hold_no_secrets() -> None:
    request = parse_create({"model": "m", "input": "Hi", "tools": [SERVER]}, CountingIds(), Limits())
    assert request.secrets["docs"]["authorization"] == "canary-2"
    packed = pack(request)
    assert b"canary" not in packed
    assert unpack(packed, []).secrets == {}
    assert "canary" not in str(header(request, "resp_1", 1, "m", "queued"))


def test_secrets_are_sealed_for_one_response_only() -> None:
    assert purpose_of("resp_1") != purpose_of("resp_2")

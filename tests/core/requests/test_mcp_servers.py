"""Entries of `tools` with the type `mcp`: what they may say, and what it means."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.core.errors import InvalidRequest
from outlive.core.requests.limits import Limits
from outlive.core.requests.mcp_servers import allows, needs_approval, parse_server
from outlive.core.requests.tools import parse_tool_choice, parse_tools


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
def test_what_may_be_said_is_kept(fields: dict[str, Any]) -> None:
    given = {name: value for name, value in fields.items() if value is not None}
    assert parse_server(entry(**fields), "tools[0]", Limits()) == entry(**given)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"server_label": None}, "tools[0].server_label"),
        ({"server_label": "a b"}, "tools[0].server_label"),
        ({"server_url": 5}, "tools[0].server_url"),
        ({"headers": ["x"]}, "tools[0].headers"),
        ({"headers": {"x": 5}}, "tools[0].headers.x"),
        ({"authorization": 5}, "tools[0].authorization"),
        ({"allowed_tools": "search"}, "tools[0].allowed_tools"),
        ({"allowed_tools": [5]}, "tools[0].allowed_tools[0]"),
        ({"allowed_tools": {"read_only": "yes"}}, "tools[0].allowed_tools.read_only"),
        ({"require_approval": "sometimes"}, "tools[0].require_approval"),
        ({"require_approval": {"always": "search"}}, "tools[0].require_approval.always"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_tools([entry(**fields)], Limits())
    assert refused.value.param == param


def test_a_refusal_does_not_repeat_a_secret() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_tools([entry(authorization="canary" * 10_000)], Limits())
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
def test_which_tools_are_allowed(allowed: Any, search: bool, write: bool) -> None:
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
def test_when_a_person_is_asked(wish: Any, default: str, search: bool, write: bool) -> None:
    given = entry() if wish is None else entry(require_approval=wish)
    asked = (needs_approval(given, "search", True, default), needs_approval(given, "write", False, default))
    assert asked == (search, write)


def test_a_server_can_be_chosen_by_its_label() -> None:
    tools = parse_tools([entry()], Limits())
    choice = {"type": "mcp", "server_label": "docs", "name": "search"}
    assert parse_tool_choice(choice, tools) == choice
    with pytest.raises(InvalidRequest):
        parse_tool_choice({"type": "mcp", "server_label": "other"}, tools)

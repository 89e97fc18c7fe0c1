"""The tools in the request of each step."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.core.toolcalls.calls import ToolSpec
from outlive.core.toolcalls.offer import add_server_tools, without_server_tools

WEATHER = ToolSpec("outlive", "weather", "Tells it.", {"type": "object"})
SEARCH = ToolSpec("docs", "search", "Finds.", {"type": "object"})
SPECS = {"weather": WEATHER, "docs_search": SEARCH}
THEIRS: Json = {"type": "function", "name": "search", "parameters": None, "strict": False}
SERVER: Json = {"type": "mcp", "server_label": "docs"}


def ask(tools: list[Json], choice: Any = "auto", *, first: bool = True, spent: bool = False) -> CreateResponse:
    request = CreateResponse(model="m", input=[], tools=tools, tool_choice=choice, max_output_tokens=100)
    return add_server_tools(request, SPECS, first=first, spent=spent, max_output_tokens=60)


def names(request: CreateResponse) -> list[str]:
    return [tool["name"] for tool in request.tools]


def test_server_tools_are_added_as_functions() -> None:
    asked = ask([SERVER, THEIRS])
    assert names(asked) == ["search", "weather", "docs_search"]
    assert {tool["type"] for tool in asked.tools} == {"function"}
    assert asked.tools[1]["description"] == "Tells it."
    assert asked.max_output_tokens == 60


@pytest.mark.parametrize(
    ("choice", "later"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "auto"),
        ({"type": "function", "name": "search"}, "auto"),
    ],
)
def test_a_forced_choice_counts_for_the_first_step_only(choice: Any, later: Any) -> None:
    assert ask([SERVER, THEIRS], choice).tool_choice == choice
    assert ask([SERVER, THEIRS], choice, first=False).tool_choice == later


def test_a_server_can_be_chosen_by_label_and_a_tool_of_it_by_name() -> None:
    chosen = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "docs_search"}]}
    assert ask([SERVER], {"type": "mcp", "server_label": "docs"}).tool_choice == chosen
    assert ask([SERVER], {"type": "mcp", "server_label": "docs", "name": "search"}).tool_choice == chosen
    later = ask([SERVER], {"type": "mcp", "server_label": "docs"}, first=False).tool_choice
    assert later == {**chosen, "mode": "auto"}


def test_allowed_tools_stay_allowed_in_later_steps() -> None:
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "mcp", "server_label": "outlive"}, {"type": "function", "name": "search"}],
    }
    allowed = [{"type": "function", "name": "weather"}, {"type": "function", "name": "search"}]
    assert ask([SERVER, THEIRS], choice).tool_choice == {**choice, "tools": allowed}
    assert ask([SERVER, THEIRS], choice, first=False).tool_choice == {**choice, "mode": "auto", "tools": allowed}


def test_server_tools_are_withdrawn_when_no_more_calls_may_be_made() -> None:
    alone = ask([SERVER], "required", spent=True)
    assert (alone.tool_choice, names(alone)) == ("none", ["weather", "docs_search"])
    beside = ask([SERVER, THEIRS], spent=True)
    assert (beside.tool_choice, names(beside)) == ("auto", ["search"])


def test_a_request_without_server_tools_is_unchanged() -> None:
    plain = CreateResponse(model="m", input=[], tools=[THEIRS])
    assert without_server_tools(plain) is plain
    mixed = CreateResponse(model="m", input=[], tools=[SERVER, THEIRS], tool_choice={"type": "mcp"})
    assert without_server_tools(mixed) == plain

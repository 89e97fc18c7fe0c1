"""Tools of every type become functions for upstreams that know no others, and their calls become functions' calls."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import Limits, check_value
from outlive.core.requests.create import CreateResponse
from outlive.core.requests.tools import check_tools, match_tool_choice
from outlive.dialects.chat.request import render
from outlive.dialects.offer import MOST_NAME, Offer, check_tools_of, find_left_out, make_offer, name_of_call
from outlive.ports.backend import ModelCall, Upstream

LOOK = {"type": "function", "name": "look", "description": None, "parameters": {"type": "object"}, "strict": False}
LATER = {**LOOK, "name": "later", "defer_loading": True}
EXEC = {"type": "custom", "name": "exec", "description": "Runs.", "format": {"type": "text"}}
CRM = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [LOOK, EXEC]}
SEARCH = {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": {"type": "object"}}
FIXED = ["shell", "local_shell", "apply_patch", "computer", "computer_use_preview"]
HOSTED: list[Json] = [
    {"type": "web_search"},
    {"type": "web_search_2025_08_26"},
    {"type": "web_search_preview"},
    {"type": "file_search", "vector_store_ids": ["vs_1"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "image_generation"},
    {"type": "shell", "environment": {"type": "container_auto"}},
    {"type": "tool_search"},
    {"type": "tool_search", "execution": "server"},
    {"type": "programmatic_tool_calling"},
]


def upstream(**fields: Any) -> Upstream:
    return Upstream(name="u", url="http://127.0.0.1/v1", **fields)


def offer(*tools: Json, items: list[Json] | None = None, choice: Any = "auto") -> Offer:
    request = CreateResponse(model="m", input=[], tools=list(tools), tool_choice=choice)
    return make_offer(request, items or [])


def names(made: Offer) -> list[str]:
    return [function["name"] for function in made.functions]


def refuse(*tools: Json, to: Upstream | None = None, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        check_tools_of(CreateResponse(**{"model": "m", "input": [], "tools": list(tools), **fields}), to or upstream())
    return caught.value


def brought(*tools: Any, kind: str = "tool_search_output") -> Json:
    return {"type": kind, "call_id": "c1", "execution": "client", "tools": list(tools)}


# -- names


def test_functions_keep_their_names_and_members_get_the_name_of_their_namespace() -> None:
    made = offer(LOOK, CRM)
    assert names(made) == ["look", "crm__look", "crm__exec"]
    assert made.functions[0] == LOOK
    assert made.called["crm__look"].identity == ("function", "look", "crm")
    assert made.called["crm__exec"].identity.kind == "custom"
    assert "look" not in made.called


def test_names_that_collide_are_told_apart() -> None:
    one = {**CRM, "name": "a", "tools": [{**LOOK, "name": "b__c"}]}
    other = {**CRM, "name": "a__b", "tools": [{**LOOK, "name": "c"}]}
    made = offer({**LOOK, "name": "a__b__c"}, one, other, {**LOOK, "name": "shell"}, {"type": "shell"})
    assert len(set(names(made))) == 5
    assert names(made)[0] == "a__b__c" and names(made)[3] == "shell"
    assert {tool.identity for tool in made.called.values()} == {
        ("function", "b__c", "a"), ("function", "c", "a__b"), ("shell", "shell", None),
    }  # fmt: skip


_name = st.text("ab_-", min_size=1, max_size=70)
_members = st.lists(st.builds(lambda name: {**LOOK, "name": name}, _name), max_size=4)
_namespaces = st.builds(lambda name, tools: {**CRM, "name": name, "tools": tools}, _name, _members)


@given(st.lists(st.one_of(_namespaces, _members.map(lambda tools: (tools or [LOOK])[0])), max_size=6))
def test_names_are_unique_short_and_lead_back_to_their_tools(tools: list[Json]) -> None:
    made = offer(CRM, *tools)
    assert len(set(names(made))) == len(names(made))
    for name, tool in made.called.items():
        assert len(name) <= MOST_NAME
        item = {"type": "function_call", "name": tool.identity.name, "namespace": tool.identity.namespace}
        assert name_of_call(item, made.names) == name


def test_a_call_of_a_member_that_is_not_offered_any_more_keeps_its_name() -> None:
    item = {"type": "function_call", "name": "look" * 20, "namespace": "crm"}
    tool = {**CRM, "tools": [{**LOOK, "name": "look" * 20}]}
    assert [name_of_call(item, {})] == names(offer(tool))


def test_a_tool_given_twice_is_offered_once() -> None:
    assert names(offer(LOOK, CRM, items=[brought(LOOK, CRM)])) == ["look", "crm__look", "crm__exec"]


# -- tools of a fixed form


@pytest.mark.parametrize("kind", FIXED)
def test_a_tool_that_the_client_runs_is_offered_with_a_fixed_schema(kind: str) -> None:
    tool = {"type": kind, "environment": {"type": "local"}} if kind == "shell" else {"type": kind}
    check_tools_of(CreateResponse(model="m", input=[], tools=[tool]), upstream(unrunnable_tools="refuse"))
    (function,) = offer(tool).functions
    assert function["name"] == ("computer" if kind == "computer_use_preview" else kind)
    assert function["description"]
    assert function["parameters"]["required"]


def test_a_search_of_the_clients_is_offered_with_its_own_schema() -> None:
    (function,) = offer(SEARCH).functions
    assert (function["name"], function["description"]) == ("tool_search", "Finds.")
    assert function["parameters"] == {"type": "object"}
    (bare,) = offer({"type": "tool_search", "execution": "client"}).functions
    assert bare["parameters"]["required"] == ["query"]


# -- tools that items bring


@pytest.mark.parametrize("kind", ["tool_search_output", "additional_tools"])
def test_tools_that_an_item_brings_are_offered_from_then_on(kind: str) -> None:
    made = offer(SEARCH, items=[brought({**LOOK, "defer_loading": True}, CRM, {"type": "shell"}, kind=kind)])
    assert names(made) == ["tool_search", "look", "crm__look", "crm__exec", "shell"]


@given(st.recursive(st.none() | st.booleans() | st.text(max_size=3) | st.sampled_from([LOOK, CRM, SEARCH]),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["type", "name", "tools", "parameters"]), inner, max_size=4)))  # fmt: skip
def test_odd_tools_in_a_history_are_left_out(odd: Any) -> None:
    made = offer(LOOK, items=[brought(odd), {"type": "additional_tools", "tools": odd}, {"type": "tool_search_output"}])
    assert names(made)[0] == "look"


_odd = st.recursive(
    st.none() | st.booleans() | st.text(max_size=3) | st.sampled_from([LOOK, CRM, SEARCH]),
    lambda inner: st.lists(inner, max_size=3),
)
_odd_tools = st.fixed_dictionaries(
    {"type": st.sampled_from([*FIXED, "function", "custom", "namespace", "tool_search", "web_search"])},
    optional=dict.fromkeys(["name", "tools", "environment", "execution", "parameters", "description", "format"], _odd),
)


@given(st.lists(_odd_tools, max_size=3), st.sampled_from(["auto", "required", {"type": "shell"}]))
def test_odd_tools_in_a_request_are_offered_or_refused(tools: list[Json], choice: Any) -> None:
    try:
        checked = check_value(check_tools, tools, "tools")
        request = CreateResponse(model="m", input=[], tools=checked, tool_choice=choice)
        check_tools_of(request, upstream())
    except InvalidRequest:
        return
    body = render(ModelCall("m", request, []), upstream())
    assert all(isinstance(tool["function"]["name"], str) for tool in body.get("tools", ()))


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ("x", "input[0].tools"),
        ([LOOK, 1], "input[0].tools[1]"),
        ([{"type": "function"}], "input[0].tools[0].name"),
        ([{**CRM, "tools": [{"type": "function", "name": "a b"}]}], "input[0].tools[0].tools[0].name"),
        ([{"type": "acme:dream"}], "input[0].tools[0].type"),
    ],
)
def test_odd_tools_in_a_request_are_refused_by_name(tools: Any, param: str) -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": tools}
    assert refuse(input=[item]).param == param


def test_additional_tools_without_tools_are_refused() -> None:
    assert refuse(input=[{"type": "additional_tools"}]).param == "input[0].tools"


# -- deferred and asynchronous functions


def test_a_deferred_function_waits_for_the_clients_search() -> None:
    check_tools_of(CreateResponse(model="m", input=[], tools=[LATER, SEARCH]), upstream())
    assert names(offer(LATER, SEARCH)) == ["tool_search"]
    assert names(offer(LATER, SEARCH, items=[brought(LATER)])) == ["tool_search", "later"]


def test_a_deferred_function_is_offered_at_once_if_its_search_is_left_out() -> None:
    tools: list[Json] = [LATER, {"type": "tool_search"}]
    check_tools_of(CreateResponse(model="m", input=[], tools=tools), upstream())
    assert names(offer(*tools)) == ["later"]


def test_a_deferred_function_that_nothing_can_find_is_refused() -> None:
    assert refuse(LOOK, LATER).param == "tools[1].defer_loading"
    assert refuse({**CRM, "tools": [LATER]}).param == "tools[0].tools[0].defer_loading"


def test_an_asynchronous_function_is_refused() -> None:
    assert refuse(LOOK, {**LOOK, "name": "slow", "async": True}).param == "tools[1].async"
    check_tools_of(CreateResponse(model="m", input=[], tools=[{**LOOK, "async": False}]), upstream())


# -- hosted tools


@pytest.mark.parametrize("tool", HOSTED, ids=str)
def test_a_hosted_tool_is_left_out_or_refused_as_the_upstream_is_set(tool: Json) -> None:
    request = CreateResponse(model="m", input=[], tools=[LOOK, tool, tool])
    check_tools_of(request, upstream(unrunnable_tools="leave_out"))
    assert names(make_offer(request, [])) == ["look"]
    assert find_left_out(request) == [tool["type"]]
    refused = refuse(LOOK, tool, to=upstream(unrunnable_tools="refuse"))
    assert (refused.param, refused.code) == ("tools[1].type", "unsupported_parameter")
    assert tool["type"] in refused.message


@pytest.mark.parametrize(
    "kind", ["fuction", "acme:dream", "mcp", "a_kind_of_next_year", "web_search\nx", "web_searches"]
)
def test_an_unknown_tool_is_always_refused(kind: str) -> None:
    refused = refuse(LOOK, {"type": kind})
    assert (refused.param, refused.code) == ("tools[1].type", "unsupported_parameter")


def test_a_choice_that_needs_a_tool_that_is_left_out_is_refused() -> None:
    search: Json = {"type": "web_search"}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [search]}
    for choice in (search, {"type": "web_search_preview"}, allowed):
        assert refuse(LOOK, search, tool_choice=choice).param == "tool_choice"
    assert refuse(search, tool_choice="required").param == "tool_choice"
    for kept in ("required", "none", {**allowed, "mode": "auto"}, {**allowed, "tools": [search, LOOK]}):
        check_tools_of(CreateResponse(model="m", input=[], tools=[LOOK, search], tool_choice=kept), upstream())


# -- choices


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "look"}, "look"),
        ({"type": "function", "name": "look", "namespace": "crm"}, "crm__look"),
        ({"type": "custom", "name": "exec", "namespace": "crm"}, "crm__exec"),
        ({"type": "shell"}, "shell"),
        ({"type": "local_shell"}, "local_shell"),
        ({"type": "apply_patch"}, "apply_patch"),
        ({"type": "computer_use"}, "computer"),
        ({"type": "tool_search"}, "tool_search"),
    ],
)
def test_a_choice_names_the_function_of_its_tool(choice: Json, name: str) -> None:
    fixed: list[Json] = [{"type": kind} for kind in FIXED if kind != "computer"]
    tools: list[Json] = [LOOK, CRM, SEARCH, *fixed]
    assert match_tool_choice(choice, tools, Limits()) == choice
    check_tools_of(CreateResponse(model="m", input=[], tools=tools, tool_choice=choice), upstream())
    assert offer(*tools, choice=choice).choice == {"type": "function", "name": name}


def test_a_choice_of_a_namespace_requires_one_of_its_members() -> None:
    choice = {"type": "namespace", "name": "crm"}
    made = offer(LOOK, CRM, choice=match_tool_choice(choice, [LOOK, CRM], Limits()))
    assert (names(made), made.choice) == (["crm__look", "crm__exec"], "required")


def test_only_allowed_tools_are_offered() -> None:
    chosen: list[Json] = [{"type": "namespace", "name": "crm"}, {"type": "shell"}]
    made = offer(LOOK, CRM, {"type": "shell"}, choice={"type": "allowed_tools", "mode": "required", "tools": chosen})
    assert (names(made), made.choice) == (["crm__look", "crm__exec", "shell"], "required")


def test_a_choice_of_a_member_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        match_tool_choice({"type": "function", "name": "no", "namespace": "crm"}, [LOOK, CRM], Limits())
    assert caught.value.param == "tool_choice.name"

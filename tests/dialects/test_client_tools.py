"""Calls of tools that the client runs come back as the items it expects, from both dialects, and are sent back as calls
of the same functions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter

from outlive.core.context.assemble import assemble
from outlive.core.events import Json
from outlive.dialects.anthropic import request as anthropic_request
from outlive.dialects.anthropic.translator import AnthropicTranslator
from outlive.dialects.chat import request as chat_request
from outlive.dialects.chat.translator import ChatTranslator
from outlive.dialects.client_tools import CLIENT_TOOLS
from outlive.ports.backend import ModelCall, Upstream
from outlive.testing import call_chunk, finish_chunk
from tests.dialects.playback import make_call, output, play, types
from tests.support.anthropic_upstream import end, payload, start, use

UPSTREAM = Upstream(name="u", url="http://127.0.0.1/v1")
HELLO = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
CRM = {
    "type": "namespace",
    "name": "crm",
    "description": "Customers.",
    "tools": [LOOK, {"type": "custom", "name": "exec"}],
}

OUTPUT_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)

# Plays an answer that calls a function, in pieces, and returns the events.
Play = Callable[..., list[Json]]


def play_chat(call: ModelCall, name: str, *pieces: str, cut: bool = False) -> list[Json]:
    fragments = [call_chunk(0, "c1", name, ""), *(call_chunk(0, arguments=piece) for piece in pieces)]
    return play([*fragments, finish_chunk("length" if cut else "tool_calls")], call, ChatTranslator)


def play_anthropic(call: ModelCall, name: str, *pieces: str, cut: bool = False) -> list[Json]:
    steps = [start(), *use(0, "c1", name, *pieces), *end("max_tokens" if cut else "tool_use")]
    return play([payload(step) for step in steps], call, AnthropicTranslator)


@pytest.fixture(params=[play_chat, play_anthropic], ids=["chat", "anthropic"])
def answer(request: pytest.FixtureRequest) -> Play:
    chosen: Play = request.param
    return chosen


def sent_by_chat(call: ModelCall) -> list[tuple[str, Json]]:
    messages: list[Json] = chat_request.render(call, UPSTREAM)["messages"]
    functions = [made["function"] for message in messages for made in message.get("tool_calls", ())]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


def sent_by_anthropic(call: ModelCall) -> list[tuple[str, Json]]:
    messages: list[Json] = anthropic_request.render(call, UPSTREAM)["messages"]
    blocks = [block for message in messages for block in message["content"] if block["type"] == "tool_use"]
    return [(block["name"], block["input"]) for block in blocks]


CLICK = {"type": "click", "button": "left", "x": 3, "y": 4}
SEARCH = {"type": "tool_search", "execution": "client"}
# The tool, the arguments of a call, the item's own fields, and the output that a client sends.
CALLS: list[tuple[Json, Json, Json, Json]] = [
    (
        {"type": "shell", "environment": {"type": "local"}},
        {"commands": ["ls", "pwd"], "timeout_ms": 500},
        {
            "type": "shell_call",
            "action": {"commands": ["ls", "pwd"], "timeout_ms": 500, "max_output_length": None},
        },
        {"type": "shell_call_output", "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "timeout"}}]},
    ),
    (
        {"type": "local_shell"},
        {"command": ["ls"], "env": {"A": "1"}, "working_directory": "/"},
        {
            "type": "local_shell_call",
            "action": {"type": "exec", "command": ["ls"], "env": {"A": "1"}, "working_directory": "/"},
        },
        {"type": "local_shell_call_output", "output": "a"},
    ),
    (
        {"type": "apply_patch"},
        {"type": "create_file", "path": "a.py", "diff": "+1"},
        {"type": "apply_patch_call", "operation": {"type": "create_file", "path": "a.py", "diff": "+1"}},
        {"type": "apply_patch_call_output", "status": "completed"},
    ),
    (
        {"type": "apply_patch"},
        {"type": "delete_file", "path": "a.py"},
        {"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "a.py"}},
        {"type": "apply_patch_call_output", "status": "failed", "output": "no such file"},
    ),
    (
        {"type": "computer"},
        {"actions": [CLICK, {"type": "type", "text": "x"}]},
        {"type": "computer_call", "actions": [CLICK, {"type": "type", "text": "x"}], "pending_safety_checks": []},
        {
            "type": "computer_call_output",
            "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA"},
        },
    ),
    (
        {"type": "computer_use_preview", "display_width": 1, "display_height": 1, "environment": "linux"},
        {"actions": [CLICK]},
        {"type": "computer_call", "action": CLICK, "pending_safety_checks": []},
        {
            "type": "computer_call_output",
            "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA"},
        },
    ),
    (
        {**SEARCH, "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
        {"query": "crm", "limit": 2},
        {"type": "tool_search_call", "arguments": {"query": "crm", "limit": 2}, "execution": "client"},
        {"type": "tool_search_output", "execution": "client", "tools": [LOOK, CRM]},
    ),
]
KINDS = [f"{tool['type']}-{n}" for n, (tool, *_) in enumerate(CALLS)]


@pytest.mark.parametrize(("tool", "arguments", "fields", "_result"), CALLS, ids=KINDS)
def test_a_call_comes_back_as_the_item_that_its_client_expects(
    answer: Play, tool: Json, arguments: Json, fields: Json, _result: Json
) -> None:
    whole = json.dumps(arguments)
    events = answer(make_call(tools=[tool]), fields["type"].removesuffix("_call"), whole[:5], whole[5:])
    (item,) = output(events)
    assert item == {"id": item["id"], "call_id": "c1", "status": "completed", **fields}
    added = next(event["item"] for event in events if event["type"] == "response.output_item.added")
    assert (added["id"], added["type"], added["call_id"], added["status"]) == (
        item["id"], item["type"], "c1", "in_progress",
    )  # fmt: skip


@pytest.mark.parametrize(("tool", "arguments", "fields", "result"), CALLS, ids=KINDS)
@pytest.mark.parametrize("sent", [sent_by_chat, sent_by_anthropic])
def test_a_call_in_the_history_is_a_call_of_the_same_function(
    sent: Callable[[ModelCall], Any], tool: Json, arguments: Json, fields: Json, result: Json
) -> None:
    made: Json = {"id": "x_1", "call_id": "c1", "status": "completed", **fields}
    items = assemble([HELLO, made, {"call_id": "c1", **result}], [])
    ((name, given_back),) = sent(make_call(items=items, tools=[tool]))
    assert name == fields["type"].removesuffix("_call")
    expected = {"env": {}, **arguments} if name == "local_shell" else arguments
    assert given_back == expected


def test_shell_commands_have_events_of_their_own(answer: Play) -> None:
    events = answer(make_call(tools=[{"type": "shell"}]), "shell", '{"commands":["ls","pwd"]}')
    commands = [event for event in events if "shell_call_command" in event["type"]]
    assert [event["type"].rpartition(".")[2] for event in commands] == ["added", "delta", "done"] * 2
    assert [(event["command_index"], event["command"]) for event in commands if "done" in event["type"]] == [
        (0, "ls"), (1, "pwd"),
    ]  # fmt: skip


def test_a_function_of_a_namespace_is_streamed_with_its_namespace(answer: Play) -> None:
    events = answer(make_call(tools=[LOOK, CRM]), "crm__look", '{"a":', "1}")
    assert types(events)[2:-1] == [
        "output_item.added", *["function_call_arguments.delta"] * 2, "function_call_arguments.done", "output_item.done",
    ]  # fmt: skip
    (item,) = output(events)
    assert (item["type"], item["namespace"], item["name"], item["arguments"]) == (
        "function_call", "crm", "look", '{"a":1}',
    )  # fmt: skip
    added = next(event["item"] for event in events if event["type"] == "response.output_item.added")
    assert (added["namespace"], added["name"]) == ("crm", "look")
    done = next(event for event in events if event["type"] == "response.function_call_arguments.done")
    assert done["name"] == "look"


def test_a_custom_tool_of_a_namespace_comes_back_with_its_namespace(answer: Play) -> None:
    (item,) = output(answer(make_call(tools=[CRM]), "crm__exec", '{"input":"ls"}'))
    assert (item["type"], item["namespace"], item["name"], item["input"]) == ("custom_tool_call", "crm", "exec", "ls")


@pytest.mark.parametrize("sent", [sent_by_chat, sent_by_anthropic])
def test_calls_of_namespaces_in_the_history_keep_the_names_of_their_functions(
    sent: Callable[[ModelCall], Any],
) -> None:
    history: list[Json] = [
        HELLO,
        {"type": "function_call", "call_id": "c1", "name": "look", "namespace": "crm", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "exec", "namespace": "crm", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "x"},
    ]
    for tools in ([CRM], []):
        made = sent(make_call(items=assemble(history, []), tools=tools))
        assert made == [("crm__look", {}), ("crm__exec", {"input": "ls"})]


def test_a_search_for_tools_names_what_can_be_called_now() -> None:
    found = {"type": "tool_search_output", "call_id": "c1", "execution": "client", "tools": [LOOK, CRM]}
    asked = {"type": "tool_search_call", "call_id": "c1", "arguments": {}, "execution": "client"}
    call = make_call(items=assemble([HELLO, asked, found], []), tools=[SEARCH])
    body = chat_request.render(call, UPSTREAM)
    assert body["messages"][-1]["content"] == "These tools can be called now: look, crm__look, crm__exec"
    offered = [tool["function"]["name"] for tool in body["tools"]]
    assert offered == ["tool_search", "look", "crm__look", "crm__exec"]
    none = make_call(items=assemble([HELLO, asked, {**found, "tools": []}], []), tools=[SEARCH])
    assert chat_request.render(none, UPSTREAM)["messages"][-1]["content"] == "No tools were found."


def test_an_item_of_additional_tools_brings_tools_and_no_message() -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [CRM]}
    call = make_call(items=assemble([item, HELLO], []))
    body = chat_request.render(call, UPSTREAM)
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["crm__look", "crm__exec"]
    (called,) = output(play_chat(call, "crm__look", "{}"))
    assert called["namespace"] == "crm"


@pytest.mark.parametrize("kind", CLIENT_TOOLS)
def test_the_arguments_of_every_function_are_documented(kind: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "tools.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{CLIENT_TOOLS[kind].name}` | `") or (
        line.startswith(f"| `{kind}` | the") and kind == "tool_search"))  # fmt: skip
    properties = CLIENT_TOOLS[kind].parameters["properties"]
    for each in (properties, properties.get("actions", {}).get("items", {}).get("properties", {})):
        assert all(f"`{name}`" in row for name in each)


def test_an_output_of_a_local_shell_may_name_its_call_by_its_own_id() -> None:
    made = {
        "type": "local_shell_call",
        "id": "x",
        "call_id": "c1",
        "action": {"command": ["ls"]},
        "status": "completed",
    }
    call = make_call(items=assemble([HELLO, made, {"type": "local_shell_call_output", "id": "c1", "output": "a"}], []))
    assert chat_request.render(call, UPSTREAM)["messages"][-1]["tool_call_id"] == "c1"
    assert anthropic_request.render(call, UPSTREAM)["messages"][-1]["content"][0]["tool_use_id"] == "c1"


def test_fields_that_only_clients_of_the_responses_api_send_are_not_passed_on() -> None:
    call = make_call(items=[HELLO], extra={"client_metadata": {"turn_id": "t"}, "top_k": 3})
    for body in (chat_request.render(call, UPSTREAM), anthropic_request.render(call, UPSTREAM)):
        assert ("client_metadata" in body, body["top_k"]) == (False, 3)


# -- arguments that do not fit

ODD = [
    "", "not json", "[]", "5", "null", "{}", '{"commands":5}', '{"commands":[1]}', '{"command":{"a":1}}',
    '{"actions":[{}]}', '{"actions":[]}', '{"actions":[{"type":"click"}]}', '{"actions":[{"type":"fly"}]}',
    '{"type":"fly","path":"a"}', "[" * 2000, '{"a":' * 200 + "1" + "}" * 200,
]  # fmt: skip


def declare(kind: str) -> Json:
    return next(tool for tool, *_ in CALLS if tool["type"] == kind)


@pytest.mark.parametrize("kind", [kind for kind in CLIENT_TOOLS if kind != "tool_search"])
@pytest.mark.parametrize("arguments", ODD, ids=range(len(ODD)))
def test_arguments_that_do_not_fit_ask_for_nothing(kind: str, arguments: str) -> None:
    assert CLIENT_TOOLS[kind].fit(arguments) == CLIENT_TOOLS[kind].blank


@pytest.mark.parametrize("kind", CLIENT_TOOLS)
@pytest.mark.parametrize("arguments", ["not json", "[" * 2000])
def test_a_call_with_odd_arguments_is_completed(answer: Play, kind: str, arguments: str) -> None:
    tool = CLIENT_TOOLS[kind]
    (item,) = output(answer(make_call(tools=[declare(kind)]), tool.name, arguments))
    assert (item["type"], item["status"]) == (tool.item, "completed")
    assert {name: item[name] for name in tool.blank} == tool.blank


@pytest.mark.parametrize("kind", CLIENT_TOOLS)
def test_a_call_that_was_cut_off_is_not_completed(answer: Play, kind: str) -> None:
    tool = CLIENT_TOOLS[kind]
    (item,) = output(answer(make_call(tools=[declare(kind)]), tool.name, '{"comm', cut=True))
    assert item["status"] == ("in_progress" if kind == "apply_patch" else "incomplete")


@pytest.mark.parametrize(
    ("kind", "arguments", "fields"),
    [
        ("shell", {"commands": "ls"}, {"action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}}),
        (
            "shell",
            {"action": {"commands": ["ls"], "timeout_ms": 1e3}},
            {"action": {"commands": ["ls"], "timeout_ms": 1000, "max_output_length": None}},
        ),
        (
            "apply_patch",
            {"operation": {"type": "update_file", "path": "a", "why": "x"}},
            {"operation": {"type": "update_file", "path": "a", "diff": ""}},
        ),
        (
            "computer",
            {"actions": [{"type": "scroll", "x": 1.4, "y": 2, "button": None, "text": "x"}]},
            {
                "actions": [{"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": 0}],
                "pending_safety_checks": [],
            },
        ),
    ],
)
def test_arguments_that_nearly_fit_are_corrected(kind: str, arguments: Json, fields: Json) -> None:
    assert CLIENT_TOOLS[kind].fit(json.dumps(arguments)) == fields


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
_names = st.sampled_from(["commands", "command", "env", "type", "path", "diff", "actions", "x", "y", "action", "keys"])


@given(st.sampled_from(list(CLIENT_TOOLS)), st.dictionaries(_names, _values, max_size=4))
def test_any_arguments_give_a_valid_item(kind: str, arguments: Json) -> None:
    tool = CLIENT_TOOLS[kind]
    item = {"id": "x", "call_id": "c", "type": tool.item, "status": "completed", **tool.fit(json.dumps(arguments))}
    OUTPUT_ITEM.validate_python(item)


@given(st.sampled_from(list(CLIENT_TOOLS)), st.dictionaries(_names | st.just("operation"), _values, max_size=4))
def test_any_item_of_a_history_is_rendered(kind: str, fields: Json) -> None:
    made: Json = {**fields, "type": CLIENT_TOOLS[kind].item, "call_id": "c1"}
    answered: Json = {**fields, "type": f"{CLIENT_TOOLS[kind].item.removesuffix('_call')}_output", "call_id": "c1"}
    for sent in (sent_by_chat, sent_by_anthropic):
        sent(make_call(items=assemble([HELLO, made, answered], []), tools=[{"type": kind, "execution": "client"}]))

"""The request that a Responses upstream gets."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.core.context.assemble import PLACEHOLDER_OUTPUT, assemble
from outlive.core.events import Json
from outlive.core.recovery import OpenText
from outlive.core.requests.checks import Limits
from outlive.core.requests.create import CreateResponse, parse_create
from outlive.dialects.responses.request import render
from outlive.ports.backend import ModelCall, Upstream
from tests.support import responses_events as theirs
from tests.support.scripting import CountingIds

USER: Json = {
    "id": "msg_1", "type": "message", "role": "user", "status": "completed",
    "content": [{"type": "input_text", "text": "Hi"}],
}  # fmt: skip
SAID = theirs.message("Hello")(0)[1]
THOUGHT = theirs.reasoning("Hm.")(0)[1]
PLAIN = theirs.plain_reasoning("Hm.")(0)[1]
CALL = theirs.call("{}")(0)[1]
OUTPUT: Json = {
    "id": "fc_2",
    "type": "function_call_output",
    "call_id": "call_up1",
    "output": "sunny",
    "status": "completed",
}


def upstream(**fields: Any) -> Upstream:
    return Upstream(name="u", url="http://u/v1", dialect="responses", **fields)


def body_of(
    items: list[Json] | None = None, resume: OpenText | None = None, quirks: Json | None = None, **fields: Any
) -> Json:
    """Render a context and a request with these fields."""
    call = ModelCall("real-name", CreateResponse(model="m", input=[], **fields), items or [USER], resume)
    return render(call, upstream(**quirks or {}))


def sent(*items: Json, **quirks: Any) -> list[Json]:
    rendered: list[Json] = body_of(assemble(items, []), quirks=quirks)["input"]
    return rendered


def test_a_minimal_request_has_model_input_and_store_false() -> None:
    assert body_of() == {
        "model": "real-name",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }


def test_all_parameters_are_passed_on() -> None:
    asked = {
        "instructions": "Be brief.", "max_output_tokens": 50, "max_tool_calls": 3, "temperature": 0.5, "top_p": 0.9,
        "top_logprobs": 2, "presence_penalty": 0.1, "frequency_penalty": 0.2, "parallel_tool_calls": False,
        "service_tier": "flex", "prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s",
        "user": "u", "prompt_cache_options": {"mode": "implicit"}, "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
        "tool_choice": "required", "include": ["message.output_text.logprobs"],
    }  # fmt: skip
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}]
    request = parse_create({"model": "m", "input": "Hi", "tools": tools, **asked}, CountingIds(), Limits())
    body = render(ModelCall("m", request, request.input), upstream())
    assert body["tools"] == tools
    assert body["include"] == ["message.output_text.logprobs", "reasoning.encrypted_content"]
    assert {name: body[name] for name in asked if name != "include"} == {
        name: value for name, value in asked.items() if name != "include"
    }


def test_store_is_false_whatever_the_extra_fields_say() -> None:
    body = body_of(extra={"store": True, "stream": False, "top_k": 5}, metadata={"a": "b"}, background=True)
    assert (body["store"], body["stream"], body["top_k"]) == (False, True, 5)
    assert not {"metadata", "background", "conversation", "previous_response_id"} & body.keys()


def test_hosted_tools_are_sent_unchanged() -> None:
    tools = [{"type": "web_search", "search_context_size": "low"}, {"type": "acme:dream", "depth": {"at": [3]}}]
    assert body_of(tools=tools, tool_choice={"type": "web_search"})["tools"] == tools
    assert body_of(tools=tools, tool_choice={"type": "web_search"})["tool_choice"] == {"type": "web_search"}


def test_the_upstreams_own_items_are_sent_back_in_order() -> None:
    made = [theirs.WEB_SEARCH(0)[1], theirs.CODE_INTERPRETER(1)[1], theirs.FUTURE(2)[1]]
    assert sent(USER, THOUGHT, *made, SAID, USER | {"id": "msg_9"})[1:-1] == [
        THOUGHT,
        *made,
        {**SAID, "content": [{"type": "output_text", "annotations": [], "text": "Hello"}]},
    ]


def test_reasoning_stands_before_the_call_it_led_to() -> None:
    kinds = [item["type"] for item in sent(USER, THOUGHT, CALL, OUTPUT)]
    assert kinds == ["message", "reasoning", "function_call", "function_call_output"]


def test_calls_and_outputs_lose_their_ids() -> None:
    _, call, output = sent(USER, CALL, OUTPUT)
    assert call == {key: value for key, value in CALL.items() if key != "id"}
    assert output == {key: value for key, value in OUTPUT.items() if key != "id"}


def test_an_unanswered_call_gets_a_placeholder() -> None:
    assert sent(USER, CALL)[-1] == {
        "type": "function_call_output", "call_id": "call_up1", "output": PLACEHOLDER_OUTPUT,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reasoning_input", "item", "kept"),
    [
        ("any", THOUGHT, {"encrypted_content"}),
        ("any", PLAIN, {"content"}),
        ("any", {**PLAIN, "encrypted_content": "x"}, {"content", "encrypted_content"}),
        ("encrypted", THOUGHT, {"encrypted_content"}),
        ("encrypted", PLAIN, None),
        ("encrypted", {**PLAIN, "encrypted_content": "x"}, {"encrypted_content"}),
        ("plain", THOUGHT, None),
        ("plain", PLAIN, {"content"}),
        ("plain", {**PLAIN, "encrypted_content": "x"}, {"content"}),
        ("encrypted", {**THOUGHT, "encrypted_content": "anthropic:signature:x"}, None),
        ("any", {**PLAIN, "encrypted_content": "outlive:plain:SG0u"}, {"content"}),
        ("any", {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}, None),
    ],
)
def test_reasoning_is_sent_in_the_form_that_the_setting_names(
    reasoning_input: str, item: Json, kept: set[str] | None
) -> None:
    rendered = sent(USER, item, SAID, reasoning_input=reasoning_input)
    if kept is None:
        assert [each["type"] for each in rendered] == ["message", "message"]
    else:
        assert rendered[1].keys() & {"content", "encrypted_content"} == kept
        assert rendered[1].keys() >= {"id", "type", "summary"}


@pytest.mark.parametrize(
    "following",
    [[], [USER | {"id": "msg_9"}], [{**THOUGHT, "id": "rs_2"}], [{**THOUGHT, "id": "rs_2"}, USER | {"id": "msg_9"}]],
    ids=["nothing", "the user", "a thought", "a thought and the user"],
)
def test_reasoning_that_led_to_nothing_is_left_out(following: list[Json]) -> None:
    assert all(item["type"] == "message" for item in sent(USER, THOUGHT, *following))


def test_unfinished_reasoning_is_left_out() -> None:
    assert len(sent(USER, {**THOUGHT, "status": "incomplete"}, SAID)) == 2


def test_item_ids_have_the_expected_prefix_and_length() -> None:
    for odd in ("abc", "x" * 100, "rs_1"):
        assert sent(USER, {**SAID, "id": odd})[1]["id"].startswith("msg_")
        assert len(sent(USER, {**SAID, "id": odd})[1]["id"]) <= 64
    assert sent(USER, THOUGHT | {"id": "mine"}, SAID)[1]["id"] == "rs_mine"


def test_developer_messages_become_system_messages_if_unsupported() -> None:
    developer = {**USER, "role": "developer"}
    assert sent(developer)[0]["role"] == "developer"
    assert sent(developer, developer_role=False)[0]["role"] == "system"


def test_encrypted_reasoning_can_be_left_out() -> None:
    call = ModelCall(
        "m", CreateResponse(model="m", input=[], include=["reasoning.encrypted_content"]), [USER, THOUGHT, SAID]
    )
    body = render(call, upstream(), encrypted=False)
    assert "include" not in body
    assert [item["type"] for item in body["input"]] == ["message", "message"]
    assert "include" not in body_of(quirks={"reasoning_input": "plain"})
    asked = body_of(quirks={"reasoning_input": "plain"}, include=["reasoning.encrypted_content"])
    assert asked["include"] == ["reasoning.encrypted_content"]


def test_a_text_to_continue_is_the_last_incomplete_message() -> None:
    body = body_of(resume=OpenText("msg_7", 0, 0, "one, two", 4), max_output_tokens=20)
    assert body["input"][-1] == {
        "id": "msg_7", "type": "message", "role": "assistant", "status": "incomplete",
        "content": [{"type": "output_text", "text": "one, two", "annotations": []}],
    }  # fmt: skip
    assert body["max_output_tokens"] == 16


def test_null_fields_are_left_out() -> None:
    tools = [{"type": "function", "name": "f", "parameters": None}]
    request = {"model": "m", "input": "Hi", "tools": tools, "reasoning": {"effort": None}}
    request["text"] = {"format": {"type": "json_schema", "name": "n", "schema": {}}}
    parsed = parse_create(request, CountingIds(), Limits())
    body = render(ModelCall("m", parsed, parsed.input), upstream())
    assert "description" not in body["tools"][0]
    assert "description" not in body["text"]["format"]
    assert "reasoning" not in body


def test_a_call_id_that_was_used_before_is_sent_once() -> None:
    """Servers refuse two calls of one id; some models count theirs from zero, and late calls are repeated."""
    again = {**CALL, "id": "fc_up2"}
    rendered = sent(USER, CALL, OUTPUT, SAID, again, {**OUTPUT, "id": "fc_3", "output": "rain"})
    ids = [(item["type"], item["call_id"]) for item in rendered if "call_id" in item]
    assert ids == [
        ("function_call", "call_up1"), ("function_call_output", "call_up1"),
        ("function_call", "call_up1_2"), ("function_call_output", "call_up1_2"),
    ]  # fmt: skip
    assert rendered[-1]["output"] == "rain"

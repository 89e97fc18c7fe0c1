"""A Responses request becomes a request to Anthropic's Messages API that the API accepts."""

from __future__ import annotations

import base64
import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.context.assemble import PLACEHOLDER_OUTPUT, assemble
from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.recovery import OpenText
from outlive.core.requests.create import CreateResponse
from outlive.dialects.anthropic.backend import COUNTED
from outlive.dialects.anthropic.request import BEGIN, GO_ON, check, fit, open_seal
from outlive.dialects.anthropic.request import render as render_any
from outlive.ports.backend import ModelCall, Upstream
from tests.support.anthropic_upstream import examine
from tests.support.upstream import UpstreamCall

HELLO: Json = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
WEATHER: Json = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
THOUGHT: Json = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "Hm."}],
    "encrypted_content": "anthropic:signature:sig-1",
}
VERSION = {"anthropic-version": "2023-06-01"}


def upstream(**fields: Any) -> Upstream:
    return Upstream(**{"name": "a", "url": "http://a/v1", "dialect": "anthropic", "developer_role": False, **fields})


def render(
    items: list[Json] | None = None,
    *,
    model: str = "m",
    resume: OpenText | None = None,
    to: Upstream | None = None,
    with_thoughts: bool = True,
    **fields: Any,
) -> Json:
    """Render the body, and check it as the API does."""
    items = [HELLO] if items is None else items
    call = ModelCall(model, CreateResponse(model=model, input=[], **fields), assemble(items, []), resume)
    body = render_any(call, to or upstream(), with_thoughts=with_thoughts)
    examine(UpstreamCall("/v1/messages", VERSION, msgspec.json.decode(msgspec.json.encode(body))), {"sig-1", "EmwK"})
    return body


def message(role: str, text: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def call(call_id: str, name: str = "weather", arguments: str = "{}") -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments, "status": "completed"}


def result(call_id: str, output: Any, **more: Any) -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": output, **more}


def said(*texts: str) -> list[Json]:
    return [{"type": "text", "text": text} for text in texts]


# -- the context


def test_a_minimal_request_has_model_messages_and_a_token_limit() -> None:
    assert render() == {
        "model": "m",
        "max_tokens": 32_000,
        "messages": [{"role": "user", "content": said("Hello")}],
        "stream": True,
    }


def test_instructions_and_system_messages_are_the_system_prompt() -> None:
    items = [
        message("developer", "Be brief."),
        HELLO,
        message("assistant", "Hi."),
        message("system", "Now rhyme."),
        HELLO,
    ]
    body = render(items, instructions="Be kind.")
    assert body["system"] == "Be kind.\n\nBe brief.\n\nNow rhyme."
    assert [entry["role"] for entry in body["messages"]] == ["user", "assistant", "user"]


def test_an_inline_capable_model_gets_system_messages_in_their_place() -> None:
    items = [message("system", "Be brief."), HELLO, message("assistant", "Hi."), message("system", "Now rhyme."), HELLO]
    body = render(items, to=upstream(developer_role=True))
    assert body["system"] == "Be brief."
    assert [entry["role"] for entry in body["messages"]] == ["user", "assistant", "user", "system"]
    tools = [HELLO, call("c1"), result("c1", "x"), message("developer", "Hurry."), message("assistant", "Hi"), HELLO]
    body = render(tools, to=upstream(developer_role=True), tools=[WEATHER])
    assert [entry["role"] for entry in body["messages"]] == ["user", "assistant", "user", "system", "assistant", "user"]
    last = render([HELLO, message("assistant", "Hi"), message("developer", "Go.")], to=upstream(developer_role=True))
    assert last["messages"][-1] == {"role": "user", "content": said("Go.")}


def test_neighbours_of_one_role_are_one_message() -> None:
    items = [message("user", "a"), message("user", "b"), message("assistant", "c"), message("assistant", "d"), HELLO]
    assert render(items)["messages"] == [
        {"role": "user", "content": said("a", "b")},
        {"role": "assistant", "content": said("c", "d")},
        {"role": "user", "content": said("Hello")},
    ]


def test_messages_begin_and_end_with_the_user() -> None:
    assert render([])["messages"] == [{"role": "user", "content": said(BEGIN)}]
    first, _, last = render([message("assistant", "Hi.")])["messages"]
    assert (first["content"], last["content"]) == (said(BEGIN), said(GO_ON))


def test_blank_texts_are_left_out() -> None:
    parts = [{"type": "input_text", "text": " \n"}, {"type": "input_text", "text": "x"}]
    items = [{**HELLO, "content": parts}, message("assistant", ""), message("user", "\t"), message("system", " ")]
    body = render(items, instructions=" ")
    assert body["messages"] == [{"role": "user", "content": said("x")}]
    assert "system" not in body


def test_calls_and_results_are_blocks() -> None:
    items = [HELLO, message("assistant", "Let me see."), call("c1", arguments='{"city":"X"}'), call("c2")]
    body = render([*items, result("c1", "sunny"), result("c2", ""), HELLO], tools=[WEATHER])
    assert body["messages"][1:] == [
        {
            "role": "assistant",
            "content": [
                *said("Let me see."),
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "X"}},
                {"type": "tool_use", "id": "c2", "name": "weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": said("sunny")},
                {"type": "tool_result", "tool_use_id": "c2"},
                *said("Hello"),
            ],
        },
    ]


def test_results_may_show_images_and_documents_and_failures() -> None:
    image = {"type": "input_image", "image_url": "https://x.example/a.png", "detail": "auto"}
    items = [HELLO, call("c1"), call("c2"), call("c3"), call("c4")]
    outputs = [
        result("c1", [image, {"type": "input_text", "text": "a map"}]),
        result("c2", "boom", is_error=True),
        result("c3", "no", status="failed"),
    ]
    blocks = render([*items, *outputs], tools=[WEATHER])["messages"][-1]["content"]
    assert blocks[0]["content"][0] == {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}}
    assert "is_error" not in blocks[0]
    assert [block["is_error"] for block in blocks[1:]] == [True, True, True]
    assert blocks[3]["content"] == said(PLACEHOLDER_OUTPUT)


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [("", {}), ("{", {"unparsed": "{"}), ("5", {"value": 5}), ('{"a":1}', {"a": 1})],
)
def test_arguments_are_always_an_object(arguments: str, sent: Json) -> None:
    body = render([HELLO, call("c1", arguments=arguments), result("c1", "x")], tools=[WEATHER])
    assert body["messages"][1]["content"][0]["input"] == sent


def test_call_ids_and_tool_names_fit_the_api() -> None:
    turn = [call("functions.weather:0", "get weather"), result("functions.weather:0", "x")]
    first, second = (
        message["content"][0] for message in render([HELLO, *turn, *turn], tools=[WEATHER])["messages"][1::2]
    )
    assert (first["id"], second["id"]) == ("functions_weather_0", "functions_weather_0_2")
    assert first["name"] == "get_weather"


def test_calls_of_other_types_become_tool_calls() -> None:
    items = [
        HELLO,
        {"type": "custom_tool_call", "call_id": "c1", "name": "shell", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "a b"},
        {"type": "local_shell_call", "id": "x", "call_id": "c2", "action": {"command": ["ls"]}, "status": "completed"},
        {"type": "local_shell_call_output", "call_id": "c2", "output": {"stdout": "a"}},
    ]
    body = render(items)
    uses = [block for entry in body["messages"] for block in entry["content"] if block["type"] == "tool_use"]
    assert [use["input"] for use in uses] == [{"input": "ls"}, {"command": ["ls"]}]
    # With calls in the context, tools must be declared; but none may be called.
    assert [tool["name"] for tool in body["tools"]] == ["shell", "local_shell"]
    assert body["tool_choice"] == {"type": "none"}


def test_sealed_thoughts_are_sent_back_unchanged() -> None:
    redacted = {"type": "reasoning", "summary": [], "encrypted_content": "anthropic:redacted:EmwK"}
    foreign = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    items = [HELLO, THOUGHT, redacted, foreign, {"type": "reasoning", "summary": []}, call("c1"), result("c1", "x")]
    body = render(items, tools=[WEATHER])
    assert body["messages"][1]["content"][:2] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig-1"},
        {"type": "redacted_thinking", "data": "EmwK"},
    ]
    assert [block["type"] for block in body["messages"][1]["content"]] == ["thinking", "redacted_thinking", "tool_use"]
    without = render(items, tools=[WEATHER], with_thoughts=False)
    assert [block["type"] for block in without["messages"][1]["content"]] == ["tool_use"]


def test_a_body_has_thoughts_where_an_item_holds_one() -> None:
    for items, has_thoughts in (([HELLO], False), ([HELLO, THOUGHT, message("assistant", "Hi"), HELLO], True)):
        blocks = [block for sent in render(items)["messages"] for block in sent["content"]]
        assert any(block["type"] == "thinking" for block in blocks) is has_thoughts
        assert any(map(open_seal, items)) is has_thoughts


def test_an_item_that_cannot_be_sent_is_refused_by_name() -> None:
    request = CreateResponse(model="m", input=[HELLO, {"type": "compaction_trigger"}])
    with pytest.raises(InvalidRequest) as caught:
        check(request, upstream())
    assert caught.value.param == "input[1].type"


def test_a_history_from_another_upstream_is_rendered() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    image = {"type": "input_image", "image_url": "data:image/tiff;base64,AAAA"}
    items = [
        {"type": "additional_tools", "role": "developer", "tools": []},
        {**HELLO, "content": [audio, image, {"type": "input_text", "text": "x"}]},
        {"type": "message", "role": "assistant", "content": [image]},
        {"type": "program", "id": "p", "code": ""},
    ]
    left = "cannot be sent to this model]"
    assert render(items)["messages"] == [
        {"role": "user", "content": [*said(f"[input_audio: {left}"), *said(f"[input_image: {left}"), *said("x")]},
        {"role": "assistant", "content": said(f"[input_image: {left}")},
        {"role": "user", "content": said(GO_ON)},
    ]


_texts = st.sampled_from(["a", "", " ", "a ", "\n\nb"])
_parts = st.one_of(
    _texts.map(lambda text: {"type": "input_text", "text": text}),
    st.just({"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "auto"}),
)
_ids = st.sampled_from(["c1", "c2", "functions.f:0", "é"])
_items = st.one_of(
    st.builds(lambda parts: {"type": "message", "role": "user", "content": parts}, st.lists(_parts, max_size=2)),
    st.builds(message, st.sampled_from(["assistant", "system", "developer"]), _texts),
    st.builds(call, _ids, st.sampled_from(["weather", "a b", "x" * 200]), st.sampled_from(["{}", "", "{", "[1]"])),
    st.builds(lambda item: {**item, "status": "incomplete"}, st.builds(call, _ids)),
    st.builds(result, _ids, st.one_of(_texts, st.lists(_parts, max_size=2))),
    st.just(THOUGHT),
    st.just({"type": "reasoning", "summary": [], "encrypted_content": "other"}),
    st.just({"type": "web_search_call", "id": "ws_1", "status": "completed"}),
)


@given(
    st.lists(_items, max_size=10), st.booleans(), st.booleans(), st.booleans(), st.sampled_from([None, "ab ", " ", ""])
)
def test_no_history_makes_a_request_that_the_api_refuses(
    items: list[Json], inline: bool, with_thoughts: bool, tools: bool, partial: str | None
) -> None:
    resume = OpenText("msg_1", 0, 0, partial, 2) if partial is not None else None
    to = upstream(developer_role=inline)
    render(
        copy.deepcopy(items), to=to, with_thoughts=with_thoughts, resume=resume, tools=[WEATHER] if tools else [],
        reasoning={"effort": "high"},
    )  # fmt: skip


# -- images and documents

PDF = base64.b64encode(b"%PDF-1.7 ...").decode()


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (
            {"type": "input_image", "image_url": "data:image/jpg;base64,AAAA"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"}},
        ),
        (
            {"type": "input_file", "file_data": f"data:application/pdf;base64,{PDF}", "filename": "a.pdf"},
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PDF},
                "title": "a.pdf",
            },
        ),
        (
            {"type": "input_file", "file_data": PDF},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}},
        ),
        (
            {"type": "input_file", "file_url": "https://x.example/a.pdf"},
            {"type": "document", "source": {"type": "url", "url": "https://x.example/a.pdf"}},
        ),
        (
            {"type": "input_file", "file_data": base64.b64encode(b"caf\xc3\xa9").decode(), "filename": "a.TXT"},
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "café"},
                "title": "a.TXT",
            },
        ),
        (
            {"type": "input_file", "file_data": "data:text/csv;charset=utf-8;base64,YSxi"},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a,b"}},
        ),
    ],
)
def test_images_and_documents_become_sources(part: Json, block: Json) -> None:
    assert render([{**HELLO, "content": [part]}])["messages"][0]["content"] == [block]


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "input_image", "image_url": "data:image/tiff;base64,AAAA"}, "image_url"),
        ({"type": "input_image", "image_url": "data:image/png,AAAA"}, "image_url"),
        ({"type": "input_image"}, "image_url"),
        ({"type": "input_image", "file_id": "file_1"}, "file_id"),
        ({"type": "input_file", "file_data": "data:application/zip;base64,AAAA"}, "file_data"),
        ({"type": "input_file", "file_data": "/w==", "filename": "a.txt"}, "file_data"),
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "type"),
    ],
)
def test_unsupported_content_is_refused_with_its_path(part: Json, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(CreateResponse(model="m", input=[HELLO, {**HELLO, "content": [part]}]), upstream())
    assert caught.value.param == f"input[1].content[0].{field}"
    output = {"type": "function_call_output", "call_id": "c", "output": [part]}
    if field != "type":
        with pytest.raises(InvalidRequest) as caught:
            check(CreateResponse(model="m", input=[output]), upstream())
        assert caught.value.param == f"input[0].output[0].{field}"


def test_assistant_messages_with_images_are_refused() -> None:
    image = {"type": "input_image", "image_url": "https://x.example/a.png"}
    with pytest.raises(InvalidRequest, match="only have text"):
        check(
            CreateResponse(model="m", input=[{"type": "message", "role": "assistant", "content": [image]}]), upstream()
        )


# -- tools


def test_function_tools_become_flat_tools() -> None:
    described = {**WEATHER, "description": "Tells the weather."}
    bare = {"type": "function", "name": "now", "parameters": None, "strict": False}
    assert render(tools=[described, bare])["tools"] == [
        {"name": "weather", "description": "Tells the weather.", "input_schema": {"type": "object"}},
        {"name": "now", "input_schema": {"type": "object"}},
    ]


def test_a_custom_tool_becomes_a_tool_with_an_input_field() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: X"}
    (tool,) = render(tools=[{"type": "custom", "name": "shell", "format": grammar}])["tools"]
    assert tool["input_schema"]["required"] == ["input"]
    assert "lark grammar" in tool["description"]


def test_strict_tools_stay_strict() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}
    (tool,) = render(tools=[{**WEATHER, "parameters": schema, "strict": True}])["tools"]
    assert tool["strict"] is True
    assert tool["input_schema"]["properties"]["n"] == {"type": "integer", "description": "(minimum: 1)"}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", None),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        ({"type": "function", "name": "weather"}, {"type": "tool", "name": "weather"}),
    ],
)
def test_tool_choices_are_translated(choice: Any, sent: Json | None) -> None:
    assert render(tools=[WEATHER], tool_choice=choice).get("tool_choice") == sent


def test_parallel_calls_can_be_disabled() -> None:
    single = {"disable_parallel_tool_use": True}
    assert render(tools=[WEATHER], parallel_tool_calls=False)["tool_choice"] == {"type": "auto", **single}
    forced = render(tools=[WEATHER], parallel_tool_calls=False, tool_choice="required")
    assert forced["tool_choice"] == {"type": "any", **single}
    assert render(tools=[WEATHER], parallel_tool_calls=False, tool_choice="none")["tool_choice"] == {"type": "none"}
    assert "tool_choice" not in render(parallel_tool_calls=False)


def test_only_allowed_tools_are_sent() -> None:
    other = {**WEATHER, "name": "other"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    body = render(tools=[WEATHER, other], tool_choice=choice)
    assert [tool["name"] for tool in body["tools"]] == ["other"]
    assert body["tool_choice"] == {"type": "any"}


# -- thinking


@pytest.mark.parametrize("model", ["claude-opus-5-5", "claude-sonnet-4-6", "claude-opus-4-8", "claude-haiku-5-5", "m"])
def test_newer_models_get_the_effort_as_a_word(model: str) -> None:
    body = render(model=model, reasoning={"effort": "high", "summary": "auto"})
    assert body["thinking"] == {"type": "adaptive", "display": "summarized"}
    assert body["output_config"] == {"effort": "high"}
    assert render(model=model, reasoning={"effort": "minimal"})["output_config"] == {"effort": "low"}
    assert render(model=model, reasoning={"summary": "concise"})["thinking"] == {
        "type": "adaptive",
        "display": "summarized",
    }


@pytest.mark.parametrize(
    "model",
    [
        "claude-sonnet-4-5",
        "claude-haiku-4-5-20251001",
        "claude-opus-4-5@20251101",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    ],
)
def test_older_models_get_the_effort_as_a_budget(model: str) -> None:
    body = render(model=model, reasoning={"effort": "high"})
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 16_384}
    assert "output_config" not in body
    assert "thinking" not in render(model=model, reasoning={"summary": "auto"})


@pytest.mark.parametrize(
    ("model", "budgeted"),
    [
        ("claude-opus-4-20250514", True),
        ("claude-3-7-sonnet-20250219", True),
        ("claude-sonnet-4", True),
        ("anthropic/claude-sonnet-4.5", True),
        ("claude-opus-4-1-20250805", True),
        ("claude-opus-4-6", False),
        ("claude-sonnet-4.6", False),
        ("claude-opus-4-10", False),
        ("claude-opus-5", False),
        ("deepseek-chat", False),
    ],
)
def test_older_models_are_recognised_by_name(model: str, budgeted: bool) -> None:
    request = CreateResponse(model=model, input=[], reasoning={"effort": "low"})
    body = render_any(ModelCall(model, request, [HELLO]), upstream())
    assert (body["thinking"]["type"] == "enabled") is budgeted


def test_the_thinking_setting_overrides_the_models_name() -> None:
    body = render(model="glm", reasoning={"effort": "low"}, to=upstream(thinking="budget"))
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    body = render(model="m", reasoning={"effort": "low"}, to=upstream(thinking="adaptive"))
    assert body["thinking"] == {"type": "adaptive"}


def test_a_budget_is_left_out_in_a_turn_that_began_without_a_thought() -> None:
    """Calls that came from another dialect, or are repeated for a late output, have no thought before them."""
    old: Any = {"to": upstream(thinking="budget"), "reasoning": {"effort": "low"}}
    assert "thinking" not in render([HELLO, call("1"), result("1", "sunny")], **old)
    late = [HELLO, call("1"), message("assistant", "I wait."), HELLO, result("1", "sunny")]
    assert "thinking" not in render(assemble(late, []), **old)
    assert "thinking" in render([HELLO, THOUGHT, call("1"), result("1", "sunny")], **old)
    assert "thinking" in render([HELLO, call("1"), result("1", "sunny"), message("assistant", "Sunny."), HELLO], **old)


@pytest.mark.parametrize(
    ("limit", "budget"), [(None, 24_000), (60_000, 32_000), (2000, 1500), (1025, 1024), (1024, None), (16, None)]
)
def test_a_budget_leaves_room_for_an_answer(limit: int | None, budget: int | None) -> None:
    body = render(model="claude-opus-4-5", reasoning={"effort": "max"}, max_output_tokens=limit)
    assert body.get("thinking", {}).get("budget_tokens") == budget


def test_thinking_is_left_out_with_a_forced_tool_or_a_small_limit() -> None:
    old: dict[str, Any] = {"model": "claude-opus-4-5", "reasoning": {"effort": "high"}}
    assert "thinking" not in render(tools=[WEATHER], tool_choice="required", **old)
    assert "thinking" not in render(resume=OpenText("msg_1", 0, 0, "one", 1), **old)
    turn = [HELLO, THOUGHT, call("c1"), result("c1", "x")]
    assert "thinking" in render(turn, tools=[WEATHER], **old)
    assert "thinking" not in render(turn, tools=[WEATHER], with_thoughts=False, **old)


def test_effort_none_disables_thinking_and_no_effort_sends_nothing() -> None:
    assert render(reasoning={"effort": "none"})["thinking"] == {"type": "disabled"}
    body = render(reasoning={"effort": None})
    assert "thinking" not in body and "output_config" not in body


# -- the rest


def test_limits_are_always_sent() -> None:
    assert render(to=upstream(default_max_tokens=100))["max_tokens"] == 100
    assert render(max_output_tokens=50)["max_tokens"] == 50
    assert render(max_output_tokens=50, resume=OpenText("msg_1", 0, 0, "one", 20))["max_tokens"] == 30


def test_a_text_to_continue_is_the_last_message() -> None:
    body = render(resume=OpenText("msg_1", 0, 0, "one, two, ", 4))
    assert body["messages"][-1] == {"role": "assistant", "content": said("one, two,")}
    blank = render(resume=OpenText("msg_1", 0, 0, " \n", 1))
    assert blank["messages"][-1]["role"] == "user"


def test_a_json_schema_becomes_the_output_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True, "description": None}
    body = render(text={"format": form}, reasoning={"effort": "low"})
    assert body["output_config"] == {
        "effort": "low",
        "format": {"type": "json_schema", "schema": {**schema, "additionalProperties": False}},
    }


def test_sampling_tier_and_user_are_passed_on() -> None:
    body = render(temperature=0.5, top_p=0.9, user="u", safety_identifier="s" * 300, service_tier="default")
    assert (body["temperature"], body["top_p"], body["service_tier"]) == (0.5, 0.9, "standard_only")
    assert body["metadata"] == {"user_id": "s" * 256}
    assert render(service_tier="priority")["service_tier"] == "auto"
    quiet = render(prompt_cache_key="k", text={"verbosity": "low"}, truncation="disabled", metadata={"a": "b"})
    assert set(quiet) == {"model", "max_tokens", "messages", "stream"}


def test_extra_fields_are_sent_and_override_nothing() -> None:
    body = render(extra={"top_k": 5, "stop_sequences": ["x"], "max_tokens": 1, "messages": []})
    assert (body["top_k"], body["stop_sequences"], body["max_tokens"]) == (5, ["x"], 32_000)
    assert body["messages"]


def test_the_prompt_cache_setting_adds_cache_control() -> None:
    cached = upstream(prompt_cache=True)
    assert render(to=cached)["cache_control"] == {"type": "ephemeral"}
    assert render(to=cached, prompt_cache_retention="24h")["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    marked = {"type": "input_text", "text": "long", "prompt_cache_breakpoint": {"mode": "explicit"}}
    body = render([{**HELLO, "content": [marked]}], to=cached)
    assert "cache_control" not in body
    assert body["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"text": {"format": {"type": "json_object"}}}, "text.format.type"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"frequency_penalty": -0.5}, "frequency_penalty"),
        ({"temperature": 1.5}, "temperature"),
        ({"tools": [WEATHER, {"type": "acme:dream"}]}, "tools[1].type"),
    ],
)
def test_an_unsupported_parameter_is_refused_by_name(fields: Json, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check(CreateResponse(model="m", input=[HELLO], **fields), upstream())
    assert caught.value.param == param


def test_neutral_values_of_unsupported_parameters_are_accepted() -> None:
    check(CreateResponse(model="m", input=[HELLO], presence_penalty=0.0, top_logprobs=0, temperature=1.0), upstream())


def test_the_counting_request_has_no_fields_about_the_answer() -> None:
    body = render(tools=[WEATHER], instructions="Be kind.", temperature=0.5, reasoning={"effort": "low"})
    counted = {name: body[name] for name in COUNTED if name in body}
    assert set(counted) == {"model", "messages", "system", "tools", "thinking", "output_config"}
    examine(UpstreamCall("/v1/messages/count_tokens", VERSION, counted), set())


# -- schemas


def test_a_schema_is_closed_and_its_limits_become_words() -> None:
    schema = {
        "type": "object",
        "properties": {
            "minimum": {"type": "number", "description": "Degrees.", "minimum": -90, "maximum": 90},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 3},
            "when": {"type": "string", "format": "date"},
            "odd": {"type": "string", "format": "phone"},
            "either": {"oneOf": [{"$ref": "#/$defs/Leaf"}, {"type": "null"}]},
        },
        "$defs": {"Leaf": {"type": ["object", "null"], "properties": {}}},
    }
    before = copy.deepcopy(schema)
    fitted = fit(schema)
    assert schema == before
    properties = fitted["properties"]
    assert fitted["additionalProperties"] is False
    assert properties["minimum"] == {"type": "number", "description": "Degrees. (minimum: -90, maximum: 90)"}
    assert properties["tags"] == {
        "type": "array",
        "items": {"type": "string", "description": "(maxLength: 5)"},
        "minItems": 1,
        "description": "(maxItems: 3)",
    }
    assert properties["when"] == {"type": "string", "format": "date"}
    assert properties["odd"] == {"type": "string", "description": '(format: "phone")'}
    assert properties["either"] == {"anyOf": [{"$ref": "#/$defs/Leaf"}, {"type": "null"}]}
    assert fitted["$defs"]["Leaf"]["additionalProperties"] is False


def test_a_map_is_left_for_the_api_to_refuse() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "string"}}
    assert fit(schema) == schema

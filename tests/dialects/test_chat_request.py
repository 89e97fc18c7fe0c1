"""A Responses request becomes an equivalent Chat Completions request."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.context.assemble import PLACEHOLDER_OUTPUT, assemble
from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.recovery import OpenText
from outlive.core.requests.create import CreateResponse
from outlive.dialects.chat.request import OUTPUT_ELSEWHERE, check, render
from outlive.ports.backend import Upstream
from tests.dialects.playback import make_call

PLAIN = Upstream(name="u", url="http://127.0.0.1/v1")


def upstream(**fields: Any) -> Upstream:
    return Upstream(name="u", url="http://127.0.0.1/v1", **fields)


def message(role: str, *content: str | Json) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    parts = [{"type": kind, "text": part} if isinstance(part, str) else part for part in content]
    return {"type": "message", "role": role, "content": parts}


def call(call_id: str, arguments: str = "{}", **fields: Any) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments, **fields}


def output(call_id: str, value: object = "42") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def tool_call(call_id: str, arguments: str = "{}", name: str = "f") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(call_id: str, content: str = "42") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def messages(*items: Json, at: Upstream = PLAIN, **fields: Any) -> list[Json]:
    rendered: list[Json] = render(make_call(items=assemble(items, []), **fields), at)["messages"]
    return rendered


def request(input: list[Json] | None = None, **fields: Any) -> CreateResponse:
    return CreateResponse(model="m", input=input or [], **fields)


# -- messages


def test_instructions_come_first() -> None:
    assert messages(message("user", "Hi"), instructions="Be kind.") == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
    ]


def test_neighbours_of_one_role_become_one_message() -> None:
    items = [message("user", "a", "b"), message("user", "c"), message("assistant", "d", "e"), message("assistant", "f")]
    assert messages(*items) == [
        {"role": "user", "content": "a\nb\n\nc"},
        {"role": "assistant", "content": "de\n\nf"},
    ]


def test_developer_messages_become_system_messages_if_unsupported() -> None:
    items = [message("developer", "a"), message("user", "b")]
    assert messages(*items)[0]["role"] == "developer"
    assert messages(*items, at=upstream(developer_role=False))[0]["role"] == "system"


def test_plain_strings_are_content() -> None:
    assert messages({"type": "message", "role": "user", "content": "a"}) == [{"role": "user", "content": "a"}]


def test_calls_join_the_message_before_them() -> None:
    items = [message("assistant", "Let me see."), call("1"), call("2"), output("1"), output("2", "43")]
    assert messages(*items) == [
        {"role": "assistant", "content": "Let me see.", "tool_calls": [tool_call("1"), tool_call("2")]},
        tool("1"),
        tool("2", "43"),
    ]


def test_calls_after_outputs_begin_a_new_message() -> None:
    assert messages(call("1"), output("1"), call("2"), output("2")) == [
        {"role": "assistant", "content": None, "tool_calls": [tool_call("1")]},
        tool("1"),
        {"role": "assistant", "content": None, "tool_calls": [tool_call("2")]},
        tool("2"),
    ]


def test_a_broken_history_becomes_messages_that_no_server_refuses() -> None:
    items = [call("1"), message("user", "Well?"), output("9"), call("2", status="incomplete")]
    assert messages(*items) == [
        {"role": "assistant", "content": None, "tool_calls": [tool_call("1")]},
        tool("1", PLACEHOLDER_OUTPUT),
        {"role": "user", "content": "Well?"},
    ]


def test_arguments_are_always_json() -> None:
    (assistant, *_) = messages(call("1", ""), call("2", '{"x": 1}'), call("3", '{"x": '))
    assert [made["function"]["arguments"] for made in assistant["tool_calls"]] == [
        "{}",
        '{"x": 1}',
        '{"unparsed":"{\\"x\\": "}',
    ]


def test_custom_calls_become_function_calls() -> None:
    asked = {"type": "custom_tool_call", "call_id": "1", "name": "shell", "input": "ls\n"}
    answered = {"type": "custom_tool_call_output", "call_id": "1", "output": "a b"}
    assert messages(asked, answered) == [
        {"role": "assistant", "content": None, "tool_calls": [tool_call("1", '{"input":"ls\\n"}', "shell")]},
        tool("1", "a b"),
    ]


def test_reasoning_and_hosted_tool_calls_are_left_out() -> None:
    left_out: list[Json] = [{"type": "reasoning", "summary": []}, {"type": "web_search_call"}, {"type": "acme:thing"}]
    assert messages(message("user", "a"), *left_out, message("user", "b")) == [{"role": "user", "content": "a\n\nb"}]


def test_refusals_are_sent_as_text() -> None:
    refused = message("assistant", {"type": "refusal", "refusal": "I won't."})
    assert messages(refused) == [{"role": "assistant", "content": "I won't."}]


def test_an_empty_message_is_left_out() -> None:
    assert messages(message("user", "a"), message("assistant", ""), message("user", "b")) == [
        {"role": "user", "content": "a\n\nb"}
    ]


def test_images_files_and_audio_become_parts() -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
    file = {"type": "input_file", "file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"}
    audio = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}
    (sent,) = messages(message("user", "See:", image, file, audio), message("user", "Well?"))
    assert sent["content"] == [
        {"type": "text", "text": "See:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA", "filename": "a.pdf"}},
        audio,
        {"type": "text", "text": "Well?"},
    ]


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ({"type": "input_file", "file_url": "http://127.0.0.1/a.pdf"}, "file_url"),
        ({"type": "input_file", "file_id": "file_1"}, "file_id"),
        ({"type": "input_image", "file_id": "file_1"}, "file_id"),
        ({"type": "input_smell"}, "type"),
    ],
)
def test_unsupported_content_is_refused_by_name(part: Json, name: str) -> None:
    text = {"type": "input_text", "text": "See:"}
    with pytest.raises(InvalidRequest) as caught:
        check(request(input=[message("user", "Hi"), message("user", text, part)]), PLAIN)
    assert caught.value.param == f"input[1].content[1].{name}"


@pytest.mark.parametrize("kind", ["compaction", "configuration_update", "a_kind_of_next_year"])
def test_unsupported_items_are_refused_in_a_request_and_left_out_of_a_history(kind: str) -> None:
    item = {"type": kind, "id": "x_1", "encrypted_content": "x"}
    with pytest.raises(InvalidRequest, match=kind) as caught:
        check(request(input=[message("user", "Hi"), item]), PLAIN)
    assert (caught.value.param, caught.value.code) == ("input[1].type", "unsupported_parameter")
    assert messages(message("user", "Hi"), item) == [{"role": "user", "content": "Hi"}]


def test_images_of_outputs_follow_in_a_user_message() -> None:
    image = {"type": "input_image", "image_url": "data:x"}
    text = {"type": "input_text", "text": "seen"}
    sent = messages(call("1"), call("2"), output("1", [text, image]), output("2", [image]), message("user", "Well?"))
    assert sent[1:3] == [tool("1", "seen"), tool("2", OUTPUT_ELSEWHERE)]
    (after,) = sent[3:]
    assert after["role"] == "user"
    assert [part["type"] for part in after["content"]] == ["text", "image_url", "text", "image_url", "text"]


def test_calls_of_other_types_become_function_calls() -> None:
    shell = {"type": "shell_call", "id": "sh_1", "call_id": "1", "action": {"commands": ["ls"]}, "status": "completed"}
    answered = {"type": "shell_call_output", "call_id": "1", "output": [{"stdout": "a", "stderr": ""}]}
    assert messages(shell, answered) == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [tool_call("1", '{"commands":["ls"]}', "shell")],
        },
        tool("1", '[{"stdout":"a","stderr":""}]'),
    ]


def test_mcp_calls_become_function_calls_with_outputs() -> None:
    made = {
        "type": "mcp_call",
        "id": "mcp_1",
        "name": "find",
        "arguments": "{}",
        "output": "found",
        "server_label": "s",
    }
    assert messages(made) == [
        {"role": "assistant", "content": None, "tool_calls": [tool_call("mcp_1", "{}", "find")]},
        tool("mcp_1", "found"),
    ]
    assert messages({**made, "output": None})[1] == tool("mcp_1", PLACEHOLDER_OUTPUT)
    assert messages({**made, "output": None, "status": "incomplete"}) == []


ids = st.sampled_from(["1", "2", "3"])
items = st.lists(
    st.one_of(
        st.builds(message, st.sampled_from(["user", "assistant", "system", "developer"]), st.sampled_from(["", "a"])),
        st.builds(call, ids, st.sampled_from(["", "{}", "{"]), status=st.sampled_from(["completed", "incomplete"])),
        st.builds(output, ids, st.sampled_from(["x", [{"type": "input_image", "image_url": "data:x"}]])),
        st.just({"type": "reasoning"}),
    ),
    max_size=15,
)


@given(items)
def test_messages_are_always_valid(given_items: list[Json]) -> None:
    before = ""
    owed: list[str] = []
    for sent in messages(*given_items):
        if sent["role"] == "tool":
            assert sent["tool_call_id"] == owed.pop(0)
        else:
            assert not owed
            assert sent["role"] != before
            owed = [made["id"] for made in sent.get("tool_calls", ())]
        before = sent["role"]
    assert not owed


# -- everything else


def test_a_minimal_request_has_model_messages_and_stream() -> None:
    assert render(make_call(items=[message("user", "Hi")]), PLAIN) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_quirks_of_the_upstream_change_the_body() -> None:
    body = render(
        make_call(max_output_tokens=100),
        upstream(stream_options=False, sends_store=True, max_tokens_field="max_tokens"),
    )
    assert "stream_options" not in body
    assert (body["store"], body["max_tokens"]) == (False, 100)
    assert render(make_call(max_output_tokens=100), PLAIN)["max_completion_tokens"] == 100


def test_sampling_and_hints_are_passed_on() -> None:
    given_fields: Json = {
        "temperature": 0.0,
        "top_p": 0.5,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "user": "u",
    }
    body = render(make_call(**given_fields, metadata={"a": "b"}), PLAIN)
    assert given_fields.items() <= body.items()
    assert "metadata" not in body


def test_format_verbosity_and_effort_are_translated() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True, "description": None}
    body = render(make_call(text={"format": schema, "verbosity": "low"}, reasoning={"effort": "high"}), PLAIN)
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }
    assert (body["verbosity"], body["reasoning_effort"]) == ("low", "high")
    assert render(make_call(text={"format": {"type": "json_object"}}), PLAIN)["response_format"] == {
        "type": "json_object"
    }


def test_logprobs_are_requested() -> None:
    body = render(make_call(top_logprobs=3), PLAIN)
    assert (body["logprobs"], body["top_logprobs"]) == (True, 3)
    body = render(make_call(include=["message.output_text.logprobs"]), PLAIN)
    assert body["logprobs"] is True
    assert "top_logprobs" not in body


def test_extras_are_passed_on_but_override_nothing() -> None:
    extra = {"top_k": 5, "stream": False, "model": "other", "messages": [], "max_completion_tokens": 9}
    body = render(make_call(items=[message("user", "Hi")], extra=extra, max_output_tokens=100), PLAIN)
    assert body["top_k"] == 5
    assert (body["stream"], body["model"], body["max_completion_tokens"]) == (True, "m", 100)
    assert body["messages"]


FUNCTION = {"type": "function", "name": "f", "description": "Does.", "parameters": {"type": "object"}, "strict": True}
CUSTOM = {"type": "custom", "name": "c", "description": None, "format": {"type": "text"}}


def test_tools_become_functions() -> None:
    body = render(make_call(tools=[FUNCTION, CUSTOM], parallel_tool_calls=False, tool_choice="required"), PLAIN)
    function, custom = (entry["function"] for entry in body["tools"])
    assert function == {"name": "f", "description": "Does.", "parameters": {"type": "object"}, "strict": True}
    assert custom["name"] == "c"
    assert custom["parameters"]["required"] == ["input"]
    assert (body["parallel_tool_calls"], body["tool_choice"]) == (False, "required")


def test_a_function_without_parameters_has_empty_ones() -> None:
    (entry,) = render(make_call(tools=[{"type": "function", "name": "f", "parameters": None}]), PLAIN)["tools"]
    assert entry["function"]["parameters"]["properties"] == {}


def test_a_custom_tools_grammar_is_in_its_description() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
    (entry,) = render(make_call(tools=[{**CUSTOM, "format": grammar}]), PLAIN)["tools"]
    assert 'start: "x"' in entry["function"]["description"]


def test_without_tools_no_tool_fields_are_sent() -> None:
    body = render(make_call(tool_choice="none", parallel_tool_calls=True), PLAIN)
    assert not body.keys() & {"tools", "tool_choice", "parallel_tool_calls"}


@pytest.mark.parametrize("chosen", [{"type": "function", "name": "f"}, {"type": "custom", "name": "f"}])
def test_a_chosen_tool_becomes_a_chosen_function(chosen: Json) -> None:
    body = render(make_call(tools=[{**FUNCTION, **chosen}], tool_choice=chosen), PLAIN)
    assert body["tool_choice"] == {"type": "function", "function": {"name": "f"}}


def test_only_allowed_tools_are_sent() -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "c"}]}
    body = render(make_call(tools=[FUNCTION, CUSTOM], tool_choice=allowed), PLAIN)
    assert [entry["function"]["name"] for entry in body["tools"]] == ["c"]
    assert body["tool_choice"] == "required"


SO_FAR = OpenText("msg_0", 0, 0, "Once upon", 40)


@pytest.mark.parametrize(
    ("continuation", "last", "fields"),
    [
        ("prefill", {"role": "assistant", "content": "Once upon"}, {}),
        (
            "continue_final_message",
            {"role": "assistant", "content": "Once upon"},
            {"continue_final_message": True, "add_generation_prompt": False},
        ),
        ("prefix", {"role": "assistant", "content": "Once upon", "prefix": True}, {}),
    ],
)
def test_a_text_to_continue_is_sent_in_the_upstreams_way(continuation: Any, last: Json, fields: Json) -> None:
    made = make_call(SO_FAR, [message("user", "Tell")], max_output_tokens=100)
    body = render(made, upstream(continuation=continuation))
    assert body["messages"] == [{"role": "user", "content": "Tell"}, last]
    assert fields.items() <= body.items()
    assert body["max_completion_tokens"] == 60


def test_at_least_one_token_is_left_to_continue_with() -> None:
    assert render(make_call(SO_FAR, max_output_tokens=16), PLAIN)["max_completion_tokens"] == 1


def test_the_body_is_json() -> None:
    body = render(make_call(items=[message("user", "Hi")], tools=[FUNCTION, CUSTOM]), PLAIN)
    assert json.loads(json.dumps(body)) == body


def test_a_file_of_an_earlier_turn_that_cannot_be_sent_is_named_in_its_place() -> None:
    file = {"type": "input_file", "file_url": "https://example.test/a.pdf"}
    shown = messages(message("user", "See:", file))
    left = "[input_file https://example.test/a.pdf: cannot be sent to this model]"
    assert shown == [{"role": "user", "content": f"See:\n{left}"}]

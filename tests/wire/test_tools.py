"""Inputs and outputs of models: tools, structured outputs, refusals, reasoning, images and files."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI, pydantic_function_tool
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel

from tests.support.http_client import HttpClient, Json
from tests.support.upstream import DONE, FakeUpstream, Script, Whole, call, chunk, ending, reasoning, refusal, say, text
from tests.wire import events

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
NOTE: Any = {"type": "custom", "name": "note", "description": "Writes a note."}

ONE_CALL: Script = [call(0, "", "call_1", "weather"), call(0, '{"city":'), call(0, '"Rome"}'), *ending("tool_calls")]


def stream_events(http: HttpClient, **body: Any) -> list[Json]:
    with http.stream(input="Hi", **body) as stream:
        return events.read_all(stream.read_rest())


def test_a_function_call_is_streamed_and_its_output_is_sent_back(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(ONE_CALL, say("Sunny."))
    with client.responses.stream(model=model, input="Weather?", tools=[WEATHER]) as stream:
        snapshots = [each.snapshot for each in stream if each.type == "response.function_call_arguments.delta"]
        first = stream.get_final_response()
    made: Any = first.output[0]
    assert snapshots[-1] == made.arguments == '{"city":"Rome"}'
    assert (made.type, made.name, made.call_id, made.status) == ("function_call", "weather", "call_1", "completed")
    second = client.responses.create(
        model=model,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": "call_1", "output": "sunny"}],
        tools=[WEATHER],
    )
    assert second.output_text == "Sunny."
    assert upstream.calls(model)[1].messages == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]


def test_tools_reach_the_upstream_in_its_own_shape(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model()
    made = client.responses.create(
        model=model,
        input="Hi",
        tools=[WEATHER, NOTE],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
    )
    body = upstream.bodies(model)[0]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["weather", "note"]
    assert body["tools"][0]["function"]["parameters"] == WEATHER["parameters"]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert body["parallel_tool_calls"] is False
    assert [tool.type for tool in made.tools] == ["function", "custom"]


@pytest.mark.parametrize("mode", ["none", "auto", "required"])
def test_a_tool_choice_is_sent_to_the_upstream(client: OpenAI, upstream: FakeUpstream, mode: Any) -> None:
    model = upstream.model()
    made = client.responses.create(model=model, input="Hi", tools=[WEATHER], tool_choice=mode)
    assert upstream.bodies(model)[0].get("tool_choice", "auto") == made.tool_choice == mode


def test_only_allowed_tools_are_offered(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model()
    client.responses.create(
        model=model,
        input="Hi",
        tools=[WEATHER, NOTE],
        tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
    )
    body = upstream.bodies(model)[0]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["weather"]
    assert body["tool_choice"] == "required"


@pytest.mark.parametrize(
    "script",
    [
        # Alternating pieces.
        [
            text("Let me see."),
            call(0, "", "call_1", "weather"),
            call(1, "", "call_2", "weather"),
            call(0, '{"city":"Rome"}'),
            call(1, '{"city":"Oslo"}'),
            *ending("tool_calls"),
        ],
        # Each complete in one chunk.
        [
            text("Let me see."),
            call(0, '{"city":"Rome"}', "call_1", "weather"),
            call(1, '{"city":"Oslo"}', "call_2", "weather"),
            *ending("tool_calls"),
        ],
        # Both in one chunk, without an index.
        [
            text("Let me see."),
            chunk(
                {
                    "tool_calls": [
                        {"id": "call_1", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}},
                        {"id": "call_2", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}},
                    ]
                }
            ),
            *ending("tool_calls"),
        ],
    ],
    ids=["interleaved", "whole", "without_index"],
)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_several_calls_are_separated_in_whatever_chunks_they_arrive(
    http: HttpClient, upstream: FakeUpstream, script: Script, stream: bool
) -> None:
    model = upstream.model(script)
    if stream:
        output = stream_events(http, model=model, tools=[WEATHER])[-1]["response"]["output"]
    else:
        output = http.create(model=model, input="Hi", tools=[WEATHER]).json()["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    calls = [(item["call_id"], item["arguments"]) for item in output[1:]]
    assert calls == [("call_1", '{"city":"Rome"}'), ("call_2", '{"city":"Oslo"}')]


def test_the_strict_helper_accepts_interleaved_calls(client: OpenAI, upstream: FakeUpstream) -> None:
    script = [
        call(0, "", "call_1", "weather"),
        call(1, "", "call_2", "note"),
        call(0, '{"city":'),
        call(1, '{"input":'),
        call(0, '"Rome"}'),
        call(1, '"buy milk"}'),
        *ending("tool_calls"),
    ]
    with client.responses.stream(model=upstream.model(script), input="Hi", tools=[WEATHER, NOTE]) as stream:
        first, second = stream.get_final_response().output
    assert first.type == "function_call" and first.arguments == '{"city":"Rome"}'
    assert second.type == "custom_tool_call" and second.input == "buy milk"


def test_a_custom_tool_gets_text_and_its_output_is_sent_back(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([call(0, '{"input":"buy milk"}', "call_1", "note"), *ending("tool_calls")], say("Noted."))
    received = stream_events(http, model=model, tools=[NOTE])
    made = received[-1]["response"]["output"][0]
    assert (made["type"], made["name"], made["input"]) == ("custom_tool_call", "note", "buy milk")
    assert "custom_tool_call_input.done" in events.types(received)
    answer = http.create(
        model=model,
        previous_response_id=received[-1]["response"]["id"],
        input=[{"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"}],
        tools=[NOTE],
    )
    assert answer.json()["output"][0]["content"][0]["text"] == "Noted."
    assert upstream.calls(model)[1].messages[-1] == {"role": "tool", "tool_call_id": "call_1", "content": "done"}


def test_tool_arguments_are_parsed_by_the_sdk(client: OpenAI, upstream: FakeUpstream) -> None:
    class Weather(BaseModel):
        city: str

    tool: Any = pydantic_function_tool(Weather, name="weather")
    flat: Any = {"type": "function", **tool["function"]}
    made = client.responses.parse(model=upstream.model(ONE_CALL), input="Hi", tools=[flat])
    got: Any = made.output[0]
    assert got.type == "function_call" and got.arguments == '{"city":"Rome"}'


class Otter(BaseModel):
    name: str
    whiskers: int


def test_structured_output_is_parsed(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(say('{"name": "Lotta",', ' "whiskers": 40}'))
    made = client.responses.parse(model=model, input="An otter, please.", text_format=Otter)
    assert made.output_parsed == Otter(name="Lotta", whiskers=40)
    form = upstream.bodies(model)[0]["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["name"] == "Otter" and form["json_schema"]["strict"] is True
    assert set(form["json_schema"]["schema"]["properties"]) == {"name", "whiskers"}


def test_structured_output_is_parsed_from_a_stream(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(say('{"name": "Lotta",', ' "whiskers": 40}'))
    with client.responses.stream(model=model, input="An otter, please.", text_format=Otter) as stream:
        assert stream.get_final_response().output_parsed == Otter(name="Lotta", whiskers=40)


def test_json_mode_is_sent_to_the_upstream(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(say("{}"))
    client.responses.create(model=model, input="JSON", text={"format": {"type": "json_object"}})
    assert upstream.bodies(model)[0]["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_a_refusal_is_returned_as_a_refusal_part(
    http: HttpClient, client: OpenAI, upstream: FakeUpstream, stream: bool
) -> None:
    model = upstream.model([refusal("I "), refusal("won't."), *ending()])
    if stream:
        received = stream_events(http, model=model)
        assert events.types(received).count("refusal.delta") == 2
        content = received[-1]["response"]["output"][0]["content"]
    else:
        content = http.create(model=model, input="Hi").json()["output"][0]["content"]
    assert content == [{"type": "refusal", "refusal": "I won't."}]
    with client.responses.stream(model=model, input="Hi") as helper:
        assert helper.get_final_response().output_text == ""


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_a_separate_item(http: HttpClient, upstream: FakeUpstream, field: str) -> None:
    script = [reasoning("Let me ", field), reasoning("think.", field), text("Six."), *ending()]
    received = stream_events(http, model=upstream.model(script), reasoning={"effort": "low"})
    thought, message = received[-1]["response"]["output"]
    assert thought["type"] == "reasoning"
    assert "Let me think." in str(thought)
    assert message["content"][0]["text"] == "Six."
    assert events.types(received).count("reasoning_text.delta") == 2


def test_the_strict_helper_accepts_reasoning(client: OpenAI, upstream: FakeUpstream) -> None:
    script = [reasoning("Hm. "), text("Six."), call(0, "{}", "call_1", "weather"), *ending("tool_calls")]
    with client.responses.stream(model=upstream.model(script), input="Hi", tools=[WEATHER]) as stream:
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]


def test_reasoning_is_not_sent_back_to_the_model(client: OpenAI, upstream: FakeUpstream) -> None:
    first = client.responses.create(model=upstream.model([reasoning("Hm."), text("Six."), *ending()]), input="3+3?")
    model = upstream.model()
    client.responses.create(model=model, input="Sure?", previous_response_id=first.id)
    assert [message["content"] for message in upstream.calls(model)[0].messages] == ["3+3?", "Six.", "Sure?"]


def test_an_image_and_a_file_reach_the_model(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model()
    made = client.responses.create(
        model=model,
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is this?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "high"},
                    {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,BBBB"},
                ],
            }
        ],
    )
    assert upstream.calls(model)[0].messages[0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "high"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,BBBB"}},
    ]
    kept: Any = client.responses.input_items.list(made.id).data[0]
    assert [part.type for part in kept.content] == ["input_text", "input_image", "input_file"]


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "input_image", "file_id": "file_1"}, "input[0].content[0].file_id"),
        ({"type": "input_file", "file_url": "https://example.com/a.pdf"}, "input[0].content[0].file_url"),
        ({"type": "input_nonsense"}, "input[0].content[0].type"),
    ],
)
def test_unsupported_content_is_refused_by_name(
    http: HttpClient, upstream: FakeUpstream, part: Json, param: str
) -> None:
    answer = http.create(model=upstream.model(), input=[{"role": "user", "content": [part]}])
    assert answer.status == 400
    assert answer.error["param"] == param


@pytest.mark.parametrize(
    ("reason", "status", "detail"),
    [
        ("stop", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("content_filter", "incomplete", "content_filter"),
    ],
)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_finish_reasons_decide_the_status(
    http: HttpClient, upstream: FakeUpstream, reason: str, status: str, detail: str | None, stream: bool
) -> None:
    model = upstream.model([text("Once upon"), *ending(reason)])
    if stream:
        final = stream_events(http, model=model, max_output_tokens=16)[-1]["response"]
    else:
        answer = http.create(model=model, input="Hi", max_output_tokens=16)
        assert answer.status == 200  # an incomplete answer is no error
        final = answer.json()
    assert final["status"] == status
    assert final["incomplete_details"] == ({"reason": detail} if detail else None)
    assert final["output"][0]["status"] == status
    assert final["output"][0]["content"][0]["text"] == "Once upon"
    assert final["usage"]["output_tokens"] == 2
    assert (final["completed_at"] is not None) == (status == "completed")


def test_a_call_cut_off_by_the_length_limit_is_incomplete(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([call(0, '{"ci', "call_1", "weather"), *ending("length")])
    final = stream_events(http, model=model, tools=[WEATHER])[-1]["response"]
    assert final["status"] == "incomplete"
    assert final["output"][0]["status"] == "incomplete"


def test_logprobs_are_requested_and_kept(http: HttpClient, upstream: FakeUpstream) -> None:
    entry = {"token": "Six", "logprob": -0.1, "bytes": [83], "top_logprobs": []}
    piece = chunk({"content": "Six"})
    piece["choices"][0]["logprobs"] = {"content": [entry]}
    model = upstream.model([piece, *ending()])
    received = stream_events(http, model=model, include=["message.output_text.logprobs"], top_logprobs=2)
    body = upstream.bodies(model)[0]
    assert body["logprobs"] is True and body["top_logprobs"] == 2
    assert received[-1]["response"]["output"][0]["content"][0]["logprobs"][0]["token"] == "Six"


def test_usage_keeps_its_details(http: HttpClient, upstream: FakeUpstream) -> None:
    full = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    script = [text("Hi"), *ending()[:1], chunk(choices=[], usage=full), DONE]
    usage = http.create(model=upstream.model(script), input="Hi").json()["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == 4
    assert usage["output_tokens_details"]["reasoning_tokens"] == 3
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (10, 5, 15)


def test_the_response_names_the_model_that_answered(client: OpenAI, upstream: FakeUpstream) -> None:
    assert client.responses.create(model=upstream.model(), input="Hi").model == "upstream-model"


def test_an_upstream_that_does_not_stream_is_translated(http: HttpClient, upstream: FakeUpstream) -> None:
    message = {"role": "assistant", "content": "All at once."}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    script = [Whole({**body, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})]
    assert events.text_of(stream_events(http, model=upstream.model(script))) == "All at once."


def test_an_empty_answer_is_completed(http: HttpClient, upstream: FakeUpstream) -> None:
    final = stream_events(http, model=upstream.model(ending()))[-1]["response"]
    assert final["status"] == "completed"

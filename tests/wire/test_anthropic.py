"""A model behind Anthropic's Messages API, used through the official OpenAI SDK."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

from tests.support.anthropic_upstream import AnthropicUpstream, end, event, redacted, say, start, text, thought, use
from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import CUT, HANG, Gate, Refuse
from tests.wire.events import check, read, read_all, text_of

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
KEY = "sk-ant-canary"


@pytest.fixture(scope="module")
def claude() -> Iterator[AnthropicUpstream]:
    with AnthropicUpstream() as running:
        running.signatures |= {"sig-1", "EmwK"}
        yield running
    assert running.refusals == []


@pytest.fixture(scope="module")
def server(claude: AnthropicUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutliveServer]:
    folder: Path = tmp_path_factory.mktemp("anthropic")
    settings = folder / "outlive.toml"
    settings.write_text(
        f'[upstreams.claude]\nurl = "{claude.url}"\nkey = "{KEY}"\ndialect = "anthropic"\n'
        'developer_role = false\ncontinuation = "prefill"\nprompt_cache = true\n'
    )
    (folder / "adding.py").write_text(
        "from outlive.tools import tool\n\n\n@tool\ndef add(a: int, b: int) -> int:\n    'Adds.'\n    return a + b\n"
    )
    with OutliveServer(folder, None, "--config", str(settings), "--tools", "adding") as running:
        yield running
    assert "Traceback" not in running.log, running.log
    assert KEY not in running.log


@pytest.fixture
def http(server: OutliveServer) -> Iterator[HttpClient]:
    with HttpClient(server.port) as opened:
        yield opened


@pytest.fixture
def client(server: OutliveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as opened:
        yield opened


def test_an_answer_is_streamed_and_replayed(claude: AnthropicUpstream, http: HttpClient) -> None:
    model = claude.model([start(), *thought(0, "Hm."), *text(1, "Hel", "lo"), *end()])
    raw = http.stream(model=model, input="Hi").read_rest()
    events = read_all(raw)
    assert text_of(events) == "Hello"
    response = events[-1]["response"]
    assert response["usage"]["total_tokens"] == 12
    assert response["model"] == "claude-test-1"
    assert http.follow(response["id"]).read_rest() == raw
    (asked,) = claude.calls(model)
    assert asked.headers["x-api-key"] == KEY
    assert asked.body["cache_control"] == {"type": "ephemeral"}


def test_a_turn_with_tools_sends_its_thinking_blocks_back(claude: AnthropicUpstream, client: OpenAI) -> None:
    asking = [
        start(),
        *thought(0, "I need ", "the weather."),
        *redacted(1, "EmwK"),
        *text(2, "Let me see."),
        *use(3, "toolu_1", "weather", '{"city":"X"}'),
    ]
    model = claude.model([*asking, *end("tool_use")], say("Sunny."))
    first = client.responses.create(model=model, input="How is it?", tools=[WEATHER], reasoning={"effort": "high"})
    assert [item.type for item in first.output] == ["reasoning", "reasoning", "message", "function_call"]
    call = first.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "X"}
    answer: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "25 degrees"}
    second = client.responses.create(
        model=model, previous_response_id=first.id, input=[answer], tools=[WEATHER], reasoning={"effort": "high"}
    )
    assert second.output_text == "Sunny."
    question, turn, result = claude.calls(model)[1].messages
    assert question["role"] == "user"
    assert turn["content"] == [
        {"type": "thinking", "thinking": "I need the weather.", "signature": "sig-1"},
        {"type": "redacted_thinking", "data": "EmwK"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "X"}},
    ]
    content = [{"type": "text", "text": "25 degrees"}]
    assert result["content"] == [{"type": "tool_result", "tool_use_id": "toolu_1", "content": content}]


def test_a_stateless_client_sends_thinking_blocks_back(claude: AnthropicUpstream, client: OpenAI) -> None:
    model = claude.model([start(), *thought(0), *use(1, "toolu_1", "weather", "{}"), *end("tool_use")], say("Sunny."))
    question: Any = {"role": "user", "content": "How is it?"}
    first = client.responses.create(model=model, input=[question], tools=[WEATHER], store=False)
    items: Any = [item.model_dump(exclude_unset=True) for item in first.output]
    answer: Any = {"type": "function_call_output", "call_id": "toolu_1", "output": "25 degrees"}
    client.responses.create(model=model, input=[question, *items, answer], tools=[WEATHER], store=False)
    turn = claude.calls(model)[1].messages[1]
    assert turn["content"][0] == {"type": "thinking", "thinking": "", "signature": "sig-1"}


def test_server_tools_are_called_between_thinking_blocks(claude: AnthropicUpstream, client: OpenAI) -> None:
    asking = [
        start(),
        *thought(0, "Sum."),
        *use(1, "toolu_1", "add", '{"a":1,"b":2}'),
        *use(2, "toolu_2", "add", '{"a":3,"b":4}'),
    ]
    model = claude.model([*asking, *end("tool_use")], [start(), *thought(0), *text(1, "3 and 7."), *end()])
    tools: Any = [{"type": "mcp", "server_label": "outlive"}]
    response = client.responses.create(model=model, input="Add.", tools=tools, reasoning={"effort": "low"})
    assert [item.type for item in response.output] == ["reasoning", "mcp_call", "mcp_call", "reasoning", "message"]
    assert response.output_text == "3 and 7."
    sent = claude.calls(model)[1].messages[1:]
    blocks = [block for message in sent for block in message["content"]]
    assert [block["type"] for block in blocks if block["type"] != "tool_result"] == ["thinking", "tool_use", "tool_use"]
    assert [block["content"][0]["text"] for block in blocks if block["type"] == "tool_result"] == ["3", "7"]


def test_images_and_documents_reach_the_model(claude: AnthropicUpstream, client: OpenAI) -> None:
    model = claude.model(say("A cat."))
    pdf = base64.b64encode(b"%PDF-1.7").decode()
    content: Any = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
        {"type": "input_image", "image_url": "https://x.example/cat.png"},
        {"type": "input_file", "filename": "cat.pdf", "file_data": f"data:application/pdf;base64,{pdf}"},
    ]
    assert client.responses.create(model=model, input=[{"role": "user", "content": content}]).output_text == "A cat."
    blocks = claude.calls(model)[0].messages[0]["content"]
    assert [block["type"] for block in blocks] == ["text", "image", "image", "document"]


def test_structured_outputs_are_parsed(claude: AnthropicUpstream, client: OpenAI) -> None:
    class Weather(BaseModel):
        city: str
        degrees: int

    model = claude.model(say('{"city":"X",', '"degrees":25}'))
    parsed = client.responses.parse(model=model, input="How is it?", text_format=Weather)
    assert parsed.output_parsed == Weather(city="X", degrees=25)
    assert claude.calls(model)[0].body["output_config"]["format"]["type"] == "json_schema"


def test_a_conversation_sends_its_earlier_turns(claude: AnthropicUpstream, client: OpenAI) -> None:
    model = claude.model(say("One."), say("Two."))
    conversation = client.conversations.create()
    for question in ("a", "b"):
        client.responses.create(model=model, input=question, conversation=conversation.id, instructions="Count.")
    body = claude.calls(model)[1].body
    assert [entry["role"] for entry in body["messages"]] == ["user", "assistant", "user"]
    assert body["system"] == "Count."


def test_an_answer_cut_off_by_max_tokens_is_incomplete(claude: AnthropicUpstream, client: OpenAI) -> None:
    model = claude.model([start(), *text(0, "One, two"), *end("max_tokens")])
    response = client.responses.create(model=model, input="Count.", max_output_tokens=16)
    assert response.incomplete_details is not None
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert claude.calls(model)[0].body["max_tokens"] == 16


def test_an_overloaded_upstream_is_retried(claude: AnthropicUpstream, client: OpenAI) -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    early = [start(), event("error", error=body["error"])]
    model = claude.model([Refuse(529, body, retry_after="0")], early, say("At last."))
    assert client.responses.create(model=model, input="Hi").output_text == "At last."
    assert len(claude.calls(model)) == 3


def test_an_interrupted_answer_is_continued_in_place(claude: AnthropicUpstream, http: HttpClient) -> None:
    error = event("error", error={"type": "overloaded_error", "message": "Overloaded"})
    model = claude.model([start(), *text(0, "One, ", "two, ")[:-1], error], say("three."))
    events = read_all(http.stream(model=model, input="Count.").read_rest())
    assert text_of(events) == "One, two, three."
    assert events[-1]["response"]["outlive"]["attempts"] == 2
    last = claude.calls(model)[1].messages[-1]
    assert last == {"role": "assistant", "content": [{"type": "text", "text": "One, two,"}]}


def test_an_interrupted_call_ends_the_response_as_incomplete(claude: AnthropicUpstream, http: HttpClient) -> None:
    model = claude.model([start(), *use(0, "toolu_1", "weather", '{"ci')[:-1], CUT])
    events = read_all(http.stream(model=model, input="How is it?", tools=[WEATHER]).read_rest())
    response = events[-1]["response"]
    assert (response["status"], response["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (5, 1)


def test_a_cancelled_answer_reports_the_input_that_its_first_event_counted(
    claude: AnthropicUpstream, http: HttpClient
) -> None:
    model = claude.model([start(cache_read_input_tokens=20), *text(0, "One, ")[:-1], HANG])
    created = http.submit(model)
    http.follow(created).read_through("response.output_text.delta")
    cancelled = http.post(f"/v1/responses/{created}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert (cancelled["usage"]["input_tokens"], cancelled["usage"]["input_tokens_details"]["cached_tokens"]) == (25, 20)


def test_a_restarted_server_continues_the_text_of_a_killed_one(
    claude: AnthropicUpstream, server: OutliveServer
) -> None:
    gate = Gate()
    model = claude.model([start(), *text(0, "One, ", "two, ")[:-1], gate], say(" three."))
    with HttpClient(server.port) as http:
        stream = http.stream(model=model, input="Count.")
        frames = stream.read_through("response.output_text.delta")
        created = read(frames[0])["response"]["id"]
        frames += [stream.read_frame()]
        gate.wait_reached()
        server.kill()
    gate.open()
    server.start()
    with HttpClient(server.port) as http:
        raw = http.follow(created).read_rest()
    events = read_all(raw)
    assert text_of(events) == "One, two, three."
    check(events)
    assert raw.startswith(b"".join(frame for frame in frames))


def test_chat_completions_are_refused_with_a_pointer_to_responses(http: HttpClient) -> None:
    answer = http.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "unsupported_model", "model")
    assert "/v1/responses" in answer.error["message"]


def test_fields_that_claude_cannot_honour_are_refused_by_name(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model="m", input="Hi", text={"format": {"type": "json_object"}})
    assert caught.value.param == "text.format.type"
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model="m", input="Hi", tools=cast(Any, [{"type": "fuction"}]))
    assert caught.value.param == "tools[0].type"


def test_models_are_listed(claude: AnthropicUpstream, client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == claude.models


def test_tokens_are_counted(client: OpenAI) -> None:
    assert client.responses.input_tokens.count(model="m", input="Hi").input_tokens == 42

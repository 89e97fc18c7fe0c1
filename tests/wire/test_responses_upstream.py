"""A live server in front of an upstream that speaks the Responses API, used through the official SDK."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, InternalServerError, OpenAI

from tests.support import grammar
from tests.support import responses_events as theirs
from tests.support.responses_events import CODE_INTERPRETER, FUTURE, WEB_SEARCH, call, message, reasoning
from tests.support.responses_upstream import ResponsesUpstream, say, steps
from tests.support.server import OutliveServer
from tests.support.upstream import CUT, HANG, Gate, Refuse, Step

QUESTION = "What is the weather?"
TOOL: Any = {
    "type": "function", "name": "weather", "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}  # fmt: skip


TOOLS = '''
from outlive.tools import tool


@tool
def look(city: str) -> str:
    """Looks out of the window."""
    return f"{city} is sunny"
'''


@pytest.fixture(scope="module")
def upstream() -> Iterator[ResponsesUpstream]:
    with ResponsesUpstream() as running:
        yield running
        assert running.refusals == [], "it was asked something that OpenAI refuses"


@pytest.fixture(scope="module")
def server(upstream: ResponsesUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutliveServer]:
    folder = tmp_path_factory.mktemp("server")
    config = folder / "outlive.toml"
    config.write_text(
        f'[upstreams.there]\nurl = "{upstream.url}"\ndialect = "responses"\nreasoning_input = "encrypted"\n'
    )
    (folder / "there_tools.py").write_text(TOOLS)
    with OutliveServer(folder, None, "--config", str(config), "--tools", "there_tools") as running:
        yield running
    assert "Traceback" not in running.log, running.log


@pytest.fixture
def client(server: OutliveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as opened:
        yield opened


def stream_all(client: OpenAI, **fields: Any) -> list[dict[str, Any]]:
    """Stream a response, check its rules and its replay, and return its events."""
    with client.responses.create(stream=True, **fields) as stream:
        events = [event.model_dump(exclude_unset=True, warnings=False) for event in stream]
    grammar.check(events)
    with client.responses.retrieve(events[0]["response"]["id"], stream=True) as again:
        assert [event.model_dump(exclude_unset=True, warnings=False) for event in again] == events
    return events


def output_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = events[-1]["response"]["output"]
    return items


def test_a_plain_answer_has_this_servers_id_and_the_upstreams_output(
    client: OpenAI, upstream: ResponsesUpstream
) -> None:
    model = upstream.model(steps(message("Sunny", "."), service_tier="flex"))
    response = client.responses.create(model=model, input=QUESTION, instructions="Be brief.", metadata={"a": "b"})
    assert (response.output_text, response.status, response.model) == ("Sunny.", "completed", "upstream-model")
    assert response.id != theirs.RUN
    assert (response.instructions, response.metadata, response.service_tier) == ("Be brief.", {"a": "b"}, "flex")
    assert response.usage is not None
    assert response.usage.model_dump(exclude_unset=True) == theirs.USAGE
    (body,) = upstream.bodies(model)
    assert (body["store"], body["instructions"]) == (False, "Be brief.")
    assert "metadata" not in body


def test_events_are_numbered_here_and_keep_the_upstreams_items(client: OpenAI, upstream: ResponsesUpstream) -> None:
    model = upstream.model(steps(reasoning("Hm."), WEB_SEARCH, CODE_INTERPRETER, FUTURE, message("Sunny")))
    events = stream_all(client, model=model, input=QUESTION, tools=[{"type": "web_search"}])
    assert [item["id"] for item in output_of(events)] == ["rs_up1", "ws_up1", "ci_up1", "zz_up1", "msg_up1"]
    assert output_of(events)[3]["seen"] == {"sheep": ["a", "b"]}
    names = [event["type"] for event in events]
    assert "response.web_search_call.searching" in names
    assert "acme:dream_call.deeper" in names
    assert names.count("response.created") == names.count("response.completed") == 1


def test_hosted_tools_are_sent_unchanged(client: OpenAI, upstream: ResponsesUpstream) -> None:
    model = upstream.model()
    tools: Any = [
        {"type": "web_search", "filters": {"allowed_domains": ["example.org"]}, "search_context_size": "low"},
        {"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 3},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"type": "image_generation", "quality": "low"},
        {"type": "acme:dream", "depth": 3},
    ]
    include: Any = ["web_search_call.action.sources", "code_interpreter_call.outputs"]
    asked = {"type": "web_search"}
    client.responses.create(model=model, input=QUESTION, tools=tools, tool_choice=asked, include=include)  # type: ignore[call-overload]
    (body,) = upstream.bodies(model)
    assert (body["tools"], body["tool_choice"]) == (tools, asked)
    assert body["include"] == [*include, "reasoning.encrypted_content"]


def test_reasoning_is_sent_back_in_order(client: OpenAI, upstream: ResponsesUpstream) -> None:
    """Stored reasoning is sent back encrypted, each item before the output that it led to."""
    first = steps(reasoning("Hm.", encrypted="s1"), call('{"city":', '"Paris"}'))
    then = steps(reasoning("Ah.", id="rs_up2", encrypted="s2"), WEB_SEARCH, message("Sunny", id="msg_up2"))
    model = upstream.model(first, then, say("Bye"))
    asked = client.responses.create(model=model, input=QUESTION, tools=[TOOL])
    answer: Any = [{"type": "function_call_output", "call_id": "call_up1", "output": "sunny"}]
    answered = client.responses.create(model=model, input=answer, tools=[TOOL], previous_response_id=asked.id)
    client.responses.create(model=model, input="Thanks", previous_response_id=answered.id)
    history = upstream.bodies(model)[-1]["input"]
    assert [item["type"] for item in history] == [
        "message", "reasoning", "function_call", "function_call_output", "reasoning", "web_search_call", "message",
        "message",
    ]  # fmt: skip
    thoughts = [item for item in history if item["type"] == "reasoning"]
    assert [(item["id"], item["encrypted_content"]) for item in thoughts] == [("rs_up1", "s1"), ("rs_up2", "s2")]
    assert thoughts[0]["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert history[5] == WEB_SEARCH(0)[1]


def test_a_conversation_is_sent_back_unchanged(client: OpenAI, upstream: ResponsesUpstream) -> None:
    model = upstream.model(steps(reasoning("Hm.", encrypted="s1"), message("One")), say("Two"))
    conversation = client.conversations.create()
    for text in ("First", "Second"):
        client.responses.create(model=model, input=text, conversation=conversation.id)
    history = upstream.bodies(model)[-1]["input"]
    assert [item["type"] for item in history] == ["message", "reasoning", "message", "message"]
    kept = [
        item.model_dump(exclude_unset=True) for item in client.conversations.items.list(conversation.id, order="asc")
    ]
    assert [item["type"] for item in kept] == ["message", "reasoning", "message", "message", "message"]


def test_output_of_an_unstored_response_is_accepted_as_input(client: OpenAI, upstream: ResponsesUpstream) -> None:
    model = upstream.model(steps(reasoning("Hm."), message("Sunny")))
    response = client.responses.create(model=model, input=QUESTION, store=False)
    assert response.output_text == "Sunny"
    # The client may send the output back itself.
    again: Any = [
        {"role": "user", "content": QUESTION},
        *[item.to_dict() for item in response.output],
        {"role": "user", "content": "And?"},
    ]
    client.responses.create(model=model, input=again, store=False)
    assert [item["type"] for item in upstream.bodies(model)[-1]["input"]] == [
        "message",
        "reasoning",
        "message",
        "message",
    ]


def test_the_sdks_stream_helper_accepts_the_events(client: OpenAI, upstream: ResponsesUpstream) -> None:
    model = upstream.model(steps(reasoning("Hm."), message("Sun", "ny"), call("{}")))
    with client.responses.stream(model=model, input=QUESTION, tools=[TOOL]) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == "Sunny"


# -- outcomes


def test_an_incomplete_response_has_its_reason(client: OpenAI, upstream: ResponsesUpstream) -> None:
    script = steps(message("Sun"), status="incomplete", incomplete_details={"reason": "content_filter"})
    response = client.responses.create(model=upstream.model(script), input=QUESTION)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "content_filter"


@pytest.mark.parametrize("cut", [[CUT], []], ids=["cut", "without an end"])
def test_a_connection_cut_after_output_ends_as_incomplete(
    client: OpenAI, upstream: ResponsesUpstream, cut: list[Step]
) -> None:
    model = upstream.model([*say("Sun", "ny")[:6], *cut])
    response = client.responses.create(model=model, input=QUESTION)
    assert (response.status, response.output_text) == ("incomplete", "Sunny")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "interrupted"  # type: ignore[comparison-overlap]
    assert len(upstream.calls(model)) == 1


@pytest.mark.parametrize(
    "broken",
    [
        [Refuse(503, retry_after="0")],
        [CUT],
        [*say("x")[:2], CUT],
        [*say("x")[:2], b'data: {"type":"error","code":"server_error","message":"Oh","sequence_number":2}\n\n'],
        [
            *say("x")[:2],
            b'data: {"type":"response.failed","response":{"error":{"code":"server_error","message":"Oh"}}}\n\n',
        ],
    ],
    ids=["503", "cut", "cut after its first events", "error event", "failed"],
)
def test_a_connection_cut_before_output_is_retried(
    client: OpenAI, upstream: ResponsesUpstream, broken: list[Step]
) -> None:
    model = upstream.model(broken, say("Sunny"))
    response = client.responses.create(model=model, input=QUESTION)
    assert (response.status, response.output_text) == ("completed", "Sunny")
    assert len(upstream.calls(model)) == 2


def test_a_permanent_error_fails_with_its_code(client: OpenAI, upstream: ResponsesUpstream) -> None:
    bad = b'data: {"type":"error","error":{"code":"invalid_base64_image","message":"No image"}}\n\n'
    model = upstream.model([*say("x")[:2], bad])
    events = stream_all(client, model=model, input=QUESTION)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "invalid_base64_image"
    assert "No image" in events[-1]["response"]["error"]["message"]
    with pytest.raises((BadRequestError, InternalServerError)):
        client.responses.create(model=model, input=QUESTION)


def test_a_cancel_disconnects_from_the_upstream(client: OpenAI, upstream: ResponsesUpstream) -> None:
    model = upstream.model([*say("Sun", "ny")[:5], HANG])
    response = client.responses.create(model=model, input=QUESTION, background=True)
    asked = upstream.wait_call(model)
    cancelled = client.responses.cancel(response.id)
    assert cancelled.status == "cancelled"
    asked.wait_disconnected()


def test_output_is_visible_while_it_is_streamed(client: OpenAI, upstream: ResponsesUpstream) -> None:
    gate = Gate()
    script = say("Sun", "ny")
    model = upstream.model([*script[:5], gate, *script[5:]])
    with client.responses.create(model=model, input=QUESTION, stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                assert event.delta in ("Sun", "ny")
                gate.open()


def test_server_tools_work_beside_hosted_tools(client: OpenAI, upstream: ResponsesUpstream) -> None:
    """Server tools run here, hosted tools at the upstream; each reasoning item is sent back before its call."""
    first = steps(reasoning("Hm.", encrypted="s1"), WEB_SEARCH, call('{"city":', '"Paris"}', name="look"))
    then = steps(reasoning("Ah.", id="rs_up2", encrypted="s2"), message("Sunny"))
    model = upstream.model(first, then, say("Bye"))
    tools: Any = [{"type": "mcp", "server_label": "outlive"}, {"type": "web_search"}]
    events = stream_all(client, model=model, input=QUESTION, tools=tools)
    kinds = [item["type"] for item in output_of(events)]
    assert kinds == ["reasoning", "web_search_call", "mcp_call", "reasoning", "message"]
    assert output_of(events)[2]["output"] == "Paris is sunny"
    asked = upstream.bodies(model)
    assert [tool.get("name", tool["type"]) for tool in asked[0]["tools"]] == ["web_search", "look"]
    made = ["message", "reasoning", "web_search_call", "function_call", "function_call_output"]
    assert [item["type"] for item in asked[1]["input"]] == made
    client.responses.create(model=model, input="Thanks", previous_response_id=events[0]["response"]["id"])
    assert [item["type"] for item in upstream.bodies(model)[-1]["input"]] == [*made, "reasoning", "message", "message"]


def test_mcp_servers_are_not_sent_to_the_upstream(client: OpenAI, upstream: ResponsesUpstream) -> None:
    """MCP servers are called from here, even if the upstream could do it; secrets never reach it."""
    model = upstream.model()
    tool: Any = {
        "type": "mcp", "server_label": "s", "server_url": "http://127.0.0.1:1/mcp", "require_approval": "never",
        "authorization": "very-secret",
    }  # fmt: skip
    with contextlib.suppress(BadRequestError, InternalServerError):
        client.responses.create(model=model, input=QUESTION, tools=[tool])
    assert all("very-secret" not in str(body) for body in upstream.bodies(model))

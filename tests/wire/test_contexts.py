"""Counting, compacting and truncating contexts through the official SDK."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, SQLiteSession
from agents.memory import OpenAIResponsesCompactionSession
from openai import AsyncOpenAI, BadRequestError, InternalServerError, NotFoundError, OpenAI
from openai.types.responses import CompactedResponse, ResponseCompactionItem

from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import CUT, FakeUpstream, Gate, Refuse, Script, Whole, call, ending, say
from tests.wire.conftest import Servers
from tests.wire.events import read_all

Json = dict[str, Any]

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "long-conversations.md"
SUMMARY = say("THE", " SUMMARY")
LONG = "word " * 400  # 500 tokens
MANAGED: Any = [{"type": "compaction", "compact_threshold": 1000}]
TOO_LONG = Refuse(400, {"error": {"message": "This model's maximum context length is 8192 tokens.", "code": None}})


def dump(output: list[Any]) -> list[Any]:
    """Return output items as a client sends them back."""
    return [item.model_dump(exclude_unset=True, warnings=False) for item in output]


def is_asked_to_summarise(body: Json) -> bool:
    return "Write this summary now" in str(body["messages"][-1]["content"])


def model_that_summarises(upstream: FakeUpstream, answer: Script | None = None) -> str:
    return upstream.model(lambda body: SUMMARY if is_asked_to_summarise(body) else answer or say("Hello"))


# -- input tokens


def test_input_tokens_include_the_history(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model()
    alone = client.responses.input_tokens.count(model=model, input="Hi")
    assert alone.object == "response.input_tokens"
    first = client.responses.create(model=model, input="One two three four five six seven")
    chained = client.responses.input_tokens.count(model=model, input="Hi", previous_response_id=first.id)
    conversation = client.conversations.create(items=[{"role": "user", "content": "One two three four five"}])
    within = client.responses.input_tokens.count(model=model, input="Hi", conversation=conversation.id)
    counted = client.responses.input_tokens.count(
        model=model,
        input="Hi",
        instructions="Be brief.",
        tools=[{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}],
    )
    assert alone.input_tokens < within.input_tokens < chained.input_tokens
    assert counted.input_tokens > alone.input_tokens
    assert len(upstream.calls(model)) == 1  # it was not asked to answer


def test_an_estimated_count_is_marked_as_estimated(http: HttpClient, upstream: FakeUpstream) -> None:
    for body in ({"model": upstream.model(), "input": "Hi"}, {"input": "Hi"}, {}):
        answer = http.post("/v1/responses/input_tokens", body)
        assert (answer.status, answer.headers["x-outlive-token-count"]) == (200, "estimate")


def test_an_upstreams_own_count_is_used(servers: Servers, upstream: FakeUpstream, tmp_path: Path) -> None:
    settings = tmp_path / "outlive.toml"
    settings.write_text(f'[upstreams.here]\nurl = "{upstream.url}"\ntokenizer = "llamacpp"\n')
    server = servers("--config", str(settings), "--upstream", "here")
    model = upstream.model([Whole({"object": "response.input_tokens", "input_tokens": 4711})])
    with OpenAI(base_url=server.base_url, api_key="any") as client:
        answer = client.responses.input_tokens.with_raw_response.count(model=model, input="Hi")
    assert answer.headers["x-outlive-token-count"] == "exact"
    assert answer.parse().input_tokens == 4711
    assert upstream.calls(model)[0].path == "/v1/chat/completions/input_tokens"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 3}, "input"),
        ({"input": "Hi", "tools": [{"type": "fuction"}], "model": "m"}, "tools[0].type"),
        ({"input": "Hi", "previous_response_id": "resp_none"}, "previous_response_id"),
        ({"input": "Hi", "personality": "x" * 65}, "personality"),
        ({"input": "Hi", "previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id"),
    ],
)
def test_a_request_that_cannot_be_counted_is_refused_by_name(http: HttpClient, body: Json, param: str) -> None:
    answer = http.post("/v1/responses/input_tokens", body)
    assert (answer.status, answer.error["param"]) == (400, param)


# -- the compact endpoint


def test_a_compacted_chain_starts_a_new_chain(client: OpenAI, upstream: FakeUpstream) -> None:
    first = client.responses.create(model=upstream.model(say("Hello Bob")), input="I am Bob")
    second = client.responses.create(model=upstream.model(), input="I like tea", previous_response_id=first.id)
    model = upstream.model(SUMMARY, say("Tea"))
    compacted = client.responses.compact(model=model, previous_response_id=second.id)
    assert isinstance(compacted, CompactedResponse)
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    assert (compacted.object, compacted.usage.total_tokens, compacted.id[:5]) == ("response.compaction", 7, "resp_")
    with pytest.raises(BadRequestError):
        client.responses.create(model=model, input="?", previous_response_id=compacted.id)
    answered = client.responses.create(
        model=model, input=[*dump(compacted.output), {"role": "user", "content": "What do I like?"}]
    )
    assert answered.output_text == "Tea"
    (message,) = upstream.calls(model)[1].messages
    sent = message["content"]
    places = [sent.index(words) for words in ("I am Bob", "I like tea", "THE SUMMARY", "What do I like?")]
    assert places == sorted(places)
    assert "Hello Bob" not in sent


def test_an_input_is_compacted_with_instructions_and_tools(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(SUMMARY)
    talk: Any = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "1"}]
    compacted = client.responses.compact(model=model, input=talk, instructions="Be brief.")
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    sent = upstream.calls(model)[0].messages
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    assert upstream.calls(model)[0].body["stream"] is True


def test_a_compaction_without_a_model_uses_the_one_that_answered(client: OpenAI, upstream: FakeUpstream) -> None:
    upstream.on("upstream-model", SUMMARY)  # the name in the upstream's answers
    first = client.responses.create(model=upstream.model(), input="One")
    compacted = client.responses.compact(model=None, previous_response_id=first.id)
    assert compacted.output[-1].type == "compaction"


def test_a_compaction_item_is_accepted_after_a_restart(upstream: FakeUpstream, tmp_path: Path) -> None:
    model = upstream.model(SUMMARY, say("Yes"))
    with OutliveServer(tmp_path, upstream.url) as server:
        client = OpenAI(base_url=server.base_url, api_key="any", max_retries=0)
        compacted = client.responses.compact(model=model, input="One")
        server.kill()
        server.start()
        again = client.responses.create(model=model, input=dump(compacted.output), store=False)
        assert again.output_text == "Yes"
        assert "THE SUMMARY" in upstream.calls(model)[1].messages[0]["content"]


def test_a_compaction_item_of_another_owner_is_refused(servers: Servers, upstream: FakeUpstream) -> None:
    server = servers("--api-key", "ann=key-a", "--api-key", "bob=key-b")
    ann, bob = (OpenAI(base_url=server.base_url, api_key=key, max_retries=0) for key in ("key-a", "key-b"))
    model = upstream.model(SUMMARY)
    output = dump(ann.responses.compact(model=model, input="One").output)
    with pytest.raises(BadRequestError) as refused:
        bob.responses.create(model=model, input=output)
    assert refused.value.param == "input[1].encrypted_content"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "Hi"}, "model"),
        ({"model": None, "input": "Hi"}, "model"),
        ({"model": "m"}, "input"),
        ({"model": "m", "input": "Hi", "conversation": "conv_1"}, "conversation"),
        ({"model": "m", "input": [{"type": "compaction", "encrypted_content": "outlive.1.AAAA"}]}, "input[0]"),
        ({"model": "m", "previous_response_id": "resp_none"}, "previous_response_id"),
    ],
)
def test_a_request_that_cannot_be_compacted_is_refused_by_name(http: HttpClient, body: Json, param: str) -> None:
    answer = http.post("/v1/responses/compact", body)
    assert answer.status == 400
    assert answer.error["param"].startswith(param)


def test_a_failed_summary_is_an_error(client: OpenAI, upstream: FakeUpstream) -> None:
    with pytest.raises(InternalServerError):
        client.responses.compact(model=upstream.model([Refuse(401)]), input="One")
    with pytest.raises(BadRequestError) as refused:
        client.responses.compact(model=upstream.model([TOO_LONG]), input="One")
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")


def test_a_disconnect_ends_the_compaction(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *SUMMARY])
    connection = http.send("/v1/responses/compact", {"model": model, "input": "One"})
    asked = upstream.wait_call(model)
    gate.wait_reached()
    connection.close()
    asked.wait_disconnected()
    gate.open()


# -- compaction in a run


def test_a_long_conversation_is_compacted_within_its_stream(client: OpenAI, upstream: FakeUpstream) -> None:
    model = model_that_summarises(upstream)
    conversation = client.conversations.create().id
    for _ in range(2):
        client.responses.create(model=model, input=LONG, conversation=conversation)
    with client.responses.stream(
        model=model, input="Well?", conversation=conversation, context_management=MANAGED
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.compaction.compacting" in kinds
    assert [item.type for item in final.output] == ["compaction", "message"]
    assert isinstance(final.output[0], ResponseCompactionItem)
    assert final.output_text == "Hello"
    items = client.conversations.items.list(conversation, order="asc").data
    assert [item.type for item in items] == ["message"] * 5 + ["compaction", "message"]
    client.responses.create(model=model, input="And?", conversation=conversation, context_management=MANAGED)
    last = upstream.calls(model)[-1].messages
    assert [message["role"] for message in last] == ["user", "assistant", "user"]
    assert LONG not in last[0]["content"] or last[0]["content"].index(LONG) < last[0]["content"].index("THE SUMMARY")


def test_a_replay_of_a_compaction_equals_its_stream(http: HttpClient, upstream: FakeUpstream) -> None:
    model = model_that_summarises(upstream)
    talk = [
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": LONG},
        {"role": "user", "content": "So?"},
    ]
    with http.stream(model=model, input=talk, context_management=MANAGED) as stream:
        streamed = stream.read_rest()
    events = read_all(streamed)
    with http.follow(events[0]["response"]["id"]) as stream:
        assert stream.read_rest() == streamed
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["compaction", "message"]


def test_a_restarted_server_continues_after_a_shown_compaction(upstream: FakeUpstream, tmp_path: Path) -> None:
    gate = Gate()
    model = upstream.model(SUMMARY, [gate, CUT], say("Hello"))
    talk = [
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": LONG},
        {"role": "user", "content": "So?"},
    ]
    with OutliveServer(tmp_path, upstream.url) as server:
        with HttpClient(server.port) as http:
            running = http.create(model=model, input=talk, context_management=MANAGED, background=True).json()
            gate.wait_reached()
            shown = http.get(f"/v1/responses/{running['id']}").json()
            assert [item["type"] for item in shown["output"]] == ["compaction"]
            server.kill()
        gate.open()
        server.start()
        with HttpClient(server.port) as http:
            final = http.get(f"/v1/responses/{running['id']}?wait=20").json()
            assert (final["status"], [item["type"] for item in final["output"]]) == (
                "completed",
                ["compaction", "message"],
            )
            assert final["output"][0] == shown["output"][0]
            with http.follow(running["id"]) as stream:
                read_all(stream.read_rest())
    assert [is_asked_to_summarise(body) for body in upstream.bodies(model)] == [True, False, False]


def test_a_trigger_compacts_a_chain_in_place(client: OpenAI, upstream: FakeUpstream) -> None:
    model = model_that_summarises(upstream)
    first = client.responses.create(model=model, input="One")
    trigger: Any = [{"type": "compaction_trigger"}]
    compacted = client.responses.create(model=model, input=trigger, previous_response_id=first.id)
    assert (compacted.status, [item.type for item in compacted.output]) == ("completed", ["compaction"])
    assert client.responses.input_items.list(compacted.id).data == []
    client.responses.create(model=model, input="Two", previous_response_id=compacted.id)
    (message,) = upstream.calls(model)[-1].messages
    assert "THE SUMMARY" in message["content"] and "Two" in message["content"]


def test_a_compaction_with_store_false_leaves_nothing_on_disk(upstream: FakeUpstream, tmp_path: Path) -> None:
    canary = f"canary{time.time_ns()}"
    model = model_that_summarises(upstream, say(f"Hello {canary}"))
    with OutliveServer(tmp_path, upstream.url) as server:
        client = OpenAI(base_url=server.base_url, api_key="any", max_retries=0)
        talk: list[Any] = [
            {"role": "user", "content": f"{canary} {LONG}"},
            {"role": "assistant", "content": LONG},
            {"role": "user", "content": "So?"},
        ]
        answered = client.responses.create(model=model, input=talk, store=False, context_management=MANAGED)
        assert [item.type for item in answered.output] == ["compaction", "message"]
        output = dump(answered.output)
        again = client.responses.create(
            model=model, input=[*output, {"role": "user", "content": "And?"}], store=False, context_management=MANAGED
        )
        assert [item.type for item in again.output] == ["message"]
        client.responses.compact(model=model, input=talk)
        for file in tmp_path.iterdir():
            assert canary.encode() not in file.read_bytes()


# -- truncation


def test_disabled_truncation_returns_the_upstreams_refusal(
    client: OpenAI, http: HttpClient, upstream: FakeUpstream
) -> None:
    model = upstream.model([TOO_LONG])
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=model, input=LONG)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    with client.responses.stream(model=model, input=LONG) as stream:
        failed: Any = list(stream)[-1]
    assert (failed.type, failed.response.error.code) == ("response.failed", "invalid_prompt")
    assert "maximum context length" in failed.response.error.message
    assert len(upstream.calls(model)) == 2


def test_auto_truncation_keeps_the_items_that_fit_the_window(
    servers: Servers, upstream: FakeUpstream, tmp_path: Path
) -> None:
    settings = tmp_path / "outlive.toml"
    settings.write_text(f'[upstreams.small]\nurl = "{upstream.url}"\ncontext_window = 2048\n')
    server = servers("--config", str(settings), "--upstream", "small")
    model = upstream.model()
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
        conversation = client.conversations.create().id
        for n in range(4):
            client.responses.create(model=model, input=f"{n} {LONG}", conversation=conversation)
        last = client.responses.create(
            model=model, input="Well?", conversation=conversation, truncation="auto", instructions="Be brief."
        )
        assert (last.status, last.truncation) == ("completed", "auto")
        counted = client.responses.input_tokens.count(
            model=model, input="Well?", conversation=conversation, truncation="auto"
        )
        assert counted.input_tokens <= 2048
        assert len(client.conversations.items.list(conversation).data) == 10  # nothing is deleted
    sent = upstream.calls(model)[-1].messages
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert sent[1]["content"].startswith("2 ")
    assert sent[-1]["content"] == "Well?"


def test_auto_truncation_learns_an_unknown_window(client: OpenAI, upstream: FakeUpstream) -> None:
    def answer(body: Json) -> Script:
        return [TOO_LONG] if len(str(body["messages"])) > 5000 else say("Hello")

    model = upstream.model(answer)
    talk: list[Any] = [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{n} {LONG}"} for n in range(8)]
    tools: Any = [{"type": "function", "name": "f", "parameters": {}, "strict": False}]
    calls: Any = [
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
    ]
    asked: Any = [*talk, {"role": "user", "content": "Look."}, *calls]
    answered = client.responses.create(model=model, input=asked, truncation="auto", tools=tools)
    assert answered.output_text == "Hello"
    roles = [message["role"] for message in upstream.calls(model)[-1].messages]
    assert roles[-3:] == ["user", "assistant", "tool"]


# -- openai-agents


def test_the_agents_sdks_compaction_session_works_unchanged(server: OutliveServer, upstream: FakeUpstream) -> None:
    upstream.on("gpt-outlive", lambda body: SUMMARY if is_asked_to_summarise(body) else say("Hello"))

    async def go() -> tuple[list[Any], str]:
        with closing(SQLiteSession("s")) as below:
            return await converse(below)

    async def converse(below: SQLiteSession) -> tuple[list[Any], str]:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            agent: Agent[Any] = Agent(
                name="Helper", model=OpenAIResponsesModel(model="gpt-outlive", openai_client=client)
            )
            session = OpenAIResponsesCompactionSession(
                "s",
                below,
                client=client,
                model="gpt-outlive",
                should_trigger_compaction=lambda context: len(context["compaction_candidate_items"]) >= 2,
            )
            quiet = RunConfig(tracing_disabled=True)
            await Runner.run(agent, "One", session=session, run_config=quiet)
            await Runner.run(agent, "Two", session=session, run_config=quiet)
            compacted = await session.get_items()
            last = await Runner.run(agent, "Three", session=session, run_config=quiet)
            return compacted, last.final_output

    compacted, answered = asyncio.run(go())
    assert [item["type"] for item in compacted][-1] == "compaction"
    assert answered == "Hello"
    (message,) = upstream.calls("gpt-outlive")[-1].messages
    assert all(words in message["content"] for words in ("One", "Two", "THE SUMMARY", "Three"))


def test_outputs_of_compacted_calls_reach_the_model(client: OpenAI, upstream: FakeUpstream) -> None:
    tools: Any = [{"type": "function", "name": "weather", "parameters": {}, "strict": False}]
    asking = [call(0, "{}", "call_1", "weather"), *ending("tool_calls")]
    model = upstream.model(asking, SUMMARY, say("Sunny"))
    first = client.responses.create(model=model, input="Weather?", tools=tools)
    compacted = client.responses.compact(model=model, previous_response_id=first.id)
    output: Any = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
    answered = client.responses.create(model=model, input=[*dump(compacted.output), output], tools=tools)
    assert answered.output_text == "Sunny"
    assert [message["role"] for message in upstream.calls(model)[-1].messages] == ["user", "assistant", "tool"]


def test_a_compaction_is_not_found_by_its_id(client: OpenAI, upstream: FakeUpstream) -> None:
    compacted = client.responses.compact(model=upstream.model(SUMMARY), input="One")
    with pytest.raises(NotFoundError):
        client.responses.retrieve(compacted.id)


def test_every_snippet_of_the_page_runs(server: OutliveServer, upstream: FakeUpstream) -> None:
    upstream.on("demo", say("A ", "short ", "story."))
    snippets = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    assert len(snippets) == 4
    for snippet in snippets:
        names: dict[str, Any] = {}
        exec(snippet.replace("http://127.0.0.1:7878/v1", server.base_url), names)
        names["client"].close()

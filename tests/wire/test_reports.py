"""Five public reports about other servers, each reproduced step by step against this one."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from agents import ModelSettings, ModelTracing, OpenAIChatCompletionsModel, UserError
from openai import AsyncOpenAI, BadRequestError, OpenAI

from outlive.agents import StrictChatCompletionsModel
from tests.support.http_client import HttpClient, Json
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, Pause, Step, call, ending, say, text
from tests.wire import events

AUTHORIZED = {"Authorization": "Bearer some-key-that-nobody-asked-for"}


# -- 1. The Conversations API with background and with streaming clients that disconnect


def test_report_1_a_background_response_stores_its_messages_in_the_conversation(
    http: HttpClient, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("Far out, ", "beyond Saturn, ", "the otters floated."))

    # Step 1: create a conversation
    conversation = http.post("/v1/conversations", {}, **AUTHORIZED).json()["id"]

    # Step 2: create a background response with the conversation
    response = http.post(
        "/v1/responses",
        {
            "model": model,
            "conversation": conversation,
            "input": [{"role": "user", "content": "Write a long story about space otters"}],
            "background": True,
            "store": True,
        },
        **AUTHORIZED,
    ).json()
    assert response["status"] == "queued"

    # Step 3: poll for completion
    polled = http.get(f"/v1/responses/{response['id']}", **AUTHORIZED)
    while polled.json()["status"] != "completed":
        time.sleep(int(polled.headers["openai-poll-after-ms"]) / 1000)
        polled = http.get(f"/v1/responses/{response['id']}", **AUTHORIZED)

    # Step 4: the conversation holds the user's message and the assistant's
    items = http.get(f"/v1/conversations/{conversation}/items", **AUTHORIZED).json()
    assert items["has_more"] is False
    assert [item["role"] for item in items["data"]] == ["assistant", "user"]
    assert items["data"][0]["content"][0]["text"] == "Far out, beyond Saturn, the otters floated."
    assert items["data"][1]["content"][0]["text"] == "Write a long story about space otters"


def test_report_1_a_stream_goes_on_when_its_client_disconnects(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("In the 1940s, "), gate, text("machines filled rooms."), *ending()])

    # Step 1: create a conversation
    conversation = http.post("/v1/conversations", {}).json()["id"]

    # Step 2: start a streaming response
    stream = http.stream(
        model=model,
        conversation=conversation,
        input=[{"role": "user", "content": "Write a detailed essay about the history of computer science"}],
        store=True,
    )

    # Step 3: after some of it, Ctrl+C
    seen = stream.read_through("response.output_text.delta")
    response_id = events.read(seen[0])["response"]["id"]
    last_seen = events.read(seen[-1])["sequence_number"]
    stream.reset()

    # Step 4: the conversation has the question already, and the answer is on its way
    assert [role for role, _ in http.list_messages(conversation)] == ["user"]
    assert http.get(f"/v1/responses/{response_id}").json()["status"] == "in_progress"

    # Option B: resume, from where the connection broke
    resumed = http.follow(response_id, last_seen)
    gate.open()
    rest = resumed.read_rest()
    assert events.text_of(events.read_all(b"".join(seen) + rest)) == "In the 1940s, machines filled rooms."

    # Step 5, Option A: the generation went on and is complete
    assert http.list_messages(conversation)[1] == ("assistant", "In the 1940s, machines filled rooms.")


def test_report_1_an_interrupted_response_is_stored_and_marked(http: HttpClient, upstream: FakeUpstream) -> None:
    """Option C: the response is stopped on purpose."""
    conversation = http.post("/v1/conversations", {}).json()["id"]
    model = upstream.model([text("In the 1940s, "), HANG])
    stream = http.stream(model=model, conversation=conversation, input="Write an essay")
    response_id = events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
    stream.reset()
    http.post(f"/v1/responses/{response_id}/cancel")
    kept = http.get(f"/v1/conversations/{conversation}/items").json()["data"][0]
    assert (kept["status"], kept["content"][0]["text"]) == ("incomplete", "In the 1940s, ")


# -- 2. store=false still persists conversation messages


def test_report_2_a_response_with_store_false_is_not_stored(upstream: FakeUpstream, tmp_path: Path) -> None:
    with OutliveServer(tmp_path, upstream.url) as server, HttpClient(server.port) as http:
        # Step 1: create a conversation
        conversation = http.post("/v1/conversations", {}).json()["id"]

        # Step 2: create a response with store=false on this conversation
        model = upstream.model(say("2 + 2 equals ", "four-canary."))
        body = {"model": model, "input": "What is 2+2, question-canary?", "store": False, "conversation": conversation}
        answer = http.post("/v1/responses", body).json()
        assert answer["status"] == "completed" and answer["store"] is False
        assert answer["output"][0]["content"][0]["text"] == "2 + 2 equals four-canary."
        with http.open_stream("POST", "/v1/responses", {**body, "stream": True}) as stream:
            assert events.text_of(events.read_all(stream.read_rest())) == "2 + 2 equals four-canary."

        # Step 3: the response was not stored
        assert http.get(f"/v1/responses/{answer['id']}").status == 404

        # Step 4: and neither was anything in the conversation
        items = http.get(f"/v1/conversations/{conversation}/items").json()
        assert items == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
        server.terminate()
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"canary" not in path.read_bytes(), path


# -- 3. A streaming response cannot be recovered after the client disconnects


def test_report_3_a_response_can_be_retrieved_from_its_first_event_on(http: HttpClient, upstream: FakeUpstream) -> None:
    tools = [{"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}}]
    steps: list[Step] = [
        text("Let me see. "),
        call(0, '{"word":"otter"}', "call_1", "look_up"),
        call(1, '{"word":"se', "call_2", "look_up"),
        call(1, 'al"}'),
    ]
    gates = [Gate() for _ in steps]
    script = [*itertools.chain(*zip(gates, steps, strict=True)), *ending("tool_calls")]

    # 1. Start a streaming response
    stream = http.stream(model=upstream.model(script), input="Do something that calls tools.", store=True, tools=tools)

    # 2. Wait until the client receives response.created
    response_id = events.read(stream.read_frame())["response"]["id"]
    shown = http.get(f"/v1/responses/{response_id}").json()
    assert (shown["object"], shown["status"], shown["output"]) == ("response", "in_progress", [])

    # 3. Wait until some text deltas and tool events arrive: what is stored grows with them
    gates[0].open()
    stream.read_through("response.output_text.delta")
    assert text_in(http.get(f"/v1/responses/{response_id}").json()) == "Let me see. "
    gates[1].open()
    stream.read_through("response.function_call_arguments.delta")
    gates[2].open()
    stream.read_through("response.function_call_arguments.delta")
    output = http.get(f"/v1/responses/{response_id}").json()["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert output[2]["arguments"] == '{"word":"se' and output[2]["status"] == "in_progress"

    # 4. Disconnect the client before response.completed
    stream.reset()

    # 5. Retrieve the response: it goes on, and the final one is there once it has ended
    assert http.get(f"/v1/responses/{response_id}").json()["status"] == "in_progress"
    gates[3].open()
    final = http.get(f"/v1/responses/{response_id}?wait=20").json()
    assert final["status"] == "completed"
    assert [item.get("arguments") for item in final["output"]] == [None, '{"word":"otter"}', '{"word":"seal"}']


def text_in(response: Json) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", []))


# -- 4. Chat Completions should reject state that a server would have to manage


def test_report_4_chat_completions_refuses_state_that_it_cannot_keep(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model()
    for field in ("previous_response_id", "conversation_id"):
        with pytest.raises(BadRequestError) as refused:
            client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "second turn only"}],
                extra_body={field: "resp_123"},
            )
        assert refused.value.code == "unsupported_parameter"
        assert refused.value.param == field
        assert "/v1/responses" in refused.value.message
    assert upstream.calls(model) == []  # the report: no error is raised, and the model sees half of the conversation


@pytest.mark.parametrize("state", [{"previous_response_id": "resp_123"}, {"conversation_id": "conv_123"}])
def test_report_4_the_strict_model_refuses_the_reports_own_call(
    server: OutliveServer, upstream: FakeUpstream, state: dict[str, str]
) -> None:
    model = upstream.model(say("ok"))
    call = report_4_call(**state)

    async def ask(kind: type[OpenAIChatCompletionsModel]) -> None:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            await kind(model=model, openai_client=client).get_response(**call)

    with pytest.raises(UserError, match=next(iter(state))):
        asyncio.run(ask(StrictChatCompletionsModel))
    assert upstream.calls(model) == []
    # The model of the report leaves the state out, so no server can see it.
    asyncio.run(ask(OpenAIChatCompletionsModel))
    assert len(upstream.calls(model)) == 1


def test_report_4_an_agents_model_that_passes_state_on_fails_fast(
    server: OutliveServer, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("ok"))
    call = report_4_call(model_settings=ModelSettings(extra_body={"previous_response_id": "resp_123"}))

    async def ask() -> None:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            await OpenAIChatCompletionsModel(model=model, openai_client=client).get_response(**call)

    with pytest.raises(BadRequestError) as refused:
        asyncio.run(ask())
    assert refused.value.param == "previous_response_id"
    assert upstream.calls(model) == []


def report_4_call(**changes: Any) -> dict[str, Any]:
    """Return the arguments of the report's call, with some of them changed."""
    return {
        "system_instructions": None,
        "input": "second turn only",
        "model_settings": ModelSettings(),
        "tools": [],
        "output_schema": None,
        "handoffs": [],
        "tracing": ModelTracing.DISABLED,
        "previous_response_id": None,
        "conversation_id": None,
        "prompt": None,
    } | changes


# -- 5. Background mode: submit, poll adaptively, cancel


@pytest.fixture
def base_url(server: OutliveServer) -> str:
    return server.base_url


async def submit_and_poll(
    client: AsyncOpenAI, accepted: asyncio.Event | None = None, **body: Any
) -> tuple[Any, list[float]]:
    """Submit, poll at the server's intervals, and cancel the response with the task, as the report proposes."""
    submitted = await client.responses.with_raw_response.create(background=True, **body)
    response, headers = submitted.parse(), submitted.headers
    pauses: list[float] = []
    try:
        if accepted is not None:
            accepted.set()
        while response.status in ("queued", "in_progress"):
            pauses.append(int(headers["openai-poll-after-ms"]) / 1000)
            await asyncio.sleep(pauses[-1])
            polled = await client.responses.with_raw_response.retrieve(response.id)
            response, headers = polled.parse(), polled.headers
    except asyncio.CancelledError:
        await client.responses.cancel(response.id)
        raise
    return response, pauses


def test_report_5_a_client_polls_at_the_intervals_of_the_header(base_url: str, upstream: FakeUpstream) -> None:
    model = upstream.model([text("It took "), Pause(0.6), text("a while."), *ending()])

    async def run() -> tuple[Any, list[float]]:
        async with AsyncOpenAI(base_url=base_url, api_key="any") as client:
            return await submit_and_poll(client, model=model, input="Think hard.")

    response, pauses = asyncio.run(run())
    assert response.status == "completed"
    assert response.output_text == "It took a while."
    assert 1 <= len(pauses) <= 10  # neither too often nor too rarely
    assert all(0 < pause <= 5 for pause in pauses)


def test_report_5_an_ended_response_has_no_poll_header(client: OpenAI, upstream: FakeUpstream) -> None:
    made = client.responses.create(model=upstream.model(), input="Hi", background=True)
    ended = client.responses.with_raw_response.retrieve(made.id, extra_query={"wait": 20})
    assert ended.parse().status == "completed"
    assert "openai-poll-after-ms" not in ended.headers


def test_report_5_a_cancelled_task_cancels_its_response(base_url: str, client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model([text("Thinking"), HANG])

    async def run() -> None:
        async with AsyncOpenAI(base_url=base_url, api_key="any") as own:
            accepted = asyncio.Event()
            body: Json = {"model": model, "input": "Hi", "metadata": {"name": model}}
            task = asyncio.create_task(submit_and_poll(own, accepted, **body))
            await accepted.wait()
            await asyncio.to_thread(upstream.wait_call, model)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    upstream.calls(model)[0].wait_disconnected()
    listed = json.loads(client.get("/responses?limit=1", cast_to=str))
    assert (listed["data"][0]["status"], listed["data"][0]["metadata"]) == ("cancelled", {"name": model})


def test_report_5_a_background_stream_is_resumed_after_its_last_event(base_url: str, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("It "), text("took "), gate, text("a while."), *ending()])

    async def run() -> tuple[str, list[int]]:
        async with AsyncOpenAI(base_url=base_url, api_key="any") as client:
            stream = await client.responses.create(model=model, input="Hi", background=True, stream=True)
            said, numbers, response_id = "", [], ""
            async for event in stream:
                numbers.append(event.sequence_number)
                response_id = event.response.id if event.type == "response.created" else response_id
                if event.type == "response.output_text.delta":
                    said += event.delta
                    break
            await stream.close()
            gate.open()
            async for event in await client.responses.retrieve(response_id, stream=True, starting_after=numbers[-1]):
                numbers.append(event.sequence_number)
                said += event.delta if event.type == "response.output_text.delta" else ""
            return said, numbers

    said, numbers = asyncio.run(run())
    assert said == "It took a while."
    assert numbers == list(range(len(numbers)))

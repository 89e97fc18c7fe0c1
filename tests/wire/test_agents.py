"""The unchanged openai-agents SDK against the server: tools, state kept by the server, sessions, streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI

from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, call, ending, say

QUIET = RunConfig(tracing_disabled=True)
ASK_WEATHER = [call(0, '{"city":"Rome"}', "call_1", "weather"), *ending("tool_calls")]

Job = Callable[[AsyncOpenAI, Agent[Any]], Awaitable[Any]]


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def run(server: OutliveServer, model: str, job: Job) -> Any:
    async def go() -> Any:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            agent: Agent[Any] = Agent(
                name="Helper",
                instructions="Be brief.",
                tools=[weather],
                model=OpenAIResponsesModel(model=model, openai_client=client),
            )
            return await job(client, agent)

    return asyncio.run(go())


def roles(upstream: FakeUpstream, model: str, number: int) -> list[str]:
    return [message["role"] for message in upstream.calls(model)[number].messages]


def test_an_agent_calls_a_tool_and_answers(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(ASK_WEATHER, say("It is sunny."))

    async def job(client: AsyncOpenAI, agent: Agent[Any]) -> Any:
        return (await Runner.run(agent, "Weather in Rome?", run_config=QUIET)).final_output

    assert run(server, model, job) == "It is sunny."
    assert roles(upstream, model, 1) == ["system", "user", "assistant", "tool"]
    assert upstream.calls(model)[1].messages[-1]["content"] == "sunny in Rome"


@pytest.mark.parametrize("state", ["conversation_id", "auto_previous_response_id"])
def test_an_agent_uses_state_kept_by_the_server(server: OutliveServer, upstream: FakeUpstream, state: str) -> None:
    model = upstream.model(ASK_WEATHER, say("It is sunny."), say("You are welcome."))

    async def job(client: AsyncOpenAI, agent: Agent[Any]) -> Any:
        kept: Any = (
            {"conversation_id": (await client.conversations.create()).id}
            if state == "conversation_id"
            else {"auto_previous_response_id": True}
        )
        first = await Runner.run(agent, "Weather in Rome?", run_config=QUIET, **kept)
        assert first.final_output == "It is sunny."
        if state != "conversation_id":
            kept = {"previous_response_id": first.last_response_id}
        return (await Runner.run(agent, "Thanks.", run_config=QUIET, **kept)).final_output

    assert run(server, model, job) == "You are welcome."
    assert roles(upstream, model, 1) == ["system", "user", "assistant", "tool"]
    assert roles(upstream, model, 2) == ["system", "user", "assistant", "tool", "assistant", "user"]


def test_an_agent_streams_the_text_of_its_answer(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(ASK_WEATHER, say("It ", "is ", "sunny."))

    async def job(client: AsyncOpenAI, agent: Agent[Any]) -> Any:
        result = Runner.run_streamed(agent, "Weather in Rome?", run_config=QUIET)
        said = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                said += event.data.delta
        return said, result.final_output

    assert run(server, model, job) == ("It is sunny.", "It is sunny.")


def test_a_session_keeps_its_items_in_a_conversation(
    server: OutliveServer, http: HttpClient, upstream: FakeUpstream
) -> None:
    model = upstream.model(ASK_WEATHER, say("It is sunny."), say("You are welcome."))

    async def job(client: AsyncOpenAI, agent: Agent[Any]) -> Any:
        session = OpenAIConversationsSession(openai_client=client)
        await Runner.run(agent, "Weather in Rome?", session=session, run_config=QUIET)
        last = await Runner.run(agent, "Thanks.", session=session, run_config=QUIET)
        assert last.final_output == "You are welcome."
        items = await session.get_items()
        popped: Any = await session.pop_item()
        assert popped["content"][0]["text"] == "You are welcome."
        conversation = await session._get_session_id()
        said = await asyncio.to_thread(http.list_messages, conversation)
        await session.clear_session()
        return [item.get("type") for item in items], said, conversation

    types, said, conversation = run(server, model, job)
    assert types == ["message", "function_call", "function_call_output", "message", "message", "message"]
    assert said == [("user", "Weather in Rome?"), ("assistant", "It is sunny."), ("user", "Thanks.")]
    assert http.get(f"/v1/conversations/{conversation}").status == 404
    assert roles(upstream, model, 2) == ["system", "user", "assistant", "tool", "assistant", "user"]


def test_an_agent_retries_until_a_locked_conversation_is_free(
    server: OutliveServer, http: HttpClient, upstream: FakeUpstream
) -> None:
    """The SDK retries by itself after a 400 `conversation_locked`."""
    gate = Gate()
    conversation = http.post("/v1/conversations", {}).json()["id"]
    busy = http.stream(model=upstream.model([gate, *say("First.")]), input="First?", conversation=conversation)
    busy.read_through("response.created")
    model = upstream.model(say("Second."))

    async def job(client: AsyncOpenAI, agent: Agent[Any]) -> Any:
        running = asyncio.create_task(Runner.run(agent, "Second?", conversation_id=conversation, run_config=QUIET))
        await asyncio.sleep(0.2)  # long enough to be refused once
        assert not running.done()
        gate.open()
        await asyncio.to_thread(busy.read_through, "response.completed")
        return (await running).final_output

    assert run(server, model, job) == "Second."
    assert [words for _, words in http.list_messages(conversation)] == ["First?", "First.", "Second?", "Second."]

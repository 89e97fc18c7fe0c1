"""WebSocket mode with its real clients, unchanged: the openai SDK and openai-agents."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, OpenAIResponsesWSModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import ResponseFunctionToolCall
from openai.types.websocket_reconnection import ReconnectingEvent

from tests.support.http_client import HttpClient, Json
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, Refuse, call, ending, say, text

QUIET = RunConfig(tracing_disabled=True)
ASK_WEATHER = [call(0, '{"city":"Rome"}', "call_1", "weather"), *ending("tool_calls")]


# -- the openai SDK


def test_the_sdk_chains_unstored_turns(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(ASK_WEATHER, say("It is ", "sunny."))
    with client.responses.connect() as connection:
        connection.response.create(model=model, input="Weather in Rome?", store=False)
        first = _final(connection)
        (made,) = first.output
        assert isinstance(made, ResponseFunctionToolCall) and made.arguments == '{"city":"Rome"}'
        connection.response.create(
            model=model,
            store=False,
            previous_response_id=first.id,
            input=[{"type": "function_call_output", "call_id": made.call_id, "output": "sunny"}],
        )
        assert _final(connection).output_text == "It is sunny."
    assert [message["role"] for message in upstream.calls(model)[1].messages] == ["user", "assistant", "tool"]


def test_every_event_is_parsed_into_the_sdks_type(client: OpenAI, upstream: FakeUpstream) -> None:
    seen: list[str] = []
    with client.responses.connect() as connection:
        connection.response.create(model=upstream.model(), input="Hi", stream_id="main")
        for event in connection:
            assert event.stream_id == "main"
            seen.append(f"{event.type} {type(event).__name__}")
            if event.type == "response.completed":
                connection.response.steer(input="Faster.", previous_response_id=event.response.id)
                break
        assert seen[0] == "response.created ResponseWsCreated" and seen[-1].endswith("ResponseWsCompleted")
        failed = connection.recv()
        assert failed.type == "response.steer.failed" and failed.error.code == "steering_not_supported"
        connection.response.create(model=upstream.model(), input="Hi", temperature=5)
        error = connection.recv()
        assert error.type == "error" and error.error.param == "temperature" and error.status == 400


def test_the_sdk_runs_lanes_concurrently(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    models = {"slow": upstream.model([gate, *say("slow")]), "fast": upstream.model(say("fast"))}

    async def go() -> dict[str | None, str]:
        done: dict[str | None, str] = {}
        async with (
            AsyncOpenAI(base_url=server.base_url, api_key="any") as client,
            client.responses.connect() as connection,
        ):
            for lane, model in models.items():
                await connection.response.create(model=model, input="Hi", stream_id=lane)
            async for event in connection:
                if event.type == "response.completed":
                    done[event.stream_id] = event.response.output_text
                    gate.open()
                    if len(done) == 2:
                        break
        return done

    assert list(asyncio.run(go()).items()) == [("fast", "fast"), ("slow", "slow")]


def test_the_sdk_reconnects_to_a_restarted_server_and_continues(tmp_path: Path, upstream: FakeUpstream) -> None:
    model = upstream.model(say("one"), say("two"))
    codes: list[int] = []

    def note(event: ReconnectingEvent) -> None:
        codes.append(event.close_code)

    with (
        OutliveServer(tmp_path, upstream.url) as server,
        OpenAI(base_url=server.base_url, api_key="any") as client,
        client.responses.connect(on_reconnecting=note, max_retries=100, initial_delay=0.1, max_delay=0.5) as connection,
    ):
        connection.response.create(model=model, input="1")
        first = _final(connection)

        def restart() -> None:
            server.terminate()
            server.start()
            connection.response.create(model=model, input="2", previous_response_id=first.id)

        threading.Thread(target=restart).start()
        assert _final(connection).output_text == "two"
    assert codes[0] == 1012
    assert [message["content"] for message in upstream.calls(model)[1].messages] == ["1", "one", "2"]


def _final(connection: Any) -> Any:
    for event in connection:
        if event.type == "response.completed":
            return event.response
        assert event.type not in ("error", "response.failed", "response.incomplete"), event
    raise AssertionError("the connection was closed")


# -- openai-agents


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def run(server: OutliveServer, model: str, job: Callable[[Agent[Any]], Awaitable[Any]]) -> Any:
    async def go() -> Any:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            over_socket = OpenAIResponsesWSModel(model=model, openai_client=client)
            agent: Agent[Any] = Agent(name="Helper", tools=[weather], model=over_socket)
            try:
                return await job(agent)
            finally:
                await over_socket.close()

    return asyncio.run(go())


@pytest.mark.parametrize("options", [{}, {"auto_previous_response_id": True}], ids=["whole", "chained"])
def test_an_agent_runs_its_tools_over_one_socket(server: OutliveServer, upstream: FakeUpstream, options: Json) -> None:
    model = upstream.model(ASK_WEATHER, say("It is sunny."))

    async def job(agent: Agent[Any]) -> Any:
        return (await Runner.run(agent, "Weather in Rome?", run_config=QUIET, **options)).final_output

    assert run(server, model, job) == "It is sunny."
    roles = [message["role"] for message in upstream.calls(model)[1].messages]
    assert roles == ["user", "assistant", "tool"]


def test_an_agents_stream_delivers_text_as_it_arrives(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(say("It ", "is ", "sunny."))

    async def job(agent: Agent[Any]) -> Any:
        result = Runner.run_streamed(agent, "Hi", run_config=QUIET)
        pieces = [
            event.data.delta
            async for event in result.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        return pieces, result.final_output

    assert run(server, model, job) == (["It ", "is ", "sunny."], "It is sunny.")


def test_an_agent_gets_the_error_of_a_failed_turn(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model([Refuse(400, {"error": {"message": "no such thing"}})])

    async def job(agent: Agent[Any]) -> Any:
        with pytest.raises(Exception, match="no such thing"):
            await Runner.run(agent, "Hi", run_config=QUIET)

    run(server, model, job)


def test_an_agents_answer_can_be_retrieved_after_its_socket_is_cut(
    server: OutliveServer, http: HttpClient, upstream: FakeUpstream
) -> None:
    gate = Gate()
    model = upstream.model([text("It is "), gate, text("sunny."), *ending()])

    async def job(agent: Agent[Any]) -> Any:
        result, response_id = Runner.run_streamed(agent, "Hi", run_config=QUIET), ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.created":
                response_id = event.data.response.id
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                break
        result.cancel()
        return response_id

    response_id = run(server, model, job)
    gate.open()
    ended = http.get(f"/v1/responses/{response_id}?wait=10").json()
    assert ended["output"][0]["content"][0]["text"] == "It is sunny."

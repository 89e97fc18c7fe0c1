"""Strict models refuse what they cannot honour before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import Agent, Model, ModelResponse, ModelSettings, ModelTracing, RunConfig, Runner, UserError, function_tool

from outlive.agents import (
    DurableProvider,
    DurableResponsesModel,
    StrictChatCompletionsModel,
    StrictModel,
    StrictProvider,
    check_stateless,
)
from tests.agents.harness import connect
from tests.client.stub import Stub
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Whole, call, ending, say

ORPHAN = {"type": "function_call_output", "call_id": "call_1", "output": "42"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
WIRE_CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


class Other(Model):
    """A third-party model, such as LiteLLM's, which accepts all arguments and ignores those it does not support."""

    def __init__(self) -> None:
        self.asked = 0

    async def get_response(self, *args: Any, **named: Any) -> ModelResponse:
        self.asked += 1
        raise RuntimeError("asked")

    async def stream_response(self, *args: Any, **named: Any) -> AsyncIterator[Any]:
        self.asked += 1
        raise RuntimeError("asked")
        yield


async def _call(model: Model, streamed: bool, input: Any = "Hello", extra: Any = None, **state: Any) -> None:
    named: dict[str, Any] = {"previous_response_id": None, "conversation_id": None, "prompt": None} | state
    settings = ModelSettings(extra_args=extra)
    if streamed:
        async for _ in model.stream_response(None, input, settings, [], None, [], ModelTracing.DISABLED, **named):
            pass
    else:
        await model.get_response(None, input, settings, [], None, [], ModelTracing.DISABLED, **named)


REFUSED: list[dict[str, Any]] = [
    {"previous_response_id": "resp_1"},
    {"conversation_id": "conv_1"},
    {"extra": {"background": True}},
    {"input": [ORPHAN]},
]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("wrong", REFUSED, ids=str)
def test_chat_model_refuses_state_before_any_call(stub: Stub, streamed: bool, wrong: dict[str, Any]) -> None:
    async def run() -> None:
        async with connect(stub.base_url) as client:
            await _call(StrictChatCompletionsModel("m", client), streamed, **wrong)

    with pytest.raises(UserError, match="Responses"):
        asyncio.run(run())
    assert stub.requests == []


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("wrong", REFUSED, ids=str)
def test_wrapped_model_refuses_state(streamed: bool, wrong: dict[str, Any]) -> None:
    other = Other()
    with pytest.raises(UserError):
        asyncio.run(_call(StrictModel(other), streamed, **wrong))
    assert other.asked == 0
    with pytest.raises(RuntimeError, match="asked"):
        asyncio.run(_call(StrictModel(other), streamed, input=[CALL, ORPHAN]))


@pytest.mark.parametrize("streamed", [False, True])
def test_auto_previous_response_id_is_refused(server: OutliveServer, upstream: FakeUpstream, streamed: bool) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [WIRE_CALL]}
    whole = Whole(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m",
         "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    )  # fmt: skip
    pieces = [call(0, "{}", id="call_1", name="look"), *ending("tool_calls")]
    model = upstream.model(pieces if streamed else [whole], say("Never."))

    @function_tool
    def look() -> str:
        return "seen"

    async def run() -> None:
        async with connect(server.base_url) as client:
            agent = Agent(name="a", model=StrictChatCompletionsModel(model, client), tools=[look])
            if streamed:
                async for _ in Runner.run_streamed(agent, "Hello", auto_previous_response_id=True).stream_events():
                    pass
            await Runner.run(agent, "Hello", auto_previous_response_id=True)

    # Streamed, the SDK invents an id and sends it; otherwise it sends the tool's output alone, and no id to refuse.
    with pytest.raises(UserError, match="`previous_response_id`" if streamed else "`auto_previous_response_id=True`"):
        asyncio.run(run())
    assert len(upstream.calls(model)) == 1


def test_chat_model_accepts_a_whole_history(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model([call(0, "{}", id="call_1", name="look"), *ending("tool_calls")], say("Seen."))

    @function_tool
    def look() -> str:
        return "seen"

    async def run() -> Any:
        async with connect(server.base_url) as client:
            config = RunConfig(model_provider=DurableProvider(client, use_responses=False))
            agent = Agent(
                name="a", model=model, tools=[look], model_settings=ModelSettings(extra_args={"background": False})
            )
            streamed = Runner.run_streamed(agent, "Hello", run_config=config)
            async for _ in streamed.stream_events():
                pass
            return streamed.final_output

    assert asyncio.run(run()) == "Seen."


def test_lenient_provider_refuses_only_background(stub: Stub) -> None:
    async def run() -> None:
        async with connect(stub.base_url) as client:
            model = DurableProvider(client, use_responses=False, strict=False).get_model("m")
            with pytest.raises(UserError):
                await _call(model, False, extra={"background": True})
            assert stub.requests == []
            with pytest.raises(Exception, match="no reply is scripted"):
                await _call(model, False, previous_response_id="resp_1")

    asyncio.run(run())


@pytest.mark.parametrize("streamed", [False, True])
def test_websocket_model_refuses_background(stub: Stub, streamed: bool) -> None:
    async def run() -> None:
        async with connect(stub.base_url) as client:
            provider = DurableProvider(client, use_responses_websocket=True)
            assert provider.get_model("m") is provider.get_model("m")
            await _call(provider.get_model("m"), streamed, extra={"background": True})

    with pytest.raises(UserError, match="websocket"):
        asyncio.run(run())
    assert stub.requests == []


@pytest.mark.parametrize("transport", [{"use_responses": False}, {"use_responses_websocket": True}])
def test_provider_refuses_background_over_other_transports(transport: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        DurableProvider(api_key="any", background=True, **transport)


def test_providers_return_the_models_they_document() -> None:
    assert isinstance(DurableProvider(api_key="any").get_model("m"), DurableResponsesModel)
    chat = DurableProvider(api_key="any", use_responses=False)
    assert isinstance(chat.get_model(None), StrictChatCompletionsModel)
    assert isinstance(StrictProvider(chat).get_model("m"), StrictModel)


def test_check_stateless_accepts_a_whole_history() -> None:
    items: Any = [{"role": "user", "content": "Hello"}, CALL, ORPHAN]
    check_stateless("Hello")
    check_stateless(items)
    with pytest.raises(UserError, match="call_1"):
        check_stateless(items[2:])

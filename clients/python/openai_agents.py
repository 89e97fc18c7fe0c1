"""`openai-agents` as it is: its runner, its sessions, the server's state, and its WebSocket transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesCompactionSession,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    responses_websocket_session,
    set_tracing_disabled,
)
from openai import AsyncOpenAI, BadRequestError
from openai.types.shared import Reasoning
from pydantic import BaseModel

from clients.python.checks import PIXEL, THOUGHT, Client, Target, refused

client = Client("openai-agents (Python)", ("openai-agents", "openai"))
client.lack("background", "has no background mode; `outlive.agents` adds one")
client.lack("resume", "does not resume a broken stream; `outlive.agents` resumes it")
client.lack("cancel", "only stops reading; `outlive.agents` cancels on the server too")
client.lack("tokens", "has no method for it")

set_tracing_disabled(True)


class Report(BaseModel):
    city: str
    degrees: int


class Errand:
    """An agent on one model, with a tool that notes what it was called with."""

    def __init__(self, sdk: AsyncOpenAI, model: str, **fields: Any) -> None:
        self.cities: list[str] = []
        self.sdk = sdk
        self.model = model

        @function_tool
        def weather(city: str) -> str:
            """The weather in a city."""
            self.cities.append(city)
            return f"sunny in {city}"

        self.agent: Agent[Any] = Agent(
            name="Helper",
            instructions="Be brief.",
            tools=fields.pop("tools", [weather]),
            model=OpenAIResponsesModel(model=model, openai_client=sdk),
            **fields,
        )

    async def ask(self, words: Any, **how: Any) -> Any:
        return await Runner.run(self.agent, words, **how)


@asynccontextmanager
async def stored(name: str) -> AsyncIterator[SQLiteSession]:
    session = SQLiteSession(name)
    try:
        yield session
    finally:
        session.close()


@asynccontextmanager
async def errand(target: Target, kind: str = "plain", **fields: Any) -> AsyncIterator[Errand]:
    async with AsyncOpenAI(base_url=target.base_url, api_key="any") as sdk:
        yield Errand(sdk, target.model(kind), **fields)


@client.check("plain", "`Runner.run`")
async def run(target: Target) -> None:
    async with errand(target) as one:
        result = await one.ask("Hello!")
    assert result.final_output == "You said: Hello!"
    assert target.texts(one.model) == ["Be brief.", "Hello!"]


@client.check("streamed", "`Runner.run_streamed`, through a tool call")
async def run_streamed(target: Target) -> None:
    async with errand(target) as one:
        result = Runner.run_streamed(one.agent, "Weather in Rome?")
        said = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                said += event.data.delta
    assert said == result.final_output == "The tool says: sunny in Rome."
    assert one.cities == ["Rome"]


@client.check("structured", "`output_type`")
async def output_type(target: Target) -> None:
    async with errand(target, tools=[], output_type=Report) as one:
        assert (await one.ask("Report on Rome.")).final_output == Report(city="Rome", degrees=21)


@client.check("tools", "`@function_tool`, twice in one turn, each called once")
async def tools(target: Target) -> None:
    async with errand(target) as one:
        result = await one.ask("Weather in Rome and weather in Oslo?")
    assert result.final_output == "The tool says: sunny in Rome and sunny in Oslo."
    assert sorted(one.cities) == ["Oslo", "Rome"]


@client.check("tools", "a handoff between two agents")
async def handoff(target: Target) -> None:
    async with errand(target) as one:
        other: Agent[Any] = Agent(name="Forecaster", handoffs=[], model=one.agent.model, tools=one.agent.tools)
        first: Agent[Any] = Agent(name="Clerk", handoffs=[other], model=one.agent.model)
        # The only tool of the first agent is the handoff, so that is what the model calls.
        result = await Runner.run(first, "Weather in Rome?")
    assert result.last_agent is other
    assert result.final_output == 'The tool says: {"assistant": "Forecaster"}.'


@client.check("reasoning", "reasoning items with their summary, kept through a tool call")
async def reasoning(target: Target) -> None:
    async with errand(target, "thinker", model_settings=ModelSettings(reasoning=Reasoning(summary="auto"))) as one:
        result = await one.ask("Weather in Rome?")
    thoughts = [item.raw_item.summary[0].text for item in result.new_items if item.type == "reasoning_item"]
    assert thoughts == [THOUGHT] * 2
    assert result.final_output == "The tool says: sunny in Rome."


@client.check("images", "an image in the input reaches the model")
async def image(target: Target) -> None:
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": PIXEL}]
    async with errand(target) as one:
        result = await one.ask([{"role": "user", "content": parts}])
    assert result.final_output == "I see a picture."


@client.check("chain", "`previous_response_id` and `auto_previous_response_id`, through a tool call")
async def chain(target: Target) -> None:
    async with errand(target) as one:
        first = await one.ask("My name is Ada. Weather in Rome?", auto_previous_response_id=True)
        second = await one.ask("What is my name?", previous_response_id=first.last_response_id)
    assert second.final_output == "Your name is Ada."
    assert one.cities == ["Rome"]
    assert [message["role"] for message in target.requests(one.model)[-1]["messages"]] == [
        "system", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip


@client.check("conversation", "`conversation_id`, through a tool call")
async def conversation(target: Target) -> None:
    async with errand(target) as one:
        talk = await one.sdk.conversations.create()
        await one.ask("My name is Ada. Weather in Rome?", conversation_id=talk.id)
        second = await one.ask("What is my name?", conversation_id=talk.id)
        kinds = [item.type async for item in one.sdk.conversations.items.list(talk.id, order="asc")]
    assert second.final_output == "Your name is Ada."
    assert kinds == ["message", "function_call", "function_call_output", "message", "message", "message"]


@client.check("conversation", "`OpenAIConversationsSession`: adds, reads, pops and clears")
async def session(target: Target) -> None:
    async with errand(target) as one:
        kept = OpenAIConversationsSession(openai_client=one.sdk)
        await one.ask("My name is Ada. Weather in Rome?", session=kept)
        second = await one.ask("What is my name?", session=kept)
        assert second.final_output == "Your name is Ada."
        assert len(await kept.get_items()) == 6 and len(await kept.get_items(limit=2)) == 2
        popped: Any = await kept.pop_item()
        assert popped["content"][0]["text"] == "Your name is Ada."
        await kept.clear_session()
        assert (await one.ask("What is my name?", session=kept)).final_output == "You have not told me."


@client.check("conversation", "a locked conversation: the runner retries")
async def locked(target: Target) -> None:
    async with errand(target) as one:
        talk = await one.sdk.conversations.create()
        held = target.model("held")
        await one.sdk.responses.create(model=held, input="First?", conversation=talk.id, background=True)
        waiting = asyncio.create_task(one.ask("Second?", conversation_id=talk.id))
        await asyncio.sleep(0.3)  # long enough to be refused once
        assert not waiting.done()
        await asyncio.to_thread(target.release, held)
        assert (await waiting).final_output == "You said: Second?"


@client.check("stateless", "`ModelSettings(store=False)` with a session of its own (`SQLiteSession`)")
async def stateless(target: Target) -> None:
    async with errand(target, model_settings=ModelSettings(store=False)) as one:
        async with stored("one") as kept:
            await one.ask("My name is Ada. Weather in Rome?", session=kept)
            second = await one.ask("What is my name?", session=kept)
        assert second.final_output == "Your name is Ada."


@client.check("websocket", "`responses_websocket_session`: runs, tools and streams over one connection")
async def websocket(target: Target) -> None:
    model = target.model()
    async with errand(target) as one, responses_websocket_session(base_url=target.base_url, api_key="any") as socket:
        agent: Agent[Any] = one.agent.clone(model=model)
        first = await socket.run(agent, "My name is Ada. Weather in Rome?", auto_previous_response_id=True)
        assert first.final_output == "The tool says: sunny in Rome." and one.cities == ["Rome"]
        second = socket.run_streamed(agent, "What is my name?", previous_response_id=first.last_response_id)
        async for _ in second.stream_events():
            pass
    assert second.final_output == "Your name is Ada."
    assert len(target.requests(model)) == 3


@client.check("websocket", "`OpenAIResponsesWSModel` with `store=False`: the chain is kept in the connection's memory")
async def websocket_stateless(target: Target) -> None:
    model = target.model()
    async with errand(target) as one, responses_websocket_session(base_url=target.base_url, api_key="any") as socket:
        agent: Agent[Any] = one.agent.clone(model=model, model_settings=ModelSettings(store=False))
        first = await socket.run(agent, "My name is Ada.", auto_previous_response_id=True)
        second = await socket.run(agent, "What is my name?", previous_response_id=first.last_response_id)
    assert second.final_output == "Your name is Ada."


@client.check("compact", "`OpenAIResponsesCompactionSession`, from the last response and from its items")
async def compact(target: Target) -> None:
    for mode in ("previous_response_id", "input"):
        # The session takes no other names than OpenAI's.
        async with errand(target, "gpt-plain") as one, stored("one") as below:
            kept = OpenAIResponsesCompactionSession(
                "one",
                below,
                client=one.sdk,
                model=one.model,
                compaction_mode=mode,
                should_trigger_compaction=lambda context: len(context["compaction_candidate_items"]) >= 3,
            )
            await one.ask("My name is Ada. Weather in Rome?", session=kept)
            items: list[Any] = await kept.get_items()
            assert items[-1]["type"] == "compaction", items
            second = await one.ask("What is my name?", session=kept)
            assert second.final_output == "Your name is Ada.", mode


@client.check("errors", "the server's 400 arrives as the SDK's `BadRequestError`")
async def errors(target: Target) -> None:
    async with errand(target) as one:
        with refused(BadRequestError) as found:
            await one.ask("Hello!", run_config=RunConfig(model_settings=ModelSettings(temperature=9)))
    assert found.error.param == "temperature"


if __name__ == "__main__":
    client.main()

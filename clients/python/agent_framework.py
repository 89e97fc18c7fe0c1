"""Microsoft's `agent-framework` with its `OpenAIChatClient`, which speaks the Responses API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agent_framework import Agent, AgentResponseUpdate, Content, InMemoryHistoryProvider, Message
from agent_framework.exceptions import ChatClientException
from agent_framework.openai import OpenAIChatClient
from openai import AsyncOpenAI
from pydantic import BaseModel

from clients.python.checks import PIXEL, THOUGHT, Client, Target, refused

client = Client("agent-framework", ("agent-framework-core", "agent-framework-openai", "openai"))
client.lack("cancel", "has no method for it")
client.lack("websocket", "speaks HTTP only")
client.lack("compact", "compacts its history itself")
client.lack("tokens", "has no method for it")


class Report(BaseModel):
    city: str
    degrees: int


class Errand:
    """An agent on one model, with a tool that notes what it was called with."""

    def __init__(self, sdk: AsyncOpenAI, model: str, **fields: Any) -> None:
        self.sdk = sdk
        self.model = model
        self.cities: list[str] = []

        def weather(city: str) -> str:
            """The weather in a city."""
            self.cities.append(city)
            return f"sunny in {city}"

        chat = OpenAIChatClient(model=model, async_client=sdk)
        self.agent = Agent(client=chat, tools=[weather], **fields)


@asynccontextmanager
async def errand(target: Target, kind: str = "plain", base_url: str = "", **fields: Any) -> AsyncIterator[Errand]:
    async with AsyncOpenAI(base_url=base_url or target.base_url, api_key="any") as sdk:
        yield Errand(sdk, target.model(kind), **fields)


def appended(update: AgentResponseUpdate) -> str:
    """Its text, unless that only repeats what came before."""
    return "".join(content.text or "" for content in update.contents if content.merge_mode == "append")


@client.check("plain", "`Agent.run`")
async def run(target: Target) -> None:
    async with errand(target, instructions="Be brief.") as one:
        assert (await one.agent.run("Hello!")).text == "You said: Hello!"
    assert target.texts(one.model) == ["Be brief.", "Hello!"]


@client.check("streamed", "`run(stream=True)`, through a tool call")
async def stream(target: Target) -> None:
    async with errand(target) as one:
        answering = one.agent.run("Weather in Rome?", stream=True)
        said = "".join([appended(update) async for update in answering])
        assert said == (await answering.get_final_response()).text == "The tool says: sunny in Rome."
    assert one.cities == ["Rome"]


@client.check("structured", "`response_format`, plain and streamed")
async def structured(target: Target) -> None:
    async with errand(target) as one:
        options: Any = {"response_format": Report}
        assert (await one.agent.run("Report on Rome.", options=options)).value == Report(city="Rome", degrees=21)
        answering = one.agent.run("Report on Rome.", stream=True, options=options)
        assert (await answering.get_final_response()).value == Report(city="Rome", degrees=21)


@client.check("tools", "two calls in one turn, each made once")
async def tools(target: Target) -> None:
    async with errand(target) as one:
        answer = await one.agent.run("Weather in Rome and weather in Oslo?")
    assert answer.text == "The tool says: sunny in Rome and sunny in Oslo."
    assert sorted(one.cities) == ["Oslo", "Rome"]


@client.check("reasoning", "reasoning contents, through a tool call")
async def reasoning(target: Target) -> None:
    async with errand(target, "thinker") as one:
        answer = await one.agent.run("Weather in Rome?")
    contents = [content for message in answer.messages for content in message.contents]
    assert [content.text for content in contents if content.type == "text_reasoning"] == [THOUGHT] * 2
    assert answer.text == "The tool says: sunny in Rome."


@client.check("images", "an image in the input reaches the model")
async def image(target: Target) -> None:
    async with errand(target) as one:
        shown = Message("user", [Content.from_text("What is this?"), Content.from_uri(PIXEL, media_type="image/png")])
        assert (await one.agent.run(shown)).text == "I see a picture."


@client.check("chain", "a session continues by `previous_response_id`, through a tool call")
async def chain(target: Target) -> None:
    async with errand(target) as one:
        session = one.agent.create_session()
        await one.agent.run("My name is Ada. Weather in Rome?", session=session)
        assert str(session.service_session_id).startswith("resp_")
        second = await one.agent.run("What is my name?", session=session)
    assert second.text == "Your name is Ada." and one.cities == ["Rome"]
    roles = [message["role"] for message in target.requests(one.model)[-1]["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


@client.check("conversation", "a session on a server-side conversation")
async def conversation(target: Target) -> None:
    async with errand(target) as one:
        talk = await one.sdk.conversations.create()
        session = one.agent.get_session(talk.id)
        await one.agent.run("My name is Ada. Weather in Rome?", session=session)
        answering = one.agent.run("What is my name?", session=session, stream=True)
        assert (await answering.get_final_response()).text == "Your name is Ada."
        assert session.service_session_id == talk.id
        items = [item.type async for item in one.sdk.conversations.items.list(talk.id, order="asc")]
    assert items == ["message", "function_call", "function_call_output", "message", "message", "message"]


@client.check("stateless", "`store=False` with `InMemoryHistoryProvider`, through reasoning and a tool call")
async def stateless(target: Target) -> None:
    history = InMemoryHistoryProvider()
    async with errand(target, "thinker", default_options={"store": False}, context_providers=[history]) as one:
        session = one.agent.create_session()
        await one.agent.run("My name is Ada. Weather in Rome?", session=session)
        second = await one.agent.run("What is my name?", session=session)
    assert second.text == "Your name is Ada." and one.cities == ["Rome"]


@client.check("background", "`background`: polled with its continuation token, through a tool call")
async def background(target: Target) -> None:
    async with errand(target) as one:
        session = one.agent.create_session()
        options: Any = {"background": True}
        answer = await one.agent.run("Weather in Rome?", session=session, options=options)
        while answer.continuation_token is not None:
            await asyncio.sleep(0.05)
            options = {"background": True, "continuation_token": answer.continuation_token}
            answer = await one.agent.run(session=session, options=options)
    assert answer.text == "The tool says: sunny in Rome." and one.cities == ["Rome"]


@client.check("resume", "a background stream closed halfway resumes with its continuation token")
async def resume(target: Target) -> None:
    async with errand(target, "held") as one:
        session = one.agent.create_session()
        token: Any = None
        answering = one.agent.run("A long story, please.", session=session, stream=True, options={"background": True})
        async for update in answering:
            token = update.continuation_token or token
            if update.text:
                break
        await answering.close()
        assert token is not None
        await asyncio.to_thread(target.release, one.model)
        again = one.agent.run(session=session, stream=True, options={"continuation_token": token})
        said = "".join([appended(update) async for update in again])
    assert said == "You said: A long story, please."
    assert len(target.requests(one.model)) == 1


@client.check("errors", "the server's 400 arrives as `ChatClientException`, with the server's message")
async def errors(target: Target) -> None:
    async with errand(target) as one:
        with refused(ChatClientException) as found:
            await one.agent.run("Hello!", options={"service_tier": "best"})
    assert "'service_tier'" in str(found.error)


if __name__ == "__main__":
    client.main()

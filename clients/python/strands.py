"""Strands Agents with its `OpenAIResponsesModel`."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from pydantic import BaseModel
from strands import Agent, tool
from strands.models.openai_responses import OpenAIResponsesModel

from clients.python.checks import PIXEL, THOUGHT, Client, Target, refused

client = Client("strands-agents", ("strands-agents", "openai"))
client.lack("conversation", "has no setting for it")
client.lack("background", "reads streams only")
client.lack("resume", "does not resume a broken stream")
client.lack("cancel", "only stops reading")
client.lack("websocket", "speaks HTTP only")
client.lack("compact", "shortens its history itself")


class Report(BaseModel):
    """A weather report."""

    city: str
    degrees: int


def model(target: Target, kind: str = "plain", **fields: Any) -> OpenAIResponsesModel:
    address = {"base_url": target.base_url, "api_key": "any"}
    return OpenAIResponsesModel(client_args=address, model_id=target.model(kind), **fields)


def agent(chat: OpenAIResponsesModel, **fields: Any) -> Agent:
    return Agent(model=chat, callback_handler=None, **fields)


@client.check("plain", "an `Agent` that is called, and `invoke_async`")
async def call(target: Target) -> None:
    assert str(await asyncio.to_thread(agent(model(target)), "Hello!")) == "You said: Hello!\n"
    assert str(await agent(model(target)).invoke_async("Hello!")) == "You said: Hello!\n"


@client.check("streamed", "`stream_async`")
async def stream(target: Target) -> None:
    events = [event async for event in agent(model(target)).stream_async("One two three.")]
    pieces = [event["data"] for event in events if "data" in event]
    assert len(pieces) > 3 and "".join(pieces) == "You said: One two three."


@client.check("structured", "`structured_output` of the model")
async def structured(target: Target) -> None:
    messages: Any = [{"role": "user", "content": [{"text": "Report on Rome."}]}]
    events = [event async for event in model(target).structured_output(Report, messages)]
    assert events[-1]["output"] == Report(city="Rome", degrees=21)


@client.check("tools", "two calls in one step")
def tools(target: Target) -> None:
    cities: list[str] = []

    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        cities.append(city)
        return f"sunny in {city}"

    answer = agent(model(target), tools=[weather])("Weather in Rome and weather in Oslo?")
    assert str(answer) == "The tool says: sunny in Rome and sunny in Oslo.\n"
    assert sorted(cities) == ["Oslo", "Rome"]


@client.check("reasoning", "a `reasoningContent` block before the answer")
def reasoning(target: Target) -> None:
    answer = agent(model(target, "thinker", params={"reasoning": {"summary": "auto"}}))("Hello!")
    first, second = answer.message["content"]
    assert first["reasoningContent"]["reasoningText"]["text"] == THOUGHT
    assert second["text"] == "You said: Hello!"


@client.check("images", "an image in the input reaches the model")
def image(target: Target) -> None:
    picture = {"format": "png", "source": {"bytes": base64.b64decode(PIXEL.partition(",")[2])}}
    answer = agent(model(target))([{"text": "What is this?"}, {"image": picture}])
    assert str(answer) == "I see a picture.\n"


@client.check("chain", "`stateful=True`, through a tool call")
def chain(target: Target) -> None:
    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"sunny in {city}"

    chat = model(target, stateful=True)
    talk = agent(chat, tools=[weather])
    talk("My name is Ada. Weather in Rome?")
    assert str(talk("What is my name?")) == "Your name is Ada.\n"


@client.check("stateless", "`store: false` in `params`, the history sent whole")
def stateless(target: Target) -> None:
    talk = agent(model(target, params={"store": False}))
    talk("My name is Ada.")
    assert str(talk("What is my name?")) == "Your name is Ada.\n"


@client.check("tokens", "`count_tokens` with `use_native_token_count=True`")
async def tokens(target: Target) -> None:
    messages: Any = [{"role": "user", "content": [{"text": "Hello!"}]}]
    assert await model(target, use_native_token_count=True).count_tokens(messages) > 0


@client.check("errors", "the server's message arrives in the error that is raised")
def errors(target: Target) -> None:
    with refused(Exception) as found:
        agent(model(target, params={"temperature": 9}))("Hello!")
    assert "'temperature' must be at most 2." in str(found.error)


if __name__ == "__main__":
    client.main()

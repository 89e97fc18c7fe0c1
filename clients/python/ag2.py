"""AG2 with its `OpenAIResponsesConfig`."""

from __future__ import annotations

from typing import Any

from ag2 import Agent, ImageInput, tool
from ag2.config import OpenAIResponsesConfig
from ag2.events import ModelMessageChunk, ModelReasoning
from openai import BadRequestError
from pydantic import BaseModel

from clients.python.checks import PIXEL, THOUGHT, Client, Target, refused

client = Client("ag2", ("ag2", "openai"))
client.lack("chain", "sends its own history; stored items of the server are sent as they are")
client.lack("conversation", "has no setting for it")
client.lack("background", "has no setting for it")
client.lack("resume", "does not resume a broken stream")
client.lack("cancel", "only stops reading")
client.lack("websocket", "speaks HTTP only")
client.lack("compact", "shortens its history itself")
client.lack("tokens", "has no method for it")


class Report(BaseModel):
    city: str
    degrees: int


def make_agent(target: Target, kind: str = "plain", tools: Any = (), **fields: Any) -> Agent:
    config = OpenAIResponsesConfig(model=target.model(kind), base_url=target.base_url, api_key="any", **fields)
    return Agent("helper", config=config, tools=tools)


@client.check("plain", "`Agent.ask`")
async def ask(target: Target) -> None:
    assert (await make_agent(target).ask("Hello!")).body == "You said: Hello!"


async def collect(agent: Agent, question: str, kind: Any) -> tuple[list[str], str | None]:
    """Run a turn, and return the contents of its events of that kind, and the answer."""
    pieces: list[str] = []
    async with agent.run(question) as running:
        running.stream.where(kind).subscribe(lambda event: pieces.append(event.content))
        reply = await running.result()
    return pieces, reply.body


@client.check("streamed", "`Agent.run` with `streaming=True`: chunks that add up to the answer")
async def stream(target: Target) -> None:
    pieces, body = await collect(make_agent(target, streaming=True), "One two three.", ModelMessageChunk)
    assert body == "You said: One two three."
    assert len(pieces) > 3 and "".join(pieces) == body


@client.check("structured", "`response_schema`")
async def structured(target: Target) -> None:
    reply = await make_agent(target).ask("Report on Rome.", response_schema=Report)
    assert await reply.content() == Report(city="Rome", degrees=21)


def forecast() -> tuple[Any, list[str]]:
    cities: list[str] = []

    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        cities.append(city)
        return f"sunny in {city}"

    return weather, cities


@client.check("tools", "two calls in one step, plain and streamed")
async def tools(target: Target) -> None:
    for streaming in (False, True):
        weather, cities = forecast()
        agent = make_agent(target, tools=[weather], streaming=streaming)
        reply = await agent.ask("Weather in Rome and weather in Oslo?")
        assert reply.body == "The tool says: sunny in Rome and sunny in Oslo."
        assert sorted(cities) == ["Oslo", "Rome"]


@client.check("reasoning", "`ModelReasoning` events")
async def reasoning(target: Target) -> None:
    agent = make_agent(target, "thinker", reasoning={"summary": "auto"})
    pieces, body = await collect(agent, "Hello!", ModelReasoning)
    assert pieces == [THOUGHT] and body == "You said: Hello!"


@client.check("images", "an image in the input reaches the model")
async def image(target: Target) -> None:
    assert (await make_agent(target).ask("What is this?", ImageInput(PIXEL))).body == "I see a picture."


@client.check("stateless", "`reply.ask`: the history sent whole, with `store=False` and by default")
async def stateless(target: Target) -> None:
    for store in (False, True):
        first = await make_agent(target, store=store).ask("My name is Ada.")
        assert (await first.ask("What is my name?")).body == "Your name is Ada."


@client.check("errors", "the server's 400 arrives as the SDK's `BadRequestError`")
async def errors(target: Target) -> None:
    with refused(BadRequestError) as found:
        await make_agent(target, temperature=9).ask("Hello!")
    assert found.error.param == "temperature"


if __name__ == "__main__":
    client.main()

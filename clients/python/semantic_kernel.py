"""Semantic Kernel with its `OpenAIResponsesAgent`."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel
from semantic_kernel.agents import OpenAIResponsesAgent
from semantic_kernel.contents import ChatMessageContent, ImageContent, TextContent
from semantic_kernel.contents.utils.author_role import AuthorRole
from semantic_kernel.exceptions import AgentException
from semantic_kernel.functions import kernel_function

from clients.python.checks import PIXEL, Client, Target, refused

client = Client("semantic-kernel", ("semantic-kernel", "openai"))
client.lack("reasoning", "shows the answer only")
client.lack("conversation", "has no setting for it")
client.lack("background", "has no setting for it")
client.lack("resume", "does not resume a broken stream")
client.lack("cancel", "has no method for it")
client.lack("websocket", "speaks HTTP only")
client.lack("compact", "shortens its history itself")
client.lack("tokens", "has no method for it")


class Report(BaseModel):
    city: str
    degrees: int


class Weather:
    def __init__(self) -> None:
        self.cities: list[str] = []

    @kernel_function(description="The weather in a city.")
    def weather(self, city: str) -> str:
        self.cities.append(city)
        return f"sunny in {city}"


def make_agent(target: Target, kind: str = "plain", **fields: Any) -> OpenAIResponsesAgent:
    sdk = AsyncOpenAI(base_url=target.base_url, api_key="any")
    return OpenAIResponsesAgent(ai_model_id=target.model(kind), client=sdk, name="Helper", **fields)


@client.check("plain", "`get_response`")
async def get_response(target: Target) -> None:
    assert str((await make_agent(target).get_response("Hello!")).content) == "You said: Hello!"


@client.check("streamed", "`invoke_stream`")
async def stream(target: Target) -> None:
    pieces = [str(each.content) async for each in make_agent(target).invoke_stream("One two three.")]
    pieces = [piece for piece in pieces if piece]
    assert len(pieces) > 3 and "".join(pieces) == "You said: One two three."


@client.check("structured", "`configure_response_format`")
async def structured(target: Target) -> None:
    text = OpenAIResponsesAgent.configure_response_format(Report)
    answer = await make_agent(target, text=text).get_response("Report on Rome.")
    assert Report.model_validate_json(str(answer.content)) == Report(city="Rome", degrees=21)


@client.check("tools", "the functions of a plugin, two calls in one step, plain and streamed")
async def tools(target: Target) -> None:
    weather = Weather()
    answer = await make_agent(target, plugins=[weather]).get_response("Weather in Rome and weather in Oslo?")
    assert str(answer.content) == "The tool says: sunny in Rome and sunny in Oslo."
    assert sorted(weather.cities) == ["Oslo", "Rome"]
    said = [str(each.content) async for each in make_agent(target, plugins=[weather]).invoke_stream("Weather in Rome?")]
    assert "".join(said) == "The tool says: sunny in Rome."


@client.check("images", "an image in the input reaches the model")
async def image(target: Target) -> None:
    parts = [TextContent(text="What is this?"), ImageContent(data_uri=PIXEL)]
    answer = await make_agent(target).get_response(ChatMessageContent(role=AuthorRole.USER, items=parts))
    assert str(answer.content) == "I see a picture."


@client.check("chain", "a thread, which by default is a chain of stored responses")
async def chain(target: Target) -> None:
    agent = make_agent(target)
    first = await agent.get_response("My name is Ada.")
    assert str((await agent.get_response("What is my name?", thread=first.thread)).content) == "Your name is Ada."


@client.check("stateless", "`store_enabled=False`, the history sent whole")
async def stateless(target: Target) -> None:
    agent = make_agent(target, store_enabled=False)
    first = await agent.get_response("My name is Ada.")
    assert str((await agent.get_response("What is my name?", thread=first.thread)).content) == "Your name is Ada."


@client.check("errors", "the server's message arrives in an `AgentException`")
async def errors(target: Target) -> None:
    with refused(AgentException) as found:
        await make_agent(target, temperature=2).get_response("Hello!", temperature=9)
    assert "'temperature' must be at most 2." in str(found.error)


if __name__ == "__main__":
    client.main()

"""LlamaIndex with its `OpenAIResponses` model, alone and under a `FunctionAgent`."""

from __future__ import annotations

from typing import Any

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage, ImageBlock, TextBlock
from llama_index.llms.openai import OpenAIResponses
from openai import BadRequestError
from pydantic import BaseModel

from clients.python.checks import PIXEL, THOUGHT, Client, Target, refused

client = Client("llama-index", ("llama-index-llms-openai", "llama-index-core", "openai"))
client.lack("conversation", "has no setting for it")
client.lack("background", "takes an unfinished response for an empty answer")
client.lack("resume", "does not resume a broken stream")
client.lack("cancel", "has no method for it")
client.lack("websocket", "speaks HTTP only")
client.lack("compact", "shortens its history itself")
client.lack("tokens", "counts tokens itself")


class Report(BaseModel):
    """A weather report."""

    city: str
    degrees: int


def model(target: Target, kind: str = "plain", **fields: Any) -> OpenAIResponses:
    # It looks the window of a model up by name, and knows OpenAI's only.
    name = target.model(kind)
    return OpenAIResponses(model=name, api_base=target.base_url, api_key="any", context_window=128_000, **fields)


@client.check("plain", "`complete`, `chat` and `achat`")
async def chat(target: Target) -> None:
    llm = model(target)
    assert llm.complete("Hello!").text == "You said: Hello!"
    assert llm.chat([ChatMessage("Hello!")]).message.content == "You said: Hello!"
    assert (await llm.achat([ChatMessage("Hello!")])).message.content == "You said: Hello!"


@client.check("streamed", "`stream_complete` and `astream_chat`")
async def stream(target: Target) -> None:
    llm = model(target)
    pieces = [chunk.delta for chunk in llm.stream_complete("One two three.") if chunk.delta]
    assert len(pieces) > 3 and "".join(pieces) == "You said: One two three."
    said = "".join([chunk.delta or "" async for chunk in await llm.astream_chat([ChatMessage("One two three.")])])
    assert said == "You said: One two three."


@client.check("structured", "`as_structured_llm`")
def structured(target: Target) -> None:
    assert model(target).as_structured_llm(Report).complete("Report on Rome.").raw == Report(city="Rome", degrees=21)


@client.check("tools", "a `FunctionAgent`, which streams its calls")
async def tools(target: Target) -> None:
    cities: list[str] = []

    def weather(city: str) -> str:
        """The weather in a city."""
        cities.append(city)
        return f"sunny in {city}"

    agent = FunctionAgent(tools=[weather], llm=model(target))
    answer = await agent.run("Weather in Rome and weather in Oslo?")
    assert str(answer) == "The tool says: sunny in Rome and sunny in Oslo."
    assert sorted(cities) == ["Oslo", "Rome"]


@client.check("reasoning", "a `ThinkingBlock` before the answer")
def reasoning(target: Target) -> None:
    answer = model(target, "thinker").chat([ChatMessage("Hello!")], reasoning={"summary": "auto"})
    assert [block.block_type for block in answer.message.blocks] == ["thinking", "text"]
    assert answer.message.blocks[0].content == THOUGHT


@client.check("images", "an image in the input reaches the model")
def image(target: Target) -> None:
    blocks = [TextBlock(text="What is this?"), ImageBlock(url=PIXEL)]
    assert model(target).chat([ChatMessage(role="user", blocks=blocks)]).message.content == "I see a picture."


@client.check("chain", "`track_previous_responses=True`")
def chain(target: Target) -> None:
    llm = model(target, track_previous_responses=True)
    llm.chat([ChatMessage("My name is Ada.")])
    assert llm.chat([ChatMessage("What is my name?")]).message.content == "Your name is Ada."


@client.check("stateless", "`store=False`, which is its default, the history sent whole")
def stateless(target: Target) -> None:
    llm = model(target)
    question = ChatMessage("My name is Ada.")
    answer = llm.chat([question, llm.chat([question]).message, ChatMessage("What is my name?")])
    assert answer.message.content == "Your name is Ada."


@client.check("errors", "the server's 400 arrives as the SDK's `BadRequestError`")
def errors(target: Target) -> None:
    with refused(BadRequestError) as found:
        model(target, temperature=2).chat([ChatMessage("Hello!")], temperature=9)
    assert found.error.param == "temperature"


if __name__ == "__main__":
    client.main()

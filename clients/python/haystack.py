"""Haystack with its `OpenAIResponsesChatGenerator`, alone and under an `Agent`."""

from __future__ import annotations

from typing import Annotated, Any

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage, ImageContent
from haystack.tools import tool
from haystack.utils import Secret
from openai import BadRequestError
from pydantic import BaseModel

from clients.python.checks import PIXEL, THOUGHT, Client, Target, refused

client = Client("haystack", ("haystack-ai", "openai"))
client.lack("conversation", "has no setting for it")
client.lack("background", "takes an unfinished response for an empty answer")
client.lack("resume", "does not resume a broken stream")
client.lack("cancel", "has no method for it")
client.lack("websocket", "speaks HTTP only")
client.lack("compact", "has no setting for it")
client.lack("tokens", "has no method for it")


class Report(BaseModel):
    city: str
    degrees: int


def generator(target: Target, kind: str = "plain", **fields: Any) -> OpenAIResponsesChatGenerator:
    key = Secret.from_token("any")
    return OpenAIResponsesChatGenerator(model=target.model(kind), api_base_url=target.base_url, api_key=key, **fields)


def ask(text: str) -> list[ChatMessage]:
    return [ChatMessage.from_user(text)]


@client.check("plain", "`run` and `run_async`")
async def run(target: Target) -> None:
    chat = generator(target)
    assert chat.run(ask("Hello!"))["replies"][0].text == "You said: Hello!"
    assert (await chat.run_async(ask("Hello!")))["replies"][0].text == "You said: Hello!"


@client.check("streamed", "`streaming_callback`")
def stream(target: Target) -> None:
    pieces: list[str] = []
    chat = generator(target, streaming_callback=lambda chunk: pieces.append(chunk.content))
    assert chat.run(ask("One two three."))["replies"][0].text == "You said: One two three."
    pieces = [piece for piece in pieces if piece]
    assert len(pieces) > 3 and "".join(pieces) == "You said: One two three."


@client.check("structured", "`text_format`")
def structured(target: Target) -> None:
    answer = generator(target, generation_kwargs={"text_format": Report}).run(ask("Report on Rome."))
    assert Report.model_validate_json(answer["replies"][0].text) == Report(city="Rome", degrees=21)


@client.check("tools", "an `Agent`, plain and streamed")
def tools(target: Target) -> None:
    ways: list[dict[str, Any]] = [{}, {"streaming_callback": lambda _: None}]
    for fields in ways:
        cities: list[str] = []

        @tool
        def weather(city: Annotated[str, "The city"], cities: list[str] = cities) -> str:
            """The weather in a city."""
            cities.append(city)
            return f"sunny in {city}"

        agent = Agent(chat_generator=generator(target, **fields), tools=[weather])
        answer = agent.run(ask("Weather in Rome and weather in Oslo?"))
        # Haystack sorts streamed calls by their ids, which are in no order.
        outputs = answer["last_message"].text.removeprefix("The tool says: ").removesuffix(".").split(" and ")
        assert sorted(outputs) == ["sunny in Oslo", "sunny in Rome"]
        assert sorted(cities) == ["Oslo", "Rome"]


@client.check("reasoning", "`ReasoningContent`, sent back with the next turn")
def reasoning(target: Target) -> None:
    chat = generator(target, "thinker", generation_kwargs={"reasoning": {"summary": "auto"}})
    first = chat.run(ask("Hello!"))["replies"][0]
    assert first.text == "You said: Hello!" and first.reasoning.reasoning_text == THOUGHT
    assert chat.run([*ask("Hello!"), first, *ask("And now?")])["replies"][0].text == "You said: And now?"


@client.check("images", "an image in the input reaches the model")
def image(target: Target) -> None:
    picture = ImageContent(base64_image=PIXEL.partition(",")[2], mime_type="image/png")
    message = ChatMessage.from_user(content_parts=["What is this?", picture])
    assert generator(target).run([message])["replies"][0].text == "I see a picture."


@client.check("chain", "`previous_response_id`")
def chain(target: Target) -> None:
    chat = generator(target)
    first = chat.run(ask("My name is Ada."))["replies"][0]
    second = chat.run(ask("What is my name?"), generation_kwargs={"previous_response_id": first.meta["id"]})
    assert second["replies"][0].text == "Your name is Ada."


@client.check("stateless", "`store=False`, the history sent whole")
def stateless(target: Target) -> None:
    chat = generator(target, generation_kwargs={"store": False})
    first = chat.run(ask("My name is Ada."))["replies"][0]
    answer = chat.run([*ask("My name is Ada."), first, *ask("What is my name?")])
    assert answer["replies"][0].text == "Your name is Ada."


@client.check("errors", "the server's 400 arrives as the SDK's `BadRequestError`")
def errors(target: Target) -> None:
    with refused(BadRequestError) as found:
        generator(target, generation_kwargs={"temperature": 9}).run(ask("Hello!"))
    assert found.error.param == "temperature"


if __name__ == "__main__":
    client.main()

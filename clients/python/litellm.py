"""LiteLLM's SDK: `litellm.responses`, and `litellm.completion` by way of the Responses API."""

from __future__ import annotations

import json
from typing import Any

import litellm
from openai import OpenAI
from pydantic import BaseModel

from clients.python.checks import PIXEL, THOUGHT, Client, Target, refused

client = Client("litellm", ("litellm", "openai"))
client.lack("resume", "does not resume a broken stream")
client.lack("websocket", "speaks HTTP only")
client.lack("tokens", "counts tokens itself")

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


class Report(BaseModel):
    city: str
    degrees: int


class Asker:
    """The address and one model, as LiteLLM's functions take them."""

    def __init__(self, target: Target, kind: str = "plain") -> None:
        self.name = target.model(kind)
        self.address: dict[str, Any] = {"api_base": target.base_url, "api_key": "any"}

    def respond(self, input: Any, **fields: Any) -> Any:
        return litellm.responses(model=f"openai/{self.name}", input=input, **self.address, **fields)

    def complete(self, messages: list[Any], **fields: Any) -> Any:
        return litellm.completion(model=f"openai/responses/{self.name}", messages=messages, **self.address, **fields)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@client.check("plain", "`responses`, `aresponses`, and `completion` with a model `openai/responses/...`")
async def responses(target: Target) -> None:
    asker = Asker(target)
    assert asker.respond("Hello!").output_text == "You said: Hello!"
    answer = await litellm.aresponses(model=f"openai/{asker.name}", input="Hello!", **asker.address)
    assert answer.output_text == "You said: Hello!"
    assert asker.complete([user("Hello!")]).choices[0].message.content == "You said: Hello!"


@client.check("streamed", "`responses(stream=True)` and `completion(stream=True)`")
def stream(target: Target) -> None:
    asker = Asker(target)
    events = list(asker.respond("One two three.", stream=True))
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(pieces) > 3 and "".join(pieces) == "You said: One two three."
    chunks = asker.complete([user("One two three.")], stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: One two three."


@client.check("structured", "`text_format`")
def structured(target: Target) -> None:
    answer = Asker(target).respond("Report on Rome.", text_format=Report)
    assert Report.model_validate_json(answer.output_text) == Report(city="Rome", degrees=21)


@client.check("tools", "two calls in one turn, answered over `previous_response_id`")
def tools(target: Target) -> None:
    asker = Asker(target)
    first = asker.respond("Weather in Rome and weather in Oslo?", tools=[TOOL])
    calls = [item for item in first.output if item.type == "function_call"]
    cities = [json.loads(call.arguments)["city"] for call in calls]
    outputs = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"sunny in {city}"}
        for call, city in zip(calls, cities, strict=True)
    ]
    second = asker.respond(outputs, tools=[TOOL], previous_response_id=first.id)
    assert second.output_text == "The tool says: sunny in Rome and sunny in Oslo."


@client.check("reasoning", "`reasoning_content` of a `completion`")
def reasoning(target: Target) -> None:
    asker = Asker(target, "thinker")
    answer = asker.complete([user("Hello!")], reasoning_effort={"effort": "low", "summary": "auto"})
    assert answer.choices[0].message.content == "You said: Hello!"
    assert answer.choices[0].message.reasoning_content == THOUGHT


@client.check("images", "an image in the input reaches the model")
def image(target: Target) -> None:
    parts = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": PIXEL}]
    assert Asker(target).respond([{"role": "user", "content": parts}]).output_text == "I see a picture."


@client.check("chain", "`previous_response_id`")
def chain(target: Target) -> None:
    asker = Asker(target)
    first = asker.respond("My name is Ada.")
    assert asker.respond("What is my name?", previous_response_id=first.id).output_text == "Your name is Ada."


@client.check("conversation", "`conversation`, in `extra_body`")
def conversation(target: Target) -> None:
    asker = Asker(target)
    with OpenAI(base_url=target.base_url, api_key="any") as sdk:
        talk = sdk.conversations.create()
    asker.respond("My name is Ada.", extra_body={"conversation": talk.id})
    answer = asker.respond("What is my name?", extra_body={"conversation": talk.id})
    assert answer.output_text == "Your name is Ada."


@client.check("stateless", "`store=False`, the history sent whole")
def stateless(target: Target) -> None:
    history = [user("My name is Ada."), {"role": "assistant", "content": "Hello, Ada."}, user("What is my name?")]
    assert Asker(target).respond(history, store=False).output_text == "Your name is Ada."


@client.check("background", "`background=True`, then `get_responses`")
def background(target: Target) -> None:
    asker = Asker(target, "held")
    begun = asker.respond("Take your time.", background=True)
    assert begun.status == "queued"
    target.release(asker.name)
    while begun.status in ("queued", "in_progress"):
        begun = litellm.get_responses(begun.id, custom_llm_provider="openai", **asker.address)
    assert begun.output_text == "You said: Take your time."


@client.check("cancel", "`cancel_responses`")
def cancel(target: Target) -> None:
    asker = Asker(target, "held")
    begun = asker.respond("Take your time.", background=True)
    ended = litellm.cancel_responses(begun.id, custom_llm_provider="openai", **asker.address)
    assert ended.status == "cancelled"


@client.check("compact", "`compact_responses`")
def compact(target: Target) -> None:
    asker = Asker(target)
    model = f"openai/{asker.name}"
    compacted = litellm.compact_responses(model=model, input=[user("My name is Ada.")], **asker.address)
    items = [item if isinstance(item, dict) else item.model_dump() for item in compacted.output]
    assert asker.respond([*items, user("What is my name?")]).output_text == "Your name is Ada."


@client.check("errors", "the server's 400 arrives as LiteLLM's `BadRequestError`")
def errors(target: Target) -> None:
    with refused(litellm.BadRequestError) as found:
        Asker(target).respond("Hello!", temperature=9)
    assert "'temperature' must be at most 2." in str(found.error)


if __name__ == "__main__":
    client.main()

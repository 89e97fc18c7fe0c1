"""The official `openai` SDK: every road it has to a response, synchronous, asynchronous and over a WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager

from openai import AsyncOpenAI, NotFoundError, OpenAI
from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel

from clients.python.checks import PIXEL, THOUGHT, Client, Target, refused

client = Client("openai (Python)", ("openai",))

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Report(BaseModel):
    city: str
    degrees: int


@contextmanager
def opened(base_url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=base_url, api_key="any") as sdk:
        yield sdk


@client.check("plain", "`responses.create`, `retrieve`, `input_items.list` and `delete`")
def create(target: Target) -> None:
    with opened(target.base_url) as sdk:
        made = sdk.responses.create(model=target.model(), input="Hello!", instructions="Be brief.")
        assert made.output_text == "You said: Hello!"
        assert made.status == "completed" and made.usage and made.usage.total_tokens == 7
        assert sdk.responses.retrieve(made.id).output_text == made.output_text
        assert [item.type for item in sdk.responses.input_items.list(made.id)] == ["message"]
        sdk.responses.delete(made.id)
        with refused(NotFoundError):
            sdk.responses.retrieve(made.id)


@client.check("plain", "`AsyncOpenAI`: twenty requests at once")
async def create_async(target: Target) -> None:
    async with AsyncOpenAI(base_url=target.base_url, api_key="any") as sdk:
        asking = [sdk.responses.create(model=target.model(), input=f"Number {n}!") for n in range(20)]
        made = await asyncio.gather(*asking)
    assert [each.output_text for each in made] == [f"You said: Number {n}!" for n in range(20)]


@client.check("streamed", "`create(stream=True)`: numbered events; the deltas add up to the text")
def stream_raw(target: Target) -> None:
    with opened(target.base_url) as sdk:
        events = list(sdk.responses.create(model=target.model(), input="One two three.", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1 and "".join(deltas) == "You said: One two three."
    assert events[-1].type == "response.completed" and events[-1].response.output_text == "".join(deltas)


@client.check("streamed", "the `.stream()` helper and its `get_final_response()`")
def stream_helper(target: Target) -> None:
    with opened(target.base_url) as sdk, sdk.responses.stream(model=target.model(), input="Hello!") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        assert snapshots[-1] == "You said: Hello!"
        assert stream.get_final_response().output_text == "You said: Hello!"


@client.check("streamed", "the `.stream()` helper of `AsyncOpenAI`")
async def stream_async(target: Target) -> None:
    async with AsyncOpenAI(base_url=target.base_url, api_key="any") as sdk:
        async with sdk.responses.stream(model=target.model(), input="Hello!") as stream:
            async for _ in stream:
                pass
            assert (await stream.get_final_response()).output_text == "You said: Hello!"


@client.check("structured", "`.parse()` into a Pydantic model")
def parse(target: Target) -> None:
    model = target.model()
    with opened(target.base_url) as sdk:
        parsed = sdk.responses.parse(model=model, input="Report on Rome.", text_format=Report)
    assert parsed.output_parsed == Report(city="Rome", degrees=21)
    assert target.requests(model)[0]["response_format"]["json_schema"]["schema"]["required"] == ["city", "degrees"]


@client.check("structured", "`.stream(text_format=...)`, parsed at the end")
def parse_stream(target: Target) -> None:
    with opened(target.base_url) as sdk:
        with sdk.responses.stream(model=target.model(), input="Report.", text_format=Report) as stream:
            for _ in stream:
                pass
            assert stream.get_final_response().output_parsed == Report(city="Rome", degrees=21)


@client.check("tools", "two function calls in one turn, answered over `previous_response_id`")
def tools(target: Target) -> None:
    model = target.model()
    with opened(target.base_url) as sdk:
        asked = sdk.responses.create(model=model, input="Weather in Rome and weather in Oslo?", tools=[WEATHER])
        calls = [item for item in asked.output if item.type == "function_call"]
        assert [json.loads(call.arguments) for call in calls] == [{"city": "Rome"}, {"city": "Oslo"}]
        answered = sdk.responses.create(
            model=model,
            previous_response_id=asked.id,
            tools=[WEATHER],
            input=[
                {"type": "function_call_output", "call_id": call.call_id, "output": f"sun over {call.call_id}"}
                for call in calls
            ],
        )
    assert answered.output_text == "The tool says: sun over call_Rome and sun over call_Oslo."


@client.check("tools", "the SDK's `ResponsesToolRunner`")
def tool_runner(target: Target) -> None:
    cities: list[str] = []

    def weather(arguments: dict[str, object]) -> str:
        cities.append(str(arguments["city"]))
        return "sunny"

    with opened(target.base_url) as sdk:
        runner = ResponsesToolRunner(functions=[RegisteredFunction(tool=WEATHER, execute=weather)])
        answer = runner.run(sdk, {"model": target.model(), "input": "Weather in Rome?"})
    assert cities == ["Rome"]
    assert answer.output_text == "The tool says: sunny."


@client.check("reasoning", "reasoning as an item of its own, streamed, and sent back as input")
def reasoning(target: Target) -> None:
    model = target.model("thinker")
    with opened(target.base_url) as sdk, sdk.responses.stream(model=model, input="Hello!") as stream:
        thought = "".join(event.delta for event in stream if event.type == "response.reasoning_text.delta")
        final = stream.get_final_response()
        assert thought == THOUGHT
        assert [item.type for item in final.output] == ["reasoning", "message"]
        history = [item.to_dict(mode="json", exclude_unset=True) for item in final.output]
        again = sdk.responses.create(
            model=model,
            input=[{"role": "user", "content": "Hello!"}, *history, {"role": "user", "content": "And now?"}],  # type: ignore[list-item]
        )
    assert again.output_text == "You said: And now?"
    assert target.texts(model) == ["Hello!", "You said: Hello!", "And now?"]


@client.check("images", "an image in the input reaches the model")
def image(target: Target) -> None:
    model = target.model()
    with opened(target.base_url) as sdk:
        seen = sdk.responses.create(
            model=model,
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What is this?"},
                        {"type": "input_image", "image_url": PIXEL, "detail": "auto"},
                    ],
                }
            ],
        )
    assert seen.output_text == "I see a picture."
    assert target.requests(model)[0]["messages"][0]["content"][1]["image_url"]["url"] == PIXEL


@client.check("chain", "`previous_response_id`: the model gets the earlier turn")
def chain(target: Target) -> None:
    model = target.model()
    with opened(target.base_url) as sdk:
        first = sdk.responses.create(model=model, input="My name is Ada.")
        second = sdk.responses.create(model=model, input="What is my name?", previous_response_id=first.id)
        assert second.output_text == "Your name is Ada."
        fork = sdk.responses.create(model=model, input="Anything else?", previous_response_id=first.id)
    assert fork.output_text == "You said: Anything else?"
    assert target.texts(model) == ["My name is Ada.", "You said: My name is Ada.", "Anything else?"]


@client.check("conversation", "`conversations`: created, used, listed page by page, updated and deleted")
def conversation(target: Target) -> None:
    model = target.model()
    with opened(target.base_url) as sdk:
        talk = sdk.conversations.create(items=[{"role": "user", "content": "My name is Ada."}], metadata={"topic": "x"})
        answer = sdk.responses.create(model=model, input="What is my name?", conversation=talk.id)
        assert answer.output_text == "Your name is Ada." and answer.conversation and answer.conversation.id == talk.id
        items = list(sdk.conversations.items.list(talk.id, order="asc", limit=2))
        assert [item.type for item in items] == ["message"] * 3
        sdk.conversations.items.delete(str(items[0].id), conversation_id=talk.id)
        assert sdk.conversations.update(talk.id, metadata={"topic": "y"}).metadata == {"topic": "y"}
        forgotten = sdk.responses.create(model=target.model(), input="And my name?", conversation=talk.id)
        assert forgotten.output_text == "You have not told me."
        assert sdk.conversations.delete(talk.id).deleted


@client.check("stateless", "`store=False`: an answer that is not stored")
def stateless(target: Target) -> None:
    with opened(target.base_url) as sdk:
        made = sdk.responses.create(model=target.model(), input="Hello!", store=False)
        assert made.output_text == "You said: Hello!"
        with refused(NotFoundError):
            sdk.responses.retrieve(made.id)

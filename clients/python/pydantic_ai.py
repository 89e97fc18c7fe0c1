"""`pydantic-ai` with its `OpenAIResponsesModel`: state on the server, runs in the background, sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ModelHTTPError, NativeOutput, UsageLimitExceeded, UsageLimits
from pydantic_ai.messages import CompactionPart, TextPart, ThinkingPart
from pydantic_ai.models.openai import OpenAICompaction, OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.output import PendingModelResponse
from pydantic_ai.providers.openai import OpenAIProvider

from clients.python.checks import PIXEL, THOUGHT, Client, Target, refused

client = Client("pydantic-ai", ("pydantic-ai-slim", "openai"))


class Report(BaseModel):
    city: str
    degrees: int


class Errand:
    """An agent on one model, with a tool that notes what it was called with."""

    def __init__(self, model: OpenAIResponsesModel, **fields: Any) -> None:
        self.model = model
        self.name = model.model_name
        self.cities: list[str] = []
        self.agent: Agent[None, Any] = Agent(model, **fields)

        @self.agent.tool_plain
        def weather(city: str) -> str:
            """The weather in a city."""
            self.cities.append(city)
            return f"sunny in {city}"


@asynccontextmanager
async def errand(
    target: Target, kind: str = "plain", base_url: str = "", settings: Any = None, **fields: Any
) -> AsyncIterator[Errand]:
    async with AsyncOpenAI(base_url=base_url or target.base_url, api_key="any") as sdk:
        model = OpenAIResponsesModel(target.model(kind), provider=OpenAIProvider(openai_client=sdk), settings=settings)
        yield Errand(model, **fields)


def settings(**fields: Any) -> OpenAIResponsesModelSettings:
    return cast(OpenAIResponsesModelSettings, {f"openai_{name}": value for name, value in fields.items()})


@client.check("plain", "`Agent.run`")
async def run(target: Target) -> None:
    async with errand(target) as one:
        result = await one.agent.run("Hello!")
    assert result.output == "You said: Hello!" and result.usage.total_tokens == 7


@client.check("streamed", "`run_stream` and `run_stream_events`, through a tool call")
async def stream(target: Target) -> None:
    async with errand(target) as one, one.agent.run_stream("Weather in Rome?") as result:
        pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 3 and "".join(pieces) == "The tool says: sunny in Rome."
    assert one.cities == ["Rome"]


@client.check("structured", "`NativeOutput`")
async def structured(target: Target) -> None:
    async with errand(target, output_type=NativeOutput(Report)) as one:
        assert (await one.agent.run("Report on Rome.")).output == Report(city="Rome", degrees=21)


@client.check("tools", "two calls in one turn, each made once")
async def tools(target: Target) -> None:
    async with errand(target) as one:
        result = await one.agent.run("Weather in Rome and weather in Oslo?")
    assert result.output == "The tool says: sunny in Rome and sunny in Oslo."
    assert sorted(one.cities) == ["Oslo", "Rome"]


@client.check("reasoning", "`ThinkingPart`, sent back with the history")
async def reasoning(target: Target) -> None:
    async with errand(target, "thinker", settings=settings(reasoning_summary="auto")) as one:
        first = await one.agent.run("Weather in Rome?")
        second = await one.agent.run("And now?", message_history=first.all_messages())
    thoughts = [part for message in first.all_messages() for part in message.parts if isinstance(part, ThinkingPart)]
    assert [part.content for part in thoughts] == [THOUGHT] * 2
    assert second.output == "You said: And now?" and one.cities == ["Rome"]


@client.check("images", "an image in the input reaches the model")
async def image(target: Target) -> None:
    async with errand(target) as one:
        result = await one.agent.run(["What is this?", BinaryContent.from_data_uri(PIXEL)])
    assert result.output == "I see a picture."


@client.check("chain", "`openai_previous_response_id='auto'`, through a tool call")
async def chain(target: Target) -> None:
    async with errand(target, settings=settings(previous_response_id="auto")) as one:
        first = await one.agent.run("My name is Ada. Weather in Rome?")
        second = await one.agent.run("What is my name?", message_history=first.all_messages())
    assert second.output == "Your name is Ada." and one.cities == ["Rome"]
    roles = [message["role"] for message in target.requests(one.name)[-1]["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


@client.check("conversation", "`openai_conversation_id`")
async def conversation(target: Target) -> None:
    async with errand(target) as one:
        talk = await one.model.client.conversations.create()
        kept = settings(conversation_id=talk.id)
        await one.agent.run("My name is Ada. Weather in Rome?", model_settings=kept)
        second = await one.agent.run("What is my name?", model_settings=kept)
        third = await one.agent.run(
            "And my name?", message_history=second.all_messages(), model_settings=settings(conversation_id="auto")
        )
    assert second.output == third.output == "Your name is Ada."
    assert len(target.requests(one.name)[-1]["messages"]) == 7


@client.check("stateless", "`openai_store=False`, the history sent whole")
async def stateless(target: Target) -> None:
    async with errand(target, "thinker", settings=settings(store=False)) as one:
        first = await one.agent.run("My name is Ada. Weather in Rome?")
        second = await one.agent.run("What is my name?", message_history=first.all_messages())
    assert second.output == "Your name is Ada."


@client.check("background", "`openai_background`: polled automatically, through a tool call")
async def background(target: Target) -> None:
    async with errand(target, settings=settings(background=True)) as one:
        result = await one.agent.run("Weather in Rome?")
    assert result.output == "The tool says: sunny in Rome." and one.cities == ["Rome"]


@client.check("background", "`PendingModelResponse`: passed on as messages, and finished by another run")
async def pending(target: Target) -> None:
    async with errand(
        target, "held", settings=settings(background=True), output_type=[str, PendingModelResponse]
    ) as one:
        first = await one.agent.run("Take your time.")
        assert isinstance(first.output, PendingModelResponse)
        await asyncio.to_thread(target.release, one.name)
        await one.model.client.responses.retrieve(str(first.response.provider_response_id), extra_query={"wait": 10})
        second = await one.agent.run(message_history=first.all_messages())
    assert second.output == "You said: Take your time."
    assert len(target.requests(one.name)) == 1


@client.check(
    "resume", "a background stream that ends too early resumes with `starting_after`, nothing lost or repeated"
)
async def resume(target: Target) -> None:
    cut = target.make_cut_url(frames=8, how="clean")
    async with errand(target, base_url=cut, settings=settings(background=True)) as one:
        async with one.agent.run_stream("A long story, please.") as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert "".join(pieces) == "You said: A long story, please."
    assert len(target.requests(one.name)) == 1


@client.check("cancel", "cancelling its task cancels the background run on the server")
async def cancel(target: Target) -> None:
    async with errand(target, "held", settings=settings(background=True)) as one:
        running = asyncio.create_task(one.agent.run("Take your time."))
        while not await asyncio.to_thread(target.requests, one.name):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)  # the answer to its POST is on its way
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        listed: Any = await one.model.client.get(
            "/responses", cast_to=object, options={"params": {"status": "cancelled"}}
        )
    assert any(each["model"] == one.name for each in listed["data"]), listed


@client.check("websocket", "`openai_transport='websocket'`: a run with a tool over one connection")
async def websocket(target: Target) -> None:
    async with errand(target, settings=settings(transport="websocket")) as one, one.agent:
        first = await one.agent.run("My name is Ada. Weather in Rome?")
        second = await one.agent.run("What is my name?", message_history=first.all_messages())
    assert second.output == "Your name is Ada." and one.cities == ["Rome"]


@client.check("websocket", "the same with `openai_store=False`: the chain is kept in the connection's memory")
async def websocket_stateless(target: Target) -> None:
    async with errand(target, settings=settings(transport="websocket", store=False)) as one, one.agent:
        first = await one.agent.run("My name is Ada. Weather in Rome?")
        second = await one.agent.run("What is my name?", message_history=first.all_messages())
    assert second.output == "Your name is Ada." and one.cities == ["Rome"]


@client.check("compact", "`OpenAICompaction`, by `/responses/compact`")
async def compact(target: Target) -> None:
    async with errand(target, capabilities=[OpenAICompaction(message_count_threshold=2)]) as one:
        first = await one.agent.run("My name is Ada. Weather in Rome?")
        second = await one.agent.run("What is my name?", message_history=first.all_messages())
    assert second.output == "Your name is Ada."
    assert any(isinstance(part, CompactionPart) for message in second.all_messages() for part in message.parts)


@client.check("compact", "`OpenAICompaction`, by `context_management`")
async def compact_on_the_way(target: Target) -> None:
    async with errand(target, capabilities=[OpenAICompaction(token_threshold=1000)]) as one:
        first = await one.agent.run("My name is Ada. " + "Remember this. " * 500)
        second = await one.agent.run("And now?", message_history=first.all_messages())
        assert [type(part) for part in second.response.parts] == [CompactionPart, TextPart]
        third = await one.agent.run("What is my name?", message_history=second.all_messages())
    assert third.output == "Your name is Ada."


@client.check("tokens", "`count_tokens_before_request`: a request that is too long is not sent")
async def tokens(target: Target) -> None:
    async with errand(target) as one:
        wide, narrow = (UsageLimits(input_tokens_limit=n, count_tokens_before_request=True) for n in (10_000, 20))
        assert (await one.agent.run("Hello!", usage_limits=wide)).output == "You said: Hello!"
        with refused(UsageLimitExceeded):
            await one.agent.run("Remember this. " * 100, usage_limits=narrow)
    assert len(target.requests(one.name)) == 1


@client.check("errors", "the server's 400 arrives as `ModelHTTPError`")
async def errors(target: Target) -> None:
    async with errand(target) as one:
        with refused(ModelHTTPError) as found:
            await one.agent.run("Hello!", model_settings={"temperature": 9})
    assert found.error.status_code == 400 and found.error.body["param"] == "temperature"


if __name__ == "__main__":
    client.main()

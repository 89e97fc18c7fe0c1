"""`agno` with its `OpenAIResponses` model, and with `OpenResponses`, which it has for servers like this one."""

from __future__ import annotations

import asyncio
from typing import Any

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.media import Image
from agno.models.openai import OpenAIResponses
from agno.models.openai.open_responses import OpenResponses
from openai import OpenAI
from pydantic import BaseModel

from clients.python.checks import PIXEL, THOUGHT, Client, Target

client = Client("agno", ("agno", "openai"))
client.lack("resume", "does not resume a broken stream")
client.lack("cancel", "cancels only background runs older than `background_max_wait`")
client.lack("websocket", "speaks HTTP only")
client.lack("compact", "shortens its history itself")
client.lack("tokens", "has no method for it")


class Report(BaseModel):
    city: str
    degrees: int


def model(target: Target, kind: str = "plain", **fields: Any) -> OpenAIResponses:
    return OpenAIResponses(id=target.model(kind), base_url=target.base_url, api_key="any", **fields)


class Forecast:
    def __init__(self) -> None:
        self.cities: list[str] = []

    def weather(self, city: str) -> str:
        """The weather in a city."""
        self.cities.append(city)
        return f"sunny in {city}"


@client.check("plain", "`Agent.run` and `arun`, with `OpenAIResponses` and with `OpenResponses`")
async def run(target: Target) -> None:
    assert Agent(model=model(target)).run("Hello!").content == "You said: Hello!"
    assert (await Agent(model=model(target)).arun("Hello!")).content == "You said: Hello!"
    other = OpenResponses(id=target.model(), base_url=target.base_url)
    assert Agent(model=other).run("Hello!").content == "You said: Hello!"


@client.check("streamed", "`run(stream=True)` and `arun(stream=True)`")
async def stream(target: Target) -> None:
    events = list(Agent(model=model(target)).run("One two three.", stream=True))
    said = [str(event.content or "") for event in events if event.event == "RunContent"]
    assert len(said) > 3 and "".join(said) == "You said: One two three."
    said = [
        str(event.content or "")
        async for event in Agent(model=model(target)).arun("One two three.", stream=True)
        if event.event == "RunContent"
    ]
    assert "".join(said) == "You said: One two three."


@client.check("structured", "`output_schema`")
def structured(target: Target) -> None:
    assert Agent(model=model(target), output_schema=Report).run("Report on Rome.").content == Report(
        city="Rome", degrees=21
    )


@client.check("tools", "two calls in one turn, plain and streamed")
def tools(target: Target) -> None:
    words = "Weather in Rome and weather in Oslo?"
    forecast = Forecast()
    answer = Agent(model=model(target), tools=[forecast.weather]).run(words)
    assert answer.content == "The tool says: sunny in Rome and sunny in Oslo."
    assert sorted(forecast.cities) == ["Oslo", "Rome"]
    forecast = Forecast()
    events = Agent(model=model(target), tools=[forecast.weather]).run(words, stream=True)
    said = "".join(str(event.content or "") for event in events if event.event == "RunContent")
    assert said == answer.content and sorted(forecast.cities) == ["Oslo", "Rome"]


@client.check("reasoning", "`reasoning_content`, with `reasoning_summary`, through a tool call")
def reasoning(target: Target) -> None:
    # By this name the client knows that the model reasons.
    llm = model(target, "gpt-5-thinker", reasoning_summary="auto")
    forecast = Forecast()
    answer = Agent(model=llm, tools=[forecast.weather]).run("Weather in Rome?")
    assert answer.content == "The tool says: sunny in Rome." and forecast.cities == ["Rome"]
    assert answer.reasoning_content == THOUGHT


@client.check("images", "an image in the input reaches the model")
def image(target: Target) -> None:
    assert Agent(model=model(target)).run("What is this?", images=[Image(url=PIXEL)]).content == "I see a picture."


@client.check("chain", "`previous_response_id` between turns, for the models that it chains")
def chain(target: Target) -> None:
    llm = model(target, "gpt-5")
    agent = Agent(model=llm, db=InMemoryDb(), add_history_to_context=True)
    agent.run("My name is Ada.", session_id="one")
    assert agent.run("What is my name?", session_id="one").content == "Your name is Ada."
    assert target.texts(llm.id) == ["My name is Ada.", "You said: My name is Ada.", "What is my name?"]


@client.check("chain", "a deleted parent: it sends the whole history instead")
def lost_chain(target: Target) -> None:
    llm = model(target, "gpt-5")
    agent = Agent(model=llm, db=InMemoryDb(), add_history_to_context=True)
    first = agent.run("My name is Ada.", session_id="one")
    assert first.messages and first.messages[-1].provider_data
    with OpenAI(base_url=target.base_url, api_key="any") as sdk:
        sdk.responses.delete(first.messages[-1].provider_data["response_id"])
    assert agent.run("What is my name?", session_id="one").content == "Your name is Ada."


@client.check("conversation", "`conversation`, in `request_params`")
def conversation(target: Target) -> None:
    with OpenAI(base_url=target.base_url, api_key="any") as sdk:
        talk = sdk.conversations.create()
    agent = Agent(model=model(target, request_params={"conversation": talk.id}))
    agent.run("My name is Ada.")
    assert agent.run("What is my name?").content == "Your name is Ada."


@client.check("stateless", "`store=False`, with the history of its own session")
def stateless(target: Target) -> None:
    agent = Agent(model=model(target, "gpt-5", store=False), db=InMemoryDb(), add_history_to_context=True)
    agent.run("My name is Ada.", session_id="one")
    assert agent.run("What is my name?", session_id="one").content == "Your name is Ada."


@client.check("background", "`background=True`, polled automatically, through a tool call")
async def background(target: Target) -> None:
    forecast = Forecast()
    llm = model(target, background=True, background_poll_interval=0.05)
    answer = Agent(model=llm, tools=[forecast.weather]).run("Weather in Rome?")
    assert answer.content == "The tool says: sunny in Rome." and forecast.cities == ["Rome"]
    held = model(target, "held", background=True, background_poll_interval=0.05)
    waiting = asyncio.create_task(Agent(model=held).arun("Take your time."))
    await asyncio.to_thread(target.release, held.id)
    assert (await waiting).content == "You said: Take your time."


@client.check("background", "`background_max_wait`: it cancels on the server and reports it")
def give_up(target: Target) -> None:
    llm = model(target, "held", background=True, background_poll_interval=0.05, background_max_wait=0.3)
    with OpenAI(base_url=target.base_url, api_key="any") as sdk:
        answer = Agent(model=llm).run("Take your time.")
        assert "exceeded max wait" in str(answer.content), answer.content
        listed = sdk.get("/responses", cast_to=object, options={"params": {"status": "cancelled"}})
    assert any(each["model"] == llm.id for each in listed["data"])  # type: ignore[index]


@client.check("errors", "the server's 400 ends the run, with the server's message as its content")
def errors(target: Target) -> None:
    answer = Agent(model=model(target, temperature=9)).run("Hello!")
    assert answer.status == "ERROR" and answer.content == "'temperature' must be at most 2."


if __name__ == "__main__":
    client.main()

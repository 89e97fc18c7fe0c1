"""CrewAI with its own OpenAI client (`api="responses"`), alone and under an `Agent`."""

from __future__ import annotations

from typing import Any

from crewai import LLM, Agent, Crew, Task
from crewai.events import LLMStreamChunkEvent, crewai_event_bus
from crewai.tools import tool
from openai import BadRequestError
from pydantic import BaseModel

from clients.python.checks import PIXEL, Client, Target, refused

client = Client("crewai", ("crewai", "openai"))
client.lack("reasoning", "shows the answer only")
client.lack("conversation", "has no setting for it")
client.lack("background", "has no setting for it")
client.lack("resume", "does not resume a broken stream")
client.lack("cancel", "has no method for it")
client.lack("websocket", "speaks HTTP only")
client.lack("compact", "shortens its history itself")
client.lack("tokens", "estimates them itself, except for OpenAI's own server")


class Report(BaseModel):
    city: str
    degrees: int


def make_llm(target: Target, **fields: Any) -> LLM:
    address = {"base_url": target.base_url, "api_key": "any", "provider": "openai"}
    return LLM(model=target.model(), api="responses", **address, **fields)


@client.check("plain", "`LLM.call`, and an `Agent` in a `Crew`")
def call(target: Target) -> None:
    assert make_llm(target).call("Hello!") == "You said: Hello!"
    agent = Agent(role="Helper", goal="Help.", backstory="You help.", llm=make_llm(target))
    task = Task(description="Hello!", expected_output="An answer.", agent=agent)
    assert Crew(agents=[agent], tasks=[task]).kickoff().raw.startswith("You said: ")


@client.check("streamed", "`stream=True`: events that add up to the answer")
def stream(target: Target) -> None:
    pieces: list[str] = []
    with crewai_event_bus.scoped_handlers():

        @crewai_event_bus.on(LLMStreamChunkEvent)
        def add(_: object, event: LLMStreamChunkEvent) -> None:
            pieces.append(event.chunk)

        assert make_llm(target, stream=True).call("One two three.") == "You said: One two three."
        crewai_event_bus.flush()
    assert len(pieces) > 3 and "".join(pieces) == "You said: One two three."


@client.check("structured", "`response_format`")
def structured(target: Target) -> None:
    answer: Any = make_llm(target, response_format=Report).call("Report on Rome.")
    report = answer if isinstance(answer, Report) else Report.model_validate_json(answer)
    assert report == Report(city="Rome", degrees=21)


@client.check("tools", "an `Agent` with a tool, which CrewAI runs")
def tools(target: Target) -> None:
    cities: list[str] = []

    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        cities.append(city)
        return f"sunny in {city}"

    agent = Agent(role="Helper", goal="Help.", backstory="You help.", llm=make_llm(target), tools=[weather])
    answer = agent.kickoff("Weather in Rome?")
    assert answer.raw == "The tool says: sunny in Rome."
    assert cities == ["Rome"]


@client.check("images", "an image in the input reaches the model")
def image(target: Target) -> None:
    parts: Any = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": PIXEL}]
    assert make_llm(target).call([{"role": "user", "content": parts}]) == "I see a picture."


@client.check("chain", "`auto_chain=True`")
def chain(target: Target) -> None:
    llm = make_llm(target, auto_chain=True)
    llm.call("My name is Ada.")
    assert llm.call("What is my name?") == "Your name is Ada."


@client.check("stateless", "`store=False`, the history sent whole")
def stateless(target: Target) -> None:
    history: Any = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello, Ada."},
        {"role": "user", "content": "What is my name?"},
    ]
    assert make_llm(target, store=False).call(history) == "Your name is Ada."


@client.check("errors", "the server's 400 arrives as the SDK's `BadRequestError`")
def errors(target: Target) -> None:
    with refused(BadRequestError) as found:
        make_llm(target, temperature=9).call("Hello!")
    assert found.error.param == "temperature"


if __name__ == "__main__":
    client.main()

"""`langchain-openai` with the Responses API, alone and under an agent of `langchain`."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import BadRequestError, OpenAI
from pydantic import BaseModel, SecretStr

from clients.python.checks import PIXEL, THOUGHT, Client, Target, refused

client = Client("langchain-openai", ("langchain-openai", "langchain", "openai"))
client.lack("resume", "does not resume a broken stream")
client.lack("cancel", "has no method for it")
client.lack("websocket", "speaks HTTP only")
client.lack("tokens", "counts tokens itself, for OpenAI's models only")


class Report(BaseModel):
    """A weather report."""

    city: str
    degrees: int


def chat(target: Target, kind: str = "plain", **fields: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=target.model(kind),
        base_url=target.base_url,
        api_key=SecretStr("any"),
        use_responses_api=True,
        **fields,
    )


@client.check("plain", "`invoke`, `ainvoke` and `batch`")
async def invoke(target: Target) -> None:
    llm = chat(target)
    answer = llm.invoke("Hello!")
    assert answer.text == "You said: Hello!"
    assert answer.response_metadata["id"].startswith("resp_")
    assert answer.usage_metadata and answer.usage_metadata["total_tokens"] == 7
    assert (await llm.ainvoke("Hello!")).text == "You said: Hello!"
    assert [each.text for each in llm.batch(["One!", "Two!"])] == ["You said: One!", "You said: Two!"]


@client.check("streamed", "`stream` and `astream`: chunks that add up to the answer")
async def stream(target: Target) -> None:
    llm = chat(target)
    chunks = list(llm.stream("One two three."))
    assert len(chunks) > 3 and "".join(chunk.text for chunk in chunks) == "You said: One two three."
    said = "".join([chunk.text async for chunk in llm.astream("One two three.")])
    assert said == "You said: One two three."


@client.check("structured", "`with_structured_output`")
def structured(target: Target) -> None:
    assert chat(target).with_structured_output(Report).invoke("Report on Rome.") == Report(city="Rome", degrees=21)


def forecast() -> tuple[Any, list[str]]:
    cities: list[str] = []

    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        cities.append(city)
        return f"sunny in {city}"

    return weather, cities


@client.check("tools", "`bind_tools`, with calls streamed in pieces")
def bind_tools(target: Target) -> None:
    weather, cities = forecast()
    llm = chat(target).bind_tools([weather])
    whole: Any = None
    for chunk in llm.stream("Weather in Rome and weather in Oslo?"):
        whole = chunk if whole is None else whole + chunk
    assert [call["args"] for call in whole.tool_calls] == [{"city": "Rome"}, {"city": "Oslo"}]
    question = HumanMessage("Weather in Rome and weather in Oslo?")
    outputs = [weather.invoke(call) for call in whole.tool_calls]
    answer = llm.invoke([question, whole, *outputs])
    assert answer.text == "The tool says: sunny in Rome and sunny in Oslo."
    assert cities == ["Rome", "Oslo"]


@client.check("tools", "an agent of `langchain.agents.create_agent`")
def agent(target: Target) -> None:
    weather, cities = forecast()
    answered = create_agent(chat(target), tools=[weather]).invoke({"messages": [HumanMessage("Weather in Rome?")]})
    assert answered["messages"][-1].text == "The tool says: sunny in Rome."
    assert cities == ["Rome"]


@client.check("reasoning", "its summary as a content block, streamed and sent back")
def reasoning(target: Target) -> None:
    llm = chat(target, "thinker", output_version="responses/v1", reasoning={"summary": "auto"})
    first: Any = None
    for chunk in llm.stream("Hello!"):
        first = chunk if first is None else first + chunk
    assert [block["type"] for block in first.content] == ["reasoning", "text"]
    assert [block["reasoning"] for block in first.content_blocks if block["type"] == "reasoning"] == [THOUGHT]
    second = llm.invoke([HumanMessage("Hello!"), first, HumanMessage("And now?")])
    assert second.text == "You said: And now?"
    assert target.texts(llm.model_name) == ["Hello!", "You said: Hello!", "And now?"]


@client.check("images", "an image in the input reaches the model")
def image(target: Target) -> None:
    parts: list[Any] = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    assert chat(target).invoke([HumanMessage(content=parts)]).text == "I see a picture."


@client.check("chain", "`previous_response_id` by hand, and `use_previous_response_id` with an agent")
def chain(target: Target) -> None:
    llm = chat(target)
    first = llm.invoke("My name is Ada.")
    second = llm.invoke("What is my name?", previous_response_id=first.response_metadata["id"])
    assert second.text == "Your name is Ada."
    weather, cities = forecast()
    llm = chat(target, use_previous_response_id=True)
    answered = create_agent(llm, tools=[weather]).invoke({"messages": [HumanMessage("Weather in Rome?")]})
    messages = [*answered["messages"], HumanMessage("Is my name Ada? What is my name?")]
    answered = create_agent(llm, tools=[weather]).invoke({"messages": messages})
    assert cities == ["Rome"]
    roles = [message["role"] for message in target.requests(llm.model_name)[-1]["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


@client.check("conversation", "`conversation`, passed on unchanged")
def conversation(target: Target) -> None:
    with OpenAI(base_url=target.base_url, api_key="any") as sdk:
        talk = sdk.conversations.create()
    llm = chat(target)
    llm.invoke("My name is Ada.", conversation=talk.id)
    assert llm.invoke("What is my name?", conversation=talk.id).text == "Your name is Ada."


@client.check("stateless", "`store=False`, the history sent whole")
def stateless(target: Target) -> None:
    llm = chat(target, store=False)
    question = HumanMessage("My name is Ada.")
    answer = llm.invoke([question, llm.invoke([question]), HumanMessage("What is my name?")])
    assert answer.text == "Your name is Ada."


@client.check("background", "`background=True` returns the accepted response; the SDK fetches the rest")
def background(target: Target) -> None:
    llm = chat(target, "held")
    begun = llm.invoke("Take your time.", background=True)
    assert begun.response_metadata["status"] == "queued"
    target.release(llm.model_name)
    with OpenAI(base_url=target.base_url, api_key="any") as sdk:
        response = sdk.responses.retrieve(begun.response_metadata["id"], extra_query={"wait": 10})
    assert response.output_text == "You said: Take your time."


@client.check("compact", "`context_management` makes a compaction block, which is sent back with the history")
def compact(target: Target) -> None:
    llm = chat(target, context_management=[{"type": "compaction", "compact_threshold": 1000}])
    messages: list[Any] = [HumanMessage("My name is Ada. " + "Remember this. " * 500)]
    messages += [llm.invoke(messages), HumanMessage("And now?")]
    second = llm.invoke(messages)
    assert [block["type"] for block in second.content] == ["compaction", "text"]
    assert llm.invoke([*messages, second, HumanMessage("What is my name?")]).text == "Your name is Ada."


@client.check("errors", "the server's 400 arrives as the SDK's `BadRequestError`")
def errors(target: Target) -> None:
    with refused(BadRequestError) as found:
        chat(target, temperature=9).invoke("Hello!")
    assert found.error.param == "temperature"


if __name__ == "__main__":
    client.main()

"""Instructor in its mode for the Responses API, in which the answer is a forced call of a function."""

from __future__ import annotations

import instructor
from instructor.core import InstructorRetryException
from instructor.processing.multimodal import Image
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, field_validator

from clients.python.checks import PIXEL, Client, Target, refused

client = Client("instructor", ("instructor", "openai"))
client.lack("tools", "has no tools of its own; it forces the call of one function, its answer (see plain)")
client.lack("reasoning", "returns the parsed answer only")
client.lack("background", "has no setting for it")
client.lack("resume", "does not resume a broken stream")
client.lack("cancel", "has no method for it")
client.lack("websocket", "speaks HTTP only")
client.lack("compact", "has no setting for it")
client.lack("tokens", "has no method for it")

MODE = instructor.Mode.RESPONSES_TOOLS


class Place(BaseModel):
    """The city in question."""

    city: str


class Refusing(Place):
    @field_validator("city")
    @classmethod
    def refuse(cls, city: str) -> str:
        raise ValueError("it must be another city")


def connect(target: Target) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=target.base_url, api_key="any"), mode=MODE)


@client.check("plain", "`responses.create`, and the same with `AsyncOpenAI`")
async def create(target: Target) -> None:
    asked = {"model": target.model(), "input": "Weather in Rome?", "response_model": Place}
    assert connect(target).responses.create(**asked).city == "Rome"
    async with AsyncOpenAI(base_url=target.base_url, api_key="any") as sdk:
        place = await instructor.from_openai(sdk, mode=MODE).responses.create(**asked)
    assert place.city == "Rome"


@client.check("streamed", "`create_partial`")
def stream(target: Target) -> None:
    found = list(
        connect(target).responses.create_partial(model=target.model(), input="Weather in Rome?", response_model=Place)
    )
    assert found[-1].city == "Rome"


@client.check("structured", "a validation error is sent back, and asked about again")
def structured(target: Target) -> None:
    name = target.model()
    with refused(InstructorRetryException):
        connect(target).responses.create(model=name, input="Weather in Rome?", response_model=Refusing, max_retries=2)
    assert len(target.requests(name)) > 1, len(target.requests(name))
    assert "it must be another city" in str(target.requests(name)[-1])


@client.check("images", "an image in the input reaches the model")
def image(target: Target) -> None:
    name = target.model()
    content = ["Weather in Rome?", Image.from_base64(PIXEL)]
    messages = [{"role": "user", "content": content}]
    connect(target).responses.create(model=name, input=messages, response_model=Place)
    parts = target.requests(name)[-1]["messages"][-1]["content"]
    assert [part["type"] for part in parts] == ["text", "image_url"]


@client.check("chain", "`previous_response_id`, from `create_with_completion`")
def chain(target: Target) -> None:
    name = target.model()
    asked = {"model": name, "response_model": Place}
    _, first = connect(target).responses.create_with_completion(input="Weather in Rome?", **asked)
    place = connect(target).responses.create(input="Weather in Oslo?", previous_response_id=first.id, **asked)
    assert place.city == "Oslo"
    assert "Weather in Rome?" in target.texts(name)


@client.check("conversation", "`conversation`, passed on unchanged")
def conversation(target: Target) -> None:
    with OpenAI(base_url=target.base_url, api_key="any") as sdk:
        talk = sdk.conversations.create(items=[{"type": "message", "role": "user", "content": "My name is Ada."}])
    name = target.model()
    asked = {"model": name, "response_model": Place, "conversation": talk.id}
    assert connect(target).responses.create(input="Weather in Rome?", **asked).city == "Rome"
    assert "My name is Ada." in " ".join(target.texts(name))


@client.check("stateless", "`store=False`")
def stateless(target: Target) -> None:
    asked = {"model": target.model(), "input": "Weather in Rome?", "store": False}
    assert connect(target).responses.create(response_model=Place, **asked).city == "Rome"


@client.check("errors", "the server's message arrives in an `InstructorRetryException`")
def errors(target: Target) -> None:
    with refused(InstructorRetryException) as found:
        connect(target).responses.create(model=target.model(), input="Hello!", response_model=Place, temperature=9)
    assert "'temperature' must be at most 2." in str(found.error)


if __name__ == "__main__":
    client.main()

"""The official `openai` SDK, and what lasts: background, resuming, cancelling, WebSockets, compaction."""

from __future__ import annotations

import asyncio
import time

from openai import APIConnectionError, AsyncOpenAI, BadRequestError, OpenAI
from openai.lib.responses_websocket import AsyncResponsesWebSocketSession, ResponsesWebSocketLimits
from openai.types.responses import Response

from clients.python.checks import Target, refused
from clients.python.openai_sdk import client, opened

__all__ = ["client"]


def finished(sdk: OpenAI, response: Response) -> Response:
    """Poll as OpenAI's own examples do."""
    while response.status in ("queued", "in_progress"):
        time.sleep(0.05)
        response = sdk.responses.retrieve(response.id)
    return response


@client.check("background", "`background=True`, polled with `retrieve` to the end")
def background(target: Target) -> None:
    model = target.model("held")
    with opened(target.base_url) as sdk:
        begun = sdk.responses.create(model=model, input="Take your time.", background=True)
        assert begun.status == "queued"
        target.release(model)
        assert finished(sdk, begun).output_text == "You said: Take your time."
    assert len(target.requests(model)) == 1


@client.check("background", "`AsyncOpenAI`: five background responses at once")
async def background_async(target: Target) -> None:
    async def ask(sdk: AsyncOpenAI, n: int) -> str:
        response = await sdk.responses.create(model=target.model(), input=f"Number {n}!", background=True)
        while response.status in ("queued", "in_progress"):
            await asyncio.sleep(0.05)
            response = await sdk.responses.retrieve(response.id)
        return response.output_text

    async with AsyncOpenAI(base_url=target.base_url, api_key="any") as sdk:
        said = await asyncio.gather(*(ask(sdk, n) for n in range(5)))
    assert said == [f"You said: Number {n}!" for n in range(5)]


@client.check(
    "resume", "a background stream closed after an event resumes with `starting_after`, nothing lost or repeated"
)
def resume(target: Target) -> None:
    model = target.model("held")
    with opened(target.base_url) as sdk:
        begun = sdk.responses.create(model=model, input="A long story, please.", background=True, stream=True)
        seen = []
        for event in begun:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        begun.close()
        target.release(model)
        assert seen[0].type == "response.created"
        response_id = seen[0].response.id
        rest = list(sdk.responses.retrieve(response_id, stream=True, starting_after=seen[-1].sequence_number))
        whole = list(sdk.responses.retrieve(response_id, stream=True))
    assert [event.to_dict() for event in (*seen, *rest)] == [event.to_dict() for event in whole]
    assert [event.sequence_number for event in whole] == list(range(len(whole)))
    assert len(target.requests(model)) == 1


@client.check("resume", "a stream broken by the network: `retrieve(stream=True, starting_after=...)` returns the rest")
def resume_after_break(target: Target) -> None:
    model = target.model()
    seen = []
    with opened(target.make_cut_url(frames=6)) as sdk:
        with refused(APIConnectionError):
            for event in sdk.responses.create(model=model, input="A long story, please.", stream=True):
                seen.append(event)
        assert len(seen) == 6 and seen[0].type == "response.created"
        rest = sdk.responses.retrieve(seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number)
        seen += rest
    deltas = [event.delta for event in seen if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "You said: A long story, please."
    assert len(target.requests(model)) == 1


@client.check("resume", "the helper `.stream(response_id=..., starting_after=...)`")
def resume_helper(target: Target) -> None:
    with opened(target.base_url) as sdk:
        made = sdk.responses.create(model=target.model(), input="Hello!", background=True)
        with sdk.responses.stream(response_id=made.id, starting_after=5) as stream:
            numbers = [event.sequence_number for event in stream]
            assert numbers[0] == 6
            assert stream.get_final_response().output_text == "You said: Hello!"


@client.check("cancel", "`responses.cancel` while it runs: the output so far is kept")
def cancel(target: Target) -> None:
    with opened(target.base_url) as sdk:
        begun = sdk.responses.create(
            model=target.model("held"), input="A long story, please.", background=True, stream=True
        )
        response_id = ""
        for event in begun:
            if event.type == "response.created":
                response_id = event.response.id
            if event.type == "response.output_text.delta":
                break
        begun.close()
        assert sdk.responses.cancel(response_id).status == "cancelled"
        kept = sdk.responses.retrieve(response_id)
        assert kept.status == "cancelled" and kept.output_text.startswith("You")
        assert sdk.responses.cancel(response_id).status == "cancelled"


@client.check("websocket", "`responses.connect()`: turns on one connection, chained with `store=False`")
def websocket(target: Target) -> None:
    model = target.model()
    with opened(target.base_url) as sdk, sdk.responses.connect() as connection:
        previous: dict[str, str] = {}
        for words, expected in (
            ("My name is Ada.", "You said: My name is Ada."),
            ("What is my name?", "Your name is Ada."),
        ):
            connection.response.create(model=model, input=words, store=False, **previous)  # type: ignore[arg-type]
            for event in connection:
                assert event.type != "error", event
                if event.type == "response.completed":
                    assert event.response.output_text == expected
                    previous = {"previous_response_id": event.response.id}
                    break
    assert len(target.requests(model)) == 2


@client.check("websocket", "an error frame for an unknown parent; the connection stays usable")
def websocket_error(target: Target) -> None:
    model = target.model()
    with opened(target.base_url) as sdk, sdk.responses.connect() as connection:
        connection.response.create(model=model, input="Hello!", previous_response_id="resp_never")
        event = connection.recv()
        assert event.type == "error" and event.to_dict()["error"]["code"] == "previous_response_not_found"  # type: ignore[index]
        connection.response.create(model=model, input="Hello!")
        for event in connection:
            if event.type == "response.completed":
                assert event.response.output_text == "You said: Hello!"
                break


@client.check(
    "websocket", "`AsyncResponsesWebSocketSession`: two lanes of one connection; a stored response is read over HTTP"
)
async def websocket_lanes(target: Target) -> None:
    limits = ResponsesWebSocketLimits(
        max_lanes=8, max_events_per_lane=128, max_events=512, max_bytes_per_lane=1 << 24, max_bytes=1 << 25
    )
    async with AsyncOpenAI(base_url=target.base_url, api_key="any") as sdk:
        async with (
            sdk.responses.connect(websocket_connection_options={"max_size": None}) as connection,
            AsyncResponsesWebSocketSession(connection, limits=limits) as session,
        ):
            lanes = [session.lane(name) for name in ("left", "right")]
            for n, lane in enumerate(lanes):
                await lane.send({"type": "response.create", "model": target.model(), "input": f"Number {n}!"})
            answers = [await lane.get_final_response() for lane in lanes]
        assert [answer.output_text for answer in answers] == ["You said: Number 0!", "You said: Number 1!"]
        kept = await sdk.responses.retrieve(answers[0].id)
        assert kept.output_text == "You said: Number 0!"


@client.check("compact", "`responses.compact`, and a new chain from its output")
def compact(target: Target) -> None:
    model = target.model()
    with opened(target.base_url) as sdk:
        first = sdk.responses.create(model=model, input="My name is Ada.")
        compacted = sdk.responses.compact(model=model, previous_response_id=first.id)
        assert compacted.output[-1].type == "compaction"
        # Its types know no messages of the user's here, though that is what OpenAI's server gives, too.
        output = [item.to_dict(mode="json", exclude_unset=True, warnings=False) for item in compacted.output]
        answer = sdk.responses.create(
            model=model,
            input=[*output, {"role": "user", "content": "What is my name?"}],  # type: ignore[list-item]
        )
    assert answer.output_text == "Your name is Ada."


@client.check("tokens", "`responses.input_tokens.count`, also for a chain")
def tokens(target: Target) -> None:
    model = target.model()
    with opened(target.base_url) as sdk:
        alone = sdk.responses.input_tokens.count(model=model, input="What is my name?")
        first = sdk.responses.create(model=model, input="My name is Ada.")
        chained = sdk.responses.input_tokens.count(model=model, input="What is my name?", previous_response_id=first.id)
    assert chained.input_tokens > alone.input_tokens > 0


@client.check("errors", "a 400 is `BadRequestError`, with the field's name in `param`")
def errors(target: Target) -> None:
    with opened(target.base_url) as sdk, refused(BadRequestError) as found:
        sdk.responses.create(model=target.model(), input="Hello!", temperature=9)
    assert found.error.param == "temperature" and found.error.request_id


if __name__ == "__main__":
    client.main()

"""Streams of background calls: every event once, resumed after a cut, with the same errors as polling."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from agents import ModelBehaviorError, Runner
from openai import APIStatusError

from outlive.agents import PollTimeout, ResponseCancelled, ResponseFailed, ResponseIncomplete
from tests.agents.harness import connect, durable, make_agent, wait_status
from tests.client.stub import Reply, Stub, event, refuse, response
from tests.support.proxy import Cut, Proxy
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, Refuse, say, text


def read(base_url: str, agent: Any, **provider: Any) -> tuple[Any, list[Any]]:
    """Return the result and the raw events of a streamed run."""

    async def run() -> tuple[Any, list[Any]]:
        async with connect(base_url) as client:
            result = Runner.run_streamed(agent, "Hello", run_config=durable(client, **provider))
            return result, [each.data async for each in result.stream_events() if each.type == "raw_response_event"]

    return asyncio.run(run())


def test_background_stream_delivers_every_event_in_order(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(say("All", " well."))
    result, events = read(server.base_url, make_agent(model))
    assert result.final_output == "All well."
    assert [each.sequence_number for each in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert wait_status(server, model, "completed").background is True


@pytest.mark.parametrize("cut", [Cut(frames=0), Cut(frames=1), Cut(frames=4, extra=9), Cut(frames=6, how="clean")])
def test_cut_stream_is_resumed(server: OutliveServer, upstream: FakeUpstream, cut: Cut) -> None:
    model = upstream.model(say("All", " is", " well."))
    with Proxy(server.port, cut, cut) as proxy:
        result, events = read(proxy.base_url, make_agent(model))
    assert result.final_output == "All is well."
    assert [each.sequence_number for each in events] == list(range(len(events)))
    assert len(upstream.calls(model)) == 1


def test_background_off_streams_in_the_foreground(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(say("Plain."))
    assert read(server.base_url, make_agent(model, background=False))[0].final_output == "Plain."
    assert not wait_status(server, model, "completed").background


@pytest.mark.parametrize(("status", "error"), [("failed", ResponseFailed), ("incomplete", ResponseIncomplete)])
def test_stream_of_an_unsuccessful_response_raises_with_the_response(
    stub: Stub, status: str, error: type[ResponseFailed | ResponseIncomplete]
) -> None:
    end = event(1, f"response.{status}", response=response(status))
    stub.script(Reply(events=[event(0, "response.created"), end]))
    with pytest.raises(error) as caught:
        read(stub.base_url, make_agent("m"))
    assert isinstance(caught.value, ModelBehaviorError)
    assert caught.value.response.status == status


def test_failed_live_stream_raises_with_the_response(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model([Refuse(400)])
    with pytest.raises(ResponseFailed) as caught:
        read(server.base_url, make_agent(model))
    assert caught.value.response.error is not None


def test_stream_of_a_run_cancelled_by_another_client_raises(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Half"), gate])

    async def run() -> None:
        async with connect(server.base_url) as client:
            result = Runner.run_streamed(make_agent(model), "Hello", run_config=durable(client))
            async for each in result.stream_events():
                if each.type == "raw_response_event" and each.data.type == "response.output_text.delta":
                    await client.responses.cancel(wait_status(server, model, "in_progress").id)

    with pytest.raises(ResponseCancelled) as caught:
        asyncio.run(run())
    assert caught.value.response.output_text == "Half"


def test_poll_timeout_of_a_stream_leaves_the_run_alone(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Slow"), gate, *say(" and late.")])
    with pytest.raises(PollTimeout) as caught:
        read(server.base_url, make_agent(model, background_max_wait_seconds=0.3))
    gate.open()
    assert wait_status(server, model, "completed").id == caught.value.response_id


def test_stream_that_is_too_old_to_resume_is_polled(stub: Stub) -> None:
    message = {
        "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
    }  # fmt: skip
    stub.script(
        Reply(events=[event(0, "response.created")]),
        refuse(400, "This response can no longer be streamed because it is more than 5 minutes old."),
        Reply(response("completed", output=[message])),
    )
    assert read(stub.base_url, make_agent("m"))[0].final_output == "Done."
    assert stub.requests.count("POST /responses") == 1


def test_error_within_a_stream_never_submits_again(stub: Stub) -> None:
    stub.script(Reply(events=[event(0, "response.created")]), *[refuse(401)] * 3)
    with pytest.raises(APIStatusError):
        read(stub.base_url, make_agent("m"))
    assert stub.requests.count("POST /responses") == 1

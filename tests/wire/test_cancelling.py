"""Cancelling: works on whatever runs, is heard upstream at once, keeps what was said, and can be said twice (D8)."""

from __future__ import annotations

import threading
import time

import pytest
from openai import BadRequestError, OpenAI

from tests.support.upstream import HANG, FakeUpstream, Gate, Step, call, reasoning, say, text
from tests.wire import events
from tests.wire.conftest import Servers
from tests.wire.raw import Answer, Wire


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
def test_a_running_response_is_cancelled_and_says_so_everywhere(
    wire: Wire, client: OpenAI, upstream: FakeUpstream, background: bool
) -> None:
    model = upstream.model([text("Once "), text("upon "), HANG])
    stream = wire.stream(model=model, input="Hi", background=background)
    frames = stream.until("response.output_text.delta") + stream.until("response.output_text.delta")
    response_id = events.read(frames[0])["response"]["id"]
    asked_at = time.monotonic()
    cancelled = client.responses.cancel(response_id)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text == "Once upon "
    assert cancelled.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert cancelled.error is None and cancelled.usage is None and cancelled.completed_at is None
    # the stream ends with the whole response
    told = events.read_all(b"".join(frames) + stream.rest())
    assert events.types(told)[-4:] == ["output_text.done", "content_part.done", "output_item.done", "cancelled"]
    shown = wire.get(f"/v1/responses/{response_id}")
    assert told[-1]["response"] == shown.json()
    assert "openai-poll-after-ms" not in shown.headers
    # and the upstream heard of it
    asked = upstream.calls(model)[0]
    asked.wait_left(5)
    assert asked.left_at is not None and asked.left_at - asked_at < 1.0
    with wire.follow(response_id) as again:
        assert events.read_all(again.rest()) == told


def test_cancelling_twice_is_the_same_as_once(wire: Wire, upstream: FakeUpstream) -> None:
    stream = wire.stream(model=upstream.model([text("Once "), HANG]), input="Hi")
    response_id = events.read(stream.until("response.output_text.delta")[0])["response"]["id"]
    first = wire.post(f"/v1/responses/{response_id}/cancel")
    assert wire.post(f"/v1/responses/{response_id}/cancel").body == first.body


def test_many_cancels_at_once_agree(wire: Wire, upstream: FakeUpstream) -> None:
    stream = wire.stream(model=upstream.model([text("Once "), HANG]), input="Hi")
    response_id = events.read(stream.until("response.output_text.delta")[0])["response"]["id"]
    answers: list[Answer] = []
    path = f"/v1/responses/{response_id}/cancel"
    askers = [threading.Thread(target=lambda: answers.append(wire.post(path))) for _ in range(6)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(20)
    assert [answer.status for answer in answers] == [200] * 6
    assert [answer.json()["status"] for answer in answers] == ["cancelled"] * 6
    assert len({answer.body for answer in answers}) == 1
    with wire.follow(response_id) as again:
        assert events.types(events.read_all(again.rest())).count("cancelled") == 1


def test_what_has_ended_stays_as_it_is(wire: Wire, upstream: FakeUpstream) -> None:
    made = wire.create(model=upstream.model(), input="Hi")
    answer = wire.post(f"/v1/responses/{made.json()['id']}/cancel")
    assert answer.status == 200
    assert answer.body == made.body


def test_a_response_is_cancelled_before_it_said_anything(wire: Wire, upstream: FakeUpstream) -> None:
    model = upstream.model([HANG])
    stream = wire.stream(model=model, input="Hi", background=True)
    response_id = events.read(stream.frame())["response"]["id"]
    upstream.wait_call(model)
    answer = wire.post(f"/v1/responses/{response_id}/cancel").json()
    assert (answer["status"], answer["output"]) == ("cancelled", [])
    stream.until("response.cancelled")
    upstream.calls(model)[0].wait_left(5)


def test_everything_that_is_open_is_closed(wire: Wire, upstream: FakeUpstream) -> None:
    tools = [{"type": "function", "name": "weather", "parameters": {}}, {"type": "custom", "name": "note"}]
    script: list[Step] = [
        reasoning("Hm."),
        text("Let me see."),
        call(0, '{"city":"Rome"}', "call_1", "weather"),
        call(1, '{"ci', "call_2", "weather"),
        HANG,
    ]
    stream = wire.stream(model=upstream.model(script), input="Hi", tools=tools)
    frames = stream.until("response.function_call_arguments.delta")
    frames += stream.until("response.function_call_arguments.delta")
    response_id = events.read(frames[0])["response"]["id"]
    wire.post(f"/v1/responses/{response_id}/cancel")
    output = events.read_all(b"".join(frames) + stream.rest())[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[1]["status"] == "completed" and output[3]["status"] == "incomplete"


def test_a_plain_create_that_is_cancelled_says_so(wire: Wire, upstream: FakeUpstream) -> None:
    model = upstream.model([text("Once "), HANG])
    answers: list[Answer] = []
    body = {"model": model, "input": "Hi", "metadata": {"name": model}}
    asking = threading.Thread(target=lambda: answers.append(wire.post("/v1/responses", body)))
    asking.start()
    upstream.wait_call(model)
    response_id = wire.running(model)
    wire.post(f"/v1/responses/{response_id}/cancel")
    asking.join(10)
    assert answers[0].status == 400
    assert answers[0].error["code"] == "response_cancelled"
    assert answers[0].headers["x-should-retry"] == "false"
    assert response_id in answers[0].error["message"]


def test_a_waiting_response_is_cancelled_without_ever_running(servers: Servers, upstream: FakeUpstream) -> None:
    narrow = servers("--max-running", "1")
    gate = Gate()
    with Wire(narrow.port) as wire:
        running = wire.create(model=upstream.model([gate, *say("Hi.")]), input="Hi", background=True).json()
        model = upstream.model()
        stream = wire.stream(model=model, input="Hi")
        waiting = events.read(stream.frame())["response"]
        assert waiting["status"] == "queued"
        assert wire.post(f"/v1/responses/{waiting['id']}/cancel").json()["status"] == "cancelled"
        stream.until("response.cancelled")
        gate.open()
        assert wire.get(f"/v1/responses/{running['id']}?wait=10").json()["status"] == "completed"
        assert wire.create(model=upstream.model(), input="Hi").status == 200  # its place is free again
        assert upstream.calls(model) == []


def test_a_follower_of_a_cancelled_response_can_be_the_sdk(client: OpenAI, upstream: FakeUpstream) -> None:
    made = client.responses.create(model=upstream.model([text("Once "), HANG]), input="Hi", background=True)
    seen: list[str] = []
    for event in client.responses.retrieve(made.id, stream=True):
        seen.append(event.type)
        if event.type == "response.output_text.delta":
            client.responses.cancel(made.id)
    assert seen[-1] == "response.cancelled"


def test_the_next_turn_can_begin_at_once(wire: Wire, client: OpenAI, upstream: FakeUpstream) -> None:
    conversation = client.conversations.create().id
    for _ in range(5):
        stream = wire.stream(model=upstream.model([text("Once "), HANG]), input="Hi", conversation=conversation)
        response_id = events.read(stream.until("response.output_text.delta")[0])["response"]["id"]
        with pytest.raises(BadRequestError):
            client.responses.create(model=upstream.model(), input="Now", conversation=conversation)
        client.responses.cancel(response_id)
        client.responses.create(model=upstream.model(), input="Now", conversation=conversation)


def test_an_unknown_response_cannot_be_cancelled(wire: Wire) -> None:
    answer = wire.post("/v1/responses/resp_unknown/cancel")
    assert answer.status == 404
    assert "resp_unknown" in answer.error["message"]

"""Cancelling works in every state, reaches the upstream at once, keeps the partial output, and may be repeated (D8)."""

from __future__ import annotations

import threading
import time

import pytest
from openai import BadRequestError, OpenAI

from tests.support.http_client import Answer, HttpClient
from tests.support.upstream import HANG, FakeUpstream, Gate, Step, call, reasoning, say, text
from tests.wire import events
from tests.wire.conftest import Servers


@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
def test_a_cancelled_response_is_cancelled_in_every_view(
    http: HttpClient, client: OpenAI, upstream: FakeUpstream, background: bool
) -> None:
    model = upstream.model([text("Once "), text("upon "), HANG])
    stream = http.stream(model=model, input="Hi", background=background)
    frames = stream.read_through("response.output_text.delta") + stream.read_through("response.output_text.delta")
    response_id = events.read(frames[0])["response"]["id"]
    asked_at = time.monotonic()
    cancelled = client.responses.cancel(response_id)
    assert cancelled.status == "cancelled"
    assert cancelled.output_text == "Once upon "
    assert cancelled.output[0].status == "incomplete"  # type: ignore[union-attr]
    assert cancelled.error is None and cancelled.usage is None and cancelled.completed_at is None
    # The stream ends with the complete response.
    received = events.read_all(b"".join(frames) + stream.read_rest())
    assert events.types(received)[-4:] == ["output_text.done", "content_part.done", "output_item.done", "cancelled"]
    shown = http.get(f"/v1/responses/{response_id}")
    assert received[-1]["response"] == shown.json()
    assert "openai-poll-after-ms" not in shown.headers
    # The upstream request has ended.
    asked = upstream.calls(model)[0]
    asked.wait_disconnected()
    assert asked.disconnected_at is not None and asked.disconnected_at - asked_at < 1.0
    with http.follow(response_id) as again:
        assert events.read_all(again.read_rest()) == received


def test_a_second_cancel_returns_the_same_response(http: HttpClient, upstream: FakeUpstream) -> None:
    stream = http.stream(model=upstream.model([text("Once "), HANG]), input="Hi")
    response_id = events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
    first = http.post(f"/v1/responses/{response_id}/cancel")
    assert http.post(f"/v1/responses/{response_id}/cancel").body == first.body


def test_concurrent_cancels_return_the_same_ended_response(http: HttpClient, upstream: FakeUpstream) -> None:
    stream = http.stream(model=upstream.model([text("Once "), HANG]), input="Hi")
    response_id = events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
    answers: list[Answer] = []
    path = f"/v1/responses/{response_id}/cancel"
    askers = [threading.Thread(target=lambda: answers.append(http.post(path))) for _ in range(6)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(20)
    assert [answer.status for answer in answers] == [200] * 6
    assert [answer.json()["status"] for answer in answers] == ["cancelled"] * 6
    assert len({answer.body for answer in answers}) == 1
    with http.follow(response_id) as again:
        assert events.types(events.read_all(again.read_rest())).count("cancelled") == 1


def test_a_cancel_after_the_end_changes_nothing(http: HttpClient, upstream: FakeUpstream) -> None:
    made = http.create(model=upstream.model(), input="Hi")
    answer = http.post(f"/v1/responses/{made.json()['id']}/cancel")
    assert answer.status == 200
    assert answer.body == made.body


def test_a_response_without_output_is_cancelled(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([HANG])
    stream = http.stream(model=model, input="Hi", background=True)
    response_id = events.read(stream.read_frame())["response"]["id"]
    upstream.wait_call(model)
    answer = http.post(f"/v1/responses/{response_id}/cancel").json()
    assert (answer["status"], answer["output"]) == ("cancelled", [])
    stream.read_through("response.cancelled")
    upstream.calls(model)[0].wait_disconnected()


def test_a_cancel_closes_every_open_item(http: HttpClient, upstream: FakeUpstream) -> None:
    tools = [{"type": "function", "name": "weather", "parameters": {}}, {"type": "custom", "name": "note"}]
    script: list[Step] = [
        reasoning("Hm."),
        text("Let me see."),
        call(0, '{"city":"Rome"}', "call_1", "weather"),
        call(1, '{"ci', "call_2", "weather"),
        HANG,
    ]
    stream = http.stream(model=upstream.model(script), input="Hi", tools=tools)
    frames = stream.read_through("response.function_call_arguments.delta")
    frames += stream.read_through("response.function_call_arguments.delta")
    response_id = events.read(frames[0])["response"]["id"]
    http.post(f"/v1/responses/{response_id}/cancel")
    output = events.read_all(b"".join(frames) + stream.read_rest())[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[1]["status"] == "completed" and output[3]["status"] == "incomplete"


def test_a_plain_create_returns_the_cancelled_response(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([text("Once "), HANG])
    answers: list[Answer] = []
    body = {"model": model, "input": "Hi", "metadata": {"name": model}}
    asking = threading.Thread(target=lambda: answers.append(http.post("/v1/responses", body)))
    asking.start()
    upstream.wait_call(model)
    response_id = http.find_running(model)
    http.post(f"/v1/responses/{response_id}/cancel")
    asking.join(10)
    assert answers[0].status == 400
    assert answers[0].error["code"] == "response_cancelled"
    assert answers[0].headers["x-should-retry"] == "false"
    assert response_id in answers[0].error["message"]


def test_a_queued_response_is_cancelled_without_running(servers: Servers, upstream: FakeUpstream) -> None:
    narrow = servers("--max-running", "1")
    gate = Gate()
    with HttpClient(narrow.port) as http:
        running = http.create(model=upstream.model([gate, *say("Hi.")]), input="Hi", background=True).json()
        model = upstream.model()
        stream = http.stream(model=model, input="Hi")
        waiting = events.read(stream.read_frame())["response"]
        assert waiting["status"] == "queued"
        assert http.post(f"/v1/responses/{waiting['id']}/cancel").json()["status"] == "cancelled"
        stream.read_through("response.cancelled")
        gate.open()
        assert http.get(f"/v1/responses/{running['id']}?wait=10").json()["status"] == "completed"
        assert http.create(model=upstream.model(), input="Hi").status == 200  # its slot is free again
        assert upstream.calls(model) == []


def test_the_sdk_follows_a_cancelled_response(client: OpenAI, upstream: FakeUpstream) -> None:
    made = client.responses.create(model=upstream.model([text("Once "), HANG]), input="Hi", background=True)
    seen: list[str] = []
    for event in client.responses.retrieve(made.id, stream=True):
        seen.append(event.type)
        if event.type == "response.output_text.delta":
            client.responses.cancel(made.id)
    assert seen[-1] == "response.cancelled"


def test_the_next_turn_starts_right_after_a_cancel(http: HttpClient, client: OpenAI, upstream: FakeUpstream) -> None:
    conversation = client.conversations.create().id
    for _ in range(5):
        stream = http.stream(model=upstream.model([text("Once "), HANG]), input="Hi", conversation=conversation)
        response_id = events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
        with pytest.raises(BadRequestError):
            client.responses.create(model=upstream.model(), input="Now", conversation=conversation)
        client.responses.cancel(response_id)
        client.responses.create(model=upstream.model(), input="Now", conversation=conversation)


def test_an_unknown_response_cannot_be_cancelled(http: HttpClient) -> None:
    answer = http.post("/v1/responses/resp_unknown/cancel")
    assert answer.status == 404
    assert "resp_unknown" in answer.error["message"]

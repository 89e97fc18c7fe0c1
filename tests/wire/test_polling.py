"""Polling: the header with the time of the next poll, and a GET that waits for the end (D16)."""

from __future__ import annotations

import threading
import time

import pytest
from openai import OpenAI

from tests.support.http_client import Answer, HttpClient
from tests.support.upstream import FakeUpstream, Gate, ending, say, text
from tests.wire import events


def test_a_background_response_is_queued_then_in_progress_then_completed(
    client: OpenAI, upstream: FakeUpstream
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    made = client.responses.with_raw_response.create(model=model, input="Hi", background=True)
    assert int(made.headers["openai-poll-after-ms"]) > 0
    response = made.parse()
    assert response.status == "queued" and response.background is True and response.output == []
    gate.wait_reached()
    running = client.responses.with_raw_response.retrieve(response.id)
    while running.parse().status == "queued":  # until the claim is durable
        running = client.responses.with_raw_response.retrieve(response.id)
    assert running.parse().status == "in_progress"
    assert 0 < int(running.headers["openai-poll-after-ms"]) <= 5000
    gate.open()
    ended = client.responses.with_raw_response.retrieve(response.id, extra_query={"wait": 10})
    assert ended.parse().output_text == "Once upon."
    assert "openai-poll-after-ms" not in ended.headers


def test_a_waiting_get_returns_at_the_end_of_the_response(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    made = http.create(model=upstream.model([gate, *say("Hi.")]), input="Hi", background=True).json()
    answers: list[Answer] = []
    waiting = threading.Thread(target=lambda: answers.append(http.get(f"/v1/responses/{made['id']}?wait=30")))
    waiting.start()
    gate.wait_reached()
    assert answers == []
    gate.open()
    waiting.join(10)
    assert answers[0].json()["status"] == "completed"


def test_a_waiting_get_returns_the_partial_output_after_its_time(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    stream = http.stream(model=upstream.model([text("Once "), gate, *ending()]), input="Hi", background=True)
    response_id = events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
    began = time.monotonic()
    answer = http.get(f"/v1/responses/{response_id}?wait=0.2")
    assert 0.2 <= time.monotonic() - began < 5
    assert answer.json()["status"] == "in_progress"
    assert answer.json()["output"][0]["content"][0]["text"] == "Once "
    assert "openai-poll-after-ms" in answer.headers
    gate.open()
    assert http.get(f"/v1/responses/{response_id}?wait=30").json()["status"] == "completed"


def test_a_waiting_get_of_an_ended_response_returns_at_once(http: HttpClient, upstream: FakeUpstream) -> None:
    made = http.create(model=upstream.model(), input="Hi").json()
    began = time.monotonic()
    assert http.get(f"/v1/responses/{made['id']}?wait=60").json() == made
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("wait", ["61", "-1", "x", "nan", "inf"])
def test_an_invalid_wait_is_refused(http: HttpClient, upstream: FakeUpstream, wait: str) -> None:
    made = http.create(model=upstream.model(), input="Hi").json()
    answer = http.get(f"/v1/responses/{made['id']}?wait={wait}")
    assert answer.status == 400
    assert answer.error["param"] == "wait"


def test_retrieve_returns_the_created_object(http: HttpClient, upstream: FakeUpstream) -> None:
    made = http.create(model=upstream.model(), input="Hi", metadata={"a": "b"})
    assert http.get(f"/v1/responses/{made.json()['id']}").body == made.body
    assert http.get(f"/v1/responses/{made.json()['id']}?include[]=reasoning.encrypted_content").body == made.body

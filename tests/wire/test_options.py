"""Options of this server in a request, `outlive: {...}`: a deadline, and the end with a connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, InternalServerError, OpenAI

from tests.support.http_client import EventStream, HttpClient, event_of
from tests.support.postgres import DATABASES
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, ending, say, text
from tests.support.waiting import Stopwatch, wait_until
from tests.wire.conftest import Servers
from tests.wire.websocket import open_websocket

EXCEEDED = {"code": "deadline_exceeded", "retryable": False}


def with_options(**options: Any) -> dict[str, Any]:
    return {"outlive": options}


def test_no_upstream_sees_the_options(client: OpenAI, upstream: FakeUpstream) -> None:
    options = with_options(expires_after_days=0.5, deadline_seconds=60, on_disconnect="cancel")
    model = upstream.model(say("Hi."))
    assert client.responses.create(model=model, input="Hi", extra_body=options).status == "completed"
    (asked,) = upstream.bodies(model)
    assert "outlive" not in asked and "deadline" not in str(asked)


@pytest.mark.parametrize(
    ("options", "fields", "param"),
    [
        ({"expires_after_days": 0}, {}, "outlive.expires_after_days"),
        ({"expires_after_days": "1"}, {}, "outlive.expires_after_days"),
        ({"expires_after_days": 1}, {"store": False}, "outlive.expires_after_days"),
        ({"deadline_seconds": -1}, {}, "outlive.deadline_seconds"),
        ({"deadline_seconds": 1e300}, {}, "outlive.deadline_seconds"),
        ({"on_disconnect": "stop"}, {}, "outlive.on_disconnect"),
        ({"on_disconnect": "cancel"}, {"background": True}, "outlive.on_disconnect"),
        ({"on_disconnect": "continue"}, {"store": False}, "outlive.on_disconnect"),
        ({"expires": 1}, {}, "outlive.expires"),
        ("soon", {}, "outlive"),
    ],
)
def test_wrong_options_are_refused_by_name(
    client: OpenAI, upstream: FakeUpstream, options: object, fields: dict[str, Any], param: str
) -> None:
    model = upstream.model(say("Hi."))
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=model, input="Hi", extra_body={"outlive": options}, **fields)
    assert refused.value.param == param
    assert upstream.calls(model) == []


def test_chat_completions_refuse_the_options(http: HttpClient, upstream: FakeUpstream) -> None:
    body = {"model": upstream.model(say("Hi.")), "messages": [{"role": "user", "content": "Hi"}]}
    answer = http.post("/v1/chat/completions", body | with_options(deadline_seconds=1))
    assert (answer.status, answer.error["param"]) == (400, "outlive")


# -- deadlines


def test_a_visible_answer_is_incomplete_at_its_deadline(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model([text("Once "), HANG])
    final = client.responses.create(model=model, input="Hi", extra_body=with_options(deadline_seconds=0.3))
    assert (final.status, final.output_text) == ("incomplete", "Once ")
    shown: dict[str, Any] = final.to_dict()
    assert (shown["incomplete_details"]["reason"], shown["outlive"]) == ("interrupted", {"reason": EXCEEDED})
    upstream.calls(model)[0].wait_disconnected()


@pytest.mark.parametrize("store", [True, False])
def test_a_response_that_showed_nothing_fails_at_its_deadline(
    client: OpenAI, upstream: FakeUpstream, store: bool
) -> None:
    model = upstream.model([HANG])
    with pytest.raises(InternalServerError) as failed:
        client.responses.create(model=model, input="Hi", store=store, extra_body=with_options(deadline_seconds=0.3))
    assert failed.value.status_code == 504


def test_a_deadline_overrides_the_limit_of_a_run(servers: Servers, upstream: FakeUpstream) -> None:
    gate = Gate()
    with HttpClient(servers("--run-seconds", "0.3").port) as http:
        response_id = http.submit(upstream.model([text("Once "), gate, *ending()]), outlive={"deadline_seconds": 60})
        gate.wait_reached()
        other = http.submit(upstream.model([HANG]))
        assert http.wait_ended(other)["outlive"]["reason"] == EXCEEDED
        gate.open()
        assert http.wait_ended(response_id)["status"] == "completed"


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_response_that_is_still_queued_fails_at_its_deadline(
    upstream: FakeUpstream, tmp_path: Path, database: str
) -> None:
    gate = Gate()
    blocking, model = upstream.model([gate, *say("done")]), upstream.model(say("too late"))
    url = DATABASES.create() if database == "postgres" else None
    with OutliveServer(tmp_path, upstream.url, "--max-running", "1", database_url=url) as server:
        first = server.client.submit(blocking)
        gate.wait_reached()
        conversation = server.client.create_conversation()
        queued = server.client.submit(model, conversation=conversation, outlive={"deadline_seconds": 0.5})
        patient = server.client.submit(model, outlive={"deadline_seconds": 600})
        watch = Stopwatch()
        answer = server.client.create(model, outlive={"deadline_seconds": 0.7})
        assert (answer.status, watch.seconds < 10) == (504, True)
        ended = server.client.wait_ended(queued)
        assert (ended["status"], ended["outlive"]["reason"]) == ("failed", EXCEEDED)
        assert [event_of(frame)["type"] for frame in server.client.replay(queued)] == [
            "response.created",
            "response.queued",
            "response.failed",
        ]
        # The conversation is not locked, and holds nothing of it.
        assert server.client.list_items(conversation) == []
        assert [server.client.retrieve(each)["status"] for each in (first, patient)] == ["in_progress", "queued"]
        assert upstream.calls(model) == []
        gate.open()
        assert {server.client.wait_ended(each)["status"] for each in (first, patient)} == {"completed"}


# -- the end with a connection


@pytest.mark.parametrize("leave", [EventStream.close, EventStream.reset])
def test_a_stream_is_cancelled_when_its_client_leaves(http: HttpClient, upstream: FakeUpstream, leave: Any) -> None:
    model = upstream.model([text("Once "), HANG])
    stream = http.stream(model=model, input="Hi", outlive={"on_disconnect": "cancel"})
    stream.read_through("response.output_text.delta")
    leave(stream)
    ended = http.wait_ended(stream.id)
    assert (ended["status"], ended["output"][0]["content"][0]["text"]) == ("cancelled", "Once ")
    upstream.calls(model)[0].wait_disconnected()


def test_a_plain_create_is_cancelled_when_its_client_leaves(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([HANG])
    body = {"model": model, "input": "Hi", "metadata": {"name": model}, "outlive": {"on_disconnect": "cancel"}}
    connection = http.send("/v1/responses", body)
    upstream.wait_call(model)
    running = http.find_running(model)
    connection.close()
    assert http.wait_ended(running)["status"] == "cancelled"


def test_a_silent_retry_of_a_cancelled_create_starts_anew(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([HANG], say("Hi."))
    body = {"model": model, "input": "Hi", "metadata": {"name": model}, "outlive": {"on_disconnect": "cancel"}}
    connection = http.send("/v1/responses", body, **{"x-stainless-retry-count": "0"})
    upstream.wait_call(model)
    running = http.find_running(model)
    connection.close()
    assert http.wait_ended(running)["status"] == "cancelled"
    again = http.post("/v1/responses", body, **{"x-stainless-retry-count": "1"}).json()
    assert (again["status"], again["id"] != running) == ("completed", True)


def test_a_turn_of_a_websocket_is_cancelled_with_its_connection(
    server: OutliveServer, http: HttpClient, upstream: FakeUpstream
) -> None:
    with open_websocket(server.port) as socket:
        socket.create(model=upstream.model([text("Once "), HANG]), input="Hi", outlive={"on_disconnect": "cancel"})
        response_id = socket.until("response.output_text.delta")[0]["response"]["id"]
        socket.connection.close()
    assert http.wait_ended(response_id)["status"] == "cancelled"


def test_a_response_that_continues_is_not_abandoned(servers: Servers, upstream: FakeUpstream) -> None:
    gate = Gate()
    with HttpClient(servers("--abandon-after", "0.2").port) as http:
        script = [text("Once "), gate, *ending()]
        left = http.stream(model=upstream.model(script), input="Hi", outlive={"on_disconnect": "continue"})
        abandoned = http.stream(model=upstream.model([text("Once "), HANG]), input="Hi")
        for stream in (left, abandoned):
            stream.read_through("response.output_text.delta")
            stream.close()
        wait_until(lambda: http.retrieve(abandoned.id)["status"] == "cancelled", "cancelled")  # to wait is to read
        gate.open()
        assert http.wait_ended(left.id)["status"] == "completed"

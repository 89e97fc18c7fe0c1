"""Limits: requests over a limit are refused before anything is stored, and queued ones run in order."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection
from typing import Any

import pytest
from openai import OpenAI, RateLimitError

from tests.support.http_client import Answer, HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, ending, say, text
from tests.wire import events
from tests.wire.conftest import Servers


@pytest.fixture
def narrow(servers: Servers) -> OutliveServer:
    """A server with one slot and a queue of two."""
    return servers("--max-running", "1", "--max-waiting", "2")


def test_a_full_queue_is_a_429_and_stores_nothing(narrow: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    refused_model = upstream.model()
    with HttpClient(narrow.port) as http:
        ids = [http.create(model=model, input=str(n), background=True).json()["id"] for n in range(3)]
        assert [http.get(f"/v1/responses/{each}").json()["status"] for each in ids[1:]] == ["queued", "queued"]
        conversation = http.post("/v1/conversations", {}).json()["id"]
        for body in ({}, {"stream": True}, {"background": True}, {"store": False}, {"conversation": conversation}):
            answer = http.post("/v1/responses", {"model": refused_model, "input": "too much", **body})
            assert answer.status == 429
            assert answer.error["code"] == "rate_limit_exceeded"
            assert answer.error["type"] == "rate_limit_error"
            assert int(answer.headers["retry-after"]) >= 1
        assert http.get("/v1/responses?limit=1").json()["first_id"] == ids[-1]
        assert http.list_messages(conversation) == []
        with (
            OpenAI(base_url=narrow.base_url, api_key="any", max_retries=0) as client,
            pytest.raises(RateLimitError),
        ):
            client.responses.create(model=refused_model, input="too much")
        gate.open()
        for each in ids:
            assert http.get(f"/v1/responses/{each}?wait=10").json()["status"] == "completed"
        assert http.create(model=upstream.model(), input="Hi", conversation=conversation).status == 200
    assert upstream.calls(refused_model) == []


def test_foreground_responses_run_before_background_ones(narrow: OutliveServer, upstream: FakeUpstream) -> None:
    first, rest = Gate(), Gate()
    blocking = upstream.model([first, *say("first")])
    model = upstream.model([rest, *say("later")])
    with HttpClient(narrow.port) as http:
        running = http.create(model=blocking, input="running", background=True).json()["id"]
        behind = http.create(model=model, input="background", background=True).json()["id"]
        stream = http.stream(model=model, input="foreground")
        created = stream.read_frame()
        assert events.read(created)["response"]["status"] == "queued"
        first.open()
        upstream.wait_call(model, 1)
        rest.open()
        received = events.read_all(created + stream.read_rest())
        assert events.types(received)[:2] == ["created", "in_progress"]
        for each in (running, behind):
            assert http.get(f"/v1/responses/{each}?wait=10").json()["status"] == "completed"
    assert [asked.messages[-1]["content"] for asked in upstream.calls(model)] == ["foreground", "background"]


def test_queued_responses_run_in_order(narrow: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    with HttpClient(narrow.port) as http:
        ids = [http.create(model=model, input=str(n), background=True).json()["id"] for n in range(3)]
        gate.open()
        for each in ids:
            http.get(f"/v1/responses/{each}?wait=10")
    assert [asked.messages[-1]["content"] for asked in upstream.calls(model)] == ["0", "1", "2"]


def test_a_queued_response_shows_its_place_and_waiting_time(narrow: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    with HttpClient(narrow.port) as http:
        running, first, second = (http.create(model=model, input="x", background=True).json()["id"] for _ in range(3))
        listed = {each["id"]: each.get("outlive") for each in http.get("/v1/responses").json()["data"]}
        assert listed[running] is None
        for place, waiting in enumerate((first, second), 1):
            queue = http.get(f"/v1/responses/{waiting}").json()["outlive"]["queue"]
            assert queue == listed[waiting]["queue"]
            assert queue["place"] == place
            assert 0 <= queue["seconds"] < 20
        gate.open()
        assert "outlive" not in http.get(f"/v1/responses/{second}?wait=10").json()


def test_a_plain_create_waits_in_the_queue(narrow: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    answers: list[Answer] = []
    with HttpClient(narrow.port) as http:
        running = http.create(model=upstream.model([gate, *say("Hi.")]), input="Hi", background=True).json()["id"]
        body = {"model": upstream.model(say("Mine.")), "input": "Hi"}
        asking = threading.Thread(target=lambda: answers.append(http.post("/v1/responses", body)))
        asking.start()
        gate.wait_reached()
        gate.open()
        asking.join(10)
        http.get(f"/v1/responses/{running}?wait=10")
    assert answers[0].json()["output"][0]["content"][0]["text"] == "Mine."


def test_one_owner_cannot_use_all_slots(servers: Servers, upstream: FakeUpstream) -> None:
    shared = servers(
        "--api-key", "anna=anna-key", "--api-key", "bert=bert-key",
        "--max-running-per-owner", "1", "--max-waiting-per-owner", "1",
    )  # fmt: skip
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    with HttpClient(shared.port, "anna-key") as anna, HttpClient(shared.port, "bert-key") as bert:
        ids = [anna.create(model=model, input="Hi", background=True).json()["id"] for _ in range(2)]
        refused = anna.create(model=model, input="Hi", background=True)
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert bert.create(model=upstream.model(say("Mine.")), input="Hi").status == 200
        assert len(upstream.calls(model)) == 1
        gate.open()
        for each in ids:
            assert anna.get(f"/v1/responses/{each}?wait=10").json()["status"] == "completed"


# -- the size of a request


@pytest.fixture
def small(servers: Servers) -> OutliveServer:
    return servers(
        "--max-body-bytes", "20000", "--max-items", "5", "--max-depth", "12", "--max-text", "5000", "--max-tools", "2"
    )  # fmt: skip


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/conversations", "/v1/chat/completions"])
@pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
def test_a_body_that_is_too_large_is_a_413(small: OutliveServer, path: str, chunked: bool) -> None:
    body = json.dumps({"model": "m", "input": "x" * 20_000}).encode()
    connection = HTTPConnection("127.0.0.1", small.port, timeout=10)
    try:
        given: Any = (body[at : at + 1000] for at in range(0, len(body), 1000)) if chunked else body
        connection.request("POST", path, given, {"Content-Type": "application/json"}, encode_chunked=chunked)
        answer = Answer(connection.getresponse())
    finally:
        connection.close()
    assert answer.status == 413
    assert answer.error["code"] == "request_too_large"
    assert "20000" in answer.error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [{"role": "user", "content": "x"}] * 6}, "input"),
        ({"input": "x" * 5001}, "input"),
        ({"input": [{"role": "user", "content": "x" * 5001}]}, "input[0].content"),
        ({"instructions": "x" * 5001}, "instructions"),
        ({"tools": [{"type": "function", "name": f"f{n}", "parameters": {}} for n in range(3)]}, "tools"),
        ({"tools": [{"type": "function", "name": "f", "parameters": nested(20)}]}, "tools"),
        ({"vendor": nested(20)}, "vendor"),
        ({"input": [{"type": "acme:thing", "value": nested(20)}]}, "input"),
    ],
)
def test_a_request_with_too_many_or_too_long_values_is_a_400(
    small: OutliveServer, upstream: FakeUpstream, body: dict[str, Any], param: str
) -> None:
    model = upstream.model()
    with HttpClient(small.port) as http:
        answer = http.post("/v1/responses", {"model": model, "input": "Hi", **body})
        assert answer.status == 400
        assert answer.error["param"].startswith(param)
        assert http.get("/v1/responses").json()["data"] == []
    assert upstream.calls(model) == []


def test_deeply_nested_json_is_a_400(http: HttpClient) -> None:
    depth = 100_000
    for raw in (b"[" * depth + b"]" * depth, b'{"model":"m","input":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"):
        answer = http.post("/v1/responses", raw)
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"


def test_a_large_request_within_the_limit_is_accepted(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model(say("Read."))
    words = "otter " * 500_000
    answer = http.create(model=model, input=words)
    assert answer.status == 200
    assert upstream.calls(model)[0].messages[0]["content"] == words


def test_one_owner_of_several_cannot_fill_the_queue(servers: Servers, upstream: FakeUpstream) -> None:
    keys = ("--api-key", "anna=anna-key", "--api-key", "bert=bert-key")
    server = servers("--max-running", "2", "--max-waiting", "4", *keys)
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    with HttpClient(server.port, "anna-key") as anna, HttpClient(server.port, "bert-key") as bert:
        statuses = [anna.create(model=model, input=str(n), background=True).status for n in range(4)]
        assert statuses == [200, 200, 200, 429]
        assert bert.create(model=upstream.model(), input="Hi").json()["status"] == "completed"
        gate.open()


def test_chat_completions_count_as_running(servers: Servers, upstream: FakeUpstream) -> None:
    server = servers("--max-running", "2")
    gate = Gate()
    slow, quick = upstream.model([text("Hi"), gate, *ending()]), upstream.model()
    body = {"model": slow, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    with HttpClient(server.port) as http, http.open_stream("POST", "/v1/chat/completions", body) as running:
        running.response.read(10)
        created = http.create(model=slow, input="Hi", background=True).json()["id"]
        refused = http.post("/v1/chat/completions", {**body, "model": quick})
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert http.create(model=quick, input="Hi", background=True).json()["status"] == "queued"
        gate.open()
        assert b"[DONE]" in running.response.read()
        assert http.get(f"/v1/responses/{created}?wait=10").json()["status"] == "completed"
        assert http.post("/v1/chat/completions", {**body, "model": quick}).status == 200
    upstream.wait_call(quick, 2)  # the queued response may be the last to ask
    assert len(upstream.calls(quick)) == 2

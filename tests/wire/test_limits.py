"""Limits: what is too much is refused before anything is stored, and who waits is served in the right order."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection
from typing import Any

import pytest
from openai import OpenAI, RateLimitError

from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, say
from tests.wire import events
from tests.wire.conftest import Servers
from tests.wire.raw import Answer, Wire


@pytest.fixture
def narrow(servers: Servers) -> OutliveServer:
    """Room for one to run and two to wait."""
    return servers("--max-running", "1", "--max-waiting", "2")


def test_more_than_may_wait_is_a_429_and_leaves_nothing(narrow: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    refused_model = upstream.model()
    with Wire(narrow.port) as wire:
        ids = [wire.create(model=model, input=str(n), background=True).json()["id"] for n in range(3)]
        assert [wire.get(f"/v1/responses/{each}").json()["status"] for each in ids[1:]] == ["queued", "queued"]
        conversation = wire.post("/v1/conversations", {}).json()["id"]
        for body in ({}, {"stream": True}, {"background": True}, {"store": False}, {"conversation": conversation}):
            answer = wire.post("/v1/responses", {"model": refused_model, "input": "too much", **body})
            assert answer.status == 429
            assert answer.error["code"] == "rate_limit_exceeded"
            assert answer.error["type"] == "rate_limit_error"
            assert int(answer.headers["retry-after"]) >= 1
        assert wire.get("/v1/responses?limit=1").json()["first_id"] == ids[-1]
        assert wire.said(conversation) == []
        with (
            OpenAI(base_url=narrow.base_url, api_key="any", max_retries=0) as client,
            pytest.raises(RateLimitError),
        ):
            client.responses.create(model=refused_model, input="too much")
        gate.open()
        for each in ids:
            assert wire.get(f"/v1/responses/{each}?wait=10").json()["status"] == "completed"
        assert wire.create(model=upstream.model(), input="Hi", conversation=conversation).status == 200
    assert upstream.calls(refused_model) == []


def test_foreground_goes_before_background(narrow: OutliveServer, upstream: FakeUpstream) -> None:
    first, rest = Gate(), Gate()
    blocking = upstream.model([first, *say("first")])
    model = upstream.model([rest, *say("later")])
    with Wire(narrow.port) as wire:
        running = wire.create(model=blocking, input="running", background=True).json()["id"]
        behind = wire.create(model=model, input="background", background=True).json()["id"]
        stream = wire.stream(model=model, input="foreground")
        created = stream.frame()
        assert events.read(created)["response"]["status"] == "queued"
        first.open()
        upstream.wait_call(model, 1)
        rest.open()
        told = events.read_all(created + stream.rest())
        assert events.types(told)[:2] == ["created", "in_progress"]
        for each in (running, behind):
            assert wire.get(f"/v1/responses/{each}?wait=10").json()["status"] == "completed"
    assert [asked.messages[-1]["content"] for asked in upstream.calls(model)] == ["foreground", "background"]


def test_who_waits_is_served_in_order(narrow: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    with Wire(narrow.port) as wire:
        ids = [wire.create(model=model, input=str(n), background=True).json()["id"] for n in range(3)]
        gate.open()
        for each in ids:
            wire.get(f"/v1/responses/{each}?wait=10")
    assert [asked.messages[-1]["content"] for asked in upstream.calls(model)] == ["0", "1", "2"]


def test_who_waits_is_told_its_place_and_for_how_long(narrow: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    with Wire(narrow.port) as wire:
        running, first, second = (wire.create(model=model, input="x", background=True).json()["id"] for _ in range(3))
        listed = {each["id"]: each.get("outlive") for each in wire.get("/v1/responses").json()["data"]}
        assert listed[running] is None
        for place, waiting in enumerate((first, second), 1):
            queue = wire.get(f"/v1/responses/{waiting}").json()["outlive"]["queue"]
            assert queue == listed[waiting]["queue"]
            assert queue["place"] == place
            assert 0 <= queue["seconds"] < 20
        gate.open()
        assert "outlive" not in wire.get(f"/v1/responses/{second}?wait=10").json()


def test_a_plain_create_waits_its_turn(narrow: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    answers: list[Answer] = []
    with Wire(narrow.port) as wire:
        running = wire.create(model=upstream.model([gate, *say("Hi.")]), input="Hi", background=True).json()["id"]
        body = {"model": upstream.model(say("Mine.")), "input": "Hi"}
        asking = threading.Thread(target=lambda: answers.append(wire.post("/v1/responses", body)))
        asking.start()
        gate.wait_reached()
        gate.open()
        asking.join(10)
        wire.get(f"/v1/responses/{running}?wait=10")
    assert answers[0].json()["output"][0]["content"][0]["text"] == "Mine."


def test_one_owner_cannot_take_all_the_room(servers: Servers, upstream: FakeUpstream) -> None:
    shared = servers(
        "--api-key", "anna=anna-key", "--api-key", "bert=bert-key",
        "--max-running-per-owner", "1", "--max-waiting-per-owner", "1",
    )  # fmt: skip
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    with Wire(shared.port, "anna-key") as anna, Wire(shared.port, "bert-key") as bert:
        ids = [anna.create(model=model, input="Hi", background=True).json()["id"] for _ in range(2)]
        refused = anna.create(model=model, input="Hi", background=True)
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert bert.create(model=upstream.model(say("Mine.")), input="Hi").status == 200
        assert len(upstream.calls(model)) == 1
        gate.open()
        for each in ids:
            assert anna.get(f"/v1/responses/{each}?wait=10").json()["status"] == "completed"


# -- how much one request may hold


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
def test_a_request_that_holds_too_much_is_a_400(
    small: OutliveServer, upstream: FakeUpstream, body: dict[str, Any], param: str
) -> None:
    model = upstream.model()
    with Wire(small.port) as wire:
        answer = wire.post("/v1/responses", {"model": model, "input": "Hi", **body})
        assert answer.status == 400
        assert answer.error["param"].startswith(param)
        assert wire.get("/v1/responses").json()["data"] == []
    assert upstream.calls(model) == []


def test_absurdly_deep_json_is_a_400(wire: Wire) -> None:
    depth = 100_000
    for raw in (b"[" * depth + b"]" * depth, b'{"model":"m","input":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"):
        answer = wire.post("/v1/responses", raw)
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request_error"


def test_a_large_request_is_taken_where_it_is_allowed(wire: Wire, upstream: FakeUpstream) -> None:
    model = upstream.model(say("Read."))
    words = "otter " * 500_000
    answer = wire.create(model=model, input=words)
    assert answer.status == 200
    assert upstream.calls(model)[0].messages[0]["content"] == words

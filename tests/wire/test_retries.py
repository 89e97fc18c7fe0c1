"""Retried POSTs: with an Idempotency-Key, and the SDK's own silent ones, nobody pays twice (D17)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import signal
import socket
import threading
from typing import Any

import pytest
from openai import APITimeoutError, AsyncOpenAI, ConflictError, OpenAI

from tests.support.relay import Relay
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, Refuse, ending, say, text
from tests.wire import events
from tests.wire.conftest import Servers
from tests.wire.raw import Answer, Json, Wire

_numbers = itertools.count(1)


@pytest.fixture
def key() -> str:
    return f"key-{next(_numbers)}"


def post(wire: Wire, key: str, body: Json) -> Answer:
    return wire.post("/v1/responses", body, idempotency_key=key)


# -- with a key


@pytest.mark.parametrize("background", [False, True])
def test_the_same_key_and_body_is_the_same_response(
    wire: Wire, upstream: FakeUpstream, key: str, background: bool
) -> None:
    model = upstream.model(say("Hi."))
    body = {"model": model, "input": "Hi", "background": background}
    first = post(wire, key, body).json()
    wire.get(f"/v1/responses/{first['id']}?wait=10")
    second = post(wire, key, dict(reversed(body.items()))).json()  # in another order, it is the same JSON
    assert second["id"] == first["id"]
    assert second["output"][0]["content"][0]["text"] == "Hi."
    assert len(upstream.calls(model)) == 1


def test_the_sdk_may_be_given_a_key(client: OpenAI, upstream: FakeUpstream, key: str) -> None:
    model = upstream.model()
    made = [
        client.responses.create(model=model, input="Hi", extra_headers={"Idempotency-Key": key}).id for _ in range(3)
    ]
    assert len(set(made)) == 1
    assert len(upstream.calls(model)) == 1


def test_a_key_attaches_mid_stream_from_event_zero(wire: Wire, upstream: FakeUpstream, key: str) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    body = {"model": model, "input": "Hi", "stream": True}
    first = wire.open("POST", "/v1/responses", body, idempotency_key=key)
    seen = b"".join(first.until("response.output_text.delta"))
    first.reset()
    second = wire.open("POST", "/v1/responses", body, idempotency_key=key)
    assert b"".join(second.until("response.output_text.delta")) == seen
    gate.open()
    whole = seen + second.rest()
    assert events.text_of(events.read_all(whole)) == "Once upon."
    third = wire.open("POST", "/v1/responses", body, idempotency_key=key)
    assert third.rest() == whole
    assert len(upstream.calls(model)) == 1


def test_another_body_under_the_same_key_is_a_conflict(wire: Wire, upstream: FakeUpstream, key: str) -> None:
    model = upstream.model()
    post(wire, key, {"model": model, "input": "Hi"})
    for other in ({"input": "Ho"}, {"stream": True}, {"background": True}, {"metadata": {"a": "b"}}):
        answer = post(wire, key, {"model": model, "input": "Hi", **other})
        assert answer.status == 409
        assert answer.headers["x-should-retry"] == "false"
        assert answer.error["param"] == "Idempotency-Key"
    assert len(upstream.calls(model)) == 1


def test_the_sdk_does_not_retry_a_conflict(server: OutliveServer, upstream: FakeUpstream, key: str) -> None:
    model = upstream.model()
    with OpenAI(base_url=server.base_url, api_key="any", default_headers={"Idempotency-Key": key}) as client:
        client.responses.create(model=model, input="Hi")
        with pytest.raises(ConflictError):
            client.responses.create(model=model, input="Ho")


def test_a_key_whose_response_failed_starts_anew(wire: Wire, upstream: FakeUpstream, key: str) -> None:
    model = upstream.model([Refuse(400)], say("Hi."))
    body = {"model": model, "input": "Hi"}
    assert post(wire, key, body).status == 400
    second = post(wire, key, body)
    assert second.status == 200
    assert post(wire, key, body).json()["id"] == second.json()["id"]
    assert len(upstream.calls(model)) == 2


def test_a_key_whose_response_was_deleted_starts_anew(wire: Wire, upstream: FakeUpstream, key: str) -> None:
    model = upstream.model()
    body = {"model": model, "input": "Hi"}
    first = post(wire, key, body).json()["id"]
    wire.delete(f"/v1/responses/{first}")
    assert post(wire, key, body).json()["id"] != first
    assert len(upstream.calls(model)) == 2


def test_a_cancelled_response_answers_its_key_as_cancelled(wire: Wire, upstream: FakeUpstream, key: str) -> None:
    body = {"model": upstream.model([HANG]), "input": "Hi", "background": True}
    made = post(wire, key, body).json()["id"]
    wire.post(f"/v1/responses/{made}/cancel")
    again = post(wire, key, body).json()
    assert (again["id"], again["status"]) == (made, "cancelled")


def test_many_at_once_under_one_key_are_one_response(wire: Wire, upstream: FakeUpstream, key: str) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    body = {"model": model, "input": "Hi"}
    ids: list[str] = []
    askers = [threading.Thread(target=lambda: ids.append(post(wire, key, body).json()["id"])) for _ in range(8)]
    for asker in askers:
        asker.start()
    gate.wait_reached()
    gate.open()
    for asker in askers:
        asker.join(20)
    assert len(ids) == 8 and len(set(ids)) == 1
    assert len(upstream.calls(model)) == 1


def test_a_key_is_looked_at_before_the_conversations_lock(
    wire: Wire, client: OpenAI, upstream: FakeUpstream, key: str
) -> None:
    conversation = client.conversations.create().id
    gate = Gate()
    body = {"model": upstream.model([gate, *say("Hi.")]), "input": "Hi", "conversation": conversation, "stream": True}
    first = wire.open("POST", "/v1/responses", body, idempotency_key=key)
    created = first.frame()
    second = wire.open("POST", "/v1/responses", body, idempotency_key=key)
    assert second.status == 200
    assert second.frame() == created
    gate.open()
    assert created + first.rest() == created + second.rest()
    assert len(wire.said(conversation)) == 2


def test_a_key_is_looked_at_before_the_limits(servers: Servers, upstream: FakeUpstream, key: str) -> None:
    full = servers("--max-running", "1", "--max-waiting", "0")
    gate = Gate()
    with Wire(full.port) as wire:
        body = {"model": upstream.model([gate, *say("Hi.")]), "input": "Hi", "background": True}
        first = post(wire, key, body)
        assert first.status == 200
        assert wire.create(model="m", input="Another").status == 429
        second = post(wire, key, body)
        assert second.json()["id"] == first.json()["id"]
        gate.open()
        assert wire.get(f"/v1/responses/{first.json()['id']}?wait=10").json()["status"] == "completed"


def test_creating_a_conversation_twice_under_one_key_makes_one(wire: Wire, key: str) -> None:
    body = {"metadata": {"topic": "otters"}, "items": [{"role": "user", "content": "Hi"}]}
    first = wire.post("/v1/conversations", body, idempotency_key=key).json()
    assert wire.post("/v1/conversations", body, idempotency_key=key).json() == first
    assert wire.post("/v1/conversations", {}, idempotency_key=key).status == 409
    assert len(wire.said(first["id"])) == 1


def test_adding_items_twice_under_one_key_adds_them_once(
    wire: Wire, client: OpenAI, upstream: FakeUpstream, key: str
) -> None:
    conversation = client.conversations.create().id
    path, body = f"/v1/conversations/{conversation}/items", {"items": [{"role": "user", "content": "Hi"}]}
    first = wire.post(path, body, idempotency_key=key).json()
    assert wire.post(path, body, idempotency_key=key).json() == first
    assert wire.post(path, {"items": []}, idempotency_key=key).status == 409
    gate = Gate()
    stream = wire.stream(model=upstream.model([gate, *say("x")]), conversation=conversation)
    stream.until("response.created")
    assert wire.post(path, body, idempotency_key=key).json() == first  # before the lock, too
    gate.open()
    stream.until("response.completed")
    assert wire.said(conversation) == [("user", "Hi"), ("assistant", "x")]


# -- the SDK's silent ones


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("sdk", ["sync", "async"])
def test_a_silent_retry_through_a_cut_connection_pays_once(
    server: OutliveServer, upstream: FakeUpstream, stream: bool, sdk: str
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    said: list[str] = []
    with Relay(server.port) as relay:
        relay.swallow()
        ask = ask_sync if sdk == "sync" else ask_async
        asking = threading.Thread(target=lambda: said.append(ask(relay.base_url, model, stream)))
        asking.start()
        gate.wait_reached()
        relay.swallow(False)
        relay.cut()
        while relay.accepted < 2:
            assert asking.is_alive()
            asking.join(0.02)
        gate.open()
        asking.join(20)
    assert said == ["Once upon."]
    assert len(upstream.calls(model)) == 1
    assert upstream.calls(model)[0].over and not upstream.calls(model)[0].left


def ask_sync(base_url: str, model: str, stream: bool) -> str:
    with OpenAI(base_url=base_url, api_key="any", max_retries=2) as client:
        made: Any = client.responses.create(model=model, input="Hi", stream=stream)
        if not stream:
            return str(made.output_text)
        return "".join(event.delta for event in made if event.type == "response.output_text.delta")


def ask_async(base_url: str, model: str, stream: bool) -> str:
    async def run() -> str:
        async with AsyncOpenAI(base_url=base_url, api_key="any", max_retries=2) as client:
            made: Any = await client.responses.create(model=model, input="Hi", stream=stream)
            if not stream:
                return str(made.output_text)
            return "".join([event.delta async for event in made if event.type == "response.output_text.delta"])

    return asyncio.run(run())


def test_a_client_that_gave_up_waiting_finds_its_response_again(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Here.")])
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0, timeout=0.3) as client:
        with pytest.raises(APITimeoutError):
            client.responses.create(model=model, input="Hi")
        gate.wait_reached()
        gate.open()
        made = client.responses.create(
            model=model, input="Hi", timeout=20, extra_headers={"x-stainless-retry-count": "1"}
        )
    assert made.output_text == "Here."
    assert len(upstream.calls(model)) == 1


def retry(wire: Wire, body: Json, count: int) -> Answer:
    return wire.post("/v1/responses", body, x_stainless_retry_count=str(count))


def test_a_retry_of_what_was_delivered_is_a_new_request(wire: Wire, upstream: FakeUpstream) -> None:
    model = upstream.model()
    body = {"model": model, "input": "Hi"}
    first = retry(wire, body, 0).json()["id"]
    assert retry(wire, body, 1).json()["id"] != first
    assert len(upstream.calls(model)) == 2


def test_a_first_try_never_attaches(wire: Wire, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    body = {"model": model, "input": "Hi"}
    connection = wire.post_and_leave("/v1/responses", body, x_stainless_retry_count="0")
    gate.wait_reached()
    connection.close()
    gate.open()
    assert retry(wire, body, 0).status == 200
    assert wire.post("/v1/responses", body).status == 200
    assert len(upstream.calls(model)) == 3


@pytest.mark.parametrize("count", ["", "-1", "x", "\xb2", "9" * 5000])
def test_a_count_that_makes_no_sense_counts_for_nothing(wire: Wire, upstream: FakeUpstream, count: str) -> None:
    body = {"model": upstream.model(), "input": "Hi"}
    assert wire.post("/v1/responses", body, x_stainless_retry_count=count).status == 200


def test_a_retry_with_another_body_does_not_attach(wire: Wire, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    connection = wire.post_and_leave("/v1/responses", {"model": model, "input": "Hi"}, x_stainless_retry_count="0")
    gate.wait_reached()
    connection.close()
    gate.open()
    retry(wire, {"model": model, "input": "Ho"}, 1)
    assert len(upstream.calls(model)) == 2


def test_a_retry_attaches_to_what_has_ended_meanwhile(wire: Wire, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    body = {"model": model, "input": "Hi", "metadata": {"name": model}}
    connection = wire.post_and_leave("/v1/responses", body, x_stainless_retry_count="0")
    gate.wait_reached()
    connection.close()
    running = wire.running(model)
    gate.open()
    assert wire.get(f"/v1/responses/{running}?wait=10").json()["status"] == "completed"
    assert retry(wire, body, 1).json()["id"] == running
    assert retry(wire, body, 2).json()["id"] != running  # that one has been delivered now
    assert len(upstream.calls(model)) == 2


@pytest.mark.parametrize("background", [False, True], ids=["plain", "background"])
def test_an_answer_that_came_just_as_the_client_gave_up_is_not_delivered(
    wire: Wire, upstream: FakeUpstream, background: bool
) -> None:
    model = upstream.model()
    body = {"model": model, "input": "Hi", "background": background, "metadata": {"name": model}}
    connection = wire.post_and_leave("/v1/responses", body, x_stainless_retry_count="0")
    select.select([connection.sock], [], [], 20)  # it is there, and nobody reads it
    connection.close()
    again = retry(wire, body, 1)
    assert again.status == 200
    assert [again.json()["id"]] == wire.named(model)
    assert len(upstream.calls(model)) == 1


def test_an_answer_that_was_under_way_when_the_client_left_is_not_delivered(wire: Wire, upstream: FakeUpstream) -> None:
    model = upstream.model(say("long " * 1_000_000))
    body = {"model": model, "input": "Hi", "metadata": {"name": model}}
    connection = wire.post_and_leave("/v1/responses", body, x_stainless_retry_count="0")
    select.select([connection.sock], [], [], 20)
    connection.sock.shutdown(socket.SHUT_WR)  # goes in an orderly way, and before all of it has come
    again = retry(wire, body, 1)
    connection.close()
    assert again.status == 200
    assert [again.json()["id"]] == wire.named(model)
    assert len(upstream.calls(model)) == 1


def test_an_answer_that_was_read_is_delivered_however_the_client_goes_on(wire: Wire, upstream: FakeUpstream) -> None:
    model = upstream.model()
    body = {"model": model, "input": "Hi", "metadata": {"name": model}}
    with contextlib.ExitStack() as connections:
        for count, then in enumerate(("closes", "asks for something else", "keeps silent", "")):
            connection = wire.post_and_leave("/v1/responses", body, x_stainless_retry_count=str(count))
            connections.callback(connection.close)
            connection.getresponse().read()
            if then == "closes":
                connection.close()
            elif then == "asks for something else":
                connection.request("GET", "/v1/models")
                connection.getresponse().read()
    assert len(wire.named(model)) == 4
    assert len(upstream.calls(model)) == 4


def test_nothing_begins_for_a_client_that_has_left(servers: Servers, upstream: FakeUpstream) -> None:
    """It may have asked another node meanwhile, and have its answer. Whoever has a key repeats that, and may leave."""
    stopped = servers()
    model = upstream.model()
    body = {"model": model, "input": "Hi", "metadata": {"name": model}}
    with Wire(stopped.port) as wire:
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            for headers in ({}, {"idempotency_key": "key"}):
                wire.post_and_leave("/v1/responses", body, x_stainless_retry_count="0", **headers).close()
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        latest = wire.post("/v1/responses", body).json()["id"]
        under_key = post(wire, "key", body).json()["id"]
        assert set(wire.named(model)) == {latest, under_key}
    assert len(upstream.calls(model)) == 2
    assert "ERROR" not in stopped.log


def test_a_retry_while_the_first_is_still_being_answered_is_a_new_request(wire: Wire, upstream: FakeUpstream) -> None:
    """Two clients that ask the same thing at the same time are not one."""
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    body = {"model": model, "input": "Hi", "stream": True}
    first = wire.open("POST", "/v1/responses", body, x_stainless_retry_count="0")
    first_id = events.read(first.frame())["response"]["id"]
    second = wire.open("POST", "/v1/responses", body, x_stainless_retry_count="1")
    assert events.read(second.frame())["response"]["id"] != first_id
    gate.open()
    first.rest()
    second.rest()
    assert len(upstream.calls(model)) == 2

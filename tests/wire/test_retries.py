"""Retried POSTs, with an Idempotency-Key or the SDK's silent retries: no second upstream call is made (D17)."""

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

from tests.support.http_client import Answer, HttpClient, Json
from tests.support.proxy import DiscardAnswer, Proxy
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, Refuse, ending, say, text
from tests.wire import events
from tests.wire.conftest import Servers

_numbers = itertools.count(1)


@pytest.fixture
def key() -> str:
    return f"key-{next(_numbers)}"


def post(http: HttpClient, key: str, body: Json) -> Answer:
    return http.post("/v1/responses", body, idempotency_key=key)


# -- with a key


@pytest.mark.parametrize("background", [False, True])
def test_the_same_key_and_body_return_the_same_response(
    http: HttpClient, upstream: FakeUpstream, key: str, background: bool
) -> None:
    model = upstream.model(say("Hi."))
    body = {"model": model, "input": "Hi", "background": background}
    first = post(http, key, body).json()
    http.get(f"/v1/responses/{first['id']}?wait=10")
    second = post(http, key, dict(reversed(body.items()))).json()  # the same JSON in another order
    assert second["id"] == first["id"]
    assert second["output"][0]["content"][0]["text"] == "Hi."
    assert len(upstream.calls(model)) == 1


def test_the_sdk_sends_an_idempotency_key(client: OpenAI, upstream: FakeUpstream, key: str) -> None:
    model = upstream.model()
    made = [
        client.responses.create(model=model, input="Hi", extra_headers={"Idempotency-Key": key}).id for _ in range(3)
    ]
    assert len(set(made)) == 1
    assert len(upstream.calls(model)) == 1


def test_a_repeated_key_streams_from_the_first_event(http: HttpClient, upstream: FakeUpstream, key: str) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    body = {"model": model, "input": "Hi", "stream": True}
    first = http.open_stream("POST", "/v1/responses", body, idempotency_key=key)
    seen = b"".join(first.read_through("response.output_text.delta"))
    first.reset()
    second = http.open_stream("POST", "/v1/responses", body, idempotency_key=key)
    assert b"".join(second.read_through("response.output_text.delta")) == seen
    gate.open()
    whole = seen + second.read_rest()
    assert events.text_of(events.read_all(whole)) == "Once upon."
    third = http.open_stream("POST", "/v1/responses", body, idempotency_key=key)
    assert third.read_rest() == whole
    assert len(upstream.calls(model)) == 1


def test_another_body_with_the_same_key_is_a_conflict(http: HttpClient, upstream: FakeUpstream, key: str) -> None:
    model = upstream.model()
    post(http, key, {"model": model, "input": "Hi"})
    for other in ({"input": "Ho"}, {"stream": True}, {"background": True}, {"metadata": {"a": "b"}}):
        answer = post(http, key, {"model": model, "input": "Hi", **other})
        assert answer.status == 409
        assert answer.headers["x-should-retry"] == "false"
        assert answer.error["param"] == "Idempotency-Key"
    assert len(upstream.calls(model)) == 1


@pytest.mark.parametrize("path", ["responses", "conversations", "conversations/{id}/items"])
def test_a_key_of_more_than_255_characters_is_refused(
    http: HttpClient, upstream: FakeUpstream, key: str, path: str
) -> None:
    conversation = http.post("/v1/conversations", {}).json()["id"]
    path = f"/v1/{path.format(id=conversation)}"
    body = {"model": upstream.model(), "input": "Hi", "items": [{"role": "user", "content": "Hi"}]}
    body = {name: body[name] for name in (("items",) if "conversations" in path else ("model", "input"))}
    longest = key + "k" * (255 - len(key))
    refused = http.post(path, body, idempotency_key=longest + "k")
    assert (refused.status, refused.error["param"]) == (400, "Idempotency-Key")
    assert http.list_messages(conversation) == []
    assert http.post(path, body, idempotency_key=longest).status == 200


def test_the_sdk_does_not_retry_a_conflict(server: OutliveServer, upstream: FakeUpstream, key: str) -> None:
    model = upstream.model()
    with OpenAI(base_url=server.base_url, api_key="any", default_headers={"Idempotency-Key": key}) as client:
        client.responses.create(model=model, input="Hi")
        with pytest.raises(ConflictError):
            client.responses.create(model=model, input="Ho")


def test_a_key_of_a_failed_response_starts_a_new_one(http: HttpClient, upstream: FakeUpstream, key: str) -> None:
    model = upstream.model([Refuse(400)], say("Hi."))
    body = {"model": model, "input": "Hi"}
    assert post(http, key, body).status == 400
    second = post(http, key, body)
    assert second.status == 200
    assert post(http, key, body).json()["id"] == second.json()["id"]
    assert len(upstream.calls(model)) == 2


def test_a_key_of_a_deleted_response_starts_a_new_one(http: HttpClient, upstream: FakeUpstream, key: str) -> None:
    model = upstream.model()
    body = {"model": model, "input": "Hi"}
    first = post(http, key, body).json()["id"]
    http.delete(f"/v1/responses/{first}")
    assert post(http, key, body).json()["id"] != first
    assert len(upstream.calls(model)) == 2


def test_a_key_of_a_cancelled_response_returns_it(http: HttpClient, upstream: FakeUpstream, key: str) -> None:
    body = {"model": upstream.model([HANG]), "input": "Hi", "background": True}
    made = post(http, key, body).json()["id"]
    http.post(f"/v1/responses/{made}/cancel")
    again = post(http, key, body).json()
    assert (again["id"], again["status"]) == (made, "cancelled")


def test_concurrent_requests_with_one_key_create_one_response(
    http: HttpClient, upstream: FakeUpstream, key: str
) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    body = {"model": model, "input": "Hi"}
    ids: list[str] = []
    askers = [threading.Thread(target=lambda: ids.append(post(http, key, body).json()["id"])) for _ in range(8)]
    for asker in askers:
        asker.start()
    gate.wait_reached()
    gate.open()
    for asker in askers:
        asker.join(20)
    assert len(ids) == 8 and len(set(ids)) == 1
    assert len(upstream.calls(model)) == 1


def test_a_key_is_checked_before_the_conversations_lock(
    http: HttpClient, client: OpenAI, upstream: FakeUpstream, key: str
) -> None:
    conversation = client.conversations.create().id
    gate = Gate()
    body = {"model": upstream.model([gate, *say("Hi.")]), "input": "Hi", "conversation": conversation, "stream": True}
    first = http.open_stream("POST", "/v1/responses", body, idempotency_key=key)
    created = first.read_frame()
    second = http.open_stream("POST", "/v1/responses", body, idempotency_key=key)
    assert second.status == 200
    assert second.read_frame() == created
    gate.open()
    assert created + first.read_rest() == created + second.read_rest()
    assert len(http.list_messages(conversation)) == 2


def test_a_key_is_checked_before_the_limits(servers: Servers, upstream: FakeUpstream, key: str) -> None:
    full = servers("--max-running", "1", "--max-waiting", "0")
    gate = Gate()
    with HttpClient(full.port) as http:
        body = {"model": upstream.model([gate, *say("Hi.")]), "input": "Hi", "background": True}
        first = post(http, key, body)
        assert first.status == 200
        assert http.create(model="m", input="Another").status == 429
        second = post(http, key, body)
        assert second.json()["id"] == first.json()["id"]
        gate.open()
        assert http.get(f"/v1/responses/{first.json()['id']}?wait=10").json()["status"] == "completed"


def test_one_key_creates_one_conversation(http: HttpClient, key: str) -> None:
    body = {"metadata": {"topic": "otters"}, "items": [{"role": "user", "content": "Hi"}]}
    first = http.post("/v1/conversations", body, idempotency_key=key).json()
    assert http.post("/v1/conversations", body, idempotency_key=key).json() == first
    assert http.post("/v1/conversations", {}, idempotency_key=key).status == 409
    assert len(http.list_messages(first["id"])) == 1


def test_one_key_adds_items_once(http: HttpClient, client: OpenAI, upstream: FakeUpstream, key: str) -> None:
    conversation = client.conversations.create().id
    path, body = f"/v1/conversations/{conversation}/items", {"items": [{"role": "user", "content": "Hi"}]}
    first = http.post(path, body, idempotency_key=key).json()
    assert http.post(path, body, idempotency_key=key).json() == first
    assert http.post(path, {"items": []}, idempotency_key=key).status == 409
    gate = Gate()
    stream = http.stream(model=upstream.model([gate, *say("x")]), conversation=conversation)
    stream.read_through("response.created")
    assert http.post(path, body, idempotency_key=key).json() == first  # although the conversation is locked
    gate.open()
    stream.read_through("response.completed")
    assert http.list_messages(conversation) == [("user", "Hi"), ("assistant", "x")]


# -- the SDK's silent retries


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("sdk", ["sync", "async"])
def test_a_silent_retry_after_a_cut_connection_makes_no_second_upstream_call(
    server: OutliveServer, upstream: FakeUpstream, stream: bool, sdk: str
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    said: list[str] = []
    with Proxy(server.port, DiscardAnswer()) as proxy:
        ask = ask_sync if sdk == "sync" else ask_async
        asking = threading.Thread(target=lambda: said.append(ask(proxy.base_url, model, stream)))
        asking.start()
        gate.wait_reached()
        proxy.cut()
        while proxy.accepted < 2:
            assert asking.is_alive()
            asking.join(0.02)
        gate.open()
        asking.join(20)
    assert said == ["Once upon."]
    assert len(upstream.calls(model)) == 1
    assert upstream.calls(model)[0].finished and not upstream.calls(model)[0].disconnected


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


def test_a_retry_after_a_client_timeout_gets_the_same_response(server: OutliveServer, upstream: FakeUpstream) -> None:
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


def retry(http: HttpClient, body: Json, count: int) -> Answer:
    return http.post("/v1/responses", body, x_stainless_retry_count=str(count))


def test_a_retry_of_a_delivered_answer_is_a_new_request(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model()
    body = {"model": model, "input": "Hi"}
    first = retry(http, body, 0).json()["id"]
    assert retry(http, body, 1).json()["id"] != first
    assert len(upstream.calls(model)) == 2


def test_a_first_try_never_attaches(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    body = {"model": model, "input": "Hi"}
    connection = http.send("/v1/responses", body, x_stainless_retry_count="0")
    gate.wait_reached()
    connection.close()
    gate.open()
    assert retry(http, body, 0).status == 200
    assert http.post("/v1/responses", body).status == 200
    assert len(upstream.calls(model)) == 3


@pytest.mark.parametrize("count", ["", "-1", "x", "\xb2", "9" * 5000])
def test_an_invalid_retry_count_is_ignored(http: HttpClient, upstream: FakeUpstream, count: str) -> None:
    body = {"model": upstream.model(), "input": "Hi"}
    assert http.post("/v1/responses", body, x_stainless_retry_count=count).status == 200


def test_a_retry_with_another_body_does_not_attach(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    connection = http.send("/v1/responses", {"model": model, "input": "Hi"}, x_stainless_retry_count="0")
    gate.wait_reached()
    connection.close()
    gate.open()
    retry(http, {"model": model, "input": "Ho"}, 1)
    assert len(upstream.calls(model)) == 2


def test_a_retry_attaches_to_a_response_that_has_ended(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    body = {"model": model, "input": "Hi", "metadata": {"name": model}}
    connection = http.send("/v1/responses", body, x_stainless_retry_count="0")
    gate.wait_reached()
    connection.close()
    running = http.find_running(model)
    gate.open()
    assert http.get(f"/v1/responses/{running}?wait=10").json()["status"] == "completed"
    assert retry(http, body, 1).json()["id"] == running
    assert retry(http, body, 2).json()["id"] != running  # because it is delivered now
    assert len(upstream.calls(model)) == 2


@pytest.mark.parametrize("background", [False, True], ids=["plain", "background"])
def test_an_unread_answer_does_not_count_as_delivered(
    http: HttpClient, upstream: FakeUpstream, background: bool
) -> None:
    model = upstream.model()
    body = {"model": model, "input": "Hi", "background": background, "metadata": {"name": model}}
    connection = http.send("/v1/responses", body, x_stainless_retry_count="0")
    select.select([connection.sock], [], [], 20)  # the answer has arrived and is not read
    connection.close()
    again = retry(http, body, 1)
    assert again.status == 200
    assert [again.json()["id"]] == http.find_named(model)
    upstream.wait_call(model)  # in the background it comes after the answer
    assert len(upstream.calls(model)) == 1


def test_a_partly_sent_answer_does_not_count_as_delivered(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model(say("long " * 1_000_000))
    body = {"model": model, "input": "Hi", "metadata": {"name": model}}
    connection = http.send("/v1/responses", body, x_stainless_retry_count="0")
    select.select([connection.sock], [], [], 20)
    connection.sock.shutdown(socket.SHUT_WR)  # an orderly close before the end of the answer
    again = retry(http, body, 1)
    connection.close()
    assert again.status == 200
    assert [again.json()["id"]] == http.find_named(model)
    assert len(upstream.calls(model)) == 1


def test_an_answer_that_was_read_counts_as_delivered(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model()
    body = {"model": model, "input": "Hi", "metadata": {"name": model}}
    with contextlib.ExitStack() as connections:
        for count, then in enumerate(("closes", "asks for something else", "keeps silent", "")):
            connection = http.send("/v1/responses", body, x_stainless_retry_count=str(count))
            connections.callback(connection.close)
            connection.getresponse().read()
            if then == "closes":
                connection.close()
            elif then == "asks for something else":
                connection.request("GET", "/v1/models")
                connection.getresponse().read()
    assert len(http.find_named(model)) == 4
    assert len(upstream.calls(model)) == 4


def test_a_request_of_a_disconnected_client_is_not_started(servers: Servers, upstream: FakeUpstream) -> None:
    """The client may have retried at another node already. A request with a key starts: its retry finds it."""
    stopped = servers()
    model = upstream.model()
    body = {"model": model, "input": "Hi", "metadata": {"name": model}}
    with HttpClient(stopped.port) as http:
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            for headers in ({}, {"idempotency_key": "key"}):
                http.send("/v1/responses", body, x_stainless_retry_count="0", **headers).close()
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        latest = http.post("/v1/responses", body).json()["id"]
        under_key = post(http, "key", body).json()["id"]
        assert set(http.find_named(model)) == {latest, under_key}
    assert len(upstream.calls(model)) == 2
    assert "ERROR" not in stopped.log


def test_a_retry_while_the_first_is_still_being_answered_is_a_new_request(
    http: HttpClient, upstream: FakeUpstream
) -> None:
    """Two clients with the same request at the same time get a response each."""
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    body = {"model": model, "input": "Hi", "stream": True}
    first = http.open_stream("POST", "/v1/responses", body, x_stainless_retry_count="0")
    first_id = events.read(first.read_frame())["response"]["id"]
    second = http.open_stream("POST", "/v1/responses", body, x_stainless_retry_count="1")
    assert events.read(second.read_frame())["response"]["id"] != first_id
    gate.open()
    first.read_rest()
    second.read_rest()
    assert len(upstream.calls(model)) == 2

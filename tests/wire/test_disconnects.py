"""Disconnects of clients: stored responses continue, others end with their client (D1, D4)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest
from openai import AsyncOpenAI

from tests.support.http_client import EventStream, HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, ending, say, text
from tests.wire import events
from tests.wire.conftest import Servers

LEAVE: dict[str, Callable[[EventStream], None]] = {"close": EventStream.close, "reset": EventStream.reset}


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
@pytest.mark.parametrize("moment", ["first_event", "mid_text"])
def test_a_stored_stream_continues_after_its_client_disconnects(
    http: HttpClient, upstream: FakeUpstream, leave: str, background: bool, moment: str
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon "), text("a time."), *ending()])
    stream = http.stream(model=model, input="Hi", background=background)
    frames = [stream.read_frame()] if moment == "first_event" else stream.read_through("response.output_text.delta")
    response_id = events.read(frames[0])["response"]["id"]
    LEAVE[leave](stream)
    gate.wait_reached()
    assert http.get(f"/v1/responses/{response_id}").json()["status"] in ("queued", "in_progress")
    gate.open()
    ended = http.get(f"/v1/responses/{response_id}?wait=10").json()
    assert ended["status"] == "completed"
    assert ended["output"][0]["content"][0]["text"] == "Once upon a time."
    assert not upstream.calls(model)[0].disconnected
    with http.follow(response_id) as again:
        whole = again.read_rest()
    assert whole.startswith(b"".join(frames))  # the events that the client saw are the stored ones
    events.read_all(whole)


def test_a_stored_plain_create_continues_after_its_client_disconnects(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Here.")])
    connection = http.send("/v1/responses", {"model": model, "input": "Hi", "metadata": {"name": model}})
    gate.wait_reached()
    connection.close()
    running = http.find_running(model)
    gate.open()
    assert http.get(f"/v1/responses/{running}?wait=10").json()["status"] == "completed"


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_an_unstored_response_ends_when_its_client_disconnects(
    http: HttpClient, upstream: FakeUpstream, stream: bool
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, HANG])
    body = {"model": model, "input": "Hi", "store": False, "stream": stream}
    connection = http.send("/v1/responses", body)
    gate.wait_reached()
    gate.open()
    left_at = time.monotonic()
    connection.close()
    asked = upstream.calls(model)[0]
    asked.wait_disconnected()
    assert asked.disconnected_at is not None and asked.disconnected_at - left_at < 1.0


@pytest.mark.parametrize("leave", LEAVE)
def test_a_disconnect_between_events_is_noticed(http: HttpClient, upstream: FakeUpstream, leave: str) -> None:
    gates = [Gate() for _ in range(2)]
    model = upstream.model([text("Once "), gates[0], text("upon "), gates[1], text("a "), HANG])
    stream = http.stream(model=model, input="Hi", store=False)
    for gate in gates:
        stream.read_through("response.output_text.delta")
        gate.open()
    stream.read_through("response.output_text.delta")
    LEAVE[leave](stream)
    left_at = time.monotonic()
    asked = upstream.calls(model)[0]
    asked.wait_disconnected()
    assert asked.disconnected_at is not None and asked.disconnected_at - left_at < 1.0


def test_a_disconnect_with_a_pipelined_request_does_not_affect_another_reader(
    http: HttpClient, upstream: FakeUpstream
) -> None:
    gates = [Gate() for _ in range(3)]
    steps = [step for gate in gates for step in (gate, text("more "))]
    stream = http.stream(model=upstream.model([text("Once "), *steps, *ending()]), input="Hi")
    response_id = events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
    other = http.follow(response_id)
    seen = other.read_through("response.output_text.delta")
    stream.send_more(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    stream.reset()
    for gate in gates:
        gate.open()
        seen += other.read_through("response.output_text.delta")
    assert events.text_of(events.read_all(b"".join(seen) + other.read_rest())) == "Once more more more "


def test_a_cancelled_async_client_does_not_end_its_stored_run(
    server: OutliveServer, http: HttpClient, upstream: FakeUpstream
) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Here.")])

    async def run() -> None:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            task = asyncio.create_task(client.responses.create(model=model, input="Hi", metadata={"name": model}))
            await asyncio.to_thread(gate.wait_reached)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    gate.open()
    upstream.calls(model)[0].wait_finished()
    assert not upstream.calls(model)[0].disconnected
    newest = http.get("/v1/responses?limit=1").json()["data"][0]
    assert http.get(f"/v1/responses/{newest['id']}?wait=10").json()["metadata"] == {"name": model}


def test_a_disconnect_does_not_affect_another_reader(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    stream = http.stream(model=upstream.model([text("Once "), gate, text("upon."), *ending()]), input="Hi")
    response_id = events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
    others = [http.follow(response_id) for _ in range(4)]
    for other in others:
        other.read_through("response.output_text.delta")
    stream.reset()
    others[0].close()
    gate.open()
    for other in others[1:]:
        assert other.read_rest().endswith(events.DONE)


def test_the_setting_cancels_abandoned_foreground_runs(servers: Servers, upstream: FakeUpstream) -> None:
    caring = servers("--abandon-after", "0.4", "--keep-alive-seconds", "0.2")
    with HttpClient(caring.port) as http:
        model = upstream.model([text("Once "), HANG])
        read, left = http.stream(model=model, input="read"), http.stream(model=model, input="left")
        ids = [
            events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
            for stream in (read, left)
        ]
        background = http.create(model=model, input="background", background=True).json()["id"]
        left.close()
        upstream.wait_call(model, 2)
        # A GET that waits for the end would count as a reader, so this one polls.
        deadline = time.monotonic() + 10
        while http.get(f"/v1/responses/{ids[1]}").json()["status"] != "cancelled":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert http.get(f"/v1/responses/{ids[0]}").json()["status"] == "in_progress"
        assert http.get(f"/v1/responses/{background}").json()["status"] == "in_progress"
        read.close()


def test_an_unfinished_request_stores_nothing(http: HttpClient, upstream: FakeUpstream) -> None:
    before = http.get("/v1/responses?limit=1").json()["first_id"]
    with socket.create_connection(("127.0.0.1", http.port)) as half:
        half.sendall(
            b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"model": "m", "inp'
        )
    assert http.get("/v1/responses?limit=1").json()["first_id"] == before

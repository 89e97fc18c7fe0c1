"""Clients that leave: what is stored runs on, what is not stored ends with them (D1, D4)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest
from openai import AsyncOpenAI

from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, ending, say, text
from tests.wire import events
from tests.wire.conftest import Servers
from tests.wire.raw import Stream, Wire

LEAVE: dict[str, Callable[[Stream], None]] = {"close": Stream.close, "reset": Stream.reset}


@pytest.mark.parametrize("leave", LEAVE)
@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
@pytest.mark.parametrize("moment", ["first_event", "mid_text"])
def test_a_stored_stream_runs_on_without_its_reader(
    wire: Wire, upstream: FakeUpstream, leave: str, background: bool, moment: str
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon "), text("a time."), *ending()])
    stream = wire.stream(model=model, input="Hi", background=background)
    frames = [stream.frame()] if moment == "first_event" else stream.until("response.output_text.delta")
    response_id = events.read(frames[0])["response"]["id"]
    LEAVE[leave](stream)
    gate.wait_reached()
    assert wire.get(f"/v1/responses/{response_id}").json()["status"] in ("queued", "in_progress")
    gate.open()
    ended = wire.get(f"/v1/responses/{response_id}?wait=10").json()
    assert ended["status"] == "completed"
    assert ended["output"][0]["content"][0]["text"] == "Once upon a time."
    assert not upstream.calls(model)[0].left
    with wire.follow(response_id) as again:
        whole = again.rest()
    assert whole.startswith(b"".join(frames))  # what was seen is what was kept
    events.read_all(whole)


def test_a_stored_plain_create_runs_on_without_its_caller(wire: Wire, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Here.")])
    connection = wire.post_and_leave("/v1/responses", {"model": model, "input": "Hi", "metadata": {"name": model}})
    gate.wait_reached()
    connection.close()
    running = wire.running(model)
    gate.open()
    assert wire.get(f"/v1/responses/{running}?wait=10").json()["status"] == "completed"


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_what_is_not_stored_ends_with_its_client(wire: Wire, upstream: FakeUpstream, stream: bool) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, HANG])
    body = {"model": model, "input": "Hi", "store": False, "stream": stream}
    connection = wire.post_and_leave("/v1/responses", body)
    gate.wait_reached()
    gate.open()
    left_at = time.monotonic()
    connection.close()
    asked = upstream.calls(model)[0]
    asked.wait_left(5)
    assert asked.left_at is not None and asked.left_at - left_at < 1.0


@pytest.mark.parametrize("leave", LEAVE)
def test_a_client_that_leaves_while_events_are_passed_on_is_noticed(
    wire: Wire, upstream: FakeUpstream, leave: str
) -> None:
    gates = [Gate() for _ in range(2)]
    model = upstream.model([text("Once "), gates[0], text("upon "), gates[1], text("a "), HANG])
    stream = wire.stream(model=model, input="Hi", store=False)
    for gate in gates:
        stream.until("response.output_text.delta")
        gate.open()
    stream.until("response.output_text.delta")
    LEAVE[leave](stream)
    left_at = time.monotonic()
    asked = upstream.calls(model)[0]
    asked.wait_left(5)
    assert asked.left_at is not None and asked.left_at - left_at < 1.0


def test_a_client_that_breaks_off_with_a_request_behind_does_not_disturb_another_reader(
    wire: Wire, upstream: FakeUpstream
) -> None:
    gates = [Gate() for _ in range(3)]
    steps = [step for gate in gates for step in (gate, text("more "))]
    stream = wire.stream(model=upstream.model([text("Once "), *steps, *ending()]), input="Hi")
    response_id = events.read(stream.until("response.output_text.delta")[0])["response"]["id"]
    other = wire.follow(response_id)
    seen = other.until("response.output_text.delta")
    stream.ask_more(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    stream.reset()
    for gate in gates:
        gate.open()
        seen += other.until("response.output_text.delta")
    assert events.text_of(events.read_all(b"".join(seen) + other.rest())) == "Once more more more "


def test_an_async_client_that_is_cancelled_leaves_its_stored_run_alone(
    server: OutliveServer, wire: Wire, upstream: FakeUpstream
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
    upstream.calls(model)[0].wait_over()
    assert not upstream.calls(model)[0].left
    newest = wire.get("/v1/responses?limit=1").json()["data"][0]
    assert wire.get(f"/v1/responses/{newest['id']}?wait=10").json()["metadata"] == {"name": model}


def test_one_reader_that_leaves_does_not_disturb_another(wire: Wire, upstream: FakeUpstream) -> None:
    gate = Gate()
    stream = wire.stream(model=upstream.model([text("Once "), gate, text("upon."), *ending()]), input="Hi")
    response_id = events.read(stream.until("response.output_text.delta")[0])["response"]["id"]
    others = [wire.follow(response_id) for _ in range(4)]
    for other in others:
        other.until("response.output_text.delta")
    stream.reset()
    others[0].close()
    gate.open()
    for other in others[1:]:
        assert other.rest().endswith(events.DONE)


def test_an_abandoned_foreground_run_is_cancelled_where_the_setting_says_so(
    servers: Servers, upstream: FakeUpstream
) -> None:
    caring = servers("--abandon-after", "0.4", "--keep-alive-seconds", "0.2")
    with Wire(caring.port) as wire:
        model = upstream.model([text("Once "), HANG])
        read, left = wire.stream(model=model, input="read"), wire.stream(model=model, input="left")
        ids = [events.read(stream.until("response.output_text.delta")[0])["response"]["id"] for stream in (read, left)]
        background = wire.create(model=model, input="background", background=True).json()["id"]
        left.close()
        upstream.wait_call(model, 2)
        # a GET that waits for the end would be a reader, so this one only looks
        deadline = time.monotonic() + 10
        while wire.get(f"/v1/responses/{ids[1]}").json()["status"] != "cancelled":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert wire.get(f"/v1/responses/{ids[0]}").json()["status"] == "in_progress"
        assert wire.get(f"/v1/responses/{background}").json()["status"] == "in_progress"
        read.close()


def test_a_request_that_was_never_whole_leaves_nothing(wire: Wire, upstream: FakeUpstream) -> None:
    before = wire.get("/v1/responses?limit=1").json()["first_id"]
    with socket.create_connection(("127.0.0.1", wire.port)) as half:
        half.sendall(
            b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"model": "m", "inp'
        )
    assert wire.get("/v1/responses?limit=1").json()["first_id"] == before

"""Readers that are slow or idle, and requests that are huge: each is its own problem, not the others'."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path

import pytest

from tests.crash.conftest import Serve
from tests.support.checks import check_ended
from tests.support.http_client import EventStream, HttpClient, text_of
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, Pause, Step, say, text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")

MB = 1_000_000


def open_slowly(port: int, path: str) -> EventStream:
    """A stream whose client has little room and does not read."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.sock = socket.socket()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    connection.sock.connect(("127.0.0.1", port))
    connection.request("GET", path)
    return EventStream(connection, connection.getresponse())


def ticking(seconds: float) -> list[Step]:
    """A piece of text every 20 ms."""
    steps: list[Step] = []
    for n in range(int(seconds / 0.02)):
        steps += [text(f"{n} "), Pause(0.02)]
    return [*steps, *say("end")]


def largest_gap(stream: EventStream, since: float, until: float) -> float:
    times = [at for at in stream.times if since <= at <= until]
    return max(after - before for before, after in pairwise(times))


def test_slow_readers_hold_little_and_get_everything_later(
    upstream: FakeUpstream, server: OutliveServer, client: HttpClient
) -> None:
    gate = Gate()
    word = b"data: %b\n\n" % json.dumps(text("w")).encode()
    model = upstream.model([text("First "), gate, word * 40_000, *say("last")])
    response_id = client.submit(model)
    wait_until(lambda: text_of(client.retrieve(response_id)) == "First ", "it has begun")
    readers = [open_slowly(server.port, f"/v1/responses/{response_id}?stream=true") for _ in range(40)]
    for reader in readers:
        reader.read_until(lambda event: event.get("delta") == "First ")
    resident = server.resident_bytes
    gate.open()
    with client.stream(upstream.model(ticking(0.5))) as other:
        other.read_all()
    assert other.complete, "others flow"
    assert client.wait_ended(response_id)["status"] == "completed"
    # They have 9 MB to come, each; the kernel holds some of it, and we a page or two.
    grown = server.resident_bytes - resident
    print(f"40 slow readers of a stream of 9 MB: {grown / MB:.0f} MB")
    assert grown < 80 * MB
    for reader in readers[2:]:
        reader.close()
    for reader in readers[:2]:
        reader.read_all()
        assert reader.complete
    assert readers[0].frames == readers[1].frames
    check_ended(client, response_id, readers[0].frames)


def test_a_thousand_idle_subscribers_cost_little(
    upstream: FakeUpstream, server: OutliveServer, client: HttpClient
) -> None:
    gate = Gate()
    response_id = client.submit(upstream.model([text("Wait for it "), gate, *say("now")]))
    wait_until(lambda: text_of(client.retrieve(response_id)) == "Wait for it ", "it has begun")
    resident = server.resident_bytes
    sockets = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(1000)]
    try:
        ask = f"GET /v1/responses/{response_id}?stream=true HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n\r\n"
        for each in sockets:
            each.sendall(ask.encode())
        got = [read_up_to(each, b"Wait for it ") for each in sockets]
        used, began = server.cpu_seconds, time.monotonic()
        time.sleep(2)
        share = (server.cpu_seconds - used) / (time.monotonic() - began)
        per_reader = (server.resident_bytes - resident) / len(sockets)
        print(f"1,000 idle subscribers: {per_reader / 1000:.1f} KB each, {share:.1%} of a core")
        assert per_reader < 60_000
        assert share < 0.1
        gate.open()
        assert all(
            b"Wait for it " in before and read_up_to(each, b"[DONE]") for each, before in zip(sockets, got, strict=True)
        )
    finally:
        for each in sockets:
            each.close()


def read_up_to(source: socket.socket, end: bytes) -> bytes:
    got = b""
    while end not in got:
        piece = source.recv(65536)
        assert piece, got[-200:]
        got += piece
    return got


@pytest.fixture
def sink() -> Iterator[int]:
    """The port of an upstream that takes whatever comes, without troubling this process."""
    program = [sys.executable, str(Path(__file__).with_name("sink.py"))]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


@pytest.mark.parametrize("shape", ["a few long strings", "many items"])
def test_a_huge_request_does_not_make_other_streams_stutter(
    shape: str, upstream: FakeUpstream, make_server: Serve, sink: int, tmp_path: Path
) -> None:
    config = tmp_path / "two.toml"
    config.write_text(
        f'[upstreams.scripted]\nurl = "{upstream.url}"\ndefault = true\n'
        f'[upstreams.sink]\nurl = "http://127.0.0.1:{sink}/v1"\n'
    )
    server = make_server("--config", str(config))
    server.upstream = None
    server.start()
    client = HttpClient(server.port)
    length, count = (10 * MB, 3) if shape == "a few long strings" else (3_000, 9_000)
    items = [{"role": "user", "content": "x" * length} for _ in range(count)]
    body = tmp_path / "huge.json"
    body.write_text(json.dumps({"model": "sink/any", "input": items}))
    assert body.stat().st_size > 27 * MB

    stream = client.stream(upstream.model(ticking(6)))
    thread = stream.read_in_background()
    stream.wait_frames(30)
    gaps = []
    for _ in range(2):
        since = time.monotonic()
        answer = post_file(server, body)
        assert answer["status"] == "completed", answer
        gaps.append(largest_gap(stream, since, time.monotonic()))
    stream.shut_down()
    thread.join()
    print(f"a request of 30 MB ({shape}): largest gap {min(gaps) * 1000:.0f} ms ({gaps})")
    assert min(gaps) < 0.25


def post_file(server: OutliveServer, body: Path) -> dict[str, object]:
    """From another process, which must not hold this one back."""
    words = ["curl", "-sS", "-X", "POST", f"{server.url}/v1/responses", "-H", "content-type: application/json"]
    done = subprocess.run([*words, "--data-binary", f"@{body}"], capture_output=True, check=True, timeout=60)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_a_request_over_the_limit_is_refused_before_anything_is_stored(
    make_server: Serve, upstream: FakeUpstream
) -> None:
    server = make_server("--max-body-bytes", "100000").start()
    client = HttpClient(server.port)
    refused = client.create(upstream.model(say("x")), input="x" * 200_000)
    assert (refused.status, refused.json()["error"]["code"]) == (413, "request_too_large")
    assert client.get("/v1/responses").json()["data"] == []

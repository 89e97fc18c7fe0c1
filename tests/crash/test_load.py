"""Slow and idle readers, and huge requests: none of them slows others down or uses much memory."""

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

from tests.crash.conftest import MakeServer
from tests.support.checks import check_ended
from tests.support.http_client import EventStream, HttpClient, text_of
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, Pause, Step, say, text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")

MB = 1_000_000
# The longest time that the parsing of a huge request may block other streams.
GAP_SECONDS = 0.25


def open_slowly(port: int, path: str) -> EventStream:
    """Open a stream whose client has a small receive buffer and does not read."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.sock = socket.socket()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    connection.sock.connect(("127.0.0.1", port))
    connection.request("GET", path)
    return EventStream(connection, connection.getresponse())


def stream_ticks(seconds: float) -> list[Step]:
    """Return a script with a piece of text every 20 ms."""
    steps: list[Step] = []
    for n in range(int(seconds / 0.02)):
        steps += [text(f"{n} "), Pause(0.02)]
    return [*steps, *say("end")]


def largest_gap(stream: EventStream, since: float, until: float) -> float:
    times = [at for at in stream.times if since <= at <= until]
    return max(after - before for before, after in pairwise(times))


def test_slow_readers_use_little_memory_and_get_every_event(
    upstream: FakeUpstream, server: OutliveServer, client: HttpClient
) -> None:
    gate = Gate()
    word = b"data: %b\n\n" % json.dumps(text("w")).encode()
    model = upstream.model([text("First "), gate, word * 40_000, *say("last")])
    response_id = client.submit(model)
    wait_until(lambda: text_of(client.retrieve(response_id)) == "First ", "it has started")
    readers = [open_slowly(server.port, f"/v1/responses/{response_id}?stream=true") for _ in range(40)]
    for reader in readers:
        reader.read_delta("First ")
    resident = server.resident_bytes
    gate.open()
    with client.stream(upstream.model(stream_ticks(0.5))) as other:
        other.read_all()
    assert other.complete, "other streams are not blocked"
    assert client.wait_ended(response_id)["status"] == "completed"
    # Each has 9 MB to come; the kernel buffers some of it, and the server a page or two.
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


def test_a_thousand_idle_readers_use_little_memory_and_cpu(
    upstream: FakeUpstream, server: OutliveServer, client: HttpClient
) -> None:
    gate = Gate()
    response_id = client.submit(upstream.model([text("Wait for it "), gate, *say("now")]))
    wait_until(lambda: text_of(client.retrieve(response_id)) == "Wait for it ", "it has started")
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
def discarding_port() -> Iterator[int]:
    """The port of an upstream that discards all requests, in a process of its own to keep this one responsive."""
    program = [sys.executable, str(Path(__file__).with_name("discarding_upstream.py"))]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


@pytest.mark.parametrize("shape", ["a few long strings", "many items"])
def test_a_huge_request_does_not_delay_other_streams(
    shape: str, upstream: FakeUpstream, make_server: MakeServer, discarding_port: int, tmp_path: Path
) -> None:
    config = tmp_path / "two.toml"
    config.write_text(
        f'[upstreams.scripted]\nurl = "{upstream.url}"\ndefault = true\n'
        f'[upstreams.discarding]\nurl = "http://127.0.0.1:{discarding_port}/v1"\n'
    )
    server = make_server("--config", str(config))
    server.upstream = None
    server.start()
    client = server.client
    length, count = (10 * MB, 3) if shape == "a few long strings" else (3_000, 9_000)
    items = [{"role": "user", "content": "x" * length} for _ in range(count)]
    body = tmp_path / "huge.json"
    body.write_text(json.dumps({"model": "discarding/any", "input": items}))
    assert body.stat().st_size > 27 * MB

    stream = client.stream(upstream.model(stream_ticks(60)))
    thread = stream.read_in_background()
    stream.wait_frames(30)
    # Other processes of a busy machine can only add to a gap, so that the smallest of a few is the server's own.
    gaps: list[float] = []
    while len(gaps) < 8 and (not gaps or min(gaps) >= GAP_SECONDS):
        since = time.monotonic()
        answer = post_file(server, body)
        assert answer["status"] == "completed", answer
        gaps.append(largest_gap(stream, since, time.monotonic()))
    stream.shut_down()
    thread.join()
    print(f"a request of 30 MB ({shape}): largest gap {min(gaps) * 1000:.0f} ms ({gaps})")
    assert min(gaps) < GAP_SECONDS


def post_file(server: OutliveServer, body: Path) -> dict[str, object]:
    """Send the file from another process, which keeps this one responsive."""
    command = ["curl", "-sS", "-X", "POST", f"{server.url}/v1/responses", "-H", "content-type: application/json"]
    done = subprocess.run([*command, "--data-binary", f"@{body}"], capture_output=True, check=True, timeout=60)
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_a_request_over_the_limit_is_refused_and_not_stored(make_server: MakeServer, upstream: FakeUpstream) -> None:
    server = make_server("--max-body-bytes", "100000").start()
    client = server.client
    refused = client.create(upstream.model(say("x")), input="x" * 200_000)
    assert (refused.status, refused.error["code"]) == (413, "request_too_large")
    assert client.list_responses() == []

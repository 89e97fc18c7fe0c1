"""Clients without a key that send too much, too slowly or never read: the server stays small, and serves the others."""

from __future__ import annotations

import contextlib
import errno
import json
import resource
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_client import HttpClient
from tests.support.long_steps import read_long_steps
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, say
from tests.support.waiting import Stopwatch, wait_until
from tests.wire.conftest import Servers

KEYS = ("--api-key", "alice=key-of-alice-0123456789", "--api-key", "bob=key-of-bob-0123456789")


def read_error(raw: socket.socket) -> tuple[int, dict[str, Any]]:
    """Read one answer to its end, and return its status and its error."""
    raw.settimeout(10)
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := raw.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    error: dict[str, Any] = json.loads(body)["error"]
    return int(head.split()[1]), error


def connect(server: OutliveServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port))


def test_64_mb_of_a_header_cost_the_server_nothing(server: OutliveServer) -> None:
    memory, cpu = server.resident_bytes, server.cpu_seconds
    with connect(server) as raw, contextlib.suppress(ConnectionError):
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ")
        for _ in range(64):
            raw.sendall(b"x" * 1_000_000)
    assert server.client.get("/healthz").status == 200
    assert server.resident_bytes - memory < 20_000_000
    assert server.cpu_seconds - cpu < 1


@pytest.mark.parametrize("name", ["Authorization", "Host", "Origin"])
def test_a_header_that_decides_on_access_and_is_sent_twice_is_a_400(servers: Servers, name: str) -> None:
    server = servers(*KEYS)
    headers = {"Authorization": "Bearer key-of-alice-0123456789", "Host": "localhost", "Origin": "http://localhost"}
    lines = [f"{each}: {value}\r\n" for each, value in headers.items()] + [f"{name}: Bearer key-of-bob-0123456789\r\n"]
    with connect(server) as raw:
        raw.sendall(f"GET /v1/responses HTTP/1.1\r\nConnection: close\r\n{''.join(lines)}\r\n".encode())
        status, error = read_error(raw)
    assert status == 400
    assert error["param"] == name.lower()


def test_a_key_in_a_trailer_is_not_used(servers: Servers) -> None:
    server = servers(*KEYS)
    conversation = HttpClient(server.port, "key-of-bob-0123456789").create_conversation()
    head = f"POST /v1/conversations/{conversation} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
    head += "Authorization: Bearer key-of-alice-0123456789\r\n\r\n"
    body = '10\r\n{"metadata": {}}\r\n0\r\nAuthorization: Bearer key-of-bob-0123456789\r\n\r\n'
    with connect(server) as raw:
        raw.sendall((head + body).encode())
        assert read_error(raw)[0] == 404


def test_running_out_of_files_is_logged_and_the_server_serves_on_when_there_are_some(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    with OutliveServer(tmp_path, upstream.url) as server, HttpClient(server.port) as client, connect(server):
        assert client.get("/healthz").status == 200
        before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        with connect(server):
            wait_until(lambda: "raise LimitNOFILE" in server.log, "it is logged")
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)
        assert server.client.get("/healthz").status == 200


def test_a_stream_that_is_not_read_is_cut_and_can_be_resumed(upstream: FakeUpstream, tmp_path: Path) -> None:
    words = [f"{number:07d} " * 500 for number in range(1000)]  # 4 MB: more than the systems buffer
    body = json.dumps({"model": upstream.model(say(*words)), "input": "Hi", "stream": True})
    head = f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    with (
        OutliveServer(tmp_path, upstream.url, "--send-seconds", "1") as server,
        HttpClient(server.port) as client,
        socket.socket() as raw,
    ):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", server.port))
        raw.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
        wait_until(
            lambda: raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET, "the stream was cut", 30
        )
        (response,) = client.list_responses()
        client.wait_ended(response["id"])
        assert len(client.replay(response["id"])) > len(words)


BLOCKING = """
import time

async def blocking(request, context):
    time.sleep(0.5)
    return "done"
"""


def test_code_that_blocks_the_event_loop_is_named_in_the_log(tmp_path: Path) -> None:
    (tmp_path / "blocks.py").write_text(BLOCKING)
    with OutliveServer(tmp_path, None, "--agent", "blocks:blocking") as server:
        assert server.client.create("blocking").status == 200
        wait_until(
            lambda: any("blocks.py:5 blocking" in step.place for step in read_long_steps(server.log)), server.log
        )


def test_wrong_keys_of_one_client_wait_and_valid_ones_and_other_clients_do_not(servers: Servers) -> None:
    server = servers(*KEYS)
    guesser, other = {"X-Forwarded-For": "192.0.2.1"}, {"X-Forwarded-For": "192.0.2.2"}
    stranger, alice = HttpClient(server.port, "wrong"), HttpClient(server.port, "key-of-alice-0123456789")
    watch = Stopwatch()
    for _ in range(8):
        assert stranger.get("/v1/models", **guesser).status == 401
    assert watch.seconds >= 0.1 + 0.2 + 0.4
    for _ in range(5):
        stranger.send("/v1/responses", {}, **guesser).close()  # one that gives up is counted, too
    with stranger.send("/v1/responses", {}, **guesser).sock as pending:
        assert alice.get("/v1/models", **guesser).status == 200
        assert stranger.get("/v1/models", **other).status == 401
        assert HttpClient(server.port).get("/v1/models", **guesser).status == 401  # without a key there is no guess
        pending.setblocking(False)
        with pytest.raises(BlockingIOError):
            pending.recv(1)

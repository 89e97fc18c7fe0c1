"""Attacks on a server: each is one function that runs for a few seconds in a process of its own.

python -m tests.siege.attacks NAME --port PORT --key KEY --upstream PORT --seconds N
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

MB = 1_000_000
SEPARATOR = b"\r\n\r\n"
ADDRESS = "127.0.0.2"  # of the attacker: limits per address must not be the victim's problem


@dataclass
class Target:
    """The server under attack, a key of it that is not the victim's, and a port that it knows as an upstream."""

    port: int
    key: str
    upstream: int
    seconds: float

    def __post_init__(self) -> None:
        self.end = time.monotonic() + self.seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.end

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), 10, source_address=(ADDRESS, 0))
        connection.settimeout(2)
        return connection

    def flood(self, first: bytes, pieces: Iterator[bytes]) -> None:
        """Send without reading until the server closes the connection, or the time is over."""
        with self.connect() as connection, contextlib.suppress(OSError):
            connection.sendall(first)
            for piece in pieces:
                if self.is_over:
                    return
                connection.sendall(piece)

    def ask(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Any:
        """Send one request and return its JSON; None where the server refuses to read it to the end."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        given = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", **(headers or {})}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60, source_address=(ADDRESS, 0))
        try:
            connection.request(method, path, raw, given)
            return json.loads(connection.getresponse().read())
        except (OSError, HTTPException, ValueError):
            return None
        finally:
            connection.close()

    def create(self, **fields: Any) -> Any:
        return self.ask("POST", "/v1/responses", {"model": "usual/any", "input": "Hi", **fields})


Attack = Callable[[Target], None]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__] = function
    return function


def repeat(piece: bytes, total: int) -> Iterator[bytes]:
    for _ in range(total // len(piece)):
        yield piece


def together(target: Target, count: int, work: Callable[[int], None]) -> None:
    """Do the work in so many threads at once, each until the time is over."""

    def run(number: int) -> None:
        while not target.is_over:
            with contextlib.suppress(OSError):
                work(number)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(target.seconds + 5)


# -- without a key


@attack
def header_lines(target: Target) -> None:
    target.flood(b"GET /healthz HTTP/1.1\r\n", repeat(b"X-Header: value\r\n" * 1000, 300 * MB))


@attack
def header_value(target: Target) -> None:
    target.flood(b"GET /healthz HTTP/1.1\r\nX: ", repeat(b"x" * MB, 300 * MB))


@attack
def header_name(target: Target) -> None:
    target.flood(b"GET /healthz HTTP/1.1\r\n", repeat(b"x" * MB, 300 * MB))


@attack
def long_url(target: Target) -> None:
    target.flood(b"GET /", repeat(b"x" * MB, 300 * MB))


@attack
def dripping_header(target: Target) -> None:
    def drip(number: int) -> None:
        def pieces() -> Iterator[bytes]:
            yield b"x" * 60_000
            while True:
                time.sleep(0.01)
                yield b"x"

        target.flood(b"GET /healthz HTTP/1.1\r\nX: ", pieces())

    together(target, 20, drip)


@attack
def trailers(target: Target) -> None:
    head = b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    target.flood(head, repeat(b"X-Trailer: value\r\n" * 1000, 300 * MB))


@attack
def pipelining(target: Target) -> None:
    tiny = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 8000
    together(target, 50, lambda number: target.flood(tiny, repeat(tiny, 4 * len(tiny))))


@attack
def silent_connections(target: Target) -> None:
    beginnings = (b"", b"GET / HT", b"POST /v1/responses HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n{")
    held: list[socket.socket] = []
    while not target.is_over:
        with contextlib.suppress(OSError):
            held.append(target.connect())
            held[-1].sendall(beginnings[len(held) % 3])
        time.sleep(0.002 if len(held) < 500 else 0.1)


@attack
def wrong_keys(target: Target) -> None:
    def guess(number: int) -> None:
        request = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong-%d\r\n\r\n"
        with target.connect() as connection:
            while not target.is_over:
                connection.sendall(request % number)
                if not connection.recv(4096):
                    return

    together(target, 20, guess)


# -- with a key: bodies and items


@attack
def long_idempotency_keys(target: Target) -> None:
    def ask(number: int) -> None:
        key = os.urandom(2000).hex()  # what a database could compress would fit its index
        target.ask("POST", "/v1/responses", {"model": "usual/any", "input": "Hi"}, {"Idempotency-Key": key})

    together(target, 8, ask)


@attack
def many_mcp_tools(target: Target) -> None:
    tools = [{"type": "mcp", "server_label": f"s{n}", "server_url": "https://192.0.2.1/mcp"} for n in range(512)]
    together(target, 2, lambda number: target.create(tools=tools))


@attack
def ids_on_many_forks(target: Target) -> None:
    first = target.create()["id"]
    for _ in range(60):
        target.create(previous_response_id=first)  # the first continues, every other one is a fork
        made = target.create(previous_response_id=first)
        first = made["id"] if made and "id" in made else first
        if target.is_over:
            return
    items = [{"id": f"msg_{n:040}", "role": "user", "content": "x"} for n in range(5000)]
    together(target, 2, lambda number: target.create(previous_response_id=first, input=items))


@attack
def ids_with_one_ending(target: Target) -> None:
    items = [{"id": f"msg_{n:05}{'x' * 60}", "role": "user", "content": "x"} for n in range(10_000)]
    together(target, 2, lambda number: target.create(input=items, background=True))


@attack
def compaction_items(target: Target) -> None:
    long = {"model": "usual/any", "input": [{"role": "user", "content": "a" * (5 * MB)}] * 2}
    made = target.ask("POST", "/v1/responses/compact", long)
    output = made.get("output", []) if isinstance(made, dict) else []
    items = [item for item in output if item.get("type") == "compaction"]
    if not items:
        items = [
            {"type": "compaction", "encrypted_content": "outlive.1." + base64.b64encode(os.urandom(60_000)).decode()}
        ]
    copies = [{"type": "compaction", "encrypted_content": items[0]["encrypted_content"]} for _ in range(120)]
    together(target, 2, lambda number: target.create(input=[*copies, {"role": "user", "content": "x"}]))


@attack
def many_json_values(target: Target) -> None:
    body = b'{"model": "usual/any", "input": [' + b"[]," * (21 * MB) + b"[]]}"
    together(target, 5, lambda number: target.ask("POST", "/v1/responses", body))


@attack
def small_json_values(target: Target) -> None:
    body = b'{"model": "usual/any", "input": [' + b"[]," * (MB // 3) + b"[]]}"
    together(target, 5, lambda number: target.ask("POST", "/v1/responses", body))


@attack
def calls_to_compact(target: Target) -> None:
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(10_000)]
    together(
        target, 2, lambda number: target.ask("POST", "/v1/responses/compact", {"model": "usual/any", "input": calls})
    )


@attack
def deep_json(target: Target) -> None:
    body = b'{"model": "usual/any", "input": ' + b'[{"a":' * (2 * MB) + b"1" + b"}]" * (2 * MB) + b"}"
    together(target, 3, lambda number: target.ask("POST", "/v1/responses", body))


# -- with a key: history, lists, readers


@attack
def readers_who_do_not_read(target: Target) -> None:
    made = target.create(model="usual/long", background=True)
    for _ in range(100):
        found = target.ask("GET", f"/v1/responses/{made['id']}?wait=5")
        if target.is_over or (found and found.get("status") not in ("queued", "in_progress")):
            break
    held: list[socket.socket] = []
    request = (
        f"GET /v1/responses/{made['id']}?stream=true HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {target.key}\r\n\r\n"
    )
    for _ in range(50):
        with contextlib.suppress(OSError):
            held.append(target.connect())
            held[-1].sendall(request.encode())
    while not target.is_over:
        time.sleep(0.1)


@attack
def long_history(target: Target) -> None:
    parent: dict[str, str] = {}
    for _ in range(10):
        made = target.create(input=[{"role": "user", "content": "x" * (9 * MB)}], **parent)
        if not made or "id" not in made:
            break
        parent = {"previous_response_id": made["id"]}
    together(target, 4, lambda number: target.create(**parent))


@attack
def long_instructions(target: Target) -> None:
    for _ in range(20):
        target.create(instructions="x" * (9 * MB))
    together(target, 6, lambda number: target.ask("GET", "/v1/responses?limit=100"))


@attack
def large_references(target: Target) -> None:
    ids = []
    for n in range(10):
        item = {"id": f"msg_large_{n}_{os.getpid()}", "role": "user", "content": "x" * (9 * MB)}
        target.create(input=[item])
        ids.append(item["id"])
    references = [{"type": "item_reference", "id": item_id} for item_id in ids]
    together(target, 4, lambda number: target.create(input=references))


@attack
def full_queue(target: Target) -> None:
    together(target, 30, lambda number: target.create(model="usual/slow", background=True))


@attack
def chat_completions(target: Target) -> None:
    body = {"model": "usual/slow", "messages": [{"role": "user", "content": "x"}], "stream": True}
    together(target, 100, lambda number: target.ask("POST", "/v1/chat/completions", body))


# -- WebSocket


def open_socket(target: Target) -> socket.socket:
    connection = target.connect()
    key = base64.b64encode(os.urandom(16)).decode()
    connection.sendall(
        f"GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer {target.key}\r\n\r\n".encode()
    )
    answer = b""
    while SEPARATOR not in answer:
        if not (piece := connection.recv(4096)):
            raise ConnectionError(answer)
        answer += piece
    return connection


def frame(opcode: int, payload: bytes = b"", *, final: bool = True) -> bytes:
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    return bytes([(0x80 if final else 0) | opcode]) + size + b"\0\0\0\0" + payload


def send_frames(target: Target, first: bytes, frames: bytes) -> None:
    def run(number: int) -> None:
        with open_socket(target) as connection:
            connection.sendall(first)
            while not target.is_over:
                connection.sendall(frames)

    together(target, 10, run)


@attack
def empty_continuations(target: Target) -> None:
    send_frames(target, frame(1, b"{", final=False), frame(0, final=False) * 20_000)


@attack
def unread_pings(target: Target) -> None:
    send_frames(target, b"", frame(9, b"x" * 125) * 1000)


@attack
def garbage_frames(target: Target) -> None:
    send_frames(target, b"", frame(1, b"[" * 100) * 1000)


@attack
def idle_sockets(target: Target) -> None:
    held = []
    while not target.is_over:
        with contextlib.suppress(OSError):
            held.append(open_socket(target))
        time.sleep(0.005 if len(held) < 300 else 0.1)


# -- the upstream itself


def answer_as(target: Target, head: bytes, piece: bytes, total: int) -> None:
    """Serve as the upstream `hostile`, and have it asked."""

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(SEPARATOR)
            writer.write(head)
            for _ in range(total // len(piece)):
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(reply, "127.0.0.1", target.upstream)
        async with server:
            await asyncio.to_thread(together, target, 2, lambda number: target.create(model="hostile/any"))

    asyncio.run(main())


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def chunk_of(text: str) -> bytes:
    data = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return f"data: {json.dumps(data)}\n\n".encode()


@attack
def endless_tokens(target: Target) -> None:
    answer_as(target, STREAM, chunk_of("word ") * 500, 10_000 * MB)


@attack
def endless_line(target: Target) -> None:
    answer_as(target, STREAM + b"data: ", b"x" * MB, 400 * MB)


@attack
def endless_json(target: Target) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n["
    answer_as(target, head, b"[]," * (MB // 3), 400 * MB)


@attack
def endless_head(target: Target) -> None:
    answer_as(target, b"HTTP/1.1 200 OK\r\n", b"X-Header: value\r\n" * 1000, 300 * MB)


@attack
def endless_error(target: Target) -> None:
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    answer_as(target, head, b"x" * MB, 400 * MB)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=ATTACKS)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--upstream", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    given = parser.parse_args()
    # A request that is never answered must not keep the attack going.
    threading.Timer(given.seconds + 3, os._exit, (0,)).start()
    ATTACKS[given.name](Target(given.port, given.key, given.upstream, given.seconds))


if __name__ == "__main__":
    main()

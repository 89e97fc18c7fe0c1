"""Attacks without a key, with one, over WebSockets, and by an upstream."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator

from tests.siege.target import MB, Target, attack, prepared_attack, repeat, together

SEPARATOR = b"\r\n\r\n"
WIDE = "\N{GRINNING FACE}"  # makes Python keep four bytes for each character of its text

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


@prepared_attack
def ids_on_many_forks(target: Target) -> None:
    first = target.create()["id"]
    for _ in range(2000):
        target.create(previous_response_id=first)  # the first continues, every other one is a fork
        made = target.create(previous_response_id=first)
        first = made["id"] if made and "id" in made else first
        if target.is_over:
            break
    target.begin()
    items = [{"id": f"msg_{n:040}", "role": "user", "content": "x"} for n in range(5000)]
    together(target, 2, lambda number: target.create(previous_response_id=first, input=items))


@attack
def ids_with_one_ending(target: Target) -> None:
    items = [{"id": f"msg_{n:05}{'x' * 60}", "role": "user", "content": "x"} for n in range(10_000)]
    together(target, 2, lambda number: target.create(input=items, background=True))


@prepared_attack
def compaction_items(target: Target) -> None:
    long = {"model": "usual/any", "input": [{"role": "user", "content": "a" * (5 * MB)}] * 2}
    made = target.ask("POST", "/v1/responses/compact", long)
    output = made.get("output", []) if isinstance(made, dict) else []
    items = [item for item in output if item.get("type") == "compaction"]
    if not items:
        items = [
            {"type": "compaction", "encrypted_content": "outlive.1." + base64.b64encode(os.urandom(60_000)).decode()}
        ]
    target.begin()
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


@prepared_attack
def readers_who_do_not_read(target: Target) -> None:
    made = target.create(model="usual/long", background=True)
    for _ in range(100):
        found = target.ask("GET", f"/v1/responses/{made['id']}?wait=5")
        if target.is_over or (found and found.get("status") not in ("queued", "in_progress")):
            break
    target.begin()
    target.ask_without_reading("GET", [f"/v1/responses/{made['id']}?stream=true"])


def continue_long_history(target: Target, text: str = "x" * (9 * MB), **fields: str) -> None:
    """Make a chain of some 200 MB, and have it continued again and again."""
    parent: dict[str, str] = {}
    for _ in range(22):
        made = target.create(input=[{"role": "user", "content": text}], **parent)
        if not made or "id" not in made or target.is_over:
            break
        parent = {"previous_response_id": made["id"]}
    target.begin()
    together(target, 4, lambda number: target.create(**fields, **parent))


@prepared_attack
def long_history(target: Target) -> None:
    continue_long_history(target)


@prepared_attack
def truncated_histories(target: Target) -> None:
    continue_long_history(target, truncation="auto")


@prepared_attack
def wide_histories(target: Target) -> None:
    continue_long_history(target, "x" * (3 * MB) + WIDE, truncation="auto")


@prepared_attack
def long_instructions(target: Target) -> None:
    for _ in range(20):
        target.create(instructions="x" * (9 * MB))
    target.begin()
    together(target, 6, lambda number: target.ask("GET", "/v1/responses?limit=100"))


@prepared_attack
def large_references(target: Target) -> None:
    ids = []
    for n in range(40):
        item = {"id": f"msg_large_{n}_{os.getpid()}", "role": "user", "content": "x" * (9 * MB)}
        target.create(input=[item])
        ids.append(item["id"])
    target.begin()
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

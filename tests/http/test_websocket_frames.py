"""Frames of a WebSocket are parsed in short steps, and a client that floods or does not read fills no memory."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from typing import Any

import pytest
from websockets.frames import Frame

from outlive.http import protocol, transport
from outlive.http.protocol import WebSocketProtocol
from outlive.http.transport import MAX_FRAGMENT_BYTES
from tests.http.serving import Served, connect, serve
from tests.http.test_parsing import read_answer

HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CONTINUATION, TEXT, PING = 0, 1, 9


def frame(opcode: int, payload: bytes = b"", *, final: bool = True) -> bytes:
    """A frame of a client, whose mask changes nothing."""
    return struct.pack("!BB", opcode | (0x80 if final else 0), 0x80 | len(payload)) + b"\0\0\0\0" + payload


class Listener:
    """An application that accepts a WebSocket and collects its messages."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.may_receive = asyncio.Event()
        self.may_receive.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await self.may_receive.wait()
        while (message := await receive())["type"] == "websocket.receive":
            self.messages.append(message.get("text") or message.get("bytes"))


async def open_socket(served: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, WebSocketProtocol]:
    reader, writer = await asyncio.open_connection(*served.address)
    writer.write(HANDSHAKE)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
    return reader, writer, find_socket(served)


def find_socket(served: Served) -> WebSocketProtocol:
    (opened,) = (each for each in served.server.server_state.connections if isinstance(each, WebSocketProtocol))
    return opened


def test_frames_are_parsed_in_many_steps_and_empty_fragments_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "STEP_SECONDS", 0)
    steps = 0

    async def check() -> None:
        nonlocal steps

        async def count() -> None:
            nonlocal steps
            while True:
                steps += 1
                await asyncio.sleep(0)

        app = Listener()
        async with serve(app) as served:
            _, writer, opened = await open_socket(served)
            counting = asyncio.create_task(count())
            writer.write(frame(TEXT, b"a", final=False) + frame(CONTINUATION, final=False) * 5000)
            writer.write(frame(CONTINUATION, b"b", final=False) + frame(CONTINUATION, final=False))
            while opened.frames != [b"ab"]:
                await asyncio.sleep(0)
            writer.write(frame(CONTINUATION, b"c"))
            while not app.messages:
                await asyncio.sleep(0)
            assert app.messages == [b"abc"]
            counting.cancel()
            writer.close()

    asyncio.run(check())
    assert steps > 5000 * 6 / 512


def test_messages_that_are_not_received_stay_on_the_connection_and_are_delivered_later() -> None:
    async def check() -> None:
        app = Listener()
        app.may_receive.clear()
        async with serve(app) as served:
            _, writer, opened = await open_socket(served)
            for number in range(10_000):
                writer.write(frame(TEXT, b"%d" % number))
            while not opened.transport.is_paused:
                await asyncio.sleep(0.001)
            assert opened.queue.qsize() < 100
            app.may_receive.set()
            while len(app.messages) < 10_000:
                await asyncio.sleep(0.001)
            assert app.messages == [str(number) for number in range(10_000)]
            writer.close()

    asyncio.run(check())


@pytest.mark.parametrize("size", [70_000, 1_000_001])
def test_a_large_frame_is_parsed_in_fragments_and_arrives_whole(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    parsed: list[int] = []
    handle = WebSocketProtocol.handle_cont

    def record(self: WebSocketProtocol, each: Frame) -> None:
        parsed.append(len(each.data))
        handle(self, each)

    monkeypatch.setattr(WebSocketProtocol, "handle_cont", record)
    text = ("\u4e2d" * (size // 3)).encode()
    mask = b"\1\2\3\4"
    masked = bytes(byte ^ mask[n % 4] for n, byte in enumerate(text))

    async def check() -> None:
        app = Listener()
        async with serve(app) as served:
            _, writer, _ = await open_socket(served)
            writer.write(struct.pack("!BBQ", 0x81, 0xFF, len(text)) + mask + masked + frame(TEXT, b"next"))
            while len(app.messages) < 2:
                await asyncio.sleep(0.001)
            assert app.messages == [text, "next"]
            writer.close()

    asyncio.run(check())
    assert sum(parsed) + MAX_FRAGMENT_BYTES == len(text)
    assert max(parsed) <= MAX_FRAGMENT_BYTES


def test_a_text_in_fragments_that_is_not_utf_8_closes_the_connection() -> None:
    async def check() -> None:
        async with serve(Listener()) as served:
            reader, writer, _ = await open_socket(served)
            writer.write(frame(TEXT, b"\xe4\xb8", final=False) + frame(CONTINUATION, b"\xad."))
            writer.write(frame(TEXT, b"\xe4\xb8", final=False) + frame(CONTINUATION, b"."))
            assert await reader.readexactly(4) == b"\x88\x02" + struct.pack("!H", 1007)
            writer.close()

    asyncio.run(check())


def test_a_frame_over_the_limit_is_refused_by_its_head() -> None:
    async def check() -> None:
        async with serve(Listener()) as served:
            reader, writer, opened = await open_socket(served)
            writer.write(struct.pack("!BBQ", 0x81, 0xFF, opened.config.ws_max_size + 1) + b"\0\0\0\0")
            assert (await reader.readexactly(4))[2:] == struct.pack("!H", 1009)
            writer.close()

    asyncio.run(check())


def test_pings_of_a_client_that_does_not_read_are_answered_with_the_last_pong_alone() -> None:
    async def check(client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        async with serve(Listener()) as served:
            await loop.sock_connect(client, served.address)
            await loop.sock_sendall(client, HANDSHAKE)
            await loop.sock_recv(client, 1024)
            opened = find_socket(served)
            opened.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
            flood = frame(PING, os.urandom(125)) * 500
            while opened.writable.is_set():
                await loop.sock_sendall(client, flood)
            before = opened.transport.get_write_buffer_size()
            last = os.urandom(125)
            await loop.sock_sendall(client, flood * 10 + frame(PING, last))
            while opened._pong[2:] != last:
                await asyncio.sleep(0.001)
            assert opened.transport.get_write_buffer_size() <= before
            seen = b""
            while not seen.endswith(last):
                seen = seen[-125:] + await loop.sock_recv(client, 1_000_000)

    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        asyncio.run(check(client))


def test_a_handshake_that_cannot_be_read_is_answered() -> None:
    async def check() -> None:
        async with serve(Listener()) as served:
            reader, writer = await asyncio.open_connection(*served.address)
            writer.write(HANDSHAKE.replace(b"Host: x", b"Host: " + b"x" * 20_000))
            assert (await read_answer(reader))[0] == 400
            writer.close()

    asyncio.run(check())


def test_a_websocket_counts_as_one_connection_until_it_ends() -> None:
    async def check() -> None:
        async with serve(Listener(), max_connections=1) as served:
            for _ in range(3):
                _, writer, _ = await open_socket(served)
                async with connect(served.address) as (refused, _):
                    assert (await read_answer(refused))[0] == 503
                writer.close()
                while served.server.server_state.connections:
                    await asyncio.sleep(0.001)

    asyncio.run(check())


def test_unfinished_messages_of_all_connections_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_UNFINISHED", 250)

    async def check() -> None:
        async with serve(Listener()) as served:
            reader, writer, opened = await open_socket(served)
            opened._open.unfinished += 100  # of another connection
            writer.write(frame(TEXT, b"x" * 50, final=False) + frame(CONTINUATION, b"x" * 50, final=False))
            writer.write(frame(CONTINUATION, b"end") + frame(PING, b"?"))
            assert (await reader.readexactly(3))[2:] == b"?" and opened._open.unfinished == 100
            writer.write(frame(TEXT, b"x" * 100, final=False) + frame(CONTINUATION, b"x" * 100, final=False))
            assert await reader.readexactly(4) == b"\x88\x02" + struct.pack("!H", 1013)
            writer.close()
            while opened._open.unfinished != 100:
                await asyncio.sleep(0.001)

    asyncio.run(check())

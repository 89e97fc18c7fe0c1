"""Requests are bounded and parsed in short steps: heads, trailers, pipelined requests, tiny chunks."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from outlive.http import transport
from outlive.http.protocol import MAX_HEAD_BYTES, MAX_PIPELINED
from outlive.http.transport import ClientTransport, Turns
from tests.http.serving import ASKING, serve, serving
from tests.support.long_steps import no_long_steps

CHUNKED = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


class Echo:
    """An application that answers with the method, the path, the headers and the body it got."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        while not self.may_answer.is_set():
            # Asks whether the client is still there, as `Request.has_left` does, which makes uvicorn read on.
            asking = receive().__await__()
            next(asking)
            asking.close()
            await asyncio.sleep(0)
        answer = f"{scope['method']} {scope['path']} {body.decode()}".encode()
        length = (b"content-length", b"%d" % len(answer))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": answer})


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = next(line for line in head.splitlines() if line.startswith("content-length"))
    return int(head.split()[1]), await reader.readexactly(int(length.split(":")[1]))


# -- heads and trailers


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
        b"GET / HTTP/1.1\r\na: " + b"b" * 100_000,
        b"GET / HTTP/1.1\r\n" + b"a" * 100_000,
        b"GET /" + b"a" * 100_000,
        b"\r\n" * 50_000,
        CHUNKED + b"1\r\nx\r\n0\r\n" + b"a: b\r\n" * 20_000,
        CHUNKED + b"1\r\nx\r\n0\r\na: " + b"b" * 100_000,
        CHUNKED + b"1;" + b"x" * 100_000,
    ],
    ids=["lines", "value", "name", "URL", "empty lines", "trailers", "trailer's value", "chunk extension"],
)
def test_a_head_or_trailer_without_end_is_answered_with_431_and_closed(opening: bytes) -> None:
    async def check() -> None:
        async with serving(Echo()) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(opening)
            status, body = await read_answer(reader)
            assert status == 431
            assert json.loads(body)["error"]["code"] == "headers_too_large"
            assert await reader.read() == b""
            writer.close()

    asyncio.run(check())


@pytest.mark.parametrize(("size", "status"), [(MAX_HEAD_BYTES - 1, 200), (MAX_HEAD_BYTES + 1, 431)])
def test_heads_are_accepted_up_to_the_limit_in_pieces_of_any_size(size: int, status: int) -> None:
    async def check() -> None:
        async with serving(Echo()) as address:
            reader, writer = await asyncio.open_connection(*address)
            empty = b"GET / HTTP/1.1\r\na: \r\n\r\n"
            head = empty.replace(b"a: ", b"a: " + b"b" * (size - len(empty)))
            for start in range(0, size, 999):
                writer.write(head[start : start + 999])
                await asyncio.sleep(0)
            assert (await read_answer(reader))[0] == status
            writer.close()

    asyncio.run(check())


def test_trailers_never_become_headers() -> None:
    app = Echo()

    async def check() -> None:
        async with serving(app) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(CHUNKED + b"2\r\nhi\r\n0\r\nAuthorization: Bearer other\r\nHost: y\r\n\r\n" + ASKING)
            assert await read_answer(reader) == (200, b"POST /a hi")
            assert await read_answer(reader) == (200, b"GET / ")
            writer.close()

    asyncio.run(check())
    assert app.scopes[0]["headers"] == [(b"host", b"x"), (b"transfer-encoding", b"chunked")]
    assert app.scopes[1]["headers"] == [(b"host", b"x")]


@pytest.mark.parametrize("behind", [b"", b"POST /b HTTP/1.1\r\nContent-Length: 5\r\n\r\nfirst"])
def test_bytes_that_are_no_request_are_answered_with_400_in_the_envelope(behind: bytes) -> None:
    async def check() -> None:
        async with serving(Echo()) as address:
            reader, writer = await asyncio.open_connection(*address)
            if behind:
                writer.write(behind)
                assert await read_answer(reader) == (200, b"POST /b first")
            writer.write(b"\0\1\2\3 is not HTTP\r\n\r\n")
            status, body = await read_answer(reader)
            assert status == 400
            assert json.loads(body)["error"]["code"] == "invalid_http"
            assert await reader.read() == b""
            writer.close()

    asyncio.run(check())


# -- upgrades


@pytest.mark.parametrize("upgrade", [b"websocket", b"h2c"])
def test_a_post_that_asks_for_an_upgrade_is_answered_without_one(upgrade: bytes) -> None:
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %b\r\nContent-Length: 5\r\n\r\n"

    async def check() -> None:
        async with serving(Echo()) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(head % upgrade + b"first" + ASKING)
            assert await read_answer(reader) == (200, b"POST /a first")
            assert await read_answer(reader) == (200, b"GET / ")
            writer.close()

    asyncio.run(check())


def test_connect_is_refused() -> None:
    async def check() -> None:
        async with serving(Echo()) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n")
            assert (await read_answer(reader))[0] == 400
            writer.close()

    asyncio.run(check())


# -- pipelining


def test_no_more_than_a_few_pipelined_requests_are_parsed_and_all_are_answered_in_order() -> None:
    async def check() -> None:
        app = Echo()
        app.may_answer.clear()
        async with serve(app) as served:
            reader, writer = await asyncio.open_connection(*served.address)
            for number in range(3000):
                writer.write(b"POST /%d HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi" % number)
            while not served.connections or len(served.connections[0].pipeline) < MAX_PIPELINED:
                await asyncio.sleep(0.001)
            (connection,) = served.connections
            for _ in range(30):
                await asyncio.sleep(0)
                assert len(connection.pipeline) == MAX_PIPELINED
            app.may_answer.set()
            for number in range(3000):
                assert await read_answer(reader) == (200, b"POST /%d hi" % number)
            writer.close()

    asyncio.run(check())


# -- steps


class Line(asyncio.Transport):
    """A transport that records whether it reads."""

    reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return False


def test_connections_with_much_to_parse_take_turns_and_are_not_read_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "STEP_SECONDS", 0)
    parsed: list[bytes] = []

    def feed(data: bytes, start: int) -> int:
        parsed.append(data[start : start + 1])
        return 1

    async def check() -> None:
        turns = Turns()
        lines = [Line(), Line()]
        for line, data in zip(lines, (b"aaa", b"bbb"), strict=True):
            ClientTransport(line, turns, feed).take(data)
        assert parsed == [b"a", b"b"]
        assert [line.reads for line in lines] == [False, False]
        for count in range(3, 7):  # one piece in each iteration of the loop
            await asyncio.sleep(0)
            assert len(parsed) == count
        assert b"".join(parsed) == b"ababab"
        assert [line.reads for line in lines] == [True, True]

    asyncio.run(check())


def test_a_body_in_tiny_chunks_is_parsed_in_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "STEP_SECONDS", 0)
    steps = 0

    async def check() -> None:
        nonlocal steps

        async def count() -> None:
            nonlocal steps
            while True:
                steps += 1
                await asyncio.sleep(0)

        async with serving(Echo()) as address:
            reader, writer = await asyncio.open_connection(*address)
            counting = asyncio.create_task(count())
            with no_long_steps():
                writer.write(CHUNKED + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
                assert await read_answer(reader) == (200, b"POST /a " + b"x" * 20_000)
            counting.cancel()
            writer.close()

    asyncio.run(check())
    assert steps > 20_000 * 6 / 4096

"""The head of an answer is sent with the first bytes of its body, a streamed body can be written at once, and the
client's next bytes show that it has its answer."""

from __future__ import annotations

import asyncio
import gc
import select
import socket
import weakref
from pathlib import Path
from typing import Any

import pytest

from outlive.http import protocol
from outlive.http.access import Access
from outlive.http.app import Application
from outlive.http.transport import ClientTransport, Turns
from tests.engine.harness import open_harness
from tests.http.serving import ASKING, serving


class Recorder(asyncio.Transport):
    """A transport that records what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes | str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.written.append("close")

    def is_closing(self) -> bool:
        return "close" in self.written


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def wrap(below: Recorder) -> ClientTransport:
    return ClientTransport(below, Turns(), lambda data, start: len(data) - start)


def test_a_head_and_its_body_are_one_write() -> None:
    async def check() -> None:
        below = Recorder()
        joined = wrap(below)
        joined.write(HEAD)
        joined.write(b"one")
        joined.write(b"two")
        await asyncio.sleep(0)
        assert below.written == [HEAD + b"one", b"two"]

    asyncio.run(check())


def test_a_head_without_a_body_goes_out_at_the_end_of_the_round() -> None:
    async def check() -> None:
        below = Recorder()
        joined = wrap(below)
        joined.write(HEAD)
        assert below.written == []
        await asyncio.sleep(0)
        assert below.written == [HEAD]

    asyncio.run(check())


def test_closing_sends_what_was_kept_back() -> None:
    async def check() -> None:
        below = Recorder()
        joined = wrap(below)
        joined.write(HEAD)
        joined.close()
        assert below.written == [HEAD, "close"]
        assert joined.is_closing()

    asyncio.run(check())


def test_the_next_answer_on_the_connection_is_joined_too() -> None:
    async def check() -> None:
        below = Recorder()
        joined = wrap(below)
        for body in (b"first", b"second"):
            joined.write(HEAD)
            joined.write(body)
        await asyncio.sleep(0)
        assert below.written == [HEAD + b"first", HEAD + b"second"]

    asyncio.run(check())


# -- whole answers


def test_a_whole_answer_is_written_at_once_and_only_where_it_can_be() -> None:
    written: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        connection = scope["state"].pop("outlive.connection")
        written.append(connection.answer_now(200, b"x-a: 1\r\n", b"whole"))
        if not written[-1]:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
            await send({"type": "http.response.body", "body": b"whole"})

    async def check() -> None:
        async with serving(app) as address:
            reader, writer = await asyncio.open_connection(*address)
            head = b"GET / HTTP/1.1\r\nHost: x\r\n"
            writer.write(head + b"\r\n" + head.replace(b"GET", b"HEAD") + b"\r\n" + head + b"Connection: close\r\n\r\n")
            answers = await reader.read()
            writer.close()
        assert answers.count(b"x-a: 1\r\ncontent-length: 5\r\n\r\nwhole") == 1
        assert answers.endswith(b"x-a: 1\r\ncontent-length: 5\r\nconnection: close\r\n\r\nwhole")
        assert answers.count(b"whole") == 2

    asyncio.run(check())
    assert written == [True, False, True]


# -- pouring


def test_pieces_are_poured_until_the_client_is_slow_and_again_when_it_has_read() -> None:
    poured: list[bytes] = []
    refused: list[bool] = []
    slow, gone = asyncio.Event(), asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        connection = scope["state"].pop("outlive.connection")
        connection.watch(gone.set)
        refused.append(connection.write_now(b"before the head"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2):
            while connection.write_now(piece := b"%07d\n" % len(poured) * 2000):
                poured.append(piece)
            slow.set()
            await send({"type": "http.response.body", "body": b"", "more_body": True})  # waits until there is room
        await gone.wait()
        refused.append(connection.write_now(b"after the client has gone"))

    async def check() -> None:
        async with serving(app) as address:
            reader, writer = await asyncio.open_connection(*address, limit=1024)
            try:
                writer.write(ASKING)
                await slow.wait()
                before, read = len(poured), 0
                await reader.readuntil(b"\r\n\r\n")
                while read < len(poured) or len(poured) == before:
                    size = int(await reader.readline(), 16)
                    assert await reader.readexactly(size + 2) == poured[read] + b"\r\n"
                    read += 1
            finally:
                writer.close()
            await gone.wait()
            await asyncio.sleep(0)
        assert before > 0
        assert refused == [False, False]

    asyncio.run(check())


def test_a_client_that_hung_up_is_known_to_have_before_the_loop_has_heard_of_it() -> None:
    found: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        connection = scope["state"].pop("outlive.connection")
        found.append(connection.is_hung_up())
        client.close()  # its end is not read yet when the next line runs
        found.append(connection.is_hung_up())
        assert not connection.is_cut

    async def check() -> None:
        async with serving(app) as address:
            await asyncio.get_running_loop().sock_connect(client, address)
            client.sendall(ASKING)
            while len(found) < 2:
                await asyncio.sleep(0.001)
        assert found == [False, True]

    with socket.socket() as client:
        client.setblocking(False)
        asyncio.run(check())


@pytest.mark.parametrize(
    ("then", "taken"),
    [("ask", True), ("close", True), ("give up", False), ("keep silent", True), ("stall", False), ("be slow", True)],
)
def test_the_clients_next_bytes_show_whether_it_has_read_its_answer(
    then: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = then in ("stall", "be slow")
    # Only who keeps silent is waited for.
    monkeypatch.setattr(protocol, "READING_SECONDS", 0.05 if large or then == "keep silent" else 60)
    body = b"x" * 20_000_000 if large else b"ok"
    found: list[bool] = []
    cycles = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        cycles.append(weakref.ref(receive.__self__))
        connection = scope["state"].pop("outlive.connection")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})
        found.append(await connection.was_read())

    async def check() -> None:
        loop = asyncio.get_running_loop()
        async with serving(app) as address:
            with socket.socket() as client:
                client.setblocking(False)
                await loop.sock_connect(client, address)
                client.sendall(ASKING)
                if then in ("give up", "stall"):
                    while select.select([client], [], [], 0)[0] == []:
                        await asyncio.sleep(0.001)
                else:
                    read = 0
                    while read < len(body):  # the head counts, too: of a long body a few bytes are left
                        read += len(await loop.sock_recv(client, 1_000_000))
                        await asyncio.sleep(0.005 if then == "be slow" else 0)
                if then == "ask":
                    client.sendall(ASKING)
                elif then in ("close", "give up"):
                    client.close()
                while not found:
                    await asyncio.sleep(0.001)
                assert found == [taken]
            if then == "give up":
                # Long before a connection is given up on which nothing is asked any more.
                await asyncio.sleep(0.1)
                assert cycles[0]() is None

    asyncio.run(check())


def test_nothing_of_a_request_waits_for_the_garbage_collection(tmp_path: Path) -> None:
    cycles = []

    async def check() -> None:
        async with open_harness(tmp_path) as harness:
            application = Application(harness.engine, Access())

            async def app(scope: Any, receive: Any, send: Any) -> None:
                cycles.append(weakref.ref(receive.__self__))
                await application(scope, receive, send)

            async with serving(app) as address:
                reader, writer = await asyncio.open_connection(*address)
                for _ in range(3):
                    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
                    await reader.readuntil(b"}]}")
                writer.close()
                assert len(cycles) == 3
                # The last one is still known to its connection.
                assert [cycle() for cycle in cycles[:2]] == [None, None]

    gc.disable()
    try:
        asyncio.run(check())
    finally:
        gc.enable()

"""Connections are limited in number, and end when their client is silent, slow to send, or does not read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from outlive.http.connections import ConnectionLimits
from tests.http.serving import ASKING, Served, connect, serve, serving
from tests.http.test_parsing import Echo, read_answer

LIMITS = ConnectionLimits()
LATER = LIMITS.receive_seconds + 1


async def first_connection(served: Served) -> Any:
    while not served.connections:
        await asyncio.sleep(0.001)
    return served.connections[0]


async def wait_for_bytes(connection: Any) -> None:
    """Wait until the connection has parsed something of a request."""
    while not (connection._overhead or connection._in_body):
        await asyncio.sleep(0.001)


# -- deadlines


def test_a_silent_connection_is_closed_without_a_word() -> None:
    async def check() -> None:
        async with serving(Echo(), receive_seconds=0.1) as address:
            reader, writer = await asyncio.open_connection(*address)
            assert await reader.read() == b""
            writer.close()

    asyncio.run(check())


@pytest.mark.parametrize(
    "opening", [b"GET / HTTP/1.1\r\nHost:", b"POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\n", ASKING + b"GET /"]
)
def test_a_request_that_does_not_go_on_is_answered_with_408(opening: bytes) -> None:
    async def check() -> None:
        async with serve(Echo()) as served:
            reader, writer = await asyncio.open_connection(*served.address)
            connection = await first_connection(served)
            writer.write(opening)
            if opening.startswith(ASKING):
                assert (await read_answer(reader))[0] == 200
            await wait_for_bytes(connection)
            now = asyncio.get_running_loop().time()
            connection.check(now + LIMITS.receive_seconds - 1, LIMITS)
            assert not connection.transport.is_closing()
            connection.check(now + LATER, LIMITS)
            status, body = await read_answer(reader)
            assert status == 408
            assert json.loads(body)["error"]["code"] == "request_timeout"
            assert await reader.read() == b""
            writer.close()

    asyncio.run(check())


def test_an_answered_connection_is_closed_once_it_was_idle_for_long() -> None:
    async def check() -> None:
        async with serve(Echo()) as served:
            reader, writer = await asyncio.open_connection(*served.address)
            connection = await first_connection(served)
            writer.write(ASKING)
            assert (await read_answer(reader))[0] == 200
            now = asyncio.get_running_loop().time()
            connection.check(now + connection.timeout_keep_alive - 1, LIMITS)
            assert not connection.transport.is_closing()
            connection.check(now + connection.timeout_keep_alive + 1, LIMITS)
            assert await reader.read() == b""
            writer.close()

    asyncio.run(check())


def test_a_large_body_on_a_slow_link_has_the_time_it_needs() -> None:
    size = 300_000

    async def check() -> None:
        async with serve(Echo()) as served:
            reader, writer = await asyncio.open_connection(*served.address)
            connection = await first_connection(served)
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + b"x" * (size - 1))
            while connection._body_size < size - 1:
                await asyncio.sleep(0.001)
            connection.check(asyncio.get_running_loop().time() + LATER, LIMITS)
            writer.write(b"x")
            assert (await read_answer(reader))[0] == 200
            writer.close()

    asyncio.run(check())


def test_a_client_is_not_blamed_for_what_the_server_does_not_read() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await may_read.wait()
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    may_read = asyncio.Event()

    async def check() -> None:
        async with serve(app) as served:
            reader, writer = await asyncio.open_connection(*served.address)
            connection = await first_connection(served)
            writer.write(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"x" * 99_999)
            while not connection.transport.is_paused:
                await asyncio.sleep(0.001)
            connection.check(asyncio.get_running_loop().time() + 1000, LIMITS)
            may_read.set()
            writer.write(b"x")
            assert (await read_answer(reader))[0] == 200
            writer.close()

    asyncio.run(check())


def test_a_client_that_reads_nothing_is_disconnected_and_one_that_reads_slowly_is_not() -> None:
    gone = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        connection = scope["state"].pop("outlive.connection")
        connection.watch(gone.set)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not gone.is_set():
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})

    async def check() -> None:
        async with serve(app) as served:
            reader, writer = await asyncio.open_connection(*served.address, limit=1024)
            connection = await first_connection(served)
            writer.write(ASKING)
            while connection.flow is None or not connection.flow.write_paused:
                await asyncio.sleep(0.001)
            now = asyncio.get_running_loop().time()
            connection.check(now, LIMITS)
            left = connection.transport._unconfirmed
            while connection.transport._unconfirmed >= left:  # until its system has confirmed some of it
                await reader.read(500_000)
                connection.check(now + LIMITS.send_seconds, LIMITS)
            connection.check(now + LIMITS.send_seconds + 1, LIMITS)
            assert not gone.is_set()
            connection.check(now + LIMITS.send_seconds * 3, LIMITS)
            await gone.wait()
            writer.close()

    asyncio.run(check())


# -- numbers


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, bytes]:
    writer.write(ASKING)
    return await read_answer(reader)


def test_connections_over_the_limit_are_refused_until_one_is_closed() -> None:
    async def check() -> None:
        async with serve(Echo(), max_connections=2) as served, connect(served.address) as first:
            async with connect(served.address) as second, connect(served.address) as third:
                assert (await ask(*first))[0] == (await ask(*second))[0] == 200
                status, body = await read_answer(third[0])
                assert status == 503
                assert json.loads(body)["error"]["code"] == "too_many_connections"
            while len(served.connections) > 1:
                await asyncio.sleep(0.001)
            async with connect(served.address) as fourth:
                assert (await ask(*fourth))[0] == 200

    asyncio.run(check())


@pytest.mark.parametrize(("trusted", "status"), [([], 503), (["127.0.0.0/8"], 200)])
def test_the_connections_of_one_address_are_limited_unless_it_is_a_proxy(trusted: list[str], status: int) -> None:
    async def check() -> None:
        async with (
            serving(Echo(), max_connections_per_address=1, trusted_proxies=trusted) as address,
            connect(address) as first,
            connect(address) as second,
        ):
            assert (await ask(*first))[0] == 200
            assert (await ask(*second))[0] == status

    asyncio.run(check())

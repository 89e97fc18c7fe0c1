"""The lean HTTP client forwards bytes in the call that reads them, and loses none where that begins or ends."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlive.dialects.transport import http1
from outlive.dialects.transport.endpoint import Endpoint
from outlive.dialects.transport.http1 import (
    MOST_HEAD,
    AnswerTooLong,
    Connection,
    ConnectionBroken,
    HttpPool,
    OnPiece,
)
from outlive.ports.backend import Upstream
from tests.engine.virtual_clock import turn

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def take_into(taken: list[bytes], most: int = 99) -> OnPiece:
    def take(piece: bytes) -> bool:
        taken.append(piece)
        return len(taken) < most

    return take


@asynccontextmanager
async def asked(head: bytes = HEAD) -> AsyncGenerator[tuple[Connection, asyncio.StreamWriter], None]:
    """An answer whose head has arrived, and the server's end of its connection."""
    loop = asyncio.get_running_loop()
    writers: asyncio.Future[asyncio.StreamWriter] = loop.create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        writers.set_result(writer)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    pool = HttpPool()
    try:
        async with asyncio.timeout(5):
            connection = await pool.request("GET", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", b"")
            writer = await writers
            yield connection, writer
            connection.leave()
            writer.close()
    finally:
        pool.close()
        server.close()


def test_forwarded_pieces_arrive_in_the_call_that_reads_them() -> None:
    async def main() -> None:
        async with asked() as (connection, _):
            taken: list[bytes] = []
            passing = asyncio.create_task(connection.forward_to(take_into(taken)))
            await turn()
            for count, piece in enumerate((b"one", b"two", b"three"), 1):
                connection.data_received(chunk(piece)[:4])
                connection.data_received(chunk(piece)[4:])
                assert b"".join(taken) == b"onetwothree"[: 3 * count + 2 * (count == 3)]
            await turn()
            assert not passing.done()
            passing.cancel()

    asyncio.run(main())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.booleans(), st.booleans()), max_size=12),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_each_byte_is_forwarded_or_read_once_and_in_order(
    pieces: list[tuple[bytes, bool, bool]], cuts: list[int]
) -> None:
    """For every cut of the network, every point at which the receiver stops, with and without a loop turn between."""
    raw = b"".join(chunk(piece) for piece, _, _ in pieces) + LAST
    answers = [enough for _, enough, _ in pieces]
    turns = [pause for _, _, pause in pieces] or [True]

    async def main() -> bytes:
        got: list[bytes] = []
        over = False

        def take(piece: bytes) -> bool:
            nonlocal over
            assert not over, "it has had enough"
            got.append(piece)
            over = bool(answers) and answers.pop()
            return not over

        async def read() -> None:
            nonlocal over
            while piece := await connection.read():
                got.append(piece)
                over = False
                await connection.forward_to(take)

        async with asked() as (connection, _):
            reading = asyncio.create_task(read())
            await turn()
            edges = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
            for n, (start, end) in enumerate(pairwise(edges)):
                connection.data_received(raw[start:end])
                if turns[n % len(turns)]:
                    await turn()
            await reading
        return b"".join(got)

    assert asyncio.run(main()) == b"".join(piece for piece, _, _ in pieces)


def test_forwarding_stops_when_the_receiver_returns_false() -> None:
    async def main() -> None:
        async with asked() as (connection, _):
            taken: list[bytes] = []
            passing = asyncio.create_task(connection.forward_to(take_into(taken, most=1)))
            await turn()
            connection.data_received(chunk(b"one"))
            connection.data_received(chunk(b"two"))  # before the task in `forward_to` had its turn
            await passing
            assert (taken, await connection.read()) == ([b"one"], b"two")

    asyncio.run(main())


def test_forwarding_stops_and_raises_the_receivers_error() -> None:
    async def main() -> None:
        async with asked() as (connection, _):
            taken: list[bytes] = []

            def take(piece: bytes) -> bool:
                taken.append(piece)
                raise ValueError(piece)

            passing = asyncio.create_task(connection.forward_to(take))
            await turn()
            connection.data_received(chunk(b"one"))
            connection.data_received(chunk(b"two"))  # before the task in `forward_to` had its turn
            with pytest.raises(ValueError, match="one"):
                await passing
            connection.data_received(chunk(b"three"))
            assert taken == [b"one"]
            assert await connection.read() == b"twothree"

    asyncio.run(main())


@pytest.mark.parametrize("end", ["end", "end with the last piece", "cut", "nonsense", "silence"])
def test_forwarding_ends_with_the_answer_or_its_break(end: str) -> None:
    async def main() -> None:
        async with asked() as (connection, writer):
            taken: list[bytes] = []
            passing = asyncio.create_task(connection.forward_to(take_into(taken)))
            await turn()
            writer.write(chunk(b"one"))
            while not taken:
                await asyncio.sleep(0)
            ends: dict[str, Callable[[], object]] = {
                "end": lambda: writer.write(LAST),
                "end with the last piece": lambda: writer.write(chunk(b"two") + LAST),
                "cut": writer.transport.abort,
                "nonsense": lambda: writer.write(chunk(b"two") + b"nonsense\r\n"),
                "silence": lambda: connection.fail(TimeoutError()),
            }
            ends[end]()
            await passing
            assert taken == [b"one"]
            if end in ("end with the last piece", "nonsense"):
                assert await connection.read() == b"two"
            if end.startswith("end"):
                assert await connection.read() == b""
                await connection.forward_to(lambda _: pytest.fail("there is nothing to take"))
            else:
                for ask in (connection.read, lambda: connection.forward_to(lambda _: True)):
                    with pytest.raises(TimeoutError if end == "silence" else ConnectionBroken):
                        await ask()

    asyncio.run(main())


def test_nothing_is_forwarded_while_bytes_wait_to_be_read() -> None:
    async def main() -> None:
        async with asked() as (connection, _):
            connection.data_received(chunk(b"one"))
            await connection.forward_to(lambda _: pytest.fail("it would overtake what waits"))
            connection.data_received(chunk(b"two"))
            assert await connection.read() == b"onetwo"

    asyncio.run(main())


def test_cancelled_forwarding_leaves_the_rest_to_be_read() -> None:
    async def main() -> None:
        async with asked() as (connection, _):
            taken: list[bytes] = []
            passing = asyncio.create_task(connection.forward_to(take_into(taken)))
            await turn()
            connection.data_received(chunk(b"one"))
            passing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await passing
            connection.data_received(chunk(b"two"))
            assert (taken, await connection.read()) == ([b"one"], b"two")

    asyncio.run(main())


def test_a_request_cancelled_as_its_head_arrives_closes_the_connection() -> None:
    async def main() -> None:
        closed = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD)
            await reader.read()
            closed.set()
            writer.close()

        async def cancel_at_head(asking: asyncio.Task[Connection]) -> None:
            while not any(connection.status for connection in pool.watched):
                await asyncio.sleep(0)
            asking.cancel()

        server, pool = await asyncio.start_server(answer, "127.0.0.1", 0), HttpPool()
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        asking = asyncio.create_task(pool.request("GET", url, b"", read_timeout=60))
        async with asyncio.timeout(5):
            await cancel_at_head(asking)
            with pytest.raises(asyncio.CancelledError):
                await asking
            await closed.wait()
        server.close()

    asyncio.run(main())


@pytest.mark.parametrize("line", [b"X-More: 1\r\n", b"x" * 1000], ids=["many headers", "one long header"])
def test_a_head_without_end_is_broken_off(line: bytes) -> None:
    async def main() -> None:
        many = line * (2 * MOST_HEAD // len(line))
        with pytest.raises(AnswerTooLong):
            async with asked(b"HTTP/1.1 200 OK\r\nX-Long: 1\r\n" + many):
                pass

    asyncio.run(main())


def test_trailers_without_end_are_broken_off() -> None:
    async def main() -> None:
        async with asked() as (connection, writer):
            writer.write(chunk(b"one") + b"0\r\n" + b"X-More: 1\r\n" * MOST_HEAD)
            assert await connection.read() == b"one"
            with pytest.raises(AnswerTooLong):
                await connection.read()

    asyncio.run(main())


def test_a_whole_answer_over_the_limit_is_refused() -> None:
    async def main() -> None:
        for length in (1000, 1001):
            async with asked() as (connection, writer):
                writer.write(chunk(b"x" * length) + LAST)
                if length == 1000:
                    assert await connection.read_whole(1000) == b"x" * 1000
                else:
                    with pytest.raises(AnswerTooLong):
                        await connection.read_whole(1000)

    asyncio.run(main())


def test_a_body_in_pieces_is_not_held_while_the_answer_is_awaited() -> None:
    pieces = [b"x" * 300_000, b"y" * 300_000]
    body = b"".join(pieces)
    received: list[bytes] = []

    async def main() -> None:
        arrived, answers = asyncio.Event(), asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            received.append(await reader.readexactly(len(body)))
            arrived.set()
            await answers.wait()
            writer.write(HEAD + LAST)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        pool = HttpPool()
        endpoint = Endpoint(Upstream(name="u", url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), pool)
        asking = asyncio.create_task(endpoint.request("POST", endpoint.url("x"), pieces))
        async with asyncio.timeout(5):
            await arrived.wait()
            assert (pieces, received) == ([], [body])
            answers.set()
            (await asking).leave()
        pool.close()
        server.close()

    asyncio.run(main())


def test_a_connection_whose_reading_is_paused_is_not_used_again() -> None:
    async def main() -> None:
        async with asked() as (connection, _):
            connection.data_received(chunk(b"x" * MOST_HEAD * 2) + LAST)
            assert connection._paused
            assert connection.is_complete
            connection.leave()
            assert not connection._pool._idle[connection.origin]

    asyncio.run(main())


GZIP_HEAD = HEAD[:-2] + b"Content-Encoding: gzip\r\n\r\n"
MANY_WORDS = b"some words " * 1000


def compress(data: bytes) -> bytes:
    return zlib.compress(data, wbits=31)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=8), st.booleans())
def test_a_compressed_answer_is_inflated_for_every_cut_of_the_network(cuts: list[int], forwarded: bool) -> None:
    async def main() -> None:
        async with asked(GZIP_HEAD) as (connection, _):
            taken: list[bytes] = []
            passing = asyncio.create_task(connection.forward_to(take_into(taken))) if forwarded else None
            await turn()
            packed = compress(MANY_WORDS)
            raw = b"".join(chunk(packed[at : at + 9]) for at in range(0, len(packed), 9)) + LAST
            places = sorted({0, len(raw), *(place % len(raw) for place in cuts)})
            for start, end in pairwise(places):
                connection.data_received(raw[start:end])
            if passing is not None:
                await passing
            assert b"".join(taken) + await connection.read_start(1 << 30) == MANY_WORDS
            assert "content-encoding" not in connection.headers

    asyncio.run(main())


@pytest.mark.parametrize("is_forwarded", [False, True])
@pytest.mark.parametrize(("body", "error"), [(b"no gzip", ConnectionBroken), (compress(MANY_WORDS), AnswerTooLong)])
def test_a_compressed_answer_that_is_damaged_or_too_large_is_broken(
    body: bytes, error: type[ConnectionBroken], is_forwarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http1, "MOST_INFLATED", 1000)

    async def main() -> None:
        async with asked(GZIP_HEAD) as (connection, _):
            taken: list[bytes] = []
            reading = asyncio.create_task(
                connection.forward_to(take_into(taken)) if is_forwarded else connection.read_start(1 << 30)
            )
            await turn()
            connection.data_received(chunk(body))
            with pytest.raises(error):
                await reading
            assert not taken

    asyncio.run(main())

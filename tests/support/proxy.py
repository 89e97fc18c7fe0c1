"""A TCP proxy that injects network faults: cut, refused, frozen and delayed connections, and answers that get lost."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

T = TypeVar("T")
FRAME_END = b"\n\n"
HEAD_END = b"\r\n\r\n"
PIECE_BYTES = 65536
TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True)
class Cut:
    """End the answer after so many frames of its body, and so many bytes of the next one.

    `reset`: as when a machine dies. `close`: the connection is closed, in the middle of the chunked body. `clean`: the
    body ends as if it were complete, which is what other proxies make of the first two.
    """

    frames: int = 0
    extra: int = 0
    how: Literal["reset", "close", "clean"] = "reset"


@dataclass(frozen=True)
class Delay:
    """Hold every piece of the answer back for so long."""

    seconds: float


@dataclass(frozen=True)
class DiscardAnswer:
    """Pass the request on, and read the answer without passing it on, with the connection open."""


@dataclass(frozen=True)
class DropAnswer:
    """Pass the request on and reset the connection in place of the answer."""


@dataclass(frozen=True)
class RefuseConnection:
    """Reset the connection as soon as it is accepted."""


Fault = Cut | Delay | DiscardAnswer | DropAnswer | RefuseConnection | None


class Proxy:
    """Listens on a port of its own in front of the server's. `accepted` counts connections.

    The first connections suffer the faults that are given, one each and in this order; the methods affect all
    connections. It runs in a thread of its own, and a method's effect is complete when the method returns.
    """

    def __init__(self, target_port: int, *faults: Fault) -> None:
        self.accepted = 0
        self.port = 0
        self.dropped = threading.Event()  # the answer that drop_answer() announced
        self._target_port = target_port
        self._faults = deque(faults)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="proxy")
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._opened: list[asyncio.StreamWriter] = []  # all that ever were: one may have bytes that are never read
        self._blocked = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._drop_marker: bytes | None = None  # bytes of the request whose answer is dropped
        self._doomed: set[asyncio.StreamWriter] = set()  # clients whose next answer is dropped

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_SECONDS)
        self._loop.close()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def redirect(self, url: str) -> str:
        """Return the URL with the proxy's port in place of the server's."""
        assert f":{self._target_port}/" in url, url
        return url.replace(f":{self._target_port}/", f":{self.port}/")

    # -- faults of all connections

    def cut(self) -> None:
        """Reset every connection, on both sides."""
        self._call(self._reset_all)

    def block(self) -> None:
        """Reset every connection, and refuse new ones until `unblock`."""

        def block() -> None:
            self._blocked = True
            self._reset_all()

        self._call(block)

    def unblock(self) -> None:
        self._call(lambda: setattr(self, "_blocked", False))

    def freeze(self) -> None:
        """Hold all bytes back until `thaw`, with every connection open, as when packets are lost."""
        self._call(self._flowing.clear)

    def thaw(self) -> None:
        self._call(self._flowing.set)

    def drop_answer(self, to: bytes = b"") -> None:
        """Pass the next request with these bytes on, and reset its connection in place of its answer."""
        self.dropped.clear()
        self._call(lambda: setattr(self, "_drop_marker", to))

    # -- in the thread

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_SECONDS)

    def _call(self, function: Callable[[], object]) -> None:
        async def call() -> None:
            function()

        self._run(call())

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for _ in range(20):  # a connection that was just accepted takes some steps of the loop until it is served
            self._reset_all()
            for task in self._tasks:
                task.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._opened:
            writer.transport.abort()
        await asyncio.sleep(0)  # the transports close their sockets

    def _reset_all(self) -> None:
        for writer in self._writers:
            _reset(writer)

    def _keep(self, task: asyncio.Task[Any]) -> None:
        # Streams refer to one another weakly: a task that only waits for one would be collected while it waits.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Here and not in the task: one that is cancelled before it begins would leave its connection open.
        self._opened.append(writer)
        self._keep(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        fault = self._faults.popleft() if self._faults else None
        if self._blocked or isinstance(fault, RefuseConnection):
            return _reset(writer)
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            return _reset(writer)
        self._opened.append(server_writer)
        ends = {writer, server_writer}
        if self._blocked:  # since then
            for each in ends:
                _reset(each)
            return None
        self._writers |= ends
        requests = asyncio.create_task(self._forward_requests(reader, server_writer, writer))
        self._keep(requests)
        try:
            with contextlib.suppress(OSError, EOFError):
                await self._forward_answers(server_reader, writer, fault)
        finally:
            requests.cancel()
            self._writers -= ends
            for each in ends:
                each.close()
        return None

    async def _forward_requests(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                if self._drop_marker is not None and self._drop_marker in piece:
                    self._drop_marker = None
                    self._doomed.add(client)
                await self._pass_on(piece, server)
        server.close()

    async def _forward_answers(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter, fault: Fault) -> None:
        if isinstance(fault, DropAnswer):
            await reader.read(PIECE_BYTES)
            return _reset(client)
        if isinstance(fault, Cut):
            return await _cut(reader, client, fault)
        while piece := await reader.read(PIECE_BYTES):
            if client in self._doomed:
                self._doomed.discard(client)
                self.dropped.set()
                _reset(client)
                return None
            if isinstance(fault, Delay):
                await asyncio.sleep(fault.seconds)
            if not isinstance(fault, DiscardAnswer):
                await self._pass_on(piece, client)
        return None

    async def _pass_on(self, piece: bytes, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        if writer.is_closing():
            raise ConnectionResetError
        writer.write(piece)
        await writer.drain()


async def _cut(reader: asyncio.StreamReader, client: asyncio.StreamWriter, cut: Cut) -> None:
    head = await reader.readuntil(HEAD_END)
    chunked, clean = b"chunked" in head.lower(), cut.how == "clean"
    if clean:  # without a length, the end of the connection is the end of the body
        head = re.sub(rb"(?im)^(transfer-encoding|content-length):.*\r\n", b"connection: close\r\n", head)
    client.write(head)
    body, sent = b"", 0
    while (end := _find_end(body, cut)) is None or end > len(body):
        chunk = await (_read_chunk(reader) if chunked else reader.read(PIECE_BYTES))
        body += chunk
        end = _find_end(body, cut)
        kept = body[sent : len(body) if end is None else end]
        sent += len(kept)
        frame = b"%x\r\n%b%b" % (len(chunk), kept, b"\r\n" if kept == chunk else b"")
        client.write(frame if chunked and not clean else kept)
        if not chunk:
            return
    await client.drain()
    if cut.how == "reset":
        _reset(client)


def _find_end(body: bytes, cut: Cut) -> int | None:
    """Return the position of the cut; None while the body has too few frames to know it."""
    position = 0
    for _ in range(cut.frames):
        position = body.find(FRAME_END, position) + len(FRAME_END)
        if position < len(FRAME_END):
            return None
    return position + cut.extra


async def _read_chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readline(), 16)
    chunk = await reader.readexactly(size + 2)
    return chunk[:-2]


def _reset(writer: asyncio.StreamWriter) -> None:
    found: socket.socket | None = writer.get_extra_info("socket")
    if found is not None:
        with contextlib.suppress(OSError):  # closed meanwhile
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

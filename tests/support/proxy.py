"""A TCP proxy that spoils answers on purpose: cuts after a frame or within one, clean-looking ends, delays, silence."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

T = TypeVar("T")
FRAME_END = b"\n\n"
HEAD_END = b"\r\n\r\n"
PATIENCE = 20.0


@dataclass(frozen=True)
class Cut:
    """Break the answer off after so many frames of its body, and so many bytes of the next one.

    `reset`: as when a machine dies. `close`: the connection is closed, in the middle of the chunked body. `clean`: the
    body ends as if that were all of it, which is what proxies make of the other two.
    """

    frames: int = 0
    extra: int = 0
    how: Literal["reset", "close", "clean"] = "reset"


@dataclass(frozen=True)
class Delay:
    """Hold every piece of the answer back for so long."""

    seconds: float


@dataclass(frozen=True)
class Swallow:
    """The request arrives; its answer never does, and the connection is reset."""


class Away:
    """Whoever connects is turned away."""


Spoil = Cut | Delay | Swallow | Away | None


class Proxies:
    """A thread with one event loop for any number of proxies."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="proxies")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    def to(self, port: int, *spoils: Spoil) -> Proxy:
        """A proxy whose connections are spoilt in this order; further ones are not."""
        proxy = Proxy(port, spoils)
        self.run(proxy.open())
        return proxy

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)


class Proxy:
    """One listening port in front of the server's. `accepted` counts connections."""

    def __init__(self, target: int, spoils: tuple[Spoil, ...]) -> None:
        self._target = target
        self._spoils = deque(spoils)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.accepted = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.get_loop().call_soon_threadsafe(self._server.close)

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Streams hold one another weakly: a task that only waits for one would be collected while it waits.
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.accepted += 1
        spoil = self._spoils.popleft() if self._spoils else None
        if isinstance(spoil, Away):
            return _reset(writer)
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            return _reset(writer)
        asking = asyncio.create_task(_pump(reader, forth))
        with contextlib.suppress(OSError, EOFError):
            await self._answer(back, writer, spoil)
        asking.cancel()
        for each in (writer, forth):
            each.close()
        return None

    async def _answer(self, back: asyncio.StreamReader, writer: asyncio.StreamWriter, spoil: Spoil) -> None:
        if isinstance(spoil, Swallow):
            await back.read(65536)
            return _reset(writer)
        if isinstance(spoil, Cut):
            return await _cut(back, writer, spoil)
        while piece := await back.read(65536):
            if isinstance(spoil, Delay):
                await asyncio.sleep(spoil.seconds)
            writer.write(piece)
            await writer.drain()
        return None


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
        writer.close()


async def _cut(back: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: Cut) -> None:
    head = await back.readuntil(HEAD_END)
    chunked, clean = b"chunked" in head.lower(), cut.how == "clean"
    if clean:  # without a length, the end of the connection is the end of the body
        head = re.sub(rb"(?im)^(transfer-encoding|content-length):.*\r\n", b"connection: close\r\n", head)
    writer.write(head)
    body, sent = b"", 0
    while (end := _find_end(body, cut)) is None or end > len(body):
        chunk = await (_read_chunk(back) if chunked else back.read(65536))
        body += chunk
        end = _find_end(body, cut)
        kept = body[sent : len(body) if end is None else end]
        sent += len(kept)
        frame = b"%x\r\n%b%b" % (len(chunk), kept, b"\r\n" if kept == chunk else b"")
        writer.write(frame if chunked and not clean else kept)
        if not chunk:
            return
    await writer.drain()
    if cut.how == "reset":
        _reset(writer)


def _find_end(body: bytes, cut: Cut) -> int | None:
    """Where to cut; None while the body has not enough frames to tell."""
    position = 0
    for _ in range(cut.frames):
        position = body.find(FRAME_END, position) + len(FRAME_END)
        if position < len(FRAME_END):
            return None
    return position + cut.extra


async def _read_chunk(back: asyncio.StreamReader) -> bytes:
    size = int(await back.readline(), 16)
    chunk = await back.readexactly(size + 2)
    return chunk[:-2]


def _reset(writer: asyncio.StreamWriter) -> None:
    found: socket.socket | None = writer.get_extra_info("socket")
    if found is not None:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()

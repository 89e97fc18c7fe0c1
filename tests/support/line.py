"""A line to a server, within the test's own loop, that is cut at the worst moment."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class Line:
    """Connect to `port` instead of the server's own."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._is_down = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._wanted: bytes | None = None  # what the request must hold whose answer is lost
        self._asked: set[asyncio.StreamWriter] = set()  # whose answer that is
        self.swallowed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        """Every connection, as when a cable is pulled: neither side hears of it in good order."""
        for end in list(self._ends):
            end.transport.abort()

    def go_down(self) -> None:
        """Cut, and nobody gets through any more."""
        self._is_down = True
        self.cut()

    def come_up(self) -> None:
        self._is_down = False

    def freeze(self) -> None:
        """Nothing gets through any more, and nobody hears of it."""
        self._flowing.clear()

    def thaw(self) -> None:
        """What was on its way arrives."""
        self._flowing.set()

    def swallow_answer(self, to: bytes = b"") -> None:
        """The server will get the next request (with these bytes in it) and answer it; the answer is lost, and its
        connection cut."""
        self._wanted = to
        self.swallowed.clear()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_down:
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        self._ends |= {writer, far_writer}
        for pumping in (self._ask(reader, far_writer, writer), self._answer(far_reader, writer)):
            pump = asyncio.create_task(pumping)
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _ask(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if self._wanted is not None and self._wanted in data:
                    self._wanted = None
                    self._asked.add(back)
                await self._flowing.wait()
                if target.is_closing():
                    break
                target.write(data)
                await target.drain()
        self._end(target)

    async def _answer(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if target in self._asked:
                    self._asked.discard(target)
                    self.swallowed.set()
                    break
                await self._flowing.wait()
                if target.is_closing():
                    break
                target.write(data)
                await target.drain()
        self._end(target)

    def _end(self, target: asyncio.StreamWriter) -> None:
        target.transport.abort()
        self._ends.discard(target)

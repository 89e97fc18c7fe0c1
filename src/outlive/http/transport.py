"""The transport of a connection: what is written to the client, and what of that the client has not taken yet."""

import asyncio
import contextlib
import fcntl
import math
import socket
import struct
import termios
from dataclasses import dataclass
from typing import Any

from outlive.http.intake import Intake


class HeaderCoalescingTransport:
    """A transport that holds the head of an answer until its body begins: one system call less per request.

    Where protocols pause and resume reading, they pause and resume the parsing of what was read already, too.
    """

    __slots__ = ("_head", "_loop", "_transport", "_write", "get_extra_info", "intake", "is_closing")

    intake: Intake

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._write = transport.write
        self.is_closing, self.get_extra_info = transport.is_closing, transport.get_extra_info
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data[:5] == b"HTTP/":
            self._head = data
            # A head whose body does not begin in this iteration of the loop is sent alone.
            self._loop.call_soon(self._flush)
            return
        self._write(data)

    def write_whole(self, data: bytes) -> None:
        """Write an answer with its head."""
        self._flush()
        self._write(data)

    def pause_reading(self) -> None:
        self.intake.stop()

    def resume_reading(self) -> None:
        self.intake.resume()

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            data, self._head = self._head, b""
            self._write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def count_unconfirmed(transport: Any) -> int:
    """Count the bytes that the client's system has not confirmed, as far as this one knows."""
    try:
        raw = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except (OSError, ValueError):  # it was closed meanwhile
        raw = b"\0\0\0\0"
    return int(struct.unpack("i", raw)[0]) + int(transport.get_write_buffer_size())


def reset(transport: HeaderCoalescingTransport) -> None:
    """End a connection at once, with all that is buffered for it here and in the system."""
    with contextlib.suppress(OSError, ValueError):
        raw = socket.socket(fileno=transport.get_extra_info("socket").fileno())
        try:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            raw.detach()
    transport.abort()


@dataclass(slots=True)
class Backlog:
    """The bytes that a client has not taken yet, seen from second to second."""

    _since: float = math.inf  # no byte was taken since then
    _unconfirmed: int = 0

    def count_stalled_seconds(self, transport: HeaderCoalescingTransport, now: float) -> float:
        """Return for how long bytes were waiting and none of them was taken."""
        if transport.get_write_buffer_size() == 0:
            self._since = math.inf
            return 0.0
        left = count_unconfirmed(transport)
        if left < self._unconfirmed or self._since == math.inf:
            self._since = now
        self._unconfirmed = left
        return now - self._since

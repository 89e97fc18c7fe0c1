"""The transport of a connection: what is written to the client and what of that it has not taken yet; what the client
sends, parsed in short steps, so that no connection keeps the event loop from the others."""

import asyncio
import contextlib
import fcntl
import math
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

# Seconds after which parsing yields to the other connections.
STEP_SECONDS = 0.001
# Bytes of a fragment of a frame (RFC 6455, 5.2). A multiple of four: the mask of a frame fits each of its fragments.
MAX_FRAGMENT_BYTES = 64 * 1024
_FINAL, _MASKED, _LENGTH, _CONTROL = 0x80, 0x80, 0x7F, 0x08  # bits of the first two bytes

# Parses a piece of the data from the given position on and returns its length; 0 if it must wait.
Feed = Callable[[bytes, int], int]


class Turns:
    """Connections that have more to parse: one of them goes on in each iteration of the loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, step: Callable[[], None]) -> None:
        self._waiting.append(step)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._run_next)

    def _run_next(self) -> None:
        step = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._run_next)
        step()


class ClientTransport:
    """A transport that holds the head of an answer until its body begins: one system call less per request.

    While some of what the client sent is not parsed yet, nothing more is read. Where protocols pause and resume
    reading, they pause and resume parsing, too.
    """

    def __init__(self, transport: asyncio.Transport, turns: Turns, feed: Feed) -> None:
        self.feed = feed
        self.is_paused = False  # the transport reads nothing more, so that the client cannot send
        self.is_closing, self.get_extra_info = transport.is_closing, transport.get_extra_info
        self._transport = transport
        self._write = transport.write
        self._loop = asyncio.get_running_loop()
        self._turns = turns
        self._head = b""
        self._rest = b""  # was read and is not parsed yet
        self._is_due = False  # it has a turn
        self._is_stopped = False  # the protocol takes nothing more
        self._since = math.inf  # the client has taken none of the bytes that wait for it since then
        self._unconfirmed = 0  # those bytes, when they were last counted

    # -- what is written

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
        """Write an answer with its head, behind a head that is held."""
        data, self._head = self._head + data, b""
        self._write(data)

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

    def count_unconfirmed(self) -> int:
        """Count the bytes that the client's system has not confirmed, as far as this one knows."""
        try:
            raw = fcntl.ioctl(self.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
        except (OSError, ValueError):  # it was closed meanwhile
            raw = b"\0\0\0\0"
        return int(struct.unpack("i", raw)[0]) + self._transport.get_write_buffer_size()

    def reset_if_stalled(self, now: float, seconds: float) -> bool:
        """End the connection at once, with all that is buffered for it here and in the system, if bytes were waiting
        for so long and the client has taken none of them."""
        if self._transport.get_write_buffer_size() == 0:
            self._since = math.inf
            return False
        left = self.count_unconfirmed()
        if left < self._unconfirmed or self._since == math.inf:
            self._since = now
        self._unconfirmed = left
        if now - self._since <= seconds:
            return False
        with contextlib.suppress(OSError, ValueError):
            raw = socket.socket(fileno=self.get_extra_info("socket").fileno())
            try:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            finally:
                raw.detach()
        self._transport.abort()
        return True

    # -- what the client sends

    def take(self, data: bytes) -> None:
        """Parse what was received, behind what is left of the last time."""
        self._rest = self._rest + data if self._rest else data
        if not self._is_due:
            self._parse()

    def pause_reading(self) -> None:
        """Parse nothing more, and read nothing more."""
        self._is_stopped = True
        self._pause_or_resume()

    def resume_reading(self) -> None:
        """Parse what is left, if it may be parsed now, and read on when nothing is left."""
        self._is_stopped = False
        if not self._rest:
            self._pause_or_resume()
        elif not self._is_due:
            self._take_turn()

    def drop(self) -> None:
        """Drop all that the client sends: the connection is gone, and must not be kept by what it holds."""
        self._rest = b""
        self.feed = lambda data, position: len(data) - position

    def _take_turn(self) -> None:
        self._is_due = True
        self._turns.add(self._parse)

    def _parse(self) -> None:
        self._is_due = False
        data, position, end = self._rest, 0, monotonic() + STEP_SECONDS
        self._rest = b""
        while position < len(data) and not self._is_stopped and not self.is_closing():
            if (length := self.feed(data, position)) == 0:
                break
            position += length
            if position < len(data) and monotonic() > end:
                self._take_turn()
                break
        self._rest = data[position:]
        self._pause_or_resume()

    def _pause_or_resume(self) -> None:
        wanted = self._is_stopped or bool(self._rest)
        if wanted == self.is_paused or self.is_closing():
            return
        self.is_paused = wanted
        if wanted:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class FrameSplitter:
    """Cuts large frames of a WebSocket into fragments, so that no step of parsing them is long. Nothing of a payload is
    kept, and small frames are not changed."""

    __slots__ = ("_behind", "_final", "_head", "_mask", "_max_bytes", "left")

    def __init__(self, max_bytes: int) -> None:
        self.left = 0  # bytes of the fragment that are still to come
        self._max_bytes = max_bytes  # of a message: a larger frame is left to be refused as it is
        self._head = b""  # of a frame, as far as it has come
        self._behind = 0  # bytes of the frame behind the fragment
        self._final = 0  # the frame's own bit
        self._mask = b""

    def split(self, data: bytes) -> bytes:
        """Return the bytes with which the parser goes on."""
        pieces: list[bytes] = []
        position = 0
        while position < len(data):
            if self.left:
                piece = data[position : position + self.left]
                self.left -= len(piece)
                pieces.append(piece)
            elif self._behind:
                pieces.append(self._begin_fragment(0))
                continue
            else:
                piece = data[position : position + _count_head(self._head) - len(self._head)]
                self._head += piece
                if len(self._head) == _count_head(self._head):
                    pieces.append(self._begin_frame())
            position += len(piece)
        return b"".join(pieces)

    def _begin_frame(self) -> bytes:
        head, self._head = self._head, b""
        length = head[1] & _LENGTH
        if length > 125:
            (length,) = struct.unpack_from("!H" if length == 126 else "!Q", head, 2)
        if length <= MAX_FRAGMENT_BYTES or length > self._max_bytes or head[0] & _CONTROL or not head[1] & _MASKED:
            self.left = length
            return head
        self._behind, self._final, self._mask = length, head[0] & _FINAL, head[-4:]
        return self._begin_fragment(head[0] & ~_FINAL)

    def _begin_fragment(self, first: int) -> bytes:
        self.left = min(MAX_FRAGMENT_BYTES, self._behind)
        self._behind -= self.left
        if not self._behind:
            first |= self._final
        return struct.pack("!BBQ", first, _MASKED | 127, self.left) + self._mask


def _count_head(head: bytes) -> int:
    """Return the length of a frame's head, as far as it shows."""
    if len(head) < 2:
        return 2
    return 2 + {126: 2, 127: 8}.get(head[1] & _LENGTH, 0) + (4 if head[1] & _MASKED else 0)

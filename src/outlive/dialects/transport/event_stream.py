"""Parser of an event stream (SSE): the payloads of its events, wherever the network cut it."""

from typing import NoReturn

import msgspec

from outlive.core.errors import UpstreamFault

DONE = b"[DONE]"

# Bytes of one event; a server that sends more is not sending events. And of all events of one answer.
MOST_EVENT = 32 * 1024 * 1024
MOST_ANSWER = 128 * 1024 * 1024
_LONG = 64 * 1024


class EventStream(msgspec.Struct, eq=False):
    """Parses a stream as it is read. Comments, and fields other than `data`, are skipped."""

    done: bool = False  # `[DONE]` came: nothing follows
    _rest: bytes = b""
    _more: list[bytes] = []  # what follows a long rest, in pieces: to join them with each read would be quadratic
    _waiting: int = 0  # bytes of those
    _size: int = 0  # of the whole answer

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the payloads that this piece completes."""
        self._size += len(piece)
        whole = piece.startswith(b"data: {") and piece.endswith(b"}\n\n") and piece.count(b"\n") == 2
        if whole and not self._rest and self._size <= MOST_ANSWER:
            return [piece[6:-2]]  # one event, as in nearly every read of a model that writes slowly
        if len(self._rest) > _LONG:
            self._more.append(piece)
            self._waiting += len(piece)
            if self._waiting > MOST_EVENT:
                self._refuse()  # before anything is joined: each copy is as long
            if b"\n" not in piece:
                return []
            piece = b"".join(self._more)
            self._more, self._waiting = [], 0
        read = self._rest + piece
        if b"\r" in read:  # JSON has no raw one; a pair that is cut in half waits in the rest
            read = read.replace(b"\r\n", b"\n")
        *events, self._rest = read.split(b"\n\n")
        if len(self._rest) > MOST_EVENT or self._size > MOST_ANSWER:
            self._refuse()
        payloads: list[bytes] = []
        for event in events:
            if event.startswith(b"data: ") and b"\n" not in event:
                payload = event[6:]
            elif event.startswith(b"event: ") and event.count(b"\n") == 1:
                # A name and a payload, as in every event of the Responses API; the name is in the payload, too.
                payload = event.partition(b"\ndata: ")[2] or _join_data(event)
            else:
                payload = _join_data(event)
            if payload == DONE:
                self.done = True
                break
            if payload:
                payloads.append(payload)
        return payloads

    def _refuse(self) -> NoReturn:
        self._rest, self._more = b"", []
        raise UpstreamFault("The model's server sent more than is taken of it.", retryable=False)

    def end(self) -> list[bytes]:
        """Return the payload of a last event that lacks its blank line."""
        return self.feed(b"\n\n") if self._rest.strip() else []


def _join_data(event: bytes) -> bytes:
    """Return the payload of an event of any shape: its data lines, joined."""
    lines: list[bytes] = []
    for line in event.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            lines.append(value)
        elif name == b"error" and value:  # llama.cpp has sent its errors as a field of that name
            return value if value.startswith(b'{"error"') else b'{"error":' + value + b"}"
    return b"\n".join(lines).strip()

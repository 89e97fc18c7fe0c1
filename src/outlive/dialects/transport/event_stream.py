"""Parser of an event stream (SSE): the payloads of its events, wherever the network cut it."""

from typing import NoReturn

import msgspec

from outlive.core.errors import UpstreamFault

DONE = b"[DONE]"

# Bytes of one event; a server that sends more is not sending events. And of all events of one answer.
MOST_EVENT = 32 * 1024 * 1024
MOST_ANSWER = 128 * 1024 * 1024
_LONG = 64 * 1024

# Numbers, because to look for a text of bytes in bytes raises an error within, and drops it.
_NEWLINE, _RETURN = b"\n\r"


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
        if self._size > MOST_ANSWER:
            self._refuse()
        end = piece.find(b"\n")
        # Nearly every read of a stream under way is one event, and that one line of data.
        if piece[end:] == b"\n\n" and end > 7 and not self._rest and piece.startswith(b"data: "):
            payloads = [piece[6:end].removesuffix(b"\r")]
        else:
            payloads = self._feed_any(piece)
        if DONE in payloads:
            self.done = True
            del payloads[payloads.index(DONE) :]
        return payloads

    def _feed_any(self, piece: bytes) -> list[bytes]:
        if len(self._rest) > _LONG:
            self._more.append(piece)
            self._waiting += len(piece)
            if self._waiting > MOST_EVENT:
                self._refuse()  # before anything is joined: each copy is as long
            if _NEWLINE not in piece:
                return []
            piece = b"".join(self._more)
            self._more, self._waiting = [], 0
        read = self._rest + piece
        if _RETURN in read:  # JSON has no raw one; a pair that is cut in half waits in the rest
            read = read.replace(b"\r\n", b"\n")
        events, _, self._rest = read.rpartition(b"\n\n")
        if len(self._rest) > MOST_EVENT:
            self._refuse()
        # All events that are read at once are cut at once, if each is one line of data.
        payloads = events[6:].split(b"\n\ndata: ") if events.startswith(b"data: ") else []
        if payloads and b"" not in payloads and _NEWLINE not in b"".join(payloads):
            return payloads
        return [payload for event in events.split(b"\n\n") if (payload := _read_event(event))]

    def _refuse(self) -> NoReturn:
        self._rest, self._more = b"", []
        raise UpstreamFault("The model's server sent more than is taken of it.", retryable=False)

    def end(self) -> list[bytes]:
        """Return the payload of a last event that lacks its blank line."""
        return self.feed(b"\n\n") if self._rest.strip() else []


def _read_event(event: bytes) -> bytes:
    """Return the payload of an event: its data lines, joined."""
    if event.startswith(b"data: ") and _NEWLINE not in event:
        return event[6:]
    # A name and a payload, as in every event of the Responses API; the name is in the payload, too.
    if event.startswith(b"event: ") and event.count(b"\n") == 1 and (payload := event.partition(b"\ndata: ")[2]):
        return payload
    lines: list[bytes] = []
    for line in event.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            lines.append(value)
        elif name == b"error" and value:  # llama.cpp has sent its errors as a field of that name
            return value if value.startswith(b'{"error"') else b'{"error":' + value + b"}"
    return b"\n".join(lines).strip()

"""Parser of an event stream (SSE): the payloads of its events, wherever the network cut it."""

from typing import NoReturn

import msgspec

from outlive.core.errors import UpstreamFault

DONE = b"[DONE]"

# Bytes of one event; a server that sends more is not sending events. And of all events of one answer.
MOST_EVENT, MOST_ANSWER = 32 * 1024 * 1024, 128 * 1024 * 1024

# Numbers, because to look for a text of bytes in bytes raises an error within, and drops it.
_NEWLINE, _RETURN = b"\n\r"


class EventStream(msgspec.Struct, eq=False):
    """Parses a stream as it is read. Comments, and fields other than `data`, are skipped."""

    done: bool = False  # `[DONE]` came: nothing follows
    _rest: bytearray = bytearray()  # the beginning of an event
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
        if self._rest:
            start = max(len(self._rest) - 2, 0)  # an empty line may have begun there
            self._rest += piece  # in place, and copied with an empty line only: with each read it would be quadratic
            if len(self._rest) > MOST_EVENT:
                self._refuse()
            if self._rest.find(b"\n\n", start) < 0 and self._rest.find(b"\n\r\n", start) < 0:
                return []
            piece = bytes(self._rest)
        if _RETURN in piece:  # JSON has no raw one; a pair that is cut in half waits in the rest
            piece = piece.replace(b"\r\n", b"\n")
        events, _, rest = piece.rpartition(b"\n\n")
        self._rest = bytearray(rest)
        # All events that are read at once are cut at once, if each is one line of data.
        payloads = events[6:].split(b"\n\ndata: ") if events.startswith(b"data: ") else []
        if payloads and b"" not in payloads and _NEWLINE not in b"".join(payloads):
            return payloads
        return [payload for event in events.split(b"\n\n") if (payload := _read_event(event))]

    def _refuse(self) -> NoReturn:
        self._rest.clear()
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

"""Events of a response: drafts as translators make them, frames as they are stored and sent.

A draft has no number. `core.numbering` gives it one and renders it, once, into the frame (the very bytes of the SSE
event) that the journal keeps and every reader gets.
"""

from __future__ import annotations

from copy import copy
from typing import Any, TypeAlias

import msgspec

Json: TypeAlias = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Json).decode

TERMINAL_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})

# The stream's last frame. It is not an event: it has no number and is not journaled.
DONE_FRAME = b"data: [DONE]\n\n"
KEEP_ALIVE_FRAME = b": keep-alive\n\n"


class Draft:
    """One event before it has a number: its type and the fields besides `type` and `sequence_number`."""

    __slots__ = ("fields", "type")

    def __init__(self, type_: str, fields: Json) -> None:
        self.type = type_
        self.fields = fields

    def frame(self, number: int) -> bytes:
        name = self.type.encode()
        rest = _encode(self.fields)
        return b'event: %b\ndata: {"type":"%b","sequence_number":%d%b%b\n\n' % (
            name,
            name,
            number,
            b"," if self.fields else b"",
            rest[1:],
        )

    def __repr__(self) -> str:
        return f"Draft({self.type!r}, {self.fields!r})"


class Channel:
    """A text that is growing: where the deltas of one part, summary or argument string go.

    Everything in a delta's frame but its number and its text is rendered here once, because deltas are nearly all
    there is on the per-event path.
    """

    __slots__ = ("_head", "_place", "_tail", "key", "output_index", "type")

    def __init__(
        self, type_: str, item_id: str, output_index: int, index_name: str | None = None, index: int = 0
    ) -> None:
        name = type_.encode()
        place: Json = {"item_id": item_id, "output_index": output_index}
        if index_name is not None:
            place[index_name] = index
        self.type = type_
        self.output_index = output_index
        self.key = (type_, output_index, index)
        self._head = b'event: %b\ndata: {"type":"%b","sequence_number":' % (name, name)
        self._place = b"," + _encode(place)[1:-1] + b',"delta":'
        self._tail = b',"logprobs":[]}\n\n' if type_ == "response.output_text.delta" else b"}\n\n"

    def frame(self, number: int, text: str) -> bytes:
        return b"%b%d%b%b%b" % (self._head, number, self._place, _encode(text), self._tail)

    def renamed(self, name: str) -> Channel:
        """The same text under another name of its event; a fold still knows it by its key."""
        other = copy(self)
        other.type = name
        other._head = b'event: %b\ndata: {"type":"%b","sequence_number":' % (name.encode(), name.encode())
        return other


class Delta:
    """The next piece of a channel's text."""

    __slots__ = ("channel", "text")

    def __init__(self, channel: Channel, text: str) -> None:
        self.channel = channel
        self.text = text

    @property
    def type(self) -> str:
        return self.channel.type

    def frame(self, number: int) -> bytes:
        return self.channel.frame(number, self.text)

    def __repr__(self) -> str:
        return f"Delta({self.channel.key!r}, {self.text!r})"


AnyDraft: TypeAlias = Draft | Delta


def split_frames(frames: bytes) -> list[bytes]:
    """Cut stored frames apart. JSON has no raw newline, so a blank line is always a frame's end."""
    return [frame + b"\n\n" for frame in frames.split(b"\n\n")[:-1]]


def payloads(frames: bytes) -> list[bytes]:
    """The JSON in each of these frames, as it is, without the framing that SSE needs; comments are left out."""
    return [frame[frame.index(b"\ndata: ") + 7 :] for frame in frames.split(b"\n\n")[:-1] if not frame.startswith(b":")]


def read_frame(frame: bytes) -> Json:
    """The event in a frame, as a mapping with `type` and `sequence_number`."""
    return _decode(frame[frame.index(b"\ndata: ") + 7 :])


def is_last(frames: bytes) -> bool:
    """Whether the last of these frames is a terminal event."""
    start = frames.rfind(b"\n\n", 0, len(frames) - 2)
    start = 0 if start < 0 else start + 2
    name = frames[start + 7 : frames.find(b"\n", start)]
    return name.decode() in TERMINAL_EVENTS

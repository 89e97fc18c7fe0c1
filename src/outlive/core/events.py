"""Events of a response: drafts as translators make them, frames as they are stored and sent.

A draft has no number. `number`, the only place that counts, gives it one and renders it, once, into the frame (the very
bytes of the SSE event) that the journal keeps and every reader gets.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import msgspec

from outlive.core.grammar import ITEM_ADDED, ITEM_DONE, OPEN_RESPONSES_NAMES, TERMINAL_EVENTS, Text

Json: TypeAlias = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Json).decode

# The stream's last frame. It is not an event: it has no number and is not journaled.
DONE_FRAME = b"data: [DONE]\n\n"
KEEP_ALIVE_FRAME = b": keep-alive\n\n"


class Draft(msgspec.Struct, eq=False, gc=False):
    """One event before it has a number: its type and the fields besides `type` and `sequence_number`."""

    type: str
    fields: Json

    def frame(self, number: int) -> bytes:
        return _form(self.type, b"," if self.fields else b"") % (number, _encode(self.fields)[1:])


class Channel:
    """A text that is growing: its kind, its place, and the events that carry it.

    Everything in a delta's frame but its number and its text is rendered here once, into `form`, because deltas are
    nearly all there is on the per-event path.
    """

    __slots__ = ("form", "key", "output_index", "place", "text", "type")

    def __init__(self, text: Text, item_id: str, output_index: int, index: int = 0) -> None:
        """`index` is the position of its part in the item's list, where the text lies in a part."""
        self.text = text
        self.place: Json = {"item_id": item_id, "output_index": output_index}
        if text.parts is not None:
            self.place[text.parts.index_field] = index
        self.output_index = output_index
        self.key = (text.delta, output_index, index)
        self.rename(text.delta)

    def rename(self, name: str) -> None:
        """Give its events another name; its key, by which a fold knows it, stays."""
        self.type = name
        rest = b',"delta":%b,"logprobs":[]}\n\n' if self.text.beside == "logprobs" else b',"delta":%b}\n\n'
        self.form = _form(name, b",").removesuffix(b"%b\n\n") + _encode(self.place)[1:-1].replace(b"%", b"%%") + rest

    def end(self, whole: str, beside: object = None) -> Draft:
        """End the text; `beside` is what the grammar wants besides the text."""
        fields = {**self.place, self.text.field: whole}
        if self.text.beside is not None:
            fields[self.text.beside] = beside
        return Draft(self.text.done, fields)

    def add_part(self) -> Draft:
        """Add the part in which the text lies, empty."""
        assert self.text.parts is not None
        return Draft(self.text.parts.added, {**self.place, "part": make_part(self.text, "")})

    def end_part(self, part: Json) -> Draft:
        assert self.text.parts is not None
        return Draft(self.text.parts.done, {**self.place, "part": part})


@lru_cache(256)
def _form(type_: str, seam: bytes) -> bytes:
    """Return the frame of an event, with places for its number and, behind the seam, its fields."""
    name = type_.encode().replace(b"%", b"%%")
    return b'event: %b\ndata: {"type":"%b","sequence_number":%%d%b%%b\n\n' % (name, name, seam)


def make_part(text: Text, whole: str, logprobs: list[Json] | None = None) -> Json:
    """The part in which a text lies."""
    if text.beside == "logprobs":
        return {"type": text.part, "annotations": [], "logprobs": list(logprobs or ()), text.field: whole}
    return {"type": text.part, text.field: whole}


class Delta(msgspec.Struct, eq=False, gc=False):
    """The next piece of a channel's text."""

    channel: Channel
    text: str

    @property
    def type(self) -> str:
        return self.channel.type

    def frame(self, number: int) -> bytes:
        return self.channel.form % (number, _encode(self.text))

    def __repr__(self) -> str:
        return f"Delta({self.channel.key!r}, {self.text!r})"


AnyDraft: TypeAlias = Draft | Delta


def add_item(output_index: int, item: Json) -> Draft:
    return Draft(ITEM_ADDED, {"output_index": output_index, "item": item})


def end_item(output_index: int, item: Json) -> Draft:
    return Draft(ITEM_DONE, {"output_index": output_index, "item": item})


def move(draft: AnyDraft, by: int) -> AnyDraft:
    """Return a draft about an item that stands `by` places earlier; one about no item stays as it is."""
    if isinstance(draft, Delta):
        channel, item_id = draft.channel, draft.channel.place["item_id"]
        return Delta(Channel(channel.text, item_id, channel.output_index - by, channel.key[2]), draft.text)
    if "output_index" not in draft.fields:
        return draft
    return Draft(draft.type, draft.fields | {"output_index": draft.fields["output_index"] - by})


def number(drafts: Iterable[AnyDraft], after: int) -> list[bytes]:
    """Render drafts into frames, numbered from `after + 1` on."""
    return [draft.frame(n) for n, draft in enumerate(drafts, after + 1)]


def split_frames(frames: bytes) -> list[bytes]:
    """Split stored frames. JSON has no raw newline, so a blank line is always a frame's end."""
    return [frame + b"\n\n" for frame in frames.split(b"\n\n")[:-1]]


def add_ids(frames: bytes, after: int) -> bytes:
    """Put each event's number before it as an SSE `id:` line, from `after + 1` on; a comment stays as it is."""
    if frames.startswith(b":"):
        return frames
    return b"".join(b"id: %d\n%b" % (n, frame) for n, frame in enumerate(split_frames(frames), after + 1))


def payloads(frames: bytes) -> list[bytes]:
    """Return the JSON of each frame without its SSE framing; comments are left out."""
    return [frame[frame.index(b"\ndata: ") + 7 :] for frame in frames.split(b"\n\n")[:-1] if not frame.startswith(b":")]


def read_frame(frame: bytes) -> Json:
    """Decode a frame's event, a mapping with `type` and `sequence_number`."""
    return _decode(frame[frame.index(b"\ndata: ") + 7 :])


def is_last(frames: bytes) -> bool:
    """Return True if the last of these frames is a terminal event."""
    start = frames.rfind(b"\n\n", 0, len(frames) - 2)
    start = 0 if start < 0 else start + 2
    name = frames[start + 7 : frames.find(b"\n", start)]
    return name.decode() in TERMINAL_EVENTS


# OpenAI and Open Responses differ in the names of a few events. Drafts are made with OpenAI's names. Those of a
# response that was created under the other names are renamed before they are numbered, so that its journal keeps the
# names that it began with, whatever the setting says by then.
EventNames = Literal["openai", "open-responses"]


def rename(drafts: list[AnyDraft]) -> list[AnyDraft]:
    """Rename drafts to the names of Open Responses, in place: a channel once, with its first delta."""
    for draft in drafts:
        if (name := OPEN_RESPONSES_NAMES.get(draft.type)) is not None:
            if isinstance(draft, Delta):
                draft.channel.rename(name)
            else:
                draft.type = name
    return drafts

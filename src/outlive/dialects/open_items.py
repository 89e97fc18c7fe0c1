"""Output items while they grow: each makes the drafts that open it, add to it and close it."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Literal

import msgspec

from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json, add_item, end_item, make_part
from outlive.core.grammar import CUSTOM_INPUT, FUNCTION_ARGUMENTS, OUTPUT_TEXT, Text

# Marks `encrypted_content` that is plain text, in contrast to what only its own server can read.
PLAIN_SEAL = "outlive:plain:"

ItemStatus = Literal["completed", "incomplete"]

_decode = msgspec.json.Decoder().decode


class GrowingText:
    """A message or a reasoning item: parts of text, one growing at a time."""

    __slots__ = (
        "_list", "_parts", "_sealed", "channel", "item_id", "logprobs", "output_index", "pieces", "seal", "type",
    )  # fmt: skip

    def __init__(self, type_: str, item_id: str, output_index: int, sealed: bool = False) -> None:
        self._sealed = sealed  # a reasoning item is to end with `encrypted_content`
        self.seal: str | None = None  # the `encrypted_content`, where the upstream sends its own
        self._list = "content"  # of the item, in which the parts lie
        self._parts: list[Json] = []
        self.type = type_
        self.item_id = item_id
        self.output_index = output_index
        self.channel: Channel | None = None  # of the part that is growing
        self.pieces: list[str] = []
        self.logprobs: list[Json] = []

    def resume(self, content_index: int, text: str) -> None:
        """Continue a text part that an earlier attempt opened, and sent this far."""
        self._begin(OUTPUT_TEXT, content_index)
        self.pieces.append(text)

    def open(self) -> list[AnyDraft]:
        return [add_item(self.output_index, self._item("in_progress"))]

    def open_part(self, text: Text) -> list[AnyDraft]:
        """Begin a part for that kind of text, unless it is the one that is growing."""
        if self.channel is not None and self.channel.text is text:
            return []
        drafts = self._close_part()
        return [*drafts, self._begin(text, len(self._parts)).add_part()]

    def grow(self, piece: str) -> AnyDraft:
        assert self.channel is not None
        self.pieces.append(piece)
        return Delta(self.channel, piece)

    def grow_with(self, piece: str, logprobs: list[Json]) -> AnyDraft:
        """Grow by a piece that comes with its log probabilities."""
        assert self.channel is not None
        self.pieces.append(piece)
        self.logprobs += logprobs
        return Draft(self.channel.type, {**self.channel.place, "delta": piece, "logprobs": list(logprobs)})

    def close(self, status: ItemStatus) -> list[AnyDraft]:
        return [*self._close_part(), end_item(self.output_index, self._item(status))]

    def _begin(self, text: Text, index: int) -> Channel:
        assert text.parts is not None
        self._list = text.parts.name
        self.pieces, self.logprobs = [], []
        self.channel = Channel(text, self.item_id, self.output_index, index)
        return self.channel

    def _close_part(self) -> list[AnyDraft]:
        channel, self.channel = self.channel, None
        if channel is None:
            return []
        whole = "".join(self.pieces)
        part = make_part(channel.text, whole, self.logprobs)
        self._parts.append(part)
        return [channel.end(whole, list(self.logprobs)), channel.end_part(part)]

    def _item(self, status: str) -> Json:
        item: Json = {"id": self.item_id, "type": self.type, "status": status}
        if self.type == "message":
            return item | {"role": "assistant", "content": list(self._parts)}
        item |= {"summary": [], self._list: list(self._parts)}
        if status != "in_progress" and (self.seal is not None or self._sealed):
            item["encrypted_content"] = _seal(self._parts) if self.seal is None else self.seal
        return item


class GrowingCall:
    """A call of a function, or of a custom tool. It may gather arguments before it is opened."""

    __slots__ = ("_channel", "_pieces", "_sent", "call_id", "name")

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._pieces: list[str] = []
        self._sent = 0
        self.call_id = ""
        self.name = ""

    @property
    def was_opened(self) -> bool:
        return self._channel is not None

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    def open(self, text: Text, item_id: str, output_index: int) -> list[AnyDraft]:
        self._channel = Channel(text, item_id, output_index)
        return [add_item(output_index, self._item("in_progress", "")), *self.flush()]

    def grow(self, piece: str) -> None:
        self._pieces.append(piece)

    def flush(self) -> list[AnyDraft]:
        """Return the deltas not sent yet: none before the call is open, none ever for a custom tool's arguments."""
        if self._channel is None or self._channel.text is not FUNCTION_ARGUMENTS:
            return []
        fresh, self._sent = self._pieces[self._sent :], len(self._pieces)
        return [Delta(self._channel, piece) for piece in fresh if piece]

    def close(self, status: ItemStatus) -> list[AnyDraft]:
        """End the call. One that was cut off is incomplete, unless its arguments had ended."""
        assert self._channel is not None
        whole = self.arguments
        if status == "incomplete" and is_json(whole):
            status = "completed"
        drafts: list[AnyDraft] = []
        if self._channel.text is CUSTOM_INPUT:
            whole = _read_input(whole) if status == "completed" else ""
            drafts = [Delta(self._channel, whole)] if whole else []
        elif status == "completed" and not whole.strip():
            self.grow("{}")  # a function without parameters; clients parse what they get
            drafts, whole = self.flush(), self.arguments
        drafts.append(self._channel.end(whole, self.name))
        return [*drafts, end_item(self._channel.output_index, self._item(status, whole))]

    def _item(self, status: str, whole: str) -> Json:
        assert self._channel is not None
        text = self._channel.text
        item: Json = {"id": self._channel.place["item_id"], "type": text.item, "status": status}
        return item | {"call_id": self.call_id, "name": self.name, text.field: whole}


def is_json(arguments: str) -> bool:
    """Return True if the arguments are JSON to their end."""
    try:
        _decode(arguments)
    except msgspec.DecodeError:
        return False
    return True


def is_json_object(arguments: str) -> bool:
    """Return True if nothing can follow: a number may get more digits, an object that has ended has ended."""
    return arguments.rstrip().endswith("}") and is_json(arguments)


def _read_input(arguments: str) -> str:
    """Return the free text of a custom tool's call from the function arguments that carry it."""
    try:
        value: Any = _decode(arguments)
    except msgspec.DecodeError:
        return arguments  # the model wrote its text without the JSON around it
    if isinstance(value, dict) and isinstance(value.get("input"), str):
        return str(value["input"])
    return value if isinstance(value, str) else arguments


def _seal(parts: list[Json]) -> str:
    """Make the `encrypted_content` of reasoning in plain text: clients that keep their history themselves send
    reasoning back only with it. There is nothing to hide, so it is the text itself."""
    return PLAIN_SEAL + b64encode("".join(part["text"] for part in parts).encode(errors="replace") or b" ").decode()

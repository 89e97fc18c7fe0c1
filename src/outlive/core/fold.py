"""The fold: what a response looks like after its events so far. A Response object is never anything else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from outlive.core.events import TERMINAL_EVENTS, AnyDraft, Delta, Draft, Json, read_frame, split_frames
from outlive.core.naming import OPENAI_NAMES

# Where the text of a delta goes: the item's list it lies in (None: the item itself) and the field's name there.
DELTA_FIELDS: dict[str, tuple[str | None, str, str | None]] = {
    "response.output_text.delta": ("content", "text", "content_index"),
    "response.refusal.delta": ("content", "refusal", "content_index"),
    "response.reasoning_text.delta": ("content", "text", "content_index"),
    "response.reasoning_summary_text.delta": ("summary", "text", "summary_index"),
    "response.function_call_arguments.delta": (None, "arguments", None),
    "response.custom_tool_call_input.delta": (None, "input", None),
    "response.mcp_call_arguments.delta": (None, "arguments", None),
}

_LIFECYCLE = TERMINAL_EVENTS | {"response.created", "response.queued", "response.in_progress"}
PART_EVENTS = {
    "response.content_part.added": ("content", "content_index"),
    "response.content_part.done": ("content", "content_index"),
    "response.reasoning_summary_part.added": ("summary", "summary_index"),
    "response.reasoning_summary_part.done": ("summary", "summary_index"),
}


Part = tuple[str, int]  # the list of an item that a part lies in, and its index there


class Fold:
    """Applies events one after the other. Applying event 10,000 costs what event 10 cost."""

    __slots__ = ("_growing", "_header", "_items", "_open", "_said", "deltas", "ended", "last", "status", "visible")

    def __init__(self, header: Json | None = None, last: int = -1) -> None:
        """An empty fold, or one that begins with what a response was accepted as, and its first events' numbers."""
        self._header: Json = header or {}
        self._items: list[Json] = []
        # Items without a `done` yet, each with its parts that have none.
        self._open: dict[int, list[Part]] = {}
        # Texts without a `done` yet, in pieces, by delta type, output index and part index.
        self._growing: dict[tuple[str, int, int], list[str]] = {}
        # Texts of open items that have had their `done`, by the same key.
        self._said: set[tuple[str, int, int]] = set()
        self.status: str = self._header.get("status", "queued")
        self.last = last
        self.deltas = 0
        self.visible = False
        self.ended = False

    def apply(self, drafts: Iterable[AnyDraft]) -> None:
        """Take numbered drafts in; the caller vouches that they are durable and come in order."""
        for draft in drafts:
            self.last += 1
            if type(draft) is Delta:
                self.deltas += 1
                self._grow(draft.channel.key, draft.text)
            elif type(draft) is Draft:
                self._take(draft.type, draft.fields)

    def replay(self, frames: bytes) -> None:
        """Take stored frames in."""
        for frame in split_frames(frames):
            event = read_frame(frame)
            self.last = event["sequence_number"]
            self._take(event["type"], event)

    # -- what is there

    @property
    def header(self) -> Json:
        return self._header

    @property
    def output(self) -> list[Json]:
        """The items so far, with the text so far; finished ones as they are."""
        return [self._item(index) for index in range(len(self._items))]

    def response(self) -> Json:
        """The Response object as of the last event."""
        if self.ended:
            return self._header
        return {**self._header, "output": self.output}

    def snapshot(self) -> bytes:
        return msgspec.json.encode(self.response())

    def open_items(self) -> Iterator[tuple[int, Json, list[Part]]]:
        """Each item that has no `done` yet: its index, what it holds so far, and its parts that have none either."""
        for index, parts in sorted(self._open.items()):
            yield index, self._item(index), parts

    def is_said(self, delta_type: str, output_index: int, index: int = 0) -> bool:
        """Whether a text of an open item is whole: it has had its `done`, though its part or item has not."""
        return (delta_type, output_index, index) in self._said

    def count_pieces(self, delta_type: str, output_index: int, index: int = 0) -> int:
        """In how many deltas a text that is growing has come."""
        return len(self._growing.get((delta_type, output_index, index), ()))

    # -- taking one event

    def _take(self, type_: str, fields: Json) -> None:
        if type_ in _LIFECYCLE:
            self._header = fields["response"]
            self.status = self._header["status"]
            self.ended = type_ in TERMINAL_EVENTS
            return
        self.visible = True
        type_ = OPENAI_NAMES.get(type_, type_)
        if type_ in DELTA_FIELDS:
            self._take_delta(type_, fields)
        elif type_ == "response.output_item.added":
            self._set_item(fields["output_index"], fields["item"])
            self._open[fields["output_index"]] = []
        elif type_ == "response.output_item.done":
            self._set_item(fields["output_index"], fields["item"])
            self._close(fields["output_index"])
        elif type_ in PART_EVENTS:
            self._take_part(type_, fields)
        elif type_.endswith(".done") and type_[:-4] + "delta" in DELTA_FIELDS:
            self._take_text_done(type_[:-4] + "delta", fields)
        elif type_ == "response.output_text.annotation.added":
            self._annotate(fields)
        elif type_ == "response.mcp_call.in_progress":
            self._items[fields["output_index"]] = {**self._items[fields["output_index"]], "status": "calling"}

    def _annotate(self, fields: Json) -> None:
        item, index = self._items[fields["output_index"]], fields["content_index"]
        parts = list(item.get("content") or [])
        if index < len(parts):
            notes = [*(parts[index].get("annotations") or []), fields["annotation"]]
            parts[index] = {**parts[index], "annotations": notes}
            self._items[fields["output_index"]] = {**item, "content": parts}

    def _take_delta(self, type_: str, fields: Json) -> None:
        self.deltas += 1
        index_name = DELTA_FIELDS[type_][2]
        key = (type_, fields["output_index"], fields[index_name] if index_name else 0)
        self._grow(key, fields["delta"])

    def _grow(self, key: tuple[str, int, int], text: str) -> None:
        pieces = self._growing.get(key)
        if pieces is None:
            self._growing[key] = [text]
        else:
            pieces.append(text)

    def _take_text_done(self, delta_type: str, fields: Json) -> None:
        list_name, field, index_name = DELTA_FIELDS[delta_type]
        index = fields[index_name] if index_name else 0
        self._growing.pop((delta_type, fields["output_index"], index), None)
        self._said.add((delta_type, fields["output_index"], index))
        self._put_text(fields["output_index"], list_name, index, field, fields[field])

    def _take_part(self, type_: str, fields: Json) -> None:
        list_name, index_name = PART_EVENTS[type_]
        item = self._items[fields["output_index"]]
        parts = list(item.get(list_name) or [])
        index = fields[index_name]
        parts[index : index + 1] = [fields["part"]]
        self._items[fields["output_index"]] = {**item, list_name: parts}
        open_parts = self._open.setdefault(fields["output_index"], [])
        if type_.endswith(".added"):
            open_parts.append((list_name, index))
        elif (list_name, index) in open_parts:
            open_parts.remove((list_name, index))

    def _set_item(self, index: int, item: Json) -> None:
        while len(self._items) <= index:
            self._items.append({})
        self._items[index] = item

    def _close(self, index: int) -> None:
        self._open.pop(index, None)
        for key in [key for key in self._growing if key[1] == index]:
            del self._growing[key]
        self._said = {key for key in self._said if key[1] != index}

    def _put_text(self, output_index: int, list_name: str | None, index: int, field: str, text: str) -> None:
        self._items[output_index] = _with_text(self._items[output_index], list_name, index, field, text)

    def _item(self, index: int) -> Json:
        item = self._items[index]
        if index in self._open:
            for key, pieces in self._growing.items():
                if key[1] == index:
                    list_name, field, _ = DELTA_FIELDS[key[0]]
                    item = _with_text(item, list_name, key[2], field, "".join(pieces))
        return item


def _with_text(item: Json, list_name: str | None, index: int, field: str, text: str) -> Json:
    """A copy of the item with that text in its place. Copies, because an item may still be in somebody's hands."""
    if list_name is None:
        return {**item, field: text}
    parts: list[Any] = list(item.get(list_name) or [])
    if index >= len(parts):
        # A reasoning text may come without a part event before it.
        parts.append({"type": "reasoning_text" if list_name == "content" else "summary_text"})
        index = len(parts) - 1
    parts[index] = {**parts[index], field: text}
    return {**item, list_name: parts}

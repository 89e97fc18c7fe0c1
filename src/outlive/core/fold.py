"""The fold: the state of a response after its events so far. A Response object is never anything else."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from outlive.core.events import AnyDraft, Delta, Draft, Json, read_frame, split_frames
from outlive.core.grammar import (
    ANNOTATION_ADDED,
    CALL_BEGUN,
    DELTAS,
    DONES,
    ITEM_ADDED,
    ITEM_DONE,
    LIFECYCLE_EVENTS,
    PART_EVENTS,
    TERMINAL_EVENTS,
    PartList,
    Text,
)

# The status that the fold gives to a call that this server has begun; no event carries it.
CALLING = "calling"

OpenPart = tuple[str, int]  # the item's list that an open part lies in, and its index there


class Fold:
    """Applies events one after the other. Applying event 10,000 costs what event 10 cost."""

    __slots__ = (
        "_done", "_growing", "_items", "_open", "deltas", "ended", "header", "last", "size", "status", "visible",
    )  # fmt: skip

    def __init__(self, header: Json | None = None, last: int = -1) -> None:
        """Begin empty, or with the header that a response was accepted with and the number of its last event."""
        self.header: Json = header or {}
        self._items: list[Json] = []
        # Items without a `done` yet, each with its parts that have none.
        self._open: dict[int, list[OpenPart]] = {}
        # Texts without a `done` yet, in pieces, by delta event, output index and part index.
        self._growing: dict[tuple[str, int, int], list[str]] = {}
        # Texts of open items that have had their `done`, by the same key.
        self._done: set[tuple[str, int, int]] = set()
        self.status: str = self.header.get("status", "queued")
        self.last = last
        self.deltas = 0
        self.size = 0  # characters of all deltas
        self.visible = False
        self.ended = False

    def apply(self, drafts: Iterable[AnyDraft]) -> None:
        """Apply drafts; the caller guarantees that they are durable and come in order."""
        for draft in drafts:
            self.last += 1
            if type(draft) is Delta:  # nearly all are, and spared a call
                self.deltas += 1
                self.size += len(draft.text)
                self._growing.setdefault(draft.channel.key, []).append(draft.text)
            elif type(draft) is Draft:
                self._take(draft.type, draft.fields)

    def replay(self, frames: bytes) -> None:
        """Apply stored frames."""
        for frame in split_frames(frames):
            event = read_frame(frame)
            self.last = event["sequence_number"]
            self._take(event["type"], event)

    # -- the state

    @property
    def output(self) -> list[Json]:
        """The items so far, with the text so far; finished ones as they are."""
        return [self._item(index) for index in range(len(self._items))]

    def response(self) -> Json:
        """The Response object as of the last event."""
        return self.header if self.ended else {**self.header, "output": self.output}

    def snapshot(self) -> bytes:
        return msgspec.json.encode(self.response())

    def open_items(self) -> Iterator[tuple[int, Json, list[OpenPart]]]:
        """Yield each item that has no `done` yet: its index, the item so far, and its parts that have none either."""
        for index, parts in sorted(self._open.items()):
            yield index, self._item(index), parts

    def is_text_done(self, text: Text, output_index: int, index: int = 0) -> bool:
        """Return True if a text has had its `done` while its item is still open."""
        return (text.delta, output_index, index) in self._done

    def count_deltas(self, text: Text, output_index: int, index: int = 0) -> int:
        """Count the deltas of a text that is growing."""
        return len(self._growing.get((text.delta, output_index, index), ()))

    # -- applying one event

    def _take(self, type_: str, fields: Json) -> None:
        if type_ in LIFECYCLE_EVENTS:
            self.header = fields["response"]
            self.status = self.header["status"]
            self.ended = type_ in TERMINAL_EVENTS
            return
        self.visible = True
        if (text := DELTAS.get(type_)) is not None:
            self.deltas += 1
            self.size += len(fields["delta"])
            self._growing.setdefault(_key_of(text, fields), []).append(fields["delta"])
        elif (text := DONES.get(type_)) is not None:
            _, output_index, index = key = _key_of(text, fields)
            self._growing.pop(key, None)
            self._done.add(key)
            self._items[output_index] = _with_text(self._items[output_index], text, index, fields[text.field])
        elif (parts := PART_EVENTS.get(type_)) is not None:
            self._set_part(parts, fields, is_open=type_ == parts.added)
        elif type_ in (ITEM_ADDED, ITEM_DONE):
            self._set_item(fields["output_index"], fields["item"], is_open=type_ == ITEM_ADDED)
        elif type_ == ANNOTATION_ADDED:
            item, index = self._items[fields["output_index"]], fields["content_index"]
            listed = item.get("content") or []
            if index < len(listed):
                annotations = [*(listed[index].get("annotations") or []), fields["annotation"]]
                annotated = {**listed[index], "annotations": annotations}
                self._items[fields["output_index"]] = _with_part(item, "content", index, annotated)
        elif type_ == CALL_BEGUN:
            self._items[fields["output_index"]] = {**self._items[fields["output_index"]], "status": CALLING}

    def _set_part(self, parts: PartList, fields: Json, *, is_open: bool) -> None:
        item, index = self._items[fields["output_index"]], fields[parts.index_field]
        self._items[fields["output_index"]] = _with_part(item, parts.name, index, fields["part"])
        open_parts = self._open.setdefault(fields["output_index"], [])
        if is_open:
            open_parts.append((parts.name, index))
        elif (parts.name, index) in open_parts:
            open_parts.remove((parts.name, index))

    def _set_item(self, index: int, item: Json, *, is_open: bool) -> None:
        while len(self._items) <= index:
            self._items.append({})
        self._items[index] = item
        if is_open:
            self._open[index] = []
            return
        self._open.pop(index, None)
        for key in [key for key in self._growing if key[1] == index]:
            del self._growing[key]
        self._done = {key for key in self._done if key[1] != index}

    def _item(self, index: int) -> Json:
        item = self._items[index]
        if index in self._open:
            for key, pieces in self._growing.items():
                if key[1] == index:
                    item = _with_text(item, DELTAS[key[0]], key[2], "".join(pieces))
        return item


def _key_of(text: Text, fields: Json) -> tuple[str, int, int]:
    """Return the key of the text that an event is about; its last part is 0 for a text without parts."""
    return text.delta, fields["output_index"], 0 if text.parts is None else fields[text.parts.index_field]


def _with_text(item: Json, text: Text, index: int, whole: str) -> Json:
    """Copy the item with that text in its place."""
    if text.parts is None:
        return {**item, text.field: whole}
    listed = item.get(text.parts.name) or []
    # A reasoning text may come without a part event before it.
    part = listed[index] if index < len(listed) else {"type": text.part}
    return _with_part(item, text.parts.name, index, {**part, text.field: whole})


def _with_part(item: Json, name: str, index: int, part: Json) -> Json:
    """Copy the item with that part in its list, at its end if it is shorter. A copy, because the item may have been
    handed out already."""
    listed: list[Any] = list(item.get(name) or [])
    listed[index : index + 1] = [part]
    return {**item, name: listed}

"""Output items of a Responses stream as they pass through, with what their server left out added.

Servers differ in what they send of an item: some leave out indices, some the events of parts, some everything between
its beginning and its end. The drafts made here keep to the rules in `core.grammar` all the same.
"""

from __future__ import annotations

from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json, add_item, end_item
from outlive.core.grammar import ANNOTATION_ADDED, DELTAS, DONES, ITEM_TEXTS, PART_EVENTS

# Fields of an event that are its server's own, or are set here.
_OWN = frozenset({"type", "sequence_number", "obfuscation", "item_id", "output_index"})


def tidy(item: object) -> Json | None:
    """Return the item with every field that is read here of its type; None if it is no item."""
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return None
    if item["type"] in ("message", "reasoning"):
        for name in ("content", "summary"):
            if name in item:
                parts = item[name] if isinstance(item[name], list) else []
                item = {**item, name: [part for part in parts if isinstance(part, dict)]}
    return item if isinstance(item.get("id", ""), str) else {**item, "id": None}


def is_part_event(type_: str) -> bool:
    """Return True for the events of parts; `response.reasoning_part` is vLLM's."""
    return type_ in PART_EVENTS or type_ in ("response.reasoning_part.added", "response.reasoning_part.done")


class PassingItem:
    """An item of a type that is not in the grammar: it and its events pass as they are."""

    __slots__ = ("item_id", "kind", "last", "output_index", "over")

    def __init__(self, item_id: str, output_index: int, kind: str) -> None:
        self.kind = kind
        self.item_id = item_id
        self.output_index = output_index
        self.last: Json = {}  # the item as it was last sent
        self.over = False

    @property
    def growing(self) -> tuple[Channel, list[str]] | None:
        """The text that is growing, and its pieces so far, where deltas can simply be passed on."""
        return None

    def open(self, item: Json) -> list[AnyDraft]:
        self.last = {**item, "id": self.item_id}
        if item.get("status") == "completed":
            self.last["status"] = "in_progress"
        return [add_item(self.output_index, self.last)]

    def take(self, type_: str, event: Json) -> list[AnyDraft]:
        fields = self.place(event)
        return [Draft(type_, fields)] if _is_readable(type_, fields) else []

    def close(self, item: Json, status: str) -> list[AnyDraft]:
        """End it with the fields of this item, and with this status where it has none."""
        self.over = True
        whole = {**self.last, **item, "id": self.item_id}
        if whole.get("status") == "in_progress":
            whole["status"] = status
        self.last = whole
        return [end_item(self.output_index, whole)]

    def place(self, event: Json | None = None) -> Json:
        """Return the fields that name the item, with the other fields of an event."""
        rest = {name: value for name, value in (event or {}).items() if name not in _OWN}
        return {"item_id": self.item_id, "output_index": self.output_index, **rest}


def _is_readable(type_: str, fields: Json) -> bool:
    """Return True if an event has the fields that the fold reads in events of its name; a missing index becomes 0."""
    if (parts := PART_EVENTS.get(type_)) is not None:
        fields.setdefault(parts.index_field, 0)
        return isinstance(fields.get("part"), dict) and isinstance(fields[parts.index_field], int)
    if type_ == ANNOTATION_ADDED:
        fields.setdefault("content_index", 0)
        return "annotation" in fields
    text = DELTAS.get(type_) or DONES.get(type_)
    if text is None:
        return True
    if text.parts is not None:
        fields.setdefault(text.parts.index_field, 0)
    return isinstance(fields.get("delta" if type_ in DELTAS else text.field), str)


class SwallowedItem(PassingItem):
    """An item that is dropped: reasoning that a model repeats before it continues a text."""

    __slots__ = ()

    def open(self, item: Json) -> list[AnyDraft]:
        return []

    def take(self, type_: str, event: Json) -> list[AnyDraft]:
        return []

    def close(self, item: Json, status: str) -> list[AnyDraft]:
        self.over = True
        return []


class PassingCall(PassingItem):
    """A function call, or a call of a custom tool."""

    __slots__ = ("_channel", "_ended", "_pieces")

    def __init__(self, item_id: str, output_index: int, kind: str) -> None:
        super().__init__(item_id, output_index, kind)
        self._channel = Channel(ITEM_TEXTS[kind], item_id, output_index)
        self._pieces: list[str] = []
        self._ended = False

    @property
    def growing(self) -> tuple[Channel, list[str]] | None:
        return None if self._ended else (self._channel, self._pieces)

    def open(self, item: Json) -> list[AnyDraft]:
        return super().open({**item, "status": "in_progress", self._channel.text.field: ""})

    def take(self, type_: str, event: Json) -> list[AnyDraft]:
        if type_ == self._channel.type:
            return self._grow(event.get("delta"))
        if type_ == self._channel.text.done:
            return self._end(event.get(self._channel.text.field))
        return super().take(type_, event)

    def close(self, item: Json, status: str) -> list[AnyDraft]:
        status, field = item.get("status") or status, self._channel.text.field
        drafts: list[AnyDraft] = []
        if not self._ended:
            whole = item.get(field)
            if field == "arguments" and status == "completed" and not whole and not self._pieces:
                whole = "{}"  # a function without parameters; clients parse what they get
            drafts = self._end(whole)
        kept = {name: self.last.get(name) for name in ("type", "call_id", "name")}
        return drafts + super().close({**item, **kept, "status": status, field: "".join(self._pieces)}, status)

    def _grow(self, piece: object) -> list[AnyDraft]:
        if not isinstance(piece, str) or not piece or self._ended:
            return []
        self._pieces.append(piece)
        return [Delta(self._channel, piece)]

    def _end(self, whole: object) -> list[AnyDraft]:
        if self._ended:
            return []
        sent = "".join(self._pieces)
        # A whole that contradicts what was sent is ignored.
        drafts = self._grow(whole[len(sent) :] if isinstance(whole, str) and whole.startswith(sent) else "")
        self._ended = True
        return [*drafts, self._channel.end("".join(self._pieces), self.last.get("name"))]

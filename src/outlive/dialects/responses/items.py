"""Output items of a Responses stream on their way through: each as it came, with what its server left out put right.

Servers differ in what they send of an item: some leave out indices, some the events of parts, some everything between
its beginning and its end. What goes on from here keeps to the rules in `core.status` all the same.
"""

from __future__ import annotations

from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json
from outlive.core.fold import DELTA_FIELDS, PART_EVENTS

ADDED, DONE = "response.output_item.added", "response.output_item.done"

# Fields of an event that are its server's, or are set here.
_OWN = frozenset({"type", "sequence_number", "obfuscation", "item_id", "output_index"})


def tidy(item: object) -> Json | None:
    """An item in which everything that is looked at is of its type; None: that is no item."""
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return None
    if item["type"] in ("message", "reasoning"):
        for name in ("content", "summary"):
            if name in item:
                parts = item[name] if isinstance(item[name], list) else []
                item = {**item, name: [part for part in parts if isinstance(part, dict)]}
    return item if isinstance(item.get("id", ""), str) else {**item, "id": None}


class PassingItem:
    """An item of a kind that has no rules here: it and its events go through as they are."""

    __slots__ = ("item_id", "kind", "last", "output_index", "over")

    def __init__(self, item_id: str, output_index: int, kind: str) -> None:
        self.kind = kind
        self.item_id = item_id
        self.output_index = output_index
        self.last: Json = {}  # the item as it was shown last
        self.over = False

    @property
    def growing(self) -> tuple[Channel, list[str]] | None:
        """The text that is growing, and its pieces so far, where deltas need no more than to be passed on."""
        return None

    def open(self, item: Json) -> list[AnyDraft]:
        self.last = {**item, "id": self.item_id}
        if item.get("status") == "completed":
            self.last["status"] = "in_progress"
        return [Draft(ADDED, {"output_index": self.output_index, "item": self.last})]

    def take(self, type_: str, event: Json) -> list[AnyDraft]:
        fields = self.place(event)
        return [Draft(type_, fields)] if _is_readable(type_, fields) else []

    def close(self, item: Json, status: str) -> list[AnyDraft]:
        """End it as this item says, or, where it does not say, with this status."""
        self.over = True
        whole = {**self.last, **item, "id": self.item_id}
        if whole.get("status") == "in_progress":
            whole["status"] = status
        self.last = whole
        return [Draft(DONE, {"output_index": self.output_index, "item": whole})]

    def place(self, event: Json | None = None) -> Json:
        """Where the item is, and what else an event says."""
        rest = {name: value for name, value in (event or {}).items() if name not in _OWN}
        return {"item_id": self.item_id, "output_index": self.output_index, **rest}


def _is_readable(type_: str, fields: Json) -> bool:
    """Whether an event of an item without rules has what the fold looks for in events of its name."""
    family, _, what = type_.rpartition(".")
    if type_ == "response.output_text.annotation.added":
        fields.setdefault("content_index", 0)
        return "annotation" in fields
    if type_ in PART_EVENTS:
        _, index_name = PART_EVENTS[type_]
        fields.setdefault(index_name, 0)
        return isinstance(fields.get("part"), dict) and isinstance(fields[index_name], int)
    if f"{family}.delta" not in DELTA_FIELDS or what not in ("delta", "done"):
        return True
    _, field, index = DELTA_FIELDS[f"{family}.delta"]
    if index is not None:
        fields.setdefault(index, 0)
    return isinstance(fields.get("delta" if what == "delta" else field), str)


class SwallowedItem(PassingItem):
    """An item that is not shown: what a model thinks again before it writes on."""

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

    __slots__ = ("_channel", "_event", "_field", "_pieces", "_said")

    def __init__(self, item_id: str, output_index: int, kind: str) -> None:
        super().__init__(item_id, output_index, kind)
        is_function = kind == "function_call"
        self._event = "function_call_arguments" if is_function else "custom_tool_call_input"
        self._field = "arguments" if is_function else "input"
        self._channel = Channel(f"response.{self._event}.delta", item_id, output_index)
        self._pieces: list[str] = []
        self._said = False

    @property
    def growing(self) -> tuple[Channel, list[str]] | None:
        return None if self._said else (self._channel, self._pieces)

    def open(self, item: Json) -> list[AnyDraft]:
        return super().open({**item, "status": "in_progress", self._field: ""})

    def take(self, type_: str, event: Json) -> list[AnyDraft]:
        if type_ == self._channel.type:
            return self._grow(event.get("delta"))
        if type_ == f"response.{self._event}.done":
            return self._say(event.get(self._field))
        return super().take(type_, event)

    def close(self, item: Json, status: str) -> list[AnyDraft]:
        status = item.get("status") or status
        drafts: list[AnyDraft] = []
        if not self._said:
            whole = item.get(self._field)
            if self._field == "arguments" and status == "completed" and not whole and not self._pieces:
                whole = "{}"  # a function without parameters; clients parse what they get
            drafts = self._say(whole)
        kept = {name: self.last.get(name) for name in ("type", "call_id", "name")}
        return drafts + super().close({**item, **kept, "status": status, self._field: "".join(self._pieces)}, status)

    def _grow(self, text: object) -> list[AnyDraft]:
        if not isinstance(text, str) or not text or self._said:
            return []
        self._pieces.append(text)
        return [Delta(self._channel, text)]

    def _say(self, whole: object) -> list[AnyDraft]:
        if self._said:
            return []
        said = "".join(self._pieces)
        # A whole that contradicts what was shown does not count.
        drafts = self._grow(whole[len(said) :] if isinstance(whole, str) and whole.startswith(said) else "")
        self._said = True
        name: Json = {"name": self.last.get("name")} if self._field == "arguments" else {}
        told = self.place() | name | {self._field: "".join(self._pieces)}
        return [*drafts, Draft(f"response.{self._event}.done", told)]

"""Output items of a Responses stream as they pass through, with what their server left out added.

Servers differ in what they send of an item: some leave out indices, some the events of parts, some everything between
its beginning and its end. The drafts made here keep to the rules in `core.grammar` all the same.
"""

from typing import Any

import msgspec

from outlive.core import grammar
from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json, add_item, end_item, make_part
from outlive.core.grammar import CONTENT, OUTPUT_TEXT, Text

# Fields of an event that are its server's own, or are set here.
_OWN = frozenset({"type", "sequence_number", "obfuscation", "item_id", "output_index"})
# Names of the events of parts; `response.reasoning_part` is vLLM's.
PART_NAMES = grammar.PART_EVENTS.keys() | {"response.reasoning_part.added", "response.reasoning_part.done"}


def tidy(item: object) -> Json | None:
    """Return the item with every field that is read here of its type; None if it is no item."""
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return None
    for name in ("content", "summary") if item["type"] in ("message", "reasoning") else ():
        if name in item:
            item = {**item, name: [part for part in _list(item[name]) if isinstance(part, dict)]}
    return item if isinstance(item.get("id", ""), str) else {**item, "id": None}


class PassingText(msgspec.Struct, eq=False):
    """A text while it grows: a part's, or a call's arguments."""

    channel: Channel
    pieces: list[str] = []
    before: str = ""  # what an earlier attempt sent of it
    awaited: bool = False  # that attempt opened its part, whose `added` is not sent again
    upstream_index: object = None  # the index of its part as the upstream counts, where it sent no `added`
    logprobs: list[Json] = []
    annotations: list[object] = []
    ended: bool = False

    def grow(self, piece: object, logprobs: list[Json] | None = None) -> list[AnyDraft]:
        if not isinstance(piece, str) or not piece or self.ended:
            return []
        self.awaited = False
        self.pieces.append(piece)
        if not logprobs:
            return [Delta(self.channel, piece)]
        self.logprobs += logprobs
        return [Draft(self.channel.type, {**self.channel.place, "delta": piece, "logprobs": logprobs})]

    def end(self, fields: Json, name: object = None) -> list[AnyDraft]:
        """End it, unless it has ended, with the fields of its event or of its part: with what the deltas left out of
        the whole; a whole that contradicts them is ignored."""
        if self.ended:
            return []
        sent, whole = "".join(self.pieces), fields.get(self.channel.text.field)
        wholes = (whole, self.before + whole) if isinstance(whole, str) else ()
        drafts = self.grow(next((text[len(sent) :] for text in wholes if text.startswith(sent)), ""))
        self.ended = True
        beside = name if self.channel.text.beside == "name" else _list(fields.get("logprobs")) or self.logprobs
        return [*drafts, self.channel.end("".join(self.pieces), beside)]


class PassingItem(msgspec.Struct, eq=False):
    """An item of a type that is not in the grammar: it and its events pass as they are."""

    item_id: str
    output_index: int
    kind: str
    last: Json = {}  # the item as it was last sent
    over: bool = False
    text: PassingText | None = None  # that is growing

    def open(self, item: Json) -> list[AnyDraft]:
        self.last = {**item, "id": self.item_id}
        if item.get("status") == "completed":
            self.last["status"] = "in_progress"
        return [add_item(self.output_index, self.last)]

    def take(self, type_: str, event: Json) -> list[AnyDraft]:
        """Pass an event that has the fields that the fold reads in events of its name; a missing index becomes 0."""
        fields = self.place(event)
        text = grammar.DELTAS.get(type_) or grammar.DONES.get(type_)
        is_readable = True
        if (parts := grammar.PART_EVENTS.get(type_)) is not None:
            fields.setdefault(parts.index_field, 0)
            is_readable = isinstance(fields.get("part"), dict) and isinstance(fields[parts.index_field], int)
        elif type_ == grammar.ANNOTATION_ADDED:
            fields.setdefault("content_index", 0)
            is_readable = "annotation" in fields
        elif text is not None:
            if text.parts is not None:
                fields.setdefault(text.parts.index_field, 0)
            is_readable = isinstance(fields.get("delta" if type_ in grammar.DELTAS else text.field), str)
        return [Draft(type_, fields)] if is_readable else []

    def close(self, item: Json, status: str) -> list[AnyDraft]:
        """End it with the fields of this item, and with this status where it has none."""
        self.over = True
        self.last = {**self.last, **item, "id": self.item_id}
        if self.last.get("status") == "in_progress":
            self.last["status"] = status
        return [end_item(self.output_index, self.last)]

    def place(self, event: Json) -> Json:
        """Return the fields that name the item, with the other fields of an event."""
        rest = {name: value for name, value in event.items() if name not in _OWN}
        return {"item_id": self.item_id, "output_index": self.output_index, **rest}


class DroppedItem(PassingItem):
    """Reasoning that a model repeats before it continues a text."""

    def take(self, type_: str, event: Json) -> list[AnyDraft]:
        return []

    def close(self, item: Json, status: str) -> list[AnyDraft]:
        self.over = True
        return []


class PassingCall(PassingItem):
    """A function call, or a call of a custom tool."""

    def open(self, item: Json) -> list[AnyDraft]:
        kind = grammar.ITEM_TEXTS[self.kind]
        self.text = PassingText(Channel(kind, self.item_id, self.output_index))
        return super().open({**item, "status": "in_progress", kind.field: ""})

    def take(self, type_: str, event: Json) -> list[AnyDraft]:
        assert self.text is not None
        kind = self.text.channel.text
        if type_ == kind.delta:
            return self.text.grow(event.get("delta"))
        if type_ == kind.done:
            return self.text.end(event, self.last.get("name"))
        return super().take(type_, event)

    def close(self, item: Json, status: str) -> list[AnyDraft]:
        assert self.text is not None
        status, field = item.get("status") or status, self.text.channel.text.field
        whole = item.get(field)
        if field == "arguments" and status == "completed" and not whole and not self.text.pieces:
            whole = "{}"  # a function without parameters; clients parse what they get
        drafts = self.text.end({field: whole}, self.last.get("name"))
        kept = {name: self.last.get(name) for name in ("type", "call_id", "name")}
        return drafts + super().close({**item, **kept, "status": status, field: "".join(self.text.pieces)}, status)


class PassingParts(PassingItem):
    """A message, or reasoning. Its text is that of the part that is growing."""

    done: dict[str, list[Json]] = msgspec.field(default_factory=lambda: {name: [] for name in grammar.PART_LISTS})

    def open(self, item: Json) -> list[AnyDraft]:
        if item["type"] == "message":
            role = item.get("role") or "assistant"
            return super().open({**item, "status": "in_progress", "role": role, "content": []})
        # Encrypted content may still grow: only the finished item has all of it.
        begun = {name: [] if name == "content" else item[name] for name in item if name != "encrypted_content"}
        if begun.get("status") is not None:
            begun["status"] = "in_progress"
        return super().open({**begun, "summary": []})

    def take(self, type_: str, event: Json) -> list[AnyDraft]:
        if type_ in PART_NAMES and isinstance(event.get("part"), dict):
            return self._take_part(type_, event)
        if type_ == grammar.ANNOTATION_ADDED and "annotation" in event:
            drafts, growing = self._open_part(OUTPUT_TEXT, event)
            place = {**growing.channel.place, "annotation_index": len(growing.annotations)}
            growing.annotations.append(event["annotation"])
            return [*drafts, Draft(type_, self.place(event) | place)]
        text = grammar.DELTAS.get(type_) or grammar.DONES.get(type_)
        if text is None or text.part is None:
            return super().take(type_, event)
        is_done = type_ in grammar.DONES
        if is_done and self.text is not None and self.text.channel.text is text and self.text.ended:
            return []  # sent already
        drafts, growing = self._open_part(text, event)
        if is_done:
            return drafts + growing.end(event)
        return drafts + growing.grow(event.get("delta"), _list(event.get("logprobs")))

    def close(self, item: Json, status: str) -> list[AnyDraft]:
        drafts: list[AnyDraft] = []
        for name in ("summary", "content"):
            for index, part in enumerate(item.get(name) or ()):
                if index >= len(self.done[name]):  # send what the stream left out of it
                    is_known = str(part.get("type")) in grammar.PART_TEXTS
                    growing = self.text.channel.text.parts if self.text is not None and is_known else None
                    if growing is not grammar.PART_LISTS[name]:
                        drafts += self._take_part(CONTENT.added, {"part": part})
                    drafts += self._take_part(CONTENT.done, {"part": part})
        drafts += self._end_part({})
        whole = {**item, "type": self.kind}
        if self.kind == "message":
            whole |= {"role": self.last["role"], "content": self.done["content"]}
            whole["status"] = item.get("status") or status
        else:
            whole["summary"] = self.done["summary"]
            if self.done["content"] or whole.get("content") is not None:
                whole["content"] = self.done["content"]
        return drafts + super().close(whole, status)

    # -- parts

    def _take_part(self, type_: str, event: Json) -> list[AnyDraft]:
        part: Json = event["part"]
        if (text := grammar.PART_TEXTS.get(str(part.get("type")))) is not None:
            return self._begin(text) if type_.endswith(".added") else self._end_part(part)
        # A part of a type that is not in the grammar passes as it is.
        drafts = self._end_part({})
        place = self.place(event) | {CONTENT.index_field: len(self.done[CONTENT.name])}
        if type_.endswith(".done"):
            self.done[CONTENT.name].append(part)
        return [*drafts, Draft(type_, place)]

    def _begin(self, text: Text) -> list[AnyDraft]:
        """Begin a part, unless it was begun already and is still empty."""
        begun = self.text
        if begun and begun.channel.text is text and not begun.ended and (begun.awaited or not begun.pieces):
            begun.awaited = False
            return []
        drafts = self._end_part({})
        assert text.parts is not None
        self.text = PassingText(Channel(text, self.item_id, self.output_index, len(self.done[text.parts.name])))
        # The text before its annotations, as OpenAI's servers write it.
        empty = {"type": text.part, text.field: "", **make_part(text, "")}
        return [*drafts, Draft(text.parts.added, {**self.text.channel.place, "part": empty})]

    def _open_part(self, text: Text, event: Json) -> tuple[list[AnyDraft], PassingText]:
        """Return the text that the event is about, and the drafts, if any, that begin its part."""
        assert text.parts is not None
        begun, index = self.text, event.get(text.parts.index_field)
        if begun and begun.channel.text is text and not begun.ended and begun.upstream_index in (None, index):
            return [], begun
        drafts = self._begin(text)
        assert self.text is not None
        self.text.upstream_index = index
        return drafts, self.text

    def _end_part(self, whole: Json) -> list[AnyDraft]:
        """End the growing part, if there is one, with the fields of this one."""
        ending, self.text = self.text, None
        if ending is None:
            return []
        text = ending.channel.text
        drafts = ending.end(whole)
        part: Json = {**whole, "type": text.part, text.field: "".join(ending.pieces)}
        if text is OUTPUT_TEXT:
            part["annotations"] = ending.annotations or _list(whole.get("annotations"))
            part["logprobs"] = _list(whole.get("logprobs")) or ending.logprobs
        assert text.parts is not None
        self.done[text.parts.name].append(part)
        return [*drafts, ending.channel.end_part(part)]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []

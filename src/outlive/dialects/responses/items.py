"""Output items of a Responses stream as they pass through, with what their server left out added.

Servers differ in what they send of an item: some leave out indices, some the events of parts, some everything between
its beginning and its end. The drafts made here keep to the rules in `core.grammar` all the same.
"""

from __future__ import annotations

import msgspec

from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json, add_item, end_item, make_part
from outlive.core.grammar import (
    ANNOTATION_ADDED,
    CONTENT,
    DELTAS,
    DONES,
    ITEM_TEXTS,
    OUTPUT_TEXT,
    PART_EVENTS,
    PART_LISTS,
    PART_TEXTS,
    Text,
)
from outlive.core.recovery import OpenText

# Fields of an event that are its server's own, or are set here.
_OWN = frozenset({"type", "sequence_number", "obfuscation", "item_id", "output_index"})
# Names of the events of parts; `response.reasoning_part` is vLLM's.
PART_NAMES = PART_EVENTS.keys() | {"response.reasoning_part.added", "response.reasoning_part.done"}


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


class _Part(msgspec.Struct):
    """A part while it grows."""

    channel: Channel
    text: Text
    pieces: list[str] = []
    logprobs: list[Json] = []
    annotations: list[object] = []
    ended: bool = False  # its text has ended
    awaited: bool = False  # an earlier attempt opened it, so its `added` is not sent again
    upstream_index: object = None  # its index as the upstream counts, where it sent no `added`

    def rest_of(self, whole: object, before: str) -> str:
        """Return what the deltas left out of the whole text; `before` is what an earlier attempt sent of it."""
        sent = "".join(self.pieces)
        for text in (whole, before + whole) if isinstance(whole, str) else ():
            if text.startswith(sent):
                return text[len(sent) :]
        return ""  # it contradicts what was sent, which stays


class PassingText(PassingItem):
    """A message, or reasoning."""

    __slots__ = ("_before", "_done", "_part")

    def __init__(self, item_id: str, output_index: int, kind: str) -> None:
        super().__init__(item_id, output_index, kind)
        self._done: dict[str, list[Json]] = {name: [] for name in PART_LISTS}
        self._part: _Part | None = None
        self._before = ""

    @property
    def growing(self) -> tuple[Channel, list[str]] | None:
        part = self._part
        return None if part is None or part.ended or part.logprobs else (part.channel, part.pieces)

    def resume(self, text: OpenText) -> None:
        """Continue a text that an earlier attempt opened, and sent this far."""
        self.last = {"id": text.item_id, "type": "message", "role": "assistant", "status": "in_progress"}
        self._before = text.text
        channel = Channel(OUTPUT_TEXT, text.item_id, text.output_index, text.content_index)
        self._part = _Part(channel, OUTPUT_TEXT, [text.text], awaited=True)

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
        if (text := DELTAS.get(type_)) is not None and text.part is not None:
            return self._grow(text, event)
        if (text := DONES.get(type_)) is not None and text.part is not None:
            return self._take_done(text, event)
        if type_ == ANNOTATION_ADDED and "annotation" in event:
            return self._annotate(event)
        return super().take(type_, event)

    def close(self, item: Json, status: str) -> list[AnyDraft]:
        drafts: list[AnyDraft] = []
        for list_name in ("summary", "content"):
            for index, part in enumerate(item.get(list_name) or ()):
                drafts += self._complete(list_name, index, part)
        drafts += self._end_part({})
        whole = {**item, "type": self.kind}
        if self.kind == "message":
            whole |= {
                "role": self.last["role"],
                "content": self._done["content"],
                "status": item.get("status") or status,
            }
        else:
            whole["summary"] = self._done["summary"]
            if self._done["content"] or whole.get("content") is not None:
                whole["content"] = self._done["content"]
        return drafts + super().close(whole, status)

    # -- parts

    def _take_part(self, type_: str, event: Json) -> list[AnyDraft]:
        part: Json = event["part"]
        if (text := PART_TEXTS.get(str(part.get("type")))) is not None:
            return self._begin(text) if type_.endswith(".added") else self._end_part(part)
        # A part of a type that is not in the grammar passes as it is.
        drafts = self._end_part({})
        place = self.place(event) | {CONTENT.index_field: len(self._done[CONTENT.name])}
        if type_.endswith(".done"):
            self._done[CONTENT.name].append(part)
        return [*drafts, Draft(type_, place)]

    def _complete(self, list_name: str, index: int, part: Json) -> list[AnyDraft]:
        """Send what the stream left out of a part."""
        if index < len(self._done[list_name]):
            return []
        text = PART_TEXTS.get(str(part.get("type")))
        if text is None:
            event: Json = {"part": part}
            return self._take_part(CONTENT.added, event) + self._take_part(CONTENT.done, event)
        is_open = self._part is not None and self._part.text.parts is PART_LISTS[list_name]
        return ([] if is_open else self._begin(text)) + self._end_part(part)

    def _begin(self, text: Text) -> list[AnyDraft]:
        """Begin a part, unless it was begun already and is still empty."""
        part = self._part
        if part is not None and part.text is text and not part.ended and (part.awaited or not part.pieces):
            part.awaited = False
            return []
        drafts = self._end_part({})
        assert text.parts is not None
        channel = Channel(text, self.item_id, self.output_index, len(self._done[text.parts.name]))
        self._part = _Part(channel, text)
        # The text before its annotations, as OpenAI's servers write it.
        empty = {"type": text.part, text.field: "", **make_part(text, "")}
        return [*drafts, Draft(text.parts.added, {**channel.place, "part": empty})]

    def _open_part(self, text: Text, event: Json) -> list[AnyDraft]:
        """Return the drafts, if any, after which the growing part is the one that the event is about."""
        assert text.parts is not None
        part, index = self._part, event.get(text.parts.index_field)
        if part is not None and part.text is text and not part.ended and part.upstream_index in (None, index):
            return []
        drafts = self._begin(text)
        assert self._part is not None
        self._part.upstream_index = index
        return drafts

    def _grow(self, text: Text, event: Json) -> list[AnyDraft]:
        drafts = self._open_part(text, event)
        part, piece = self._part, event.get("delta")
        assert part is not None
        if not isinstance(piece, str) or not piece:
            return drafts
        part.awaited = False
        part.pieces.append(piece)
        if logprobs := _list(event.get("logprobs")):
            part.logprobs += logprobs
            return [*drafts, Draft(part.channel.type, {**part.channel.place, "delta": piece, "logprobs": logprobs})]
        return [*drafts, Delta(part.channel, piece)]

    def _annotate(self, event: Json) -> list[AnyDraft]:
        drafts = self._open_part(OUTPUT_TEXT, event)
        part = self._part
        assert part is not None
        place = {**part.channel.place, "annotation_index": len(part.annotations)}
        part.annotations.append(event.get("annotation"))
        return [*drafts, Draft(ANNOTATION_ADDED, self.place(event) | place)]

    def _take_done(self, text: Text, event: Json) -> list[AnyDraft]:
        if self._part is not None and self._part.text is text and self._part.ended:
            return []  # sent already
        return self._open_part(text, event) + self._end_text(event.get(text.field), event)

    def _end_text(self, whole: object, event: Json) -> list[AnyDraft]:
        part = self._part
        assert part is not None
        drafts: list[AnyDraft] = []
        if rest := part.rest_of(whole, self._before):
            part.pieces.append(rest)
            drafts.append(Delta(part.channel, rest))
        part.ended = True
        return [*drafts, part.channel.end("".join(part.pieces), _list(event.get("logprobs")) or part.logprobs)]

    def _end_part(self, whole: Json) -> list[AnyDraft]:
        """End the growing part, if there is one, with the fields of this one."""
        part = self._part
        if part is None:
            return []
        text = part.text
        drafts = [] if part.ended else self._end_text(whole.get(text.field), whole)
        self._part = None
        ended: Json = {**whole, "type": text.part, text.field: "".join(part.pieces)}
        if text is OUTPUT_TEXT:
            ended["annotations"] = part.annotations or _list(whole.get("annotations"))
            ended["logprobs"] = _list(whole.get("logprobs")) or part.logprobs
        assert text.parts is not None
        self._done[text.parts.name].append(ended)
        return [*drafts, part.channel.end_part(ended)]


def _list(value: object) -> list[Json]:
    return value if isinstance(value, list) else []

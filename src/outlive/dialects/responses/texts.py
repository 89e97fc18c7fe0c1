"""Messages and reasoning of a Responses stream on their way through: their parts, one growing at a time."""

from __future__ import annotations

from typing import NamedTuple

from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json
from outlive.core.recovery import OpenText
from outlive.dialects.responses.items import PassingItem


class Kind(NamedTuple):
    """A kind of part: where it lies, and what its events and its text are called."""

    list_name: str
    index_name: str
    text_event: str
    text_field: str
    part_event: str


KINDS: dict[str, Kind] = {
    "output_text": Kind("content", "content_index", "output_text", "text", "content_part"),
    "refusal": Kind("content", "content_index", "refusal", "refusal", "content_part"),
    "reasoning_text": Kind("content", "content_index", "reasoning_text", "text", "content_part"),
    "summary_text": Kind("summary", "summary_index", "reasoning_summary_text", "text", "reasoning_summary_part"),
}
# The kind of part that an event of a text is about. Open Responses says `reasoning` where OpenAI says `reasoning_text`.
TEXTS = {kind.text_event: name for name, kind in KINDS.items()} | {"reasoning": "reasoning_text"}
# Events of parts; `reasoning_part` is vLLM's.
PARTS = ("content_part", "reasoning_summary_part", "reasoning_part")


class _Part:
    """A part while it grows."""

    __slots__ = ("annotations", "awaited", "channel", "index", "kind", "logprobs", "name", "pieces", "said", "theirs")

    def __init__(self, name: str, item_id: str, output_index: int, index: int) -> None:
        kind = KINDS[name]
        self.name = name
        self.kind = kind
        self.index = index
        self.channel = Channel(f"response.{kind.text_event}.delta", item_id, output_index, kind.index_name, index)
        self.pieces: list[str] = []
        self.logprobs: list[Json] = []
        self.annotations: list[object] = []
        self.said = False
        self.awaited = False  # an earlier attempt began it: that it begins is not to be told again
        self.theirs: object = None  # its index as its server counts, where no event said that it begins

    def rest_of(self, whole: object, before: str) -> str:
        """What the deltas have left out of the whole text; `before` is what an earlier attempt had said of it."""
        said = "".join(self.pieces)
        for text in (whole, before + whole) if isinstance(whole, str) else ():
            if text.startswith(said):
                return text[len(said) :]
        return ""  # it contradicts what was shown, which stays


class PassingText(PassingItem):
    """A message, or reasoning."""

    __slots__ = ("_before", "_done", "_part")

    def __init__(self, item_id: str, output_index: int, kind: str) -> None:
        super().__init__(item_id, output_index, kind)
        self._done: dict[str, list[Json]] = {"content": [], "summary": []}
        self._part: _Part | None = None
        self._before = ""

    @property
    def growing(self) -> tuple[Channel, list[str]] | None:
        part = self._part
        return None if part is None or part.said or part.logprobs else (part.channel, part.pieces)

    def resume(self, text: OpenText) -> None:
        """Go on in a text that was opened, and shown that far, by an earlier attempt."""
        self.last = {"id": text.item_id, "type": "message", "role": "assistant", "status": "in_progress"}
        self._before = text.text
        self._part = _Part("output_text", text.item_id, text.output_index, text.content_index)
        self._part.pieces.append(text.text)
        self._part.awaited = True

    def open(self, item: Json) -> list[AnyDraft]:
        if item["type"] == "message":
            role = item.get("role") or "assistant"
            return super().open({**item, "status": "in_progress", "role": role, "content": []})
        # What is encrypted may still grow: only the finished item has all of it.
        begun = {name: value for name, value in item.items() if name not in ("encrypted_content", "content")}
        if begun.get("status") is not None:
            begun["status"] = "in_progress"
        return super().open({**begun, "summary": []})

    def take(self, type_: str, event: Json) -> list[AnyDraft]:
        name, _, what = type_.removeprefix("response.").rpartition(".")
        if name in PARTS and isinstance(event.get("part"), dict):
            return self._take_part(type_, what, event)
        if name in TEXTS and what == "delta":
            return self._grow(TEXTS[name], event)
        if name in TEXTS and what == "done":
            return self._take_said(TEXTS[name], event)
        if name == "output_text.annotation" and "annotation" in event:
            return self._annotate(event)
        return super().take(type_, event)

    def close(self, item: Json, status: str) -> list[AnyDraft]:
        drafts: list[AnyDraft] = []
        for list_name in ("summary", "content"):
            for index, part in enumerate(item.get(list_name) or ()):
                drafts += self._complete(list_name, index, part)
        drafts += self._end({})
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

    def _take_part(self, type_: str, what: str, event: Json) -> list[AnyDraft]:
        part: Json = event["part"]
        if part.get("type") in KINDS:
            return self._begin(part["type"]) if what == "added" else self._end(part)
        # A kind that nobody here knows has nothing that could be put right.
        drafts = self._end({})
        at = self.place(event) | {"content_index": len(self._done["content"])}
        if what == "done":
            self._done["content"].append(part)
        return [*drafts, Draft(type_, at)]

    def _complete(self, list_name: str, index: int, part: Json) -> list[AnyDraft]:
        """Tell what the stream has not told of a part."""
        if index < len(self._done[list_name]):
            return []
        if part.get("type") not in KINDS:
            event: Json = {"part": part}
            added = self._take_part("response.content_part.added", "added", event)
            return added + self._take_part("response.content_part.done", "done", event)
        is_open = self._part is not None and self._part.kind.list_name == list_name
        return ([] if is_open else self._begin(part["type"])) + self._end(part)

    def _begin(self, name: str) -> list[AnyDraft]:
        """Begin a part, unless it was begun already and is still empty."""
        part = self._part
        if part is not None and part.name == name and not part.said and (part.awaited or not part.pieces):
            part.awaited = False
            return []
        drafts = self._end({})
        kind = KINDS[name]
        self._part = _Part(name, self.item_id, self.output_index, len(self._done[kind.list_name]))
        empty: Json = {"type": name, kind.text_field: ""}
        if name == "output_text":
            empty |= {"annotations": [], "logprobs": []}
        return [*drafts, Draft(f"response.{kind.part_event}.added", self._at(self._part) | {"part": empty})]

    def _open_part(self, name: str, event: Json) -> list[AnyDraft]:
        """The drafts, if any, after which the part that grows is the one that the event is about."""
        part, theirs = self._part, event.get(KINDS[name].index_name)
        if part is not None and part.name == name and not part.said and part.theirs in (None, theirs):
            return []
        drafts = self._begin(name)
        assert self._part is not None
        self._part.theirs = theirs
        return drafts

    def _grow(self, name: str, event: Json) -> list[AnyDraft]:
        drafts = self._open_part(name, event)
        part, text = self._part, event.get("delta")
        assert part is not None
        if not isinstance(text, str) or not text:
            return drafts
        part.awaited = False
        part.pieces.append(text)
        if logprobs := _list(event.get("logprobs")):
            part.logprobs += logprobs
            told = self._at(part) | {"delta": text, "logprobs": logprobs}
            return [*drafts, Draft(part.channel.type, told)]
        return [*drafts, Delta(part.channel, text)]

    def _annotate(self, event: Json) -> list[AnyDraft]:
        drafts = self._open_part("output_text", event)
        part = self._part
        assert part is not None
        at = self._at(part) | {"annotation_index": len(part.annotations)}
        part.annotations.append(event.get("annotation"))
        return [*drafts, Draft("response.output_text.annotation.added", self.place(event) | at)]

    def _take_said(self, name: str, event: Json) -> list[AnyDraft]:
        if self._part is not None and self._part.name == name and self._part.said:
            return []  # told already
        return self._open_part(name, event) + self._say(event.get(KINDS[name].text_field), event)

    def _say(self, whole: object, event: Json) -> list[AnyDraft]:
        part = self._part
        assert part is not None
        drafts: list[AnyDraft] = []
        if rest := part.rest_of(whole, self._before):
            part.pieces.append(rest)
            drafts.append(Delta(part.channel, rest))
        part.said = True
        said: Json = self._at(part) | {part.kind.text_field: "".join(part.pieces)}
        if part.name == "output_text":
            said["logprobs"] = _list(event.get("logprobs")) or part.logprobs
        return [*drafts, Draft(f"response.{part.kind.text_event}.done", said)]

    def _end(self, whole: Json) -> list[AnyDraft]:
        """End the part that is growing as this one says."""
        part = self._part
        if part is None:
            return []
        kind = part.kind
        drafts = [] if part.said else self._say(whole.get(kind.text_field), whole)
        self._part = None
        ended: Json = {**whole, "type": part.name, kind.text_field: "".join(part.pieces)}
        if part.name == "output_text":
            ended["annotations"] = part.annotations or _list(whole.get("annotations"))
            ended["logprobs"] = _list(whole.get("logprobs")) or part.logprobs
        self._done[kind.list_name].append(ended)
        return [*drafts, Draft(f"response.{kind.part_event}.done", self._at(part) | {"part": ended})]

    def _at(self, part: _Part) -> Json:
        return self.place() | {part.kind.index_name: part.index}


def _list(value: object) -> list[Json]:
    return value if isinstance(value, list) else []

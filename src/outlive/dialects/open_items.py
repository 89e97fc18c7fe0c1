"""Output items while they grow: each knows the drafts that open it, add to it and close it."""

from __future__ import annotations

from base64 import b64encode
from typing import Literal

from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json

# Tells a thought that is not encrypted from those that only their own servers can read.
PLAIN_SEAL = "outlive:plain:"

PartKind = Literal["output_text", "refusal", "reasoning_text", "summary_text"]
ItemStatus = Literal["completed", "incomplete"]

# The field that holds the text, both in the part and in the event that ends it.
_TEXT_FIELD: dict[PartKind, str] = {
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}
# The kinds of parts that thoughts are told in.
THOUGHTS: frozenset[PartKind | None] = frozenset({"reasoning_text", "summary_text"})


class GrowingText:
    """A message, or a reasoning item: parts of text, one growing at a time."""

    __slots__ = (
        "_content",
        "_index_name",
        "_part_event",
        "_sealed",
        "_text_event",
        "_type",
        "channel",
        "item_id",
        "kind",
        "logprobs",
        "output_index",
        "pieces",
        "seal",
    )

    def __init__(
        self, type_: Literal["message", "reasoning"], item_id: str, output_index: int, sealed: bool = False
    ) -> None:
        self._type = type_
        self._sealed = sealed  # a reasoning item is to end with `encrypted_content`
        self.seal: str | None = None  # what that is to be, where the model's server has said it
        # What the growing part is called in events.
        self._part_event = self._text_event = ""
        self._index_name = "content_index"
        self._content: list[Json] = []
        self.item_id = item_id
        self.output_index = output_index
        self.kind: PartKind | None = None  # of the part that is growing
        self.channel: Channel | None = None
        self.pieces: list[str] = []
        self.logprobs: list[Json] = []

    def resume(self, content_index: int, text: str) -> None:
        """Go on in a text part that was opened, and shown that far, by an earlier attempt."""
        self._begin("output_text", content_index)
        self.pieces.append(text)

    def open(self) -> list[AnyDraft]:
        fields = {"output_index": self.output_index, "item": self._item("in_progress")}
        return [Draft("response.output_item.added", fields)]

    def open_part(self, kind: PartKind) -> list[AnyDraft]:
        """Begin a part of that kind, unless it is the one that is growing."""
        if self.kind == kind:
            return []
        drafts = self._close_part()
        self._begin(kind, len(self._content))
        fields = self._place() | {"part": _part(kind, "", [])}
        return [*drafts, Draft(f"{self._part_event}.added", fields)]

    def grow(self, text: str) -> AnyDraft:
        assert self.channel is not None
        self.pieces.append(text)
        return Delta(self.channel, text)

    def grow_with(self, text: str, logprobs: list[Json]) -> AnyDraft:
        """Grow by text that comes with its log probabilities."""
        self.pieces.append(text)
        self.logprobs += logprobs
        fields = self._place() | {"delta": text, "logprobs": list(logprobs)}
        return Draft("response.output_text.delta", fields)

    def close(self, status: ItemStatus) -> list[AnyDraft]:
        drafts = self._close_part()
        fields = {"output_index": self.output_index, "item": self._item(status)}
        return [*drafts, Draft("response.output_item.done", fields)]

    def _begin(self, kind: PartKind, content_index: int) -> None:
        self.kind = kind
        is_summary = kind == "summary_text"
        self._part_event = "response.reasoning_summary_part" if is_summary else "response.content_part"
        self._text_event = "response.reasoning_summary_text" if is_summary else f"response.{kind}"
        self._index_name = "summary_index" if is_summary else "content_index"
        self.channel = Channel(
            f"{self._text_event}.delta", self.item_id, self.output_index, self._index_name, content_index
        )
        self.pieces = []
        self.logprobs = []

    def _close_part(self) -> list[AnyDraft]:
        if self.kind is None:
            return []
        text = "".join(self.pieces)
        part = _part(self.kind, text, self.logprobs)
        said: Json = self._place() | {_TEXT_FIELD[self.kind]: text}
        if self.kind == "output_text":
            said["logprobs"] = list(self.logprobs)
        drafts: list[AnyDraft] = [
            Draft(f"{self._text_event}.done", said),
            Draft(f"{self._part_event}.done", self._place() | {"part": part}),
        ]
        self._content.append(part)
        self.kind = self.channel = None
        return drafts

    def _place(self) -> Json:
        return {"item_id": self.item_id, "output_index": self.output_index, self._index_name: len(self._content)}

    def _item(self, status: str) -> Json:
        item: Json = {"id": self.item_id, "type": self._type, "status": status}
        if self._type == "reasoning":
            seal = self._read_seal() if status != "in_progress" else {}
            if self._index_name == "summary_index":
                return item | {"summary": list(self._content)} | seal
            return item | {"summary": [], "content": list(self._content)} | seal
        return item | {"role": "assistant", "content": list(self._content)}

    def _read_seal(self) -> Json:
        if self.seal is None and not self._sealed:
            return {}
        return {"encrypted_content": _seal(self._content) if self.seal is None else self.seal}


class GrowingCall:
    """A function call, or a call of a custom tool; its output index is given when it is opened."""

    __slots__ = ("_channel", "_pieces", "_sent", "_type", "call_id", "item_id", "name", "output_index")

    def __init__(self) -> None:
        self._channel: Channel | None = None
        self._pieces: list[str] = []
        self._sent = 0
        self._type = "function_call"
        self.item_id = ""
        self.call_id = ""
        self.name = ""
        self.output_index = -1

    @property
    def is_open(self) -> bool:
        return self.output_index >= 0

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    def open(self, type_: str, item_id: str, output_index: int) -> list[AnyDraft]:
        self._type = type_
        self.item_id = item_id
        self.output_index = output_index
        if type_ == "function_call":
            self._channel = Channel("response.function_call_arguments.delta", item_id, output_index)
        fields = {"output_index": output_index, "item": self._item("in_progress", "")}
        return [Draft("response.output_item.added", fields), *self.flush()]

    def grow(self, text: str) -> None:
        self._pieces.append(text)

    def flush(self) -> list[AnyDraft]:
        """The deltas not sent yet: none before the call is open, none ever for a custom tool's arguments."""
        if self._channel is None:
            return []
        fresh, self._sent = self._pieces[self._sent :], len(self._pieces)
        return [Delta(self._channel, text) for text in fresh if text]

    def close(self, status: ItemStatus, whole: str) -> list[AnyDraft]:
        """End the call; `whole` is its arguments, or the input of a custom tool."""
        place: Json = {"item_id": self.item_id, "output_index": self.output_index}
        if self._type == "function_call":
            said = Draft("response.function_call_arguments.done", place | {"name": self.name, "arguments": whole})
            drafts: list[AnyDraft] = [said]
        else:
            channel = Channel("response.custom_tool_call_input.delta", self.item_id, self.output_index)
            drafts = [Delta(channel, whole)] if whole else []
            drafts.append(Draft("response.custom_tool_call_input.done", place | {"input": whole}))
        fields = {"output_index": self.output_index, "item": self._item(status, whole)}
        return [*drafts, Draft("response.output_item.done", fields)]

    def _item(self, status: str, whole: str) -> Json:
        item: Json = {"id": self.item_id, "type": self._type, "status": status}
        item |= {"call_id": self.call_id, "name": self.name}
        return item | {"arguments" if self._type == "function_call" else "input": whole}


def _seal(content: list[Json]) -> str:
    """What stands for encrypted content where a model thinks aloud: clients that keep their history themselves give a
    thought back only with it. There is nothing to hide, so it is the thought itself."""
    return PLAIN_SEAL + b64encode("".join(part["text"] for part in content).encode(errors="replace") or b" ").decode()


def _part(kind: PartKind, text: str, logprobs: list[Json]) -> Json:
    if kind == "output_text":
        return {"type": kind, "annotations": [], "logprobs": list(logprobs), "text": text}
    return {"type": kind, _TEXT_FIELD[kind]: text}

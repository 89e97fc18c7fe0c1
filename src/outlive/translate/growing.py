"""Output items while they grow: each knows the drafts that open it, add to it and close it."""

from __future__ import annotations

from typing import Literal

from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json

PartKind = Literal["output_text", "refusal", "reasoning_text"]
ItemStatus = Literal["completed", "incomplete"]

# The field that holds the text, both in the part and in the event that ends it.
_TEXT_FIELD: dict[PartKind, str] = {"output_text": "text", "refusal": "refusal", "reasoning_text": "text"}


class GrowingText:
    """A message, or a reasoning item: parts of text, one growing at a time."""

    __slots__ = ("_content", "_type", "channel", "item_id", "kind", "logprobs", "output_index", "pieces")

    def __init__(self, type_: Literal["message", "reasoning"], item_id: str, output_index: int) -> None:
        self._type = type_
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
        return [*drafts, Draft("response.content_part.added", fields)]

    def grow(self, text: str) -> AnyDraft:
        assert self.channel is not None
        self.pieces.append(text)
        return Delta(self.channel, text)

    def grow_with(self, text: str, logprobs: list[Json]) -> AnyDraft:
        """Grow by text that comes with its log probabilities."""
        self.pieces.append(text)
        self.logprobs += logprobs
        fields = self._place() | {"delta": text, "logprobs": [_slim(entry) for entry in logprobs]}
        return Draft("response.output_text.delta", fields)

    def close(self, status: ItemStatus) -> list[AnyDraft]:
        drafts = self._close_part()
        fields = {"output_index": self.output_index, "item": self._item(status)}
        return [*drafts, Draft("response.output_item.done", fields)]

    def _begin(self, kind: PartKind, content_index: int) -> None:
        self.kind = kind
        self.channel = Channel(
            f"response.{kind}.delta", self.item_id, self.output_index, "content_index", content_index
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
            said["logprobs"] = [_slim(entry) for entry in self.logprobs]
        drafts: list[AnyDraft] = [
            Draft(f"response.{self.kind}.done", said),
            Draft("response.content_part.done", self._place() | {"part": part}),
        ]
        self._content.append(part)
        self.kind = self.channel = None
        return drafts

    def _place(self) -> Json:
        return {"item_id": self.item_id, "output_index": self.output_index, "content_index": len(self._content)}

    def _item(self, status: str) -> Json:
        item: Json = {"id": self.item_id, "type": self._type, "status": status}
        if self._type == "reasoning":
            return item | {"summary": [], "content": list(self._content)}
        return item | {"role": "assistant", "content": list(self._content)}


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


def _part(kind: PartKind, text: str, logprobs: list[Json]) -> Json:
    if kind == "output_text":
        return {"type": kind, "annotations": [], "logprobs": list(logprobs), "text": text}
    return {"type": kind, _TEXT_FIELD[kind]: text}


def _slim(entry: Json) -> Json:
    """A log probability as events have it; only finished parts also have the tokens' bytes."""
    top = [{"token": other["token"], "logprob": other["logprob"]} for other in entry["top_logprobs"]]
    return {"token": entry["token"], "logprob": entry["logprob"], "top_logprobs": top}

"""From an agent's chunks to drafts: text, reasoning, and the calls that the agent makes itself."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from outlive.core.events import AnyDraft, Json
from outlive.core.ids import IdSource
from outlive.core.toolcalls import calls as wire
from outlive.core.toolcalls.calls import ToolCall, ToolOutcome
from outlive.core.usage import add_usage
from outlive.dialects.open_items import GrowingText, PartKind
from outlive.ports.backend import Ending, ModelCall

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str, list[Any]]).decode


def encode(kind: str, *values: object) -> bytes:
    """Make a chunk, which `AgentTranslator.feed` gives to the method of its kind."""
    return _encode((kind, values))


class AgentTranslator:
    """Translates one attempt of an agent. One text grows at a time; calls may run in parallel."""

    def __init__(self, call: ModelCall, ids: IdSource, name: str) -> None:
        self._ids = ids
        self._name = name
        self._next_index = self._first = call.first
        self._text: GrowingText | None = None
        # True: that text is complete, but closed only when something follows. So the last one's end is in the same
        # commit as the end of the answer, and in a journal with nothing open there is more to come.
        self._complete = False
        self._calls: dict[str, ToolCall] = {}
        self._usage: Json | None = None
        if call.resume is not None:
            self._text = GrowingText("message", call.resume.item_id, call.resume.output_index)
            self._text.resume(call.resume.content_index, call.resume.text)
            self._next_index = call.resume.output_index + 1

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        kind, values = _decode(chunk)
        feed = getattr(self, f"_feed_{kind}")
        drafts: list[AnyDraft] = feed(*values)
        return drafts

    def end(self) -> tuple[list[AnyDraft], Ending]:
        drafts: list[AnyDraft] = []
        if self._text is None and self._next_index == self._first:
            drafts += self._open("message", "output_text")  # an empty answer is still an answer
        drafts += self._close()
        return drafts, Ending("completed", usage=self._usage, model=self._name)

    def _feed_text(self, piece: str) -> list[AnyDraft]:
        return self._grow("message", "output_text", piece)

    def _feed_reasoning(self, piece: str) -> list[AnyDraft]:
        return self._grow("reasoning", "reasoning_text", piece)

    def _feed_end_item(self) -> list[AnyDraft]:
        self._complete = True
        return []

    def _feed_begin_call(self, item_id: str, name: str, arguments: str) -> list[AnyDraft]:
        drafts = self._close()
        call = ToolCall(
            item_id=item_id, output_index=self._count(), label=self._name, name=name, arguments=arguments or "{}"
        )
        self._calls[item_id] = call
        return [*drafts, *wire.announce(call), wire.begin(call)]

    def _feed_finish_call(self, item_id: str, output: str | None, error: Json | None) -> list[AnyDraft]:
        return wire.finish(self._calls.pop(item_id), ToolOutcome(output, error))

    def _feed_usage(self, usage: Json) -> list[AnyDraft]:
        self._usage = add_usage(self._usage, usage)
        return []

    def _grow(self, type_: Literal["message", "reasoning"], kind: PartKind, piece: str) -> list[AnyDraft]:
        drafts: list[AnyDraft] = []
        if self._text is not None and (self._complete or self._text.kind != kind):
            drafts += self._close()
        if self._text is None:
            drafts += self._open(type_, kind)
        assert self._text is not None
        return [*drafts, self._text.grow(piece)]

    def _open(self, type_: Literal["message", "reasoning"], kind: PartKind) -> list[AnyDraft]:
        item_id = self._ids.new("msg" if type_ == "message" else "rs")
        self._text = GrowingText(type_, item_id, self._count())
        return [*self._text.open(), *self._text.open_part(kind)]

    def _close(self) -> list[AnyDraft]:
        grown, self._text, self._complete = self._text, None, False
        return [] if grown is None else grown.close("completed")

    def _count(self) -> int:
        index = self._next_index
        self._next_index += 1
        return index

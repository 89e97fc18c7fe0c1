"""From what an agent tells as it works, to drafts: text, thoughts, and the calls that it makes by itself."""

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


def text(piece: str) -> bytes:
    return _encode(("text", [piece]))


def thought(piece: str) -> bytes:
    return _encode(("thought", [piece]))


def pause() -> bytes:
    """What was said is one message; what comes next is another."""
    return _encode(("pause", []))


def begin(item_id: str, name: str, arguments: str) -> bytes:
    """A call is about to be made."""
    return _encode(("begin", [item_id, name, arguments]))


def finish(item_id: str, output: str | None, error: Json | None = None) -> bytes:
    """A call is over."""
    return _encode(("finish", [item_id, output, error]))


def report(item_id: str, progress: Json) -> bytes:
    return _encode(("report", [item_id, progress]))


def use(usage: Json) -> bytes:
    """What a step has used, in the shape of the Responses API."""
    return _encode(("use", [usage]))


class AgentTranslator:
    """One text grows at a time; calls may run side by side."""

    def __init__(self, call: ModelCall, ids: IdSource, name: str) -> None:
        self._ids = ids
        self._name = name
        self._next_index = self._first = call.first
        self._text: GrowingText | None = None
        self._paused = False  # that text is whole, and shown as such when something follows: so the end of the last one
        # stands in the same commit as the end of the answer, and a journal with nothing open has more to come
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
            drafts += self._open("message", "output_text")  # an answer without a word is still an answer
        drafts += self._close()
        return drafts, Ending("completed", usage=self._usage, model=self._name)

    def _feed_text(self, piece: str) -> list[AnyDraft]:
        return self._grow("message", "output_text", piece)

    def _feed_thought(self, piece: str) -> list[AnyDraft]:
        return self._grow("reasoning", "reasoning_text", piece)

    def _feed_pause(self) -> list[AnyDraft]:
        self._paused = True
        return []

    def _feed_begin(self, item_id: str, name: str, arguments: str) -> list[AnyDraft]:
        drafts = self._close()
        call = ToolCall(
            item_id=item_id, output_index=self._count(), label=self._name, name=name, arguments=arguments or "{}"
        )
        self._calls[item_id] = call
        return [*drafts, *wire.announce(call), wire.begin(call)]

    def _feed_finish(self, item_id: str, output: str | None, error: Json | None) -> list[AnyDraft]:
        return wire.finish(self._calls.pop(item_id), ToolOutcome(output, error))

    def _feed_report(self, item_id: str, progress: Json) -> list[AnyDraft]:
        call = self._calls.get(item_id)
        return [] if call is None else [wire.report(call, progress)]

    def _feed_use(self, usage: Json) -> list[AnyDraft]:
        self._usage = add_usage(self._usage, usage)
        return []

    def _grow(self, type_: Literal["message", "reasoning"], kind: PartKind, piece: str) -> list[AnyDraft]:
        drafts: list[AnyDraft] = []
        if self._text is not None and (self._paused or self._text.kind != kind):
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
        grown, self._text, self._paused = self._text, None, False
        return [] if grown is None else grown.close("completed")

    def _count(self) -> int:
        index = self._next_index
        self._next_index += 1
        return index

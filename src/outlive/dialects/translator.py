"""The base of translators that build the items of an answer themselves, and the JSON that they all decode."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import AnyDraft, Channel, Json
from outlive.core.grammar import CUSTOM_INPUT, FUNCTION_ARGUMENTS, OUTPUT_TEXT, Text
from outlive.core.ids import IdSource, item_prefix
from outlive.core.recovery import OpenText
from outlive.core.requests.body import decode_body
from outlive.dialects.open_items import GrowingCall, GrowingText, ItemStatus
from outlive.ports.backend import ModelCall

T = TypeVar("T")


class AnswerTranslator:
    """Builds the items of one answer. At most one text grows at a time.

    While `_channel` is set, `feed` appends a chunk of plain text to `_pieces` and is done: the way of nearly every
    chunk. Both belong to the text in `_text`.
    """

    __slots__ = ("_channel", "_custom", "_first", "_ids", "_next_index", "_pieces", "_resume", "_sealed", "_text")

    def __init__(self, call: ModelCall, ids: IdSource) -> None:
        self._ids = ids
        self._custom = {tool["name"] for tool in call.request.tools if tool["type"] == "custom"}
        self._sealed = False  # reasoning is to end with `encrypted_content`
        self._text: GrowingText | None = None
        self._channel: Channel | None = None
        self._pieces: list[str] = []
        self._next_index = self._first = call.first
        self._resume = call.resume
        if call.resume is not None:
            self._text = GrowingText("message", call.resume.item_id, call.resume.output_index)
            self._text.resume(call.resume.content_index, call.resume.text)
            self._next_index = call.resume.output_index + 1

    def _is_resumed(self) -> bool:
        """Return True if the open text is the one that an earlier attempt began."""
        return self._resume is not None and self._text is not None and self._text.item_id == self._resume.item_id

    # -- texts

    def _grow(self, text: Text, piece: str) -> list[AnyDraft]:
        drafts = self._open_part(text)
        assert self._text is not None
        drafts.append(self._text.grow(piece))
        return drafts

    def _open_part(self, text: Text) -> list[AnyDraft]:
        """Return the drafts, if any, after which a part for that kind of text is growing."""
        drafts: list[AnyDraft] = []
        if self._text is not None and self._text.type != text.item:
            drafts = self._close_text("completed")
        if self._text is None:
            drafts += self._open_item(text.item)
        assert self._text is not None
        drafts += self._text.open_part(text)
        self._set_shortcut()
        return drafts

    def _open_item(self, type_: str) -> list[AnyDraft]:
        self._text = GrowingText(type_, self._ids.new(item_prefix(type_)), self._count(), self._sealed)
        return self._text.open()

    def _set_shortcut(self) -> None:
        """Let `feed` itself append chunks of plain text from now on, or not."""
        self._channel = None
        if self._text is not None and self._text.channel is not None and self._text.channel.text is OUTPUT_TEXT:
            self._channel, self._pieces = self._text.channel, self._text.pieces

    def _close_text(self, status: ItemStatus) -> list[AnyDraft]:
        text, self._text, self._channel = self._text, None, None
        return [] if text is None else text.close(status)

    # -- calls

    def _open_call(self, call: GrowingCall) -> list[AnyDraft]:
        drafts = self._close_text("completed")
        call.call_id = call.call_id or self._ids.new("call")
        text = CUSTOM_INPUT if call.name in self._custom else FUNCTION_ARGUMENTS
        return drafts + call.open(text, self._ids.new(item_prefix(text.item)), self._count())

    def _count(self) -> int:
        index = self._next_index
        self._next_index += 1
        return index


def decode_damaged(chunk: bytes, type_: type[T], kind: str) -> T:
    """Decode a chunk that is not JSON, or not of that type: a character cut in half makes bad JSON or UTF-8, and some
    servers stream such; U+FFFD stands in for it. Raises UpstreamFault when it is not `kind` at all."""
    try:
        return msgspec.convert(decode_body(chunk.decode(errors="replace").encode()), type_)
    except (InvalidRequest, msgspec.ValidationError) as error:
        raise UpstreamFault(f"The model's server sent something that is not {kind}.") from error


def decode_answer(body: bytes, kind: str) -> Json:
    """Decode an answer that came whole, although a stream was asked for. Raises UpstreamFault when it is no object."""
    try:
        answer: Any = decode_body(body)
    except InvalidRequest as error:
        raise UpstreamFault("The model's server answered with something that is not JSON.") from error
    if not isinstance(answer, dict):
        raise not_an_answer(kind)
    return answer


def not_an_answer(kind: str) -> UpstreamFault:
    return UpstreamFault(f"The model's server answered with something that is not {kind}.")


def make_usage(
    resume: OpenText | None, *, given: int, written: int, cached: int, cache_write: int, reasoning: int
) -> Json:
    """Make the usage object of the Responses API; what an earlier attempt wrote is counted, too."""
    written += resume.deltas if resume is not None else 0
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": cache_write},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": given + written,
    }


def read_count(counts: object, name: str) -> int:
    number = counts.get(name) if isinstance(counts, dict) else None
    return number if isinstance(number, int) else 0

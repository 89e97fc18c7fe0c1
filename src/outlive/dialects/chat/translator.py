"""The Chat Completions dialect: chunks of an answer become drafts of events. The request's side is `chat_request`."""

from __future__ import annotations

from typing import Any

import msgspec

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import AnyDraft, Channel, Delta, Json
from outlive.core.ids import IdSource
from outlive.core.requests.body import decode_body
from outlive.dialects.arguments import close_call, is_whole_object
from outlive.dialects.chat.calls import Calls, Fragment
from outlive.dialects.chat.request import render, wants_logprobs, wants_seals, wants_summary
from outlive.dialects.chat.usage import read_logprobs, read_usage
from outlive.dialects.faults import read_fault
from outlive.dialects.function_tools import custom_tools
from outlive.dialects.open_items import THOUGHTS, GrowingCall, GrowingText, ItemStatus, PartKind
from outlive.ports.backend import Ending, ModelCall

__all__ = ["ChatTranslator", "render"]

# Reasons to finish that leave the answer incomplete, and what the Responses API calls them.
_INCOMPLETE = {"length": "max_output_tokens", "max_tokens": "max_output_tokens", "content_filter": "content_filter"}
# Reasons to finish that are not the model's: its server gave up.
_BROKEN = frozenset({"error", "abort", "insufficient_system_resource"})


# Only what is used is decoded. Fields are Any because servers differ in them, and a run must not die of an oddity in
# a field that hardly matters.
class _ChunkDelta(msgspec.Struct, gc=False):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct, gc=False):
    delta: _ChunkDelta | None = None
    finish_reason: Any = None
    index: Any = 0
    logprobs: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    model: Any = None
    service_tier: Any = None
    object: Any = None
    message: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode
_NOTHING = _ChunkDelta()


def _decode_odd(chunk: bytes) -> _Chunk:
    """A character cut in half, as some servers stream them, makes bad JSON or UTF-8; U+FFFD stands in for it."""
    try:
        return msgspec.convert(decode_body(chunk.decode(errors="replace").encode()), _Chunk)
    except (InvalidRequest, msgspec.ValidationError) as error:
        raise UpstreamFault("The model's server sent something that is not a chat completion chunk.") from error


class ChatTranslator:
    """Turns the chunks of one stream into drafts. At most one text and one call grow at a time."""

    __slots__ = (
        "_calls",
        "_channel",
        "_custom",
        "_finish",
        "_first",
        "_ids",
        "_model",
        "_next_index",
        "_pieces",
        "_resume",
        "_text",
        "_thoughts",
        "_tier",
        "_turn",
        "_usage",
        "_with_logprobs",
        "_with_seals",
    )

    def __init__(self, call: ModelCall, ids: IdSource) -> None:
        self._ids = ids
        self._custom = custom_tools(call.request)
        self._with_logprobs = wants_logprobs(call.request)
        self._with_seals = wants_seals(call.request)
        self._thoughts: PartKind = "summary_text" if wants_summary(call.request) else "reasoning_text"
        self._calls = Calls()
        self._turn: GrowingCall | None = None  # the call that is open
        self._text: GrowingText | None = None
        # The open text's channel and pieces, here again for the way that nearly every chunk goes; None: the long way.
        self._channel: Channel | None = None
        self._pieces: list[str] = []
        self._next_index = self._first = call.first
        self._finish: str | None = None
        self._usage: Json | None = None
        self._model: str | None = None
        self._tier: str | None = None
        self._resume = call.resume
        if call.resume is not None:
            self._text = GrowingText("message", call.resume.item_id, call.resume.output_index)
            self._text.resume(call.resume.content_index, call.resume.text)
            self._next_index = call.resume.output_index + 1
            self._take_short_way()

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        try:
            piece = _decode(chunk)
        except (ValueError, RecursionError):
            piece = _decode_odd(chunk)
        choices = piece.choices
        channel = self._channel
        if channel is not None and choices is not None and len(choices) == 1 and piece.usage is None:
            choice = choices[0]
            delta = choice.delta
            if (
                delta is not None
                and choice.finish_reason is None
                and type(text := delta.content) is str
                and text
                and not (delta.tool_calls or delta.reasoning_content or delta.reasoning or delta.refusal)
                and not (delta.function_call or choice.index)
            ):
                self._pieces.append(text)
                return [Delta(channel, text)]
        return self._feed_any(piece)

    def end(self) -> tuple[list[AnyDraft], Ending]:
        if self._finish is None:
            raise UpstreamFault("The model's server ended its answer without a finish.")
        reason = _INCOMPLETE.get(self._finish)
        status: ItemStatus = "incomplete" if reason else "completed"
        drafts: list[AnyDraft] = []
        if self._text is None and self._next_index == self._first and not self._calls.all:
            drafts += self._open_part("output_text")  # an answer without a word is still an answer
        drafts += self._close_all(status)
        ending = Ending(status, reason, read_usage(self._usage, self._resume), self._model, self._tier)
        return drafts, ending

    # -- one chunk

    def _feed_any(self, piece: _Chunk) -> list[AnyDraft]:
        if piece.error is not None:
            raise read_fault(piece.error)
        if piece.object == "error":  # an error that stands by itself, as some versions of vLLM send it
            raise read_fault({"message": piece.message})
        if isinstance(piece.model, str) and piece.model:
            self._model = piece.model
        if isinstance(piece.service_tier, str):
            self._tier = piece.service_tier
        if isinstance(piece.usage, dict):
            self._usage = piece.usage
        drafts: list[AnyDraft] = []
        for choice in piece.choices or ():
            if not choice.index:  # only one answer was asked for
                drafts += self._take(choice)
        return drafts

    def _take(self, choice: _Choice) -> list[AnyDraft]:
        delta = choice.delta or _NOTHING
        # Servers that changed the field's name send both for a while.
        drafts = self._think(delta.reasoning_content or delta.reasoning)
        drafts += self._speak(delta.content, choice.logprobs)
        if isinstance(delta.refusal, str) and delta.refusal:
            drafts += self._grow("refusal", delta.refusal)
        entries = delta.tool_calls if isinstance(delta.tool_calls, list) else []
        if isinstance(delta.function_call, dict):
            entries = [*entries, {"index": 0, "function": delta.function_call}]
        for entry in entries:
            if isinstance(entry, dict):
                drafts += self._call(Fragment(entry))
        reason = str(choice.finish_reason) if choice.finish_reason else ""
        if reason in _BROKEN:
            raise UpstreamFault(f"The model's server gave up (finish_reason {reason}).")
        if reason and self._finish not in _INCOMPLETE:
            self._finish = reason
        return drafts

    def _think(self, text: object) -> list[AnyDraft]:
        # A model that is to write on may think again first; its text must stay in one piece.
        if not isinstance(text, str) or not text or self._is_resumed():
            return []
        return self._grow(self._thoughts, text)

    def _is_resumed(self) -> bool:
        """Whether the open text is the one that an earlier attempt began."""
        return self._resume is not None and self._text is not None and self._text.item_id == self._resume.item_id

    def _speak(self, content: object, logprobs: object) -> list[AnyDraft]:
        if isinstance(content, str):
            if not content:
                return []
            if self._with_logprobs:
                drafts = self._open_part("output_text")
                assert self._text is not None
                return [*drafts, self._text.grow_with(content, read_logprobs(logprobs))]
            return self._grow("output_text", content)
        drafts = []
        for part in content if isinstance(content, list) else ():  # Mistral's way of thinking
            if isinstance(part, dict) and part.get("type") == "thinking":
                thoughts = part.get("thinking")
                for thought in thoughts if isinstance(thoughts, list) else [{"text": thoughts}]:
                    drafts += self._think(thought.get("text") if isinstance(thought, dict) else thought)
            elif isinstance(part, dict):
                drafts += self._speak(part.get("text"), None)
        return drafts

    # -- texts

    def _grow(self, kind: PartKind, text: str) -> list[AnyDraft]:
        drafts = self._open_part(kind)
        assert self._text is not None
        drafts.append(self._text.grow(text))
        return drafts

    def _open_part(self, kind: PartKind) -> list[AnyDraft]:
        """The drafts, if any, after which the open text is a part of that kind."""
        drafts: list[AnyDraft] = []
        if self._text is not None and (self._text.kind in THOUGHTS) != (kind in THOUGHTS):
            drafts += self._close_text("completed")
        if self._text is None:
            if self._turn is not None and is_whole_object(self._turn.arguments):
                drafts += self._close_turn("completed")
            is_thought = kind in THOUGHTS
            item_id = self._ids.new("rs" if is_thought else "msg")
            self._text = GrowingText("reasoning" if is_thought else "message", item_id, self._count(), self._with_seals)
            drafts += self._text.open()
        drafts += self._text.open_part(kind)
        self._take_short_way()
        return drafts

    def _take_short_way(self) -> None:
        """From now on chunks of nothing but text are taken in by `feed` itself."""
        self._channel = None
        if self._text is not None and self._text.kind == "output_text" and not self._with_logprobs:
            self._channel, self._pieces = self._text.channel, self._text.pieces

    def _close_text(self, status: ItemStatus) -> list[AnyDraft]:
        text, self._text, self._channel = self._text, None, None
        return [] if text is None else text.close(status)

    # -- calls

    def _call(self, fragment: Fragment) -> list[AnyDraft]:
        """One call is open at a time, for some clients know no other way; the next one waits until it is whole."""
        call = self._calls.place(fragment)
        if call is self._turn:
            drafts = call.flush()
            return drafts if len(self._calls.all) == 1 else drafts + self._take_turns()
        return self._take_turns()

    def _take_turns(self) -> list[AnyDraft]:
        drafts: list[AnyDraft] = []
        while (waiting := self._calls.next_named()) is not None:
            if self._turn is not None:
                if not is_whole_object(self._turn.arguments):
                    break
                drafts += self._close_turn("completed")
            drafts += self._open_call(waiting)
        return drafts

    def _open_call(self, call: GrowingCall) -> list[AnyDraft]:
        drafts = self._close_text("completed")
        call.call_id = call.call_id or self._ids.new("call")
        custom = call.name in self._custom
        item_id = self._ids.new("ctc" if custom else "fc")
        self._turn = call
        return drafts + call.open("custom_tool_call" if custom else "function_call", item_id, self._count())

    def _close_turn(self, status: ItemStatus) -> list[AnyDraft]:
        call, self._turn = self._turn, None
        return [] if call is None else close_call(call, status, call.name in self._custom)

    def _close_all(self, status: ItemStatus) -> list[AnyDraft]:
        """Close what is open, by output index: a text that is open came after the call that is."""
        if status == "completed" and any(not call.name for call in self._calls.all):
            raise UpstreamFault("The model's server sent a function call without the function's name.")
        drafts = self._close_turn(status) + self._close_text(status)
        while (waiting := self._calls.next_named()) is not None:
            drafts += self._open_call(waiting)
            drafts += self._close_turn(status)
        return drafts

    def _count(self) -> int:
        index = self._next_index
        self._next_index += 1
        return index

"""The dialect of Anthropic's Messages API: events of an answer become drafts. The request's side is
`anthropic_request`."""

from __future__ import annotations

from typing import Any

import msgspec

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import AnyDraft, Channel, Delta, Json
from outlive.core.ids import IdSource
from outlive.core.recovery import OpenText
from outlive.core.requests.body import decode_body
from outlive.dialects.anthropic.blocks import seal_redacted, seal_signature
from outlive.dialects.anthropic.whole_answer import read_usage
from outlive.dialects.arguments import close_call, is_whole_object
from outlive.dialects.faults import read_fault
from outlive.dialects.function_tools import custom_tools
from outlive.dialects.open_items import GrowingCall, GrowingText, ItemStatus, PartKind
from outlive.ports.backend import Ending, ModelCall

# Reasons to stop that leave the answer incomplete, and what the Responses API calls them. Every other reason is an end.
_INCOMPLETE = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "refusal": "content_filter",
    "pause_turn": "interrupted",  # by tools of the upstream's own, which nobody asked it for
}
_TIERS = {"standard": "default"}


# Only what is used is decoded. Fields are Any because servers that speak this dialect differ in them.
class _Delta(msgspec.Struct, gc=False):
    text: Any = None
    thinking: Any = None
    signature: Any = None
    partial_json: Any = None
    stop_reason: Any = None
    stop_details: Any = None


class _Event(msgspec.Struct, gc=False):
    type: Any = None
    index: Any = 0
    delta: _Delta | None = None
    content_block: Any = None
    message: Any = None
    usage: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


def _decode_odd(chunk: bytes) -> _Event:
    """A character cut in half makes bad JSON or UTF-8; U+FFFD stands in for it."""
    try:
        return msgspec.convert(decode_body(chunk.decode(errors="replace").encode()), _Event)
    except (InvalidRequest, msgspec.ValidationError) as error:
        raise UpstreamFault("The model's server sent something that is not an event of a message.") from error


class AnthropicTranslator:
    """Turns the events of one message into drafts. An item ends when the next begins: only then, or from the reason to
    stop, can be told whether it was cut short. What says itself that it is whole ends with its block."""

    __slots__ = (
        "_calls",
        "_channel",
        "_custom",
        "_first",
        "_ids",
        "_inputs",
        "_model",
        "_next_index",
        "_over",
        "_pieces",
        "_resume",
        "_seam",
        "_stop",
        "_stop_details",
        "_text",
        "_thought",
        "_usage",
    )

    def __init__(self, call: ModelCall, ids: IdSource) -> None:
        self._ids = ids
        self._custom = custom_tools(call.request)
        self._text: GrowingText | None = None
        # The open text's channel and pieces, here again for the way that nearly every event goes; None: the long way.
        self._channel: Channel | None = None
        self._pieces: list[str] = []
        self._thought: GrowingText | None = None
        self._calls: dict[int, GrowingCall] = {}  # the open ones, by the index of their block
        self._over: list[int] = []  # those of them whose block has ended
        self._inputs: dict[int, Json] = {}  # of calls that came whole with their block's start
        self._next_index = self._first = call.first
        self._usage: Json = {}
        self._model: str | None = None
        self._stop: str | None = None
        self._stop_details: Json = {}
        self._resume = call.resume
        self._seam = ""
        if call.resume is not None:
            self._go_on(call.resume)

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        try:
            event = _decode(chunk)
        except (ValueError, RecursionError):
            event = _decode_odd(chunk)
        delta, channel = event.delta, self._channel
        if channel is not None and delta is not None and type(text := delta.text) is str and text:
            self._pieces.append(text)
            return [Delta(channel, text)]
        return self._take(event)

    def end(self) -> tuple[list[AnyDraft], Ending]:
        if self._stop is None:
            raise UpstreamFault("The model's server ended its answer without a finish.")
        reason = _INCOMPLETE.get(self._stop)
        status: ItemStatus = "incomplete" if reason else "completed"
        drafts = self._refuse() if self._stop == "refusal" else []
        if self._next_index == self._first and self._text is None:
            drafts += self._open_part("output_text")  # an answer without a word is still an answer
        drafts += self._close_all(status)
        tier = self._usage.get("service_tier")
        tier = _TIERS.get(tier, tier) if isinstance(tier, str) else None
        return drafts, Ending(status, reason, read_usage(self._usage, self._resume), self._model, tier)

    # -- one event

    def _take(self, event: _Event) -> list[AnyDraft]:
        kind = event.type
        if kind == "error" or event.error is not None:
            raise read_fault(event.error)
        if kind == "content_block_start" and isinstance(event.content_block, dict):
            return self._begin(event.index, event.content_block)
        if kind == "content_block_delta" and event.delta is not None:
            return self._grow(event.index, event.delta)
        if kind == "content_block_stop":
            return self._stop_block(event.index)
        if kind == "message_start" and isinstance(event.message, dict):
            self._start(event.message)
        elif kind == "message_delta":
            self._learn(event)
        return []  # a ping, the end, or something that is newer than this

    def _start(self, message: Json) -> None:
        if isinstance(message.get("model"), str):
            self._model = message["model"]
        if isinstance(message.get("usage"), dict):
            self._usage = message["usage"]

    def _learn(self, event: _Event) -> None:
        """What is known only at the end; counts are those of the whole message, not additions."""
        if isinstance(event.usage, dict):
            self._usage = self._usage | {name: value for name, value in event.usage.items() if value is not None}
        if event.delta is not None and isinstance(event.delta.stop_reason, str):
            self._stop = event.delta.stop_reason
            self._stop_details = event.delta.stop_details if isinstance(event.delta.stop_details, dict) else {}

    # -- blocks

    def _begin(self, index: int, block: Json) -> list[AnyDraft]:
        kind = block.get("type")
        drafts = self._close_calls(self._over, "completed")
        if kind == "text":
            return drafts + self._speak(block.get("text"))
        if kind == "tool_use":
            return drafts + self._begin_call(index, block)
        if kind not in ("thinking", "redacted_thinking") or self._is_resumed():
            return drafts
        drafts += self._close_text("completed") + self._close_thought("completed")
        if kind == "thinking":
            return drafts + self._think(block.get("thinking"))
        return drafts + self._open_thought(seal_redacted(str(block.get("data")))) + self._close_thought("completed")

    def _begin_call(self, index: int, block: Json) -> list[AnyDraft]:
        drafts = self._close_text("completed") + self._close_thought("completed")
        call = self._calls[index] = GrowingCall()
        call.call_id = str(block.get("id") or self._ids.new("call"))
        call.name = str(block.get("name"))
        if isinstance(block.get("input"), dict) and block["input"]:
            self._inputs[index] = block["input"]
        custom = call.name in self._custom
        item_id = self._ids.new("ctc" if custom else "fc")
        return drafts + call.open("custom_tool_call" if custom else "function_call", item_id, self._count())

    def _grow(self, index: int, delta: _Delta) -> list[AnyDraft]:
        if isinstance(delta.partial_json, str) and index in self._calls:
            self._calls[index].grow(delta.partial_json)
            return self._calls[index].flush()
        if isinstance(delta.signature, str) and delta.signature and not self._is_resumed():
            return self._open_thought(seal_signature(delta.signature))
        return self._think(delta.thinking) + self._speak(delta.text)

    def _stop_block(self, index: int) -> list[AnyDraft]:
        call = self._calls.get(index)
        if call is None:
            is_sealed = self._thought is not None and self._thought.seal is not None
            return self._close_thought("completed") if is_sealed else []
        if not call.arguments and index in self._inputs:
            call.grow(msgspec.json.encode(self._inputs.pop(index)).decode())
        drafts = call.flush()
        self._over.append(index)
        return drafts + (self._close_calls(self._over, "completed") if is_whole_object(call.arguments) else [])

    # -- thoughts

    def _think(self, text: object) -> list[AnyDraft]:
        if not isinstance(text, str) or not text or self._is_resumed():
            return []
        drafts = self._open_thought()
        assert self._thought is not None
        return [*drafts, *self._thought.open_part("summary_text"), self._thought.grow(text)]

    def _open_thought(self, seal: str | None = None) -> list[AnyDraft]:
        """The drafts, if any, after which a thought is open. It opens late: what was not shown can be asked again."""
        drafts: list[AnyDraft] = []
        if self._thought is None:
            drafts = self._close_text("completed")
            self._thought = GrowingText("reasoning", self._ids.new("rs"), self._count())
            drafts += self._thought.open()
        self._thought.seal = seal
        return drafts

    def _close_thought(self, status: ItemStatus) -> list[AnyDraft]:
        thought, self._thought = self._thought, None
        return [] if thought is None else thought.close(status)

    # -- texts

    def _go_on(self, resume: OpenText) -> None:
        """Open the text that an earlier attempt began. It was sent without the white space at its end, which this API
        does not take there, so the model may write that again."""
        self._text = GrowingText("message", resume.item_id, resume.output_index)
        self._text.resume(resume.content_index, resume.text)
        self._next_index = resume.output_index + 1
        self._seam = resume.text[len(resume.text.rstrip()) :]
        self._take_short_way()

    def _is_resumed(self) -> bool:
        return self._resume is not None and self._text is not None and self._text.item_id == self._resume.item_id

    def _speak(self, text: object) -> list[AnyDraft]:
        if not isinstance(text, str) or not text:
            return []
        text = self._cross_seam(text) if self._seam else text
        drafts = self._open_part("output_text") if text else []
        if text and self._text is not None:
            drafts.append(self._text.grow(text))
        return drafts

    def _cross_seam(self, text: str) -> str:
        """What is new in the text: white space that was shown before is not shown twice."""
        same = 0
        while same < min(len(text), len(self._seam)) and text[same] == self._seam[same]:
            same += 1
        self._seam = self._seam[same:] if same == len(text) else ""
        return text[same:]

    def _open_part(self, kind: PartKind) -> list[AnyDraft]:
        """The drafts, if any, after which the open text is a part of that kind."""
        drafts = self._close_thought("completed")
        if self._text is None:
            self._text = GrowingText("message", self._ids.new("msg"), self._count())
            drafts += self._text.open()
        drafts += self._text.open_part(kind)
        self._take_short_way()
        return drafts

    def _take_short_way(self) -> None:
        """From now on events of nothing but text are taken in by `feed` itself."""
        self._channel = None
        if self._text is not None and self._text.kind == "output_text" and not self._seam:
            self._channel, self._pieces = self._text.channel, self._text.pieces

    def _close_text(self, status: ItemStatus) -> list[AnyDraft]:
        text, self._text, self._channel = self._text, None, None
        return [] if text is None else text.close(status)

    # -- the end

    def _refuse(self) -> list[AnyDraft]:
        """Why the upstream would not go on, if it says so, in the words that it has for people."""
        explanation = self._stop_details.get("explanation")
        if not isinstance(explanation, str) or not explanation:
            return []
        drafts = self._open_part("refusal")
        assert self._text is not None
        return [*drafts, self._text.grow(explanation)]

    def _close_all(self, status: ItemStatus) -> list[AnyDraft]:
        drafts = self._close_thought(status) + self._close_calls(list(self._calls), status)
        return drafts + self._close_text(status)

    def _close_calls(self, indices: list[int], status: ItemStatus) -> list[AnyDraft]:
        drafts: list[AnyDraft] = []
        for index in indices:
            call = self._calls.pop(index)
            drafts += close_call(call, status, call.name in self._custom)
        self._over.clear()
        return drafts

    def _count(self) -> int:
        index = self._next_index
        self._next_index += 1
        return index

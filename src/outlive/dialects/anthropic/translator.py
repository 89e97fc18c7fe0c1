"""Translator of the events of Anthropic's Messages API into drafts of events."""

from typing import Any

import msgspec

from outlive.core.events import AnyDraft, Delta, Json
from outlive.core.grammar import OUTPUT_TEXT, REFUSAL, SUMMARY_TEXT
from outlive.core.ids import IdSource
from outlive.core.usage import make_usage, read_count
from outlive.dialects import translator
from outlive.dialects.anthropic.request import REDACTED, SIGNATURE
from outlive.dialects.faults import ReadFault, read_fault
from outlive.dialects.translator import AnswerTranslator, GrowingCall, ItemStatus, is_json_object
from outlive.ports.backend import Ending, ModelCall

# Reasons to stop that leave the answer incomplete, and what the Responses API calls them. Every other reason is an end.
_INCOMPLETE = {
    "max_tokens": "max_output_tokens",
    "model_context_window_exceeded": "max_output_tokens",
    "refusal": "content_filter",
    "pause_turn": "interrupted",  # by tools of the upstream's own, which were not asked for
}
_TIERS = {"standard": "default"}


# Only the fields that are used are decoded. They are Any because servers that speak this dialect differ in them.
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


class AnthropicTranslator(AnswerTranslator):
    """Translates the events of one message.

    An item is closed when the next one begins: only then, or by the reason to stop, is it known whether it was cut off.
    Sealed reasoning, and a call whose arguments are whole, are closed with their block.
    """

    def __init__(self, call: ModelCall, ids: IdSource, read_fault: ReadFault = read_fault) -> None:
        # A text to be continued was sent without the white space at its end, which this API does not take there, so
        # the model may write that again.
        text = call.resume.text if call.resume is not None else ""
        self._repeatable = text[len(text.rstrip()) :]
        super().__init__(call, ids, read_fault, inspects=bool(self._repeatable))
        self._calls: dict[int, GrowingCall] = {}  # the open ones, by the index of their block
        self._over: dict[int, None] = {}  # those of them whose block has ended, in that order
        self._inputs: dict[int, Json] = {}  # of calls that came whole with their block's start
        self._counts: Json = {}
        self._stop: str | None = None
        self._stop_details: Json = {}

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        try:
            event = _decode(chunk)
        except (ValueError, RecursionError):
            event = translator.decode_damaged(chunk, _Event, "an event of a message")
        delta, channel = event.delta, self._channel
        if channel is not None and delta is not None and type(text := delta.text) is str and text:
            self._pieces.append(text)
            return [Delta(channel, text)]
        kind, index = event.type, event.index
        if kind == "error" or event.error is not None:
            raise self._read_fault(event.error)
        if kind == "content_block_start" and isinstance(event.content_block, dict):
            return self._begin_block(index, event.content_block)
        if kind == "content_block_stop":
            return self._stop_block(index)
        if kind in ("message_start", "message_delta"):
            self._learn(event)
        if kind != "content_block_delta" or delta is None:
            return []  # also for a ping, the end, or an event that is newer than this code
        if isinstance(delta.partial_json, str) and index in self._calls:
            self._calls[index].pieces.append(delta.partial_json)
            return self._calls[index].flush()
        if isinstance(delta.signature, str) and delta.signature and not self._resumed:
            return self._seal(SIGNATURE + delta.signature)
        return self._think(delta.thinking) + self._speak(delta.text)

    def end(self) -> tuple[list[AnyDraft], Ending]:
        status, reason = translator.read_stop(self._stop, _INCOMPLETE)
        drafts: list[AnyDraft] = []
        if self._stop == "refusal" and isinstance(why := self._stop_details.get("explanation"), str) and why:
            drafts = self._grow(REFUSAL, why)
        drafts += self._open_empty()
        drafts += self._close_calls(list(self._calls), status) + self._close_text(status)
        tier = self._counts.get("service_tier")
        tier = _TIERS.get(tier, tier) if isinstance(tier, str) else None
        return drafts, Ending(status, reason, self.usage(), self._model, tier)

    def usage(self) -> Json | None:
        """Return the usage so far: the first event has the input's tokens, the last ones all."""
        usage = self._counts
        if not usage:
            return None
        read, made = read_count(usage, "cache_read_input_tokens"), read_count(usage, "cache_creation_input_tokens")
        return make_usage(
            self._resume,
            given=read_count(usage, "input_tokens") + read + made,  # with what a cache gave or took
            written=read_count(usage, "output_tokens"),
            cached=read,
            cache_write=made,
            reasoning=read_count(usage.get("output_tokens_details"), "thinking_tokens"),
        )

    def _learn(self, event: _Event) -> None:
        """Take what is known only at the start, or at the end; counts are those of the whole message, not additions."""
        message: Json = event.message if isinstance(event.message, dict) else {}
        if isinstance(message.get("model"), str):
            self._model = message["model"]
        for usage in (message.get("usage"), event.usage):
            if isinstance(usage, dict):
                self._counts |= {name: value for name, value in usage.items() if value is not None}
        if event.delta is not None and isinstance(event.delta.stop_reason, str):
            self._stop = event.delta.stop_reason
            self._stop_details = event.delta.stop_details if isinstance(event.delta.stop_details, dict) else {}

    # -- blocks

    def _begin_block(self, index: int, block: Json) -> list[AnyDraft]:
        kind = block.get("type")
        if index in self._calls:
            self._over[index] = None  # it begins again
        drafts = self._close_calls([*self._over], "completed")
        if kind == "text":
            return drafts + self._speak(block.get("text"))
        if kind == "tool_use":
            call = self._calls[index] = GrowingCall(str(block.get("id") or ""), str(block.get("name")))
            if isinstance(block.get("input"), dict) and block["input"]:
                self._inputs[index] = block["input"]
            return drafts + self._open_call(call)
        if kind not in ("thinking", "redacted_thinking") or self._resumed:
            return drafts
        drafts += self._close_text("completed")
        if kind == "thinking":
            return drafts + self._think(block.get("thinking"))
        return drafts + self._seal(REDACTED + str(block.get("data"))) + self._close_text("completed")

    def _stop_block(self, index: int) -> list[AnyDraft]:
        call = self._calls.get(index)
        if call is None:
            return self._close_text("completed") if self._own_seal is not None else []
        if not call.arguments and index in self._inputs:
            call.pieces.append(msgspec.json.encode(self._inputs.pop(index)).decode())
        drafts = call.flush()
        self._over[index] = None  # not every server ends a block only once
        return drafts + (self._close_calls([*self._over], "completed") if is_json_object(call.arguments) else [])

    # -- texts

    def _seal(self, seal: str) -> list[AnyDraft]:
        """Seal the open reasoning; without any, open one, which shows nothing but its seal."""
        drafts: list[AnyDraft] = []
        if self._item is None or self._item["type"] != "reasoning":
            drafts = self._close_text("completed") + self._open_item(SUMMARY_TEXT)
        self._own_seal = seal
        return drafts

    def _speak(self, piece: object) -> list[AnyDraft]:
        if not isinstance(piece, str):
            return []
        if self._repeatable:  # white space that was sent before is not sent twice
            same = 0
            while same < min(len(piece), len(self._repeatable)) and piece[same] == self._repeatable[same]:
                same += 1
            self._repeatable = self._repeatable[same:] if same == len(piece) else ""
            self._inspects = bool(self._repeatable)
            self._set_shortcut()
            piece = piece[same:]
        return self._grow(OUTPUT_TEXT, piece) if piece else []

    def _close_calls(self, indices: list[int], status: ItemStatus) -> list[AnyDraft]:
        drafts = [draft for index in indices for draft in self._calls.pop(index).close(status)]
        self._over.clear()
        return drafts


# -- an answer that is whole


def to_events(body: bytes, read_fault: ReadFault = read_fault) -> list[bytes]:
    """Make events of a message that came whole, although a stream was asked for. Raises UpstreamFault."""
    message = translator.decode_answer(body, "a message")
    if message.get("error"):
        raise read_fault(message["error"])
    if not isinstance(message.get("content"), list):
        raise translator.not_an_answer("a message")
    events: list[Json] = [{"type": "message_start", "message": {**message, "content": []}}]
    for index, block in enumerate(message["content"]):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        if isinstance(block, dict) and block.get("signature"):
            delta = {"type": "signature_delta", "signature": block["signature"]}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    end = {"stop_reason": message.get("stop_reason") or "end_turn", "stop_details": message.get("stop_details")}
    events.append({"type": "message_delta", "delta": end})
    return [msgspec.json.encode(event) for event in events]

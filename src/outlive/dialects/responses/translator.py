"""Translator of the events of a Responses server into drafts of events.

Ids of items stay the server's, for what it made goes back to it under the same id; numbers are ours. Its events about
the response itself are not passed on: its end becomes ours. An event that is not in the grammar passes whole.
"""

import re
from typing import Any

import msgspec

from outlive.core import grammar
from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json
from outlive.core.grammar import ITEM_ADDED, ITEM_DONE
from outlive.core.ids import IdSource, is_well_formed, item_prefix
from outlive.core.usage import read_count
from outlive.dialects.faults import ReadFault, read_fault
from outlive.dialects.responses import items
from outlive.dialects.responses.items import PART_NAMES, PassingItem, PassingParts, tidy
from outlive.dialects.translator import decode_answer, decode_damaged, not_an_answer
from outlive.ports.backend import Ending, ModelCall

UNFINISHED = "The model's server ended its answer without saying that it was over."
# Keep-alives, which are not passed on.
_KEEP_ALIVES = frozenset({"keepalive", "ping", "heartbeat"})
# The shape of an event's name, which stands on a line of its own.
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")
# Types of items that the upstream may leave out the beginning of: the commonest slip of small servers.
_TEXT_ITEMS = ("message", "reasoning")
_PASSING_ITEMS: dict[str, type[PassingItem]] = {
    **dict.fromkeys(_TEXT_ITEMS, PassingParts),
    **dict.fromkeys(("function_call", "custom_tool_call"), items.PassingCall),
}


class _Delta(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A delta with no fields but those of every delta: nearly all of the events there are."""

    type: str
    delta: str
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    logprobs: Any = None
    obfuscation: Any = None
    sequence_number: Any = None


_decode_delta = msgspec.json.Decoder(_Delta).decode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class ResponsesTranslator:
    """Translates the events of one stream. Several items may be open at a time."""

    def __init__(self, call: ModelCall, ids: IdSource, read_fault: ReadFault = read_fault) -> None:
        self._ids = ids
        self._read_fault = read_fault
        self._items: list[PassingItem] = []
        self._by_id: dict[object, PassingItem] = {}
        self._by_index: dict[object, PassingItem] = {}
        self._next_index = call.first
        self._taken = {item.get("id") for item in call.items}
        # llama.cpp, which does not number its events, sends `completed` for an answer that reached its limit, too.
        self._limit = call.request.max_output_tokens
        self._final: tuple[str, Json] | None = None
        self._usage: Json | None = None
        # The growing text, to which `feed` itself appends nearly every event; None: it must look at each.
        self._channel: Channel | None = None
        self._pieces: list[str] = []
        self._growing_type = ""
        self._growing_id: str | None = None
        self._growing_index: int | None = None
        self._resume = call.resume
        self._resumed: PassingParts | None = None  # a text that the model is to continue, and has not yet
        if call.resume is not None:
            item_id, output_index, sent = call.resume.item_id, call.resume.output_index, call.resume.text
            channel = Channel(grammar.OUTPUT_TEXT, item_id, output_index, call.resume.content_index)
            growing = items.PassingText(channel, [sent], sent, awaited=True)
            last = {"id": item_id, "type": "message", "role": "assistant", "status": "in_progress"}
            self._resumed = PassingParts(item_id, output_index, "message", last, text=growing)
            self._items.append(self._resumed)
            self._next_index = output_index + 1

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        try:
            piece = _decode_delta(chunk)
        except (ValueError, RecursionError):
            return self._feed_any(chunk)
        channel = self._channel
        if (
            channel is None
            or piece.type != self._growing_type
            or piece.item_id != self._growing_id
            or piece.output_index != self._growing_index
            or piece.logprobs
        ):
            return self._feed_any(chunk)
        if not piece.delta:
            return []
        self._pieces.append(piece.delta)
        return [Delta(channel, piece.delta)]

    def end(self) -> tuple[list[AnyDraft], Ending]:
        if self._final is None:
            raise UpstreamFault(UNFINISHED, reason="upstream_lost")
        ending = self._read_ending(*self._final)
        final = self._final[1].get("output")
        output = [item for each in final if (item := tidy(each))] if isinstance(final, list) else []
        ended = {self._by_id[item["id"]]: item for item in output if item.get("id") in self._by_id}
        drafts: list[AnyDraft] = []
        for passing in self._items:
            if not passing.over and passing is not self._resumed:
                drafts += passing.close(ended.get(passing, {}), ending.status)
        # Items that were not in the stream. A server may give other ids at the end: then the order has to do.
        sent = len(self._items) - (self._resumed is not None)
        unsent = [item for item in output if item.get("id") not in self._by_id] if ended else output[sent:]
        for item in unsent:
            drafts += self._add(item, {}) + self._items[-1].close(item, ending.status)
        if self._resumed is not None:
            drafts += self._resumed.close({}, ending.status)
        return drafts, ending

    def usage(self) -> Json | None:
        """Return the usage with the fields that clients read; what an earlier attempt wrote is counted, too."""
        usage, before = self._usage, self._resume.deltas if self._resume is not None else 0
        if usage is None:
            return None
        given, written = read_count(usage, "input_tokens"), read_count(usage, "output_tokens")
        found = (usage.get(name) for name in ("input_tokens_details", "output_tokens_details"))
        read, made = (details if isinstance(details, dict) else {} for details in found)
        return {
            **usage,
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0, **read},
            "output_tokens": written + before,
            "output_tokens_details": {"reasoning_tokens": 0, **made},
            "total_tokens": (read_count(usage, "total_tokens") or given + written) + before,
        }

    def _read_ending(self, type_: str, response: Json) -> Ending:
        """Translate a terminal event. Raises UpstreamFault when the answer failed or was cancelled."""
        status, usage = response.get("status"), self.usage()
        if status not in grammar.TERMINAL_STATUSES:
            status = type_.removeprefix("response.")
        if status == "failed":
            raise read_failure({"response": response}, self._read_fault)
        if status == "cancelled":
            raise UpstreamFault("The model's server cancelled the answer.", retryable=False)
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) and status == "incomplete" else None
        limit = self._limit
        if status == "completed" and limit is not None and usage is not None and usage["output_tokens"] >= limit:
            status, reason = "incomplete", "max_output_tokens"
        texts = (reason, response.get("model"), response.get("service_tier"))
        reason, model, tier = (text if isinstance(text, str) and text else None for text in texts)
        return Ending("incomplete" if status == "incomplete" else "completed", reason, usage, model, tier)

    # -- one event

    def _feed_any(self, chunk: bytes) -> list[AnyDraft]:
        try:
            event = _decode(chunk)
        except (ValueError, RecursionError):
            event = decode_damaged(chunk, dict, "an event of the Responses API")
        # Without an id or an index that is none.
        if type(event.get("item_id", "")) is not str:
            del event["item_id"]
        if type(event.get("output_index", 0)) is not int:
            del event["output_index"]
        type_, response = event.get("type"), event.get("response")
        if isinstance(response, dict) and isinstance(response.get("usage"), dict):
            self._usage = response["usage"]  # also of an answer that failed
        if type_ in ("error", "response.error", "response.failed") or (type_ is None and "error" in event):
            raise read_failure(event, self._read_fault)
        if not isinstance(type_, str) or self._final is not None or type_ in _KEEP_ALIVES or not _NAME.match(type_):
            return []
        if "sequence_number" in event:
            self._limit = None
        if type_ in grammar.TERMINAL_EVENTS and isinstance(response, dict):
            self._final = (type_, response)
        self._channel = None
        return [] if type_ in grammar.LIFECYCLE_EVENTS else self._take(type_, event)

    def _take(self, type_: str, event: Json) -> list[AnyDraft]:
        if type_ in (ITEM_ADDED, ITEM_DONE):
            item = tidy(event.get("item"))
            if item is None:
                return []
            return self._add(item, event) if type_ == ITEM_ADDED else self._close(item, event)
        # The type of item that the event must be about; None where it may be about any, or none.
        kind = grammar.DELTAS.get(type_) or grammar.DONES.get(type_)
        if type_ in PART_NAMES and isinstance(event.get("part"), dict):
            kind = grammar.PART_TEXTS.get(str(event["part"].get("type")))
        if type_ == grammar.ANNOTATION_ADDED:
            kind = grammar.OUTPUT_TEXT
        wanted = kind.item if kind is not None else None
        drafts: list[AnyDraft] = []
        owner = self._find(event, wanted, type_)
        if owner is None and wanted in _TEXT_ITEMS and type_.endswith((".delta", ".added")):
            drafts = self._add({"type": wanted, "id": event.get("item_id")}, event)
            owner = self._items[-1]
        if owner is None:
            # It passes, unless it means nothing without its item.
            is_about = type_ in PART_NAMES or "output_index" in event or "item_id" in event or "_call" in type_
            if is_about or wanted is not None or type_.removeprefix("response.").startswith("mcp_"):
                return []
            return [Draft(type_, {name: event[name] for name in event if name not in ("type", "sequence_number")})]
        drafts += owner.take(type_, event)
        text = owner.text
        if text is not None and text.channel.type == type_ and not text.ended and not text.logprobs:
            # Let `feed` itself append deltas like this one from now on.
            self._channel, self._pieces, self._growing_type = text.channel, text.pieces, type_
            self._growing_id, self._growing_index = event.get("item_id"), event.get("output_index")
        return drafts

    # -- items

    def _add(self, item: Json, event: Json) -> list[AnyDraft]:
        if (known := self._by_id.get(item.get("id"))) is not None and not known.over:
            return []  # sent twice
        drafts: list[AnyDraft] = []
        if self._resumed is not None:
            if item["type"] == "reasoning":  # again, before it continues: the text must stay in one piece
                self._know(items.DroppedItem("", -1, "reasoning"), item, event)
                return []
            resumed, self._resumed = self._resumed, None
            if item["type"] == "message":
                self._know(resumed, item, event)
                return []
            drafts = resumed.close({}, "completed")  # the model did something else than continue the text
        # The item keeps its own id, unless an item of the context or of this answer has it already.
        item_id = item.get("id")
        if not isinstance(item_id, str) or not is_well_formed(item_id) or item_id in self._taken:
            item_id = self._ids.new(item_prefix(item["type"]))
        self._taken.add(item_id)
        passing = _PASSING_ITEMS.get(item["type"], PassingItem)(item_id, self._next_index, item["type"])
        self._next_index += 1
        self._know(passing, item, event)
        return drafts + passing.open(item)

    def _close(self, item: Json, event: Json) -> list[AnyDraft]:
        passing = self._find({"item_id": item.get("id"), **event}, item["type"], ITEM_DONE)
        if passing is not None and not passing.over:
            return passing.close(item, "completed")
        if passing is not None and item.get("id") in self._by_id:
            return []  # sent twice
        return self._add(item, event) + self._items[-1].close(item, "completed")

    def _find(self, event: Json, wanted: str | None, type_: str) -> PassingItem | None:
        """Return the item that an event is about. Servers leave out ids, indices or both; some mix them up."""
        for found in (self._by_id.get(event.get("item_id")), self._by_index.get(event.get("output_index"))):
            if found is not None and (wanted is None or found.kind in (wanted, "")):
                return found
        if wanted is None and ("item_id" in event or "output_index" in event):
            return None
        name = type_.removeprefix("response.")
        open_items = (passing for passing in reversed(self._items) if not passing.over)
        fits = (each for each in open_items if (each.kind == wanted if wanted else name.startswith(each.kind)))
        return next(fits, None)

    def _know(self, passing: PassingItem, item: Json, event: Json) -> None:
        if passing not in self._items:
            self._items.append(passing)
        if isinstance(item.get("id"), str):
            self._by_id[item["id"]] = passing
        if "output_index" in event:
            self._by_index[event["output_index"]] = passing


# The codes of `response.error` that clients know, besides those that `faults` chooses by cause. Only those in the
# second list may go away when the request is repeated.
_CODES = frozenset({
    "bio_policy", "data_residency_mismatch", "empty_image_file", "failed_to_download_image",
    "image_content_policy_violation", "image_file_not_found", "image_file_too_large", "image_parse_error",
    "image_too_large", "image_too_small", "invalid_base64_image", "invalid_image", "invalid_image_format",
    "invalid_image_mode", "invalid_image_url", "misalignment_policy_violation", "unsupported_image_media_type",
    "vector_store_timeout",
})  # fmt: skip
_PASSING = frozenset({"failed_to_download_image", "vector_store_timeout"})


def to_event(body: bytes, read_fault: ReadFault = read_fault) -> bytes:
    """Make the terminal event of an answer that came whole, although a stream was asked for. Raises UpstreamFault."""
    response = decode_answer(body, "a response")
    if response.get("object") != "response" and response.get("error"):
        raise read_failure(response, read_fault)
    if not isinstance(response.get("output"), list):
        raise not_an_answer("a response")
    return msgspec.json.encode({"type": f"response.{response.get('status') or 'completed'}", "response": response})


def read_failure(event: Json, read_fault: ReadFault) -> UpstreamFault:
    """Return the fault in an error event, flat or nested, or in a failed response."""
    response = event.get("response")
    error = response.get("error") if isinstance(response, dict) else event.get("error")
    if not isinstance(error, dict):
        # A flat one has its code and message in the event itself.
        error = {"code": event.get("code"), "message": event.get("message") or error}
    fault = read_fault(error)
    code = error.get("code")
    if code in _CODES:
        fault.code = code
        fault.retryable = code in _PASSING
    return fault

"""Translator of Chat Completions chunks into drafts of events."""

from __future__ import annotations

from typing import Any

import msgspec

from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft, Delta, Json
from outlive.core.grammar import OUTPUT_TEXT, REASONING_TEXT, REFUSAL, SUMMARY_TEXT, Text
from outlive.core.ids import IdSource
from outlive.core.recovery import OpenText
from outlive.core.usage import make_usage, read_count
from outlive.dialects import translator
from outlive.dialects.faults import ReadFault, read_fault
from outlive.dialects.request import wants_logprobs, wants_summary
from outlive.dialects.translator import AnswerTranslator, GrowingCall, ItemStatus, is_json_object
from outlive.ports.backend import Ending, ModelCall

# Reasons to finish that leave the answer incomplete, and what the Responses API calls them.
_INCOMPLETE = {"length": "max_output_tokens", "max_tokens": "max_output_tokens", "content_filter": "content_filter"}
# Reasons to finish that mean a failure of the server.
_BROKEN = frozenset({"error", "abort", "insufficient_system_resource"})


# Only the fields that are used are decoded, fastest in the order in which most servers send them. They are Any because
# servers differ in them, and a run must not fail for an oddity in a field that hardly matters.
class _ChunkDelta(msgspec.Struct, gc=False):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class _Choice(msgspec.Struct, gc=False):
    index: Any = 0
    delta: _ChunkDelta | None = None
    logprobs: Any = None
    finish_reason: Any = None


class _Chunk(msgspec.Struct, gc=False):
    object: Any = None
    model: Any = None
    service_tier: Any = None
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    message: Any = None


_decode, _decode_text = msgspec.json.Decoder(_Chunk).decode, msgspec.json.Decoder(str).decode
_NOTHING = _ChunkDelta()
MOST_TEMPLATE = 4 * 1024  # bytes of a chunk whose surroundings are kept: each stream holds one


class ChatTranslator(AnswerTranslator):
    """Translates the chunks of one stream. At most one text and one call grow at a time."""

    def __init__(self, call: ModelCall, ids: IdSource, read_fault: ReadFault = read_fault) -> None:
        super().__init__(call, ids, read_fault, inspects=wants_logprobs(call.request))
        self._sealed = "reasoning.encrypted_content" in call.request.include
        self._thoughts = SUMMARY_TEXT if wants_summary(call.request) else REASONING_TEXT
        self._calls = StreamedCalls()
        self._open: GrowingCall | None = None
        self._finish: str | None = None
        self._tier: str | None = None
        self._template: tuple[bytes, bytes, int] | None = None  # bytes before and after a chunk's text, and how many
        self._templates_left = 64  # that may be made: some servers put something else into each chunk

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        if self._channel is not None and self._template is not None:
            # Most chunks differ from one before in their text alone, and only that is decoded.
            before, after, size = self._template
            inner = chunk.removeprefix(before).removesuffix(after)
            try:
                if len(chunk) - len(inner) == size and (text := _decode_text(inner)):
                    self._pieces.append(text)
                    return [Delta(self._channel, text)]
            except ValueError:
                pass  # there is more than a text
        return self._feed_any(chunk)

    def _feed_any(self, chunk: bytes) -> list[AnyDraft]:
        try:
            piece = _decode(chunk)
        except (ValueError, RecursionError):
            piece = translator.decode_damaged(chunk, _Chunk, "a chat completion chunk")
        choices, channel = piece.choices, self._channel
        if channel is not None and piece.usage is None and choices and len(choices) == 1:
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
                self._make_template(chunk, text)
                self._pieces.append(text)
                return [Delta(channel, text)]
        if piece.error is not None:
            raise self._read_fault(piece.error)
        if piece.object == "error":  # without an envelope, as some versions of vLLM send it
            raise self._read_fault({"message": piece.message})
        if isinstance(piece.model, str) and piece.model:
            self._model = piece.model
        if isinstance(piece.service_tier, str):
            self._tier = piece.service_tier
        if isinstance(piece.usage, dict):
            self._usage = read_usage(piece.usage, self._resume)
        drafts: list[AnyDraft] = []
        for choice in choices or ():
            if not choice.index:  # only one answer was asked for
                drafts += self._take(choice)
        return drafts

    def _make_template(self, chunk: bytes, text: str) -> None:
        """Keep the bytes around the text of a chunk, if the text is written as expected."""
        self._templates_left -= 1
        is_wanted = self._templates_left > 0 and len(chunk) <= MOST_TEMPLATE
        before, _, after = chunk.partition(msgspec.json.encode(text)) if is_wanted else (b"", b"", b"")
        is_found = before.endswith((b'"content":', b'"content": '))
        self._template = (before, after, len(before) + len(after)) if is_found else None

    def end(self) -> tuple[list[AnyDraft], Ending]:
        status, reason = translator.read_stop(self._finish, _INCOMPLETE)
        calls = self._calls.all
        if calls and status == "completed" and any(not call.name for call in calls):
            raise UpstreamFault("The model's server sent a function call without the function's name.")
        drafts = [] if calls else self._open_empty()
        # By output index: an open text was opened after the open call.
        drafts += self._close_call(status) + self._close_text(status)
        while calls and (waiting := self._calls.next_named()) is not None:
            drafts += self._open_call(waiting) + waiting.close(status)
        return drafts, Ending(status, reason, self._usage, self._model, self._tier)

    def _take(self, choice: _Choice) -> list[AnyDraft]:
        delta = choice.delta or _NOTHING
        # Servers that changed the field's name send both for a while.
        thought = delta.reasoning_content or delta.reasoning
        drafts = self._think(thought) if thought else []
        if delta.content:
            drafts += self._speak(delta.content, choice.logprobs)
        if delta.refusal and isinstance(delta.refusal, str):
            drafts += self._grow(REFUSAL, delta.refusal)
        if delta.tool_calls or delta.function_call is not None:
            entries = delta.tool_calls if isinstance(delta.tool_calls, list) else []
            if isinstance(delta.function_call, dict):
                entries = [*entries, {"index": 0, "function": delta.function_call}]
            for entry in entries:
                if isinstance(entry, dict):
                    call = self._calls.place(entry)
                    drafts += call.flush() if call is self._open else []
                    if call is not self._open or len(self._calls.all) > 1:
                        drafts += self._open_next()
        if choice.finish_reason:
            reason = str(choice.finish_reason)
            if reason in _BROKEN:
                raise UpstreamFault(f"The model's server gave up (finish_reason {reason}).")
            if self._finish not in _INCOMPLETE:
                self._finish = reason
        return drafts

    def _speak(self, content: object, logprobs: object) -> list[AnyDraft]:
        if isinstance(content, str):
            # They are wanted where each chunk of text must be looked at.
            wanted = read_logprobs(logprobs) if self._inspects else None
            return self._grow(OUTPUT_TEXT, content, wanted) if content else []
        drafts: list[AnyDraft] = []
        for part in content if isinstance(content, list) else ():  # Mistral sends reasoning so
            if isinstance(part, dict) and part.get("type") == "thinking":
                thoughts = part.get("thinking")
                for thought in thoughts if isinstance(thoughts, list) else [{"text": thoughts}]:
                    drafts += self._think(thought.get("text") if isinstance(thought, dict) else thought)
            elif isinstance(part, dict):
                drafts += self._speak(part.get("text"), None)
        return drafts

    def _open_item(self, text: Text) -> list[AnyDraft]:
        if self._open is None or not is_json_object(self._open.arguments):
            return super()._open_item(text)
        return self._close_call("completed") + super()._open_item(text)

    # -- calls

    def _open_next(self) -> list[AnyDraft]:
        """Open the calls that wait. Some clients can follow one open call only, so the next waits until it is whole."""
        drafts: list[AnyDraft] = []
        while (waiting := self._calls.next_named()) is not None:
            if self._open is not None:
                if not is_json_object(self._open.arguments):
                    break
                drafts += self._close_call("completed")
            self._open = waiting
            drafts += self._open_call(waiting)
        return drafts

    def _close_call(self, status: ItemStatus) -> list[AnyDraft]:
        call, self._open = self._open, None
        return [] if call is None else call.close(status)


class StreamedCalls(msgspec.Struct, eq=False):
    """The calls so far, in the order in which they appeared.

    Servers mark where a fragment belongs in several ways. With an index: the call of that index, unless it names a
    function under a new id (servers that number every call 0). Without: the call of its id; a new call if it has an
    id or names a function, unless that only repeats the name of a call whose arguments are not whole; else the last.
    """

    all: list[GrowingCall] = []
    _by_index: dict[int, GrowingCall] = {}
    _by_id: dict[str, GrowingCall] = {}
    _last: GrowingCall | None = None

    def place(self, entry: Json) -> GrowingCall:
        """Return the call that an entry of a chunk's `tool_calls` belongs to, with the entry added to it. Fields that
        are missing or odd count as empty."""
        function = entry.get("function")
        fields = function if isinstance(function, dict) else {}
        index = entry["index"] if isinstance(entry.get("index"), int) else None
        call_id = entry["id"] if isinstance(entry.get("id"), str) else ""
        name = fields["name"] if isinstance(fields.get("name"), str) else ""
        call = self._find(index, call_id, name)
        if call is None:
            call = GrowingCall()
            self.all.append(call)
            if index is not None:
                self._by_index[index] = call
        self._last = call
        if call_id:
            self._by_id[call_id] = call
            if not call.call_id and all(each.call_id != call_id for each in self.all):
                call.call_id = call_id
        call.name = call.name or name
        if (arguments := fields.get("arguments")) is not None:
            # Some servers send an object instead of its JSON.
            call.pieces.append(arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode())
        return call

    def next_named(self) -> GrowingCall | None:
        """Return the first call that has a name and was not opened yet."""
        return next((call for call in self.all if call.name and call.channel is None), None)

    def _find(self, index: int | None, call_id: str, name: str) -> GrowingCall | None:
        if index is not None:
            call = self._by_index.get(index)
            renewed = call is not None and name and call_id and call.call_id not in ("", call_id)
            return None if renewed else call
        if call_id:
            return self._by_id.get(call_id)
        last = self._last
        if last is not None and name:
            return last if last.name in ("", name) and not translator.is_json(last.arguments) else None
        return last


def to_chunk(body: bytes, resume: OpenText | None, read_fault: ReadFault = read_fault) -> bytes:
    """Make one chunk of an answer that came whole, although a stream was asked for. Raises UpstreamFault."""
    answer = translator.decode_answer(body, "a chat completion")
    if answer.get("error"):
        raise read_fault(answer["error"])
    try:
        choice = answer["choices"][0]
        message = choice["message"]
    except (LookupError, TypeError) as error:
        raise translator.not_an_answer("a chat completion") from error
    if resume is not None and isinstance(message.get("content"), str):
        # Where a stream has only what comes after the text so far, a whole answer repeats it.
        message = {**message, "content": message["content"].removeprefix(resume.text)}
    delta = {**choice, "delta": message, "finish_reason": choice.get("finish_reason") or "stop"}
    return msgspec.json.encode({**answer, "choices": [delta]})


def read_usage(usage: Json, resume: OpenText | None) -> Json:
    """Translate usage to the shape of the Responses API."""
    prompt, completion = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return make_usage(
        resume,
        given=read_count(usage, "prompt_tokens"),
        written=read_count(usage, "completion_tokens"),
        cached=read_count(prompt, "cached_tokens") or read_count(usage, "prompt_cache_hit_tokens"),  # DeepSeek's
        cache_write=read_count(prompt, "cache_write_tokens"),
        reasoning=read_count(completion, "reasoning_tokens"),
    )


def read_logprobs(logprobs: object) -> list[Json]:
    """Translate a choice's log probabilities, with every field that a finished part must have."""
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    return [
        _entry(entry) | {"top_logprobs": [_entry(other) for other in entry.get("top_logprobs") or ()]}
        for entry in (entries if isinstance(entries, list) else ())
    ]


def _entry(entry: Any) -> Json:
    token = str(entry.get("token", ""))
    spelled = entry.get("bytes")
    return {
        "token": token,
        "bytes": list(token.encode()) if spelled is None else spelled,
        "logprob": entry.get("logprob", 0.0),
    }

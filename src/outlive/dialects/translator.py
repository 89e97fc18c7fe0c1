"""The base of translators that build the items of an answer themselves: items while they grow, each of which makes the
drafts that open it, add to it and close it, and the JSON that all translators decode."""

from base64 import b64encode
from typing import Any, Literal, TypeVar

import msgspec

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json, add_item, end_item, make_part
from outlive.core.grammar import CONTENT, CUSTOM_INPUT, FUNCTION_ARGUMENTS, OUTPUT_TEXT, SUMMARY_TEXT, Text
from outlive.core.ids import IdSource, item_prefix
from outlive.core.requests.body import decode_body
from outlive.dialects.client_tools import ClientTool
from outlive.dialects.faults import ReadFault, read_fault
from outlive.dialects.offer import CalledTool, Identity, make_offer
from outlive.ports.backend import ModelCall

T = TypeVar("T")

# Marks `encrypted_content` that is plain text, in contrast to what only its own server can read.
PLAIN_SEAL = "outlive:plain:"

ItemStatus = Literal["completed", "incomplete"]

_decode = msgspec.json.Decoder().decode


class GrowingCall(msgspec.Struct, eq=False):
    """A call of a function, or of another tool that a function stands for. It may gather arguments before it is opened.

    Only the arguments of functions are shown as they grow: other tools have them in another form, once they are whole.
    """

    call_id: str = ""
    name: str = ""  # of the function
    channel: Channel | None = None  # None: it was not opened yet
    pieces: list[str] = []  # of its arguments
    _item: Json = {}  # as it was opened
    _fixed: ClientTool | None = None  # the tool, where it has a fixed form
    _sent: int = 0

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    def open(self, tool: CalledTool | None, ids: IdSource, output_index: int) -> list[AnyDraft]:
        """Open the call, of a plain function where there is no tool."""
        identity = Identity("function", self.name) if tool is None else tool.identity
        self._fixed = tool.client_tool if tool is not None else None
        text = FUNCTION_ARGUMENTS if identity.kind == "function" else CUSTOM_INPUT
        type_ = text.item if self._fixed is None else self._fixed.item
        item_id = ids.new(item_prefix(type_))
        self.channel = Channel(text, item_id, output_index)
        self._item = {"id": item_id, "type": type_, "status": "in_progress", "call_id": self.call_id}
        if self._fixed is not None:
            self._item |= self._fixed.blank  # its type says all: it has no name
        else:
            named = {"name": identity.name, "namespace": identity.namespace, text.field: ""}
            self._item |= {name: value for name, value in named.items() if value is not None}
        return [add_item(output_index, self._item), *self.flush()]

    def flush(self) -> list[AnyDraft]:
        """Return the deltas not sent yet: none before the call is open, none ever but for a function's arguments."""
        if self.channel is None or self.channel.text is not FUNCTION_ARGUMENTS:
            return []
        fresh, self._sent = self.pieces[self._sent :], len(self.pieces)
        return [Delta(self.channel, piece) for piece in fresh if piece]

    def close(self, status: ItemStatus) -> list[AnyDraft]:
        """End the call. One that was cut off is incomplete, unless its arguments had ended."""
        assert self.channel is not None
        whole, text, index = self.arguments, self.channel.text, self.channel.output_index
        if status == "incomplete" and is_json(whole):
            status = "completed"
        drafts: list[AnyDraft] = []
        if (tool := self._fixed) is not None:
            fields = tool.fit(whole) if status == "completed" else tool.blank
            for n, command in enumerate(fields["action"]["commands"] if tool.item == "shell_call" else ()):
                place = {"output_index": index, "command_index": n}
                drafts.append(Draft("response.shell_call_command.added", {**place, "command": ""}))
                drafts.append(Draft("response.shell_call_command.delta", {**place, "delta": command}))
                drafts.append(Draft("response.shell_call_command.done", {**place, "command": command}))
            ended = status if status == "completed" else tool.cut_off
            return [*drafts, end_item(index, self._item | {"status": ended, **fields})]
        if text is CUSTOM_INPUT:
            # Its text is in a field of them, unless the model wrote it without the JSON around it.
            value: Any = _decode(whole) if is_json(whole) else whole
            found = value.get("input") if isinstance(value, dict) else value
            if status == "incomplete":
                whole = ""
            elif isinstance(found, str):
                whole = found
            drafts = [Delta(self.channel, whole)] if whole else []
        elif status == "completed" and not whole.strip():
            self.pieces.append("{}")  # a function without parameters; clients parse what they get
            drafts, whole = self.flush(), self.arguments
        drafts.append(self.channel.end(whole, self._item["name"]))
        return [*drafts, end_item(index, self._item | {"status": status, text.field: whole})]


def is_json(arguments: str) -> bool:
    """Return True if the arguments are JSON to their end."""
    try:
        _decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def is_json_object(arguments: str) -> bool:
    """Return True if nothing can follow: a number may get more digits, an object that has ended has ended."""
    return arguments.rstrip().endswith("}") and is_json(arguments)


class AnswerTranslator:
    """Builds the items of one answer. At most one text grows at a time.

    While `_channel` is set, `feed` appends a chunk of plain text to `_pieces` and is done: the way of nearly every
    chunk.
    """

    def __init__(
        self, call: ModelCall, ids: IdSource, read_fault: ReadFault = read_fault, *, inspects: bool = False
    ) -> None:
        self._ids = ids
        self._read_fault = read_fault
        self._asked = call
        self._tools: dict[str, CalledTool] | None = None  # that functions stand for, once one is called
        self._thoughts = SUMMARY_TEXT  # the kind of text that reasoning becomes
        self._sealed = False  # reasoning is to end with `encrypted_content`
        self._own_seal: str | None = None  # the `encrypted_content`, where the upstream sends its own
        self._model: str | None = None
        self._usage: Json | None = None
        self._inspects = inspects  # `feed` must look at each chunk of plain text
        self._channel: Channel | None = None
        self._item: Json | None = None  # the open message, or reasoning, as it was opened
        self._index = 0  # its output index
        self._parts: list[Json] = []  # that have ended
        self._growing: Channel | None = None  # of the part that is growing
        self._pieces: list[str] = []
        self._logprobs: list[Json] = []
        self._next_index = self._first = call.first
        self._resume = resume = call.resume
        self._resumed = resume is not None  # the open text is the one that an earlier attempt began
        if resume is not None:  # continue a text that an earlier attempt opened, and sent this far
            self._item = _make_item(OUTPUT_TEXT, resume.item_id)
            self._index = resume.output_index
            self._next_index = self._index + 1
            self._begin(OUTPUT_TEXT, resume.content_index)
            self._pieces.append(resume.text)

    def usage(self) -> Json | None:
        """Return the usage that the upstream has reported so far."""
        return self._usage

    def _open_empty(self) -> list[AnyDraft]:
        """Open a message if there is nothing at all: an empty answer is a message, too."""
        return self._open_part(OUTPUT_TEXT) if self._item is None and self._next_index == self._first else []

    # -- texts

    def _think(self, piece: object) -> list[AnyDraft]:
        """Grow the reasoning. A model that is to continue a text may reason again first, but the text must stay in one
        piece."""
        if not isinstance(piece, str) or not piece or self._resumed:
            return []
        return self._grow(self._thoughts, piece)

    def _grow(self, text: Text, piece: str, logprobs: list[Json] | None = None) -> list[AnyDraft]:
        """Grow that kind of text by a piece, which may come with its log probabilities."""
        is_open = self._growing is not None and self._growing.text is text
        drafts = [] if is_open else self._open_part(text)
        assert self._growing is not None
        self._pieces.append(piece)
        self._own_seal = None  # it was one of less text
        if logprobs is None:
            drafts.append(Delta(self._growing, piece))
        else:
            self._logprobs += logprobs
            drafts.append(Draft(self._growing.type, {**self._growing.place, "delta": piece, "logprobs": logprobs}))
        return drafts

    def _open_part(self, text: Text) -> list[AnyDraft]:
        """Return the drafts after which a part for that kind of text is growing."""
        is_other = self._item is not None and self._item["type"] != text.item
        drafts = self._close_text("completed") if is_other else self._close_part()
        if self._item is None:
            drafts += self._open_item(text)
        return [*drafts, self._begin(text, len(self._parts)).add_part()]

    def _open_item(self, text: Text) -> list[AnyDraft]:
        """Open an item whose parts are that kind of text."""
        self._item = _make_item(text, self._ids.new(item_prefix(text.item)))
        self._index, self._parts, self._own_seal = self._count(), [], None
        return [add_item(self._index, self._item)]

    def _begin(self, text: Text, index: int) -> Channel:
        assert self._item is not None
        self._pieces, self._logprobs = [], []
        self._growing = Channel(text, self._item["id"], self._index, index)
        self._set_shortcut()
        return self._growing

    def _set_shortcut(self) -> None:
        """Let `feed` itself append chunks of plain text from now on, or not."""
        is_plain = self._growing is not None and self._growing.text is OUTPUT_TEXT
        self._channel = self._growing if is_plain and not self._inspects else None

    def _close_part(self) -> list[AnyDraft]:
        if (channel := self._growing) is None:
            return []
        self._growing = self._channel = None
        whole = "".join(self._pieces)
        part = make_part(channel.text, whole, self._logprobs)
        self._parts.append(part)
        return [channel.end(whole, self._logprobs), channel.end_part(part)]

    def _close_text(self, status: ItemStatus) -> list[AnyDraft]:
        if self._item is None:
            return []
        drafts = self._close_part()
        item, self._item, self._resumed = {**self._item, "status": status}, None, False
        item["content" if "content" in item else "summary"] = self._parts
        if item["type"] == "reasoning" and self._own_seal is not None:
            item["encrypted_content"] = self._own_seal
        elif item["type"] == "reasoning" and self._sealed:
            # Clients that keep their history themselves send reasoning back only with it. There is nothing to hide, so
            # it is the text itself.
            whole = "".join(part["text"] for part in self._parts).encode(errors="replace")
            item["encrypted_content"] = PLAIN_SEAL + b64encode(whole or b" ").decode()
        return [*drafts, end_item(self._index, item)]

    # -- calls

    def _open_call(self, call: GrowingCall) -> list[AnyDraft]:
        drafts = self._close_text("completed")
        call.call_id = call.call_id or self._ids.new("call")
        if self._tools is None:
            self._tools = make_offer(self._asked.request, self._asked.items).called
        return drafts + call.open(self._tools.get(call.name), self._ids, self._count())

    def _count(self) -> int:
        index = self._next_index
        self._next_index += 1
        return index


def _make_item(text: Text, item_id: str) -> Json:
    """Make the item in which that kind of text is to grow."""
    if text.item == "message":
        return {"id": item_id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
    item: Json = {"id": item_id, "type": text.item, "status": "in_progress", "summary": []}
    return item | {"content": []} if text.parts is CONTENT else item


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


def read_stop(stop: str | None, incomplete: dict[str, str]) -> tuple[ItemStatus, str | None]:
    """Return the status of an answer by its reason to stop, and why it is incomplete. Raises UpstreamFault for none."""
    if stop is None:
        raise UpstreamFault("The model's server ended its answer without a finish.", reason="upstream_lost")
    reason = incomplete.get(stop)
    return "incomplete" if reason else "completed", reason


def not_an_answer(kind: str) -> UpstreamFault:
    return UpstreamFault(f"The model's server answered with something that is not {kind}.")

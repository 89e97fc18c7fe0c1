"""A context of items as the system prompt and the messages of Anthropic's API, which is strict about their order.

The first message is the user's and so is the last, unless a text is to be continued. Neighbours of one role are one
message. Each call's result stands in the very next message, under an id that no other call of the context has. Nothing
in it is empty.
"""

from __future__ import annotations

import re

import msgspec

from outlive.core.context.assemble import PLACEHOLDER_OUTPUT
from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.dialects.anthropic.blocks import PARTS, open_seal, read_parts, text_block
from outlive.dialects.request import LEFT_OUT, read_call, read_output

# Stand where the API wants a message of the user, and there is none.
BEGIN, GO_ON = "Please begin.", "Please continue."

_JSON = msgspec.json.Decoder()
_NO_ID = re.compile(r"[^A-Za-z0-9_-]")
_MOST_NAME = 128


class MessagesContext:
    """The context so far. `inline`: a model that takes system messages between others gets them there. `strict`: an
    item that cannot be sent is refused; otherwise it is left out, so that what is in a history already cannot block the
    conversation."""

    def __init__(self, *, inline: bool = False, with_thoughts: bool = True, strict: bool = False) -> None:
        self._inline = inline
        self._strict = strict
        self._with_thoughts = with_thoughts
        self._later: list[str] = []  # system messages that wait for the end of the user's message before them
        self._ids: dict[str, str] = {}  # call_id -> the id that its last call was sent under
        self._taken: set[str] = set()
        self.system: list[str] = []
        self.messages: list[Json] = []
        self.names: dict[str, None] = {}  # of the tools that were called, in order
        self.has_thoughts = False
        self.has_marks = False  # the caller marks where the prompt may be cached

    def take_all(self, instructions: str | None, items: list[Json]) -> None:
        if instructions and instructions.strip():
            self.system.append(instructions)
        for item in items:
            self.take(item)

    def take(self, item: Json) -> None:
        kind = str(item.get("type"))
        if kind == "message":
            self._take_message(item)
        elif kind == "reasoning":
            self._take_thought(item)
        elif kind.endswith("_output"):
            self._answer(item)
        elif "call_id" in item:
            name, arguments = read_call(item)
            self._call(str(item["call_id"]), name, _read_arguments(arguments))
        elif self._strict and kind not in LEFT_OUT and ":" not in kind:  # a vendor's own kinds are named `vendor:kind`
            message = f"Items of type '{kind}' cannot be sent to this model's server."
            raise InvalidRequest(message, param="type", code="unsupported_parameter")

    def end(self, partial: str | None) -> None:
        """End the context, with the text to be continued if there is one."""
        self._say_later()
        if self._later:
            self._say("user", [text_block(text) for text in self._later])
        if not self.messages:
            self._say("user", [text_block(BEGIN)])
        if partial is not None and partial.strip():
            self._say("assistant", [text_block(partial.rstrip())])
        elif self.messages[-1]["role"] == "assistant":
            self._say("user", [text_block(GO_ON)])

    def _take_message(self, item: Json) -> None:
        role, blocks = str(item.get("role")), read_parts(item.get("content"), strict=self._strict)
        self.has_marks = self.has_marks or any("cache_control" in block for block in blocks)
        if role == "user":
            self._say(role, blocks)
            return
        if self._strict and any(block["type"] != "text" for block in blocks):
            raise InvalidRequest(f"A message of the role '{role}' can only have text in it.", param="content")
        blocks = [block for block in blocks if block["type"] == "text"]
        if role == "assistant":
            text = "".join(block["text"] for block in blocks)
            self._say(role, [text_block(text)] if text else [])
        elif blocks:
            text = "\n".join(block["text"] for block in blocks)
            (self._later if self._inline and self.messages else self.system).append(text)

    def _take_thought(self, item: Json) -> None:
        block = open_seal(item) if self._with_thoughts else None
        if block is not None:
            self.has_thoughts = True
            self._say("assistant", [block])

    def _call(self, call_id: str, name: str, arguments: Json) -> None:
        name = _NO_ID.sub("_", name)[:_MOST_NAME] or "_"
        self.names[name] = None
        self._ids[call_id] = sent = self._new_id(call_id)
        self._say("assistant", [{"type": "tool_use", "id": sent, "name": name, "input": arguments}])

    def _new_id(self, call_id: str) -> str:
        """Return an id that the API takes; some models count their calls from zero in every turn."""
        stem = _NO_ID.sub("_", call_id) or "_"
        sent, count = stem, 1
        while sent in self._taken:
            count += 1
            sent = f"{stem}_{count}"
        self._taken.add(sent)
        return sent

    def _answer(self, item: Json) -> None:
        call_id = str(item.get("call_id"))
        result: Json = {"type": "tool_result", "tool_use_id": self._ids.get(call_id, call_id)}
        if content := read_parts(read_output(item, PARTS), "output", strict=self._strict):
            result["content"] = content
        if _is_error(item):
            result["is_error"] = True
        self._say("user", [result])

    def _say(self, role: str, blocks: list[Json]) -> None:
        if not blocks:
            return
        if role == "assistant":
            self._say_later()
            if not self.messages:
                self._say("user", [text_block(BEGIN)])
        last = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == role:
            last["content"] += blocks
        else:
            self.messages.append({"role": role, "content": blocks})

    def _say_later(self) -> None:
        """Add the waiting system messages: behind a message of the user, and before one of the assistant or the end."""
        if self._later and self.messages and self.messages[-1]["role"] == "user":
            later, self._later = self._later, []
            self.messages.append({"role": "system", "content": [text_block("\n\n".join(later))]})


def _read_arguments(arguments: object) -> Json:
    """Return the arguments as an object: the API takes nothing else."""
    if isinstance(arguments, dict):
        return arguments
    if not isinstance(arguments, str) or not arguments.strip():
        return {}
    try:
        value = _JSON.decode(arguments)
    except msgspec.DecodeError:
        return {"unparsed": arguments}
    return value if isinstance(value, dict) else {"value": value}


def _is_error(item: Json) -> bool:
    """Return True if the call failed. The Responses API has no field for it, so a caller may add Anthropic's own."""
    return item.get("is_error") is True or item.get("status") == "failed" or item.get("output") == PLACEHOLDER_OUTPUT

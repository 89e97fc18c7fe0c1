"""A context of items as Chat Completions messages: merged, so that even strict chat templates accept them.

Many models' templates refuse two messages of one role in a row, and a cancelled turn without an answer leaves just
that. So neighbours of one role become one message; calls join the assistant message before them; and the outputs of
calls stand right behind it, where `core.context` has put them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from outlive.core.context.assemble import UNFINISHED, assemble
from outlive.core.errors import InvalidRequest
from outlive.core.events import Json

OUTPUT_ELSEWHERE = "The output of this call is in the next message."

_JSON = msgspec.json.Decoder()

# Items that a chat has no place for, and whose outcome is in the assistant's own words anyway.
_LEFT_OUT = frozenset(
    {
        "code_interpreter_call",
        "file_search_call",
        "image_generation_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_list_tools",
        "reasoning",
        "web_search_call",
    }
)

# What to do instead of sending an item that a chat has no place for.
_HINTS = {
    "additional_tools": ": give the tools in 'tools'",
    "configuration_update": ": give the settings with each request",
    "compaction": ", and this one was not made by this server",
}

# What an item says about itself rather than to the model.
_ENVELOPE = frozenset({"id", "type", "status", "call_id", "caller", "created_by"})


def render_messages(instructions: str | None, items: list[Json], developer_role: bool) -> list[Json]:
    """The messages for a context, `instructions` first."""
    chat = _Chat("developer" if developer_role else "system")
    if instructions:
        chat.say("system", [_text(instructions)])
    # The runner has assembled already; doing so again costs little, and a context that slipped by stays harmless.
    for item in assemble(items, []):
        # What a request may not hold is refused at the door. What is in a history already, from another upstream or
        # from an older time, must not keep it from going on.
        chat.take(item)
    return chat.render()


def check_items(items: list[Json]) -> None:
    """Raise InvalidRequest naming the first item, or part of one, that a chat has no place for."""
    chat = _Chat("system")
    for n, item in enumerate(items):
        try:
            if not chat.take(item):
                raise InvalidRequest(_refusal(str(item.get("type"))), param="type", code="unsupported_parameter")
        except InvalidRequest as error:
            at = f"input[{n}].{error.param}" if error.param else f"input[{n}]"
            raise InvalidRequest(error.message, param=at, code=error.code) from error


def _refusal(kind: str) -> str:
    hint = _HINTS.get(kind, "")
    return f"Items of type '{kind}' cannot be sent to this model's server, which speaks Chat Completions{hint}."


class _Message:
    """One message while neighbours may still join it. Texts are joined at the end only: to join as they come would be
    quadratic."""

    __slots__ = ("calls", "parts", "role")

    def __init__(self, role: str) -> None:
        self.role = role
        self.parts: list[Json] = []
        self.calls: list[Json] = []

    def render(self) -> Json:
        message: Json = {"role": self.role, "content": _join(self.parts, "\n\n")}
        if self.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = self.calls
        return message


class _Chat:
    """The messages so far."""

    def __init__(self, developer: str) -> None:
        self._developer = developer
        self._messages: list[_Message | Json] = []
        self._shown: list[Json] = []  # what outputs had to show besides text, until their group is over

    def take(self, item: Json) -> bool:
        """False: there is no place for such an item, and it was left out."""
        kind = str(item.get("type"))
        if kind.endswith("_output"):
            self._answer(str(item.get("call_id")), item)
            return True
        self._show()
        if kind == "message":
            self._take_message(item)
        elif "call_id" in item:
            self._call(item["call_id"], *_read_call(kind, item))
        elif kind == "mcp_call":
            self._take_mcp(item)
        else:
            return kind in _LEFT_OUT or ":" in kind  # a vendor's own kinds are named `vendor:kind`
        return True

    def say(self, role: str, parts: list[Json]) -> None:
        if parts:
            self._last(role).parts.extend(parts)

    def render(self) -> list[Json]:
        self._show()
        return [message.render() if isinstance(message, _Message) else message for message in self._messages]

    def _last(self, role: str) -> _Message:
        """The message to add to: the last one, if it is of that role."""
        last = self._messages[-1] if self._messages else None
        if not isinstance(last, _Message) or last.role != role:
            last = _Message(role)
            self._messages.append(last)
        return last

    def _take_message(self, item: Json) -> None:
        role = str(item.get("role"))
        if role == "assistant":
            text = _join(_read_parts(item.get("content")), "")
            if not isinstance(text, str):
                raise InvalidRequest("An assistant's message can only have text in it.", param="content")
            self.say(role, [_text(text)] if text else [])
            return
        parts = _read_parts(item.get("content"))
        joined = _join(parts, "\n")
        self.say(
            self._developer if role == "developer" else role, [_text(joined)] if isinstance(joined, str) else parts
        )

    def _call(self, call_id: str, name: str, arguments: str) -> None:
        function = {"name": name, "arguments": arguments}
        self._last("assistant").calls.append({"id": call_id, "type": "function", "function": function})

    def _answer(self, call_id: str, item: Json) -> None:
        parts = _read_output(item)
        texts = [part["text"] for part in parts if part["type"] == "text"]
        shown = [part for part in parts if part["type"] != "text"]
        if shown:
            # A tool's message can only have text in it, so what else there is to see comes from the user.
            self._shown += [_text(f"From the output of {call_id}:"), *shown]
            texts = texts or [OUTPUT_ELSEWHERE]
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)})

    def _take_mcp(self, item: Json) -> None:
        """A call that a server carried out by itself has its outcome in it."""
        outcome = item.get("output") if item.get("error") is None else item["error"]
        if outcome is None or item.get("status") in UNFINISHED:
            return
        self._call(item["id"], str(item.get("name")), _read_arguments(item.get("arguments")))
        self._answer(item["id"], {"output": outcome})

    def _show(self) -> None:
        shown, self._shown = self._shown, []
        self.say("user", shown)


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _join(parts: list[Json], seam: str) -> str | list[Json]:
    """Plain text where there is nothing but text: not every server takes parts."""
    if all(part["type"] == "text" for part in parts):
        return seam.join([part["text"] for part in parts])
    return parts


def _read_call(kind: str, item: Json) -> tuple[str, str]:
    """A call's name and arguments, as a function's."""
    if kind == "function_call":
        return item["name"], _read_arguments(item.get("arguments"))
    if kind == "custom_tool_call":
        return item["name"], msgspec.json.encode({"input": item.get("input")}).decode()
    rest = {name: value for name, value in item.items() if name not in _ENVELOPE}
    return kind.removesuffix("_call"), msgspec.json.encode(rest).decode()


def _read_arguments(arguments: object) -> str:
    """Always JSON: some servers parse the arguments of old calls, and would refuse the whole context."""
    if not isinstance(arguments, str):
        return msgspec.json.encode(arguments or {}).decode()
    if not arguments.strip():
        return "{}"
    try:
        _JSON.decode(arguments)
    except msgspec.DecodeError:
        return msgspec.json.encode({"unparsed": arguments}).decode()
    return arguments


def _read_output(item: Json) -> list[Json]:
    """What a call gave back, as chat parts."""
    output = item.get("output")
    if output is None and "output" not in item:
        output = {name: value for name, value in item.items() if name not in _ENVELOPE}
    if isinstance(output, dict) and output.get("type") == "computer_screenshot":
        output = [output]
    if isinstance(output, str):
        return [_text(output)]
    if isinstance(output, list) and all(isinstance(part, dict) and part.get("type") in _PARTS for part in output):
        return _read_parts(output, "output")
    return [_text(msgspec.json.encode(output).decode())]


def _read_parts(content: object, field: str = "content") -> list[Json]:
    """A message's content as chat parts."""
    if isinstance(content, str):
        return [_text(content)]
    parts: list[Json] = []
    for n, part in enumerate(content if isinstance(content, list) else ()):
        read = _PARTS.get(part["type"])
        if read is None:
            raise InvalidRequest(
                f"Content of type '{part['type']}' cannot be sent to this model's server.", param=f"{field}[{n}].type"
            )
        try:
            parts.append(read(part))
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param=f"{field}[{n}].{error.param}", code=error.code) from error
    return parts


def _read_image(part: Json) -> Json:
    _refuse_file_id(part)
    if not part.get("image_url"):
        raise InvalidRequest("An image must be sent as 'image_url'.", param="image_url")
    image = {"url": part["image_url"]}
    if part.get("detail") in ("low", "high"):  # "auto" is what servers do anyway, "original" not all of them know
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}


def _read_file(part: Json) -> Json:
    _refuse_file_id(part)
    file = {name: part[name] for name in ("file_data", "filename") if part.get(name)}
    if "file_data" not in file:
        raise InvalidRequest(
            "A file given as 'file_url' cannot be sent to this model's server; send it as 'file_data'.",
            param="file_url",
        )
    return {"type": "file", "file": file}


def _refuse_file_id(part: Json) -> None:
    if part.get("file_id") is not None:
        raise InvalidRequest(
            "'file_id' cannot be used here: neither this server nor the model's keeps files. Send the content itself, "
            "as data or as a URL.",
            param="file_id",
            code="unsupported_parameter",
        )


_PARTS: dict[str, Callable[[Json], Json]] = {
    "input_text": lambda part: _text(part["text"]),
    "output_text": lambda part: _text(part["text"]),
    "text": lambda part: _text(part["text"]),
    "summary_text": lambda part: _text(part["text"]),
    "reasoning_text": lambda part: _text(part["text"]),
    # Servers other than OpenAI's know no refusals; the words are what counts.
    "refusal": lambda part: _text(part["refusal"]),
    "input_image": _read_image,
    "computer_screenshot": _read_image,
    "input_file": _read_file,
    "input_audio": lambda part: {"type": "input_audio", "input_audio": part["input_audio"]},
    "input_video": lambda part: {"type": "video_url", "video_url": {"url": part["video_url"]}},
}

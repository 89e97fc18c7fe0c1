"""A context of items as Chat Completions messages: merged, so that even strict chat templates accept them.

Many models' templates refuse two messages of one role in a row, and a cancelled turn without an answer leaves just
that. So neighbours of one role become one message; calls join the assistant message before them; and the outputs of
calls stand right behind it, where `core.context.assemble` has put them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.dialects.request import LEFT_OUT, read_call, read_output

OUTPUT_ELSEWHERE = "The output of this call is in the next message."

_JSON = msgspec.json.Decoder()

# Items that a chat has no place for. Of `mcp_call` and approvals, `assemble` has made function calls before.
_LEFT_OUT = LEFT_OUT | {"mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools", "reasoning"}

# What to do instead of sending an item that a chat has no place for.
_HINTS = {
    "additional_tools": ": give the tools in 'tools'",
    "configuration_update": ": give the settings with each request",
    "compaction": ", and this one was not made by this server",
}


def render_messages(instructions: str | None, items: list[Json], developer_role: bool) -> list[Json]:
    """Render the messages of a context, `instructions` first."""
    chat = _Chat("developer" if developer_role else "system")
    if instructions:
        chat.say("system", [_text(instructions)])
    for item in items:
        # A request with an item that has no place is refused (`check_items`). One in a history already, from another
        # upstream or an older version, must not block the conversation.
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
    """One message while neighbours may still join it. Texts are joined at the end: joining each as it comes would be
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
        self._shown: list[Json] = []  # images and files of outputs, until their group is over

    def take(self, item: Json) -> bool:
        """Add an item. Return False if a chat has no place for it, and it was left out."""
        kind = str(item.get("type"))
        if kind.endswith("_output"):
            self._answer(str(item.get("call_id")), item)
            return True
        self._show()
        if kind == "message":
            self._take_message(item)
        elif "call_id" in item:
            name, arguments = read_call(item)
            self._call(item["call_id"], name, _read_arguments(arguments))
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
        """Return the message to add to: the last one, if it has that role, else a new one."""
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
        parts = _read_parts(read_output(item, _PARTS), "output")
        texts = [part["text"] for part in parts if part["type"] == "text"]
        shown = [part for part in parts if part["type"] != "text"]
        if shown:
            # A tool's message can only have text in it, so images and files go into a message of the user.
            self._shown += [_text(f"From the output of {call_id}:"), *shown]
            texts = texts or [OUTPUT_ELSEWHERE]
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)})

    def _show(self) -> None:
        shown, self._shown = self._shown, []
        self.say("user", shown)


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _join(parts: list[Json], seam: str) -> str | list[Json]:
    """Join parts into plain text where all are text: not every server takes parts."""
    if all(part["type"] == "text" for part in parts):
        return seam.join([part["text"] for part in parts])
    return parts


def _read_arguments(arguments: object) -> str:
    """Return the arguments as JSON: some servers parse those of old calls, and would refuse the whole context."""
    if not isinstance(arguments, str):
        return msgspec.json.encode(arguments or {}).decode()
    if not arguments.strip():
        return "{}"
    try:
        _JSON.decode(arguments)
    except msgspec.DecodeError:
        return msgspec.json.encode({"unparsed": arguments}).decode()
    return arguments


def _read_parts(content: object, field: str = "content") -> list[Json]:
    """Translate a message's content to chat parts."""
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
    # Servers other than OpenAI's know no refusals, so the text is sent.
    "refusal": lambda part: _text(part["refusal"]),
    "input_image": _read_image,
    "computer_screenshot": _read_image,
    "input_file": _read_file,
    "input_audio": lambda part: {"type": "input_audio", "input_audio": part["input_audio"]},
    "input_video": lambda part: {"type": "video_url", "video_url": {"url": part["video_url"]}},
}

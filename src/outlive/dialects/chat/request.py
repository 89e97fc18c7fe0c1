"""The Chat Completions request made of a Responses request.

A context of items becomes messages, merged so that even strict chat templates accept them: many models' templates
refuse two messages of one role in a row, and a cancelled turn without an answer leaves just that. So neighbours of one
role become one message; calls join the assistant message before them; and the outputs of calls stand right behind it,
where `core.context.assemble` has put them.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from outlive.core.context.assemble import call_of, is_call, is_output
from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.dialects.offer import Names, Offer, check_tools_of, make_offer
from outlive.dialects.request import (
    LEFT_OUT,
    TEXT_PARTS,
    check_items,
    name_unsendable,
    read_call,
    read_extra,
    read_image_url,
    read_output,
    read_parts,
    read_role,
    refuse_file_id,
    text_part,
    wants_logprobs,
)
from outlive.dialects.translator import is_json
from outlive.ports.backend import ModelCall, Upstream

# Fields that mean the same in both, and are sent when they were given.
_SAME = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "service_tier", "prompt_cache_key",
    "prompt_cache_retention", "safety_identifier", "user",
)  # fmt: skip

# Fields that ask an upstream to continue the last message, by its way of continuation.
_CONTINUE_FIELDS: dict[str, Json] = {
    "continue_final_message": {"continue_final_message": True, "add_generation_prompt": False}
}

_NO_PARAMETERS: Json = {"type": "object", "properties": {}, "additionalProperties": False}

OUTPUT_ELSEWHERE = "The output of this call is in the next message."

# What to do instead of sending an item that a chat has no place for.
_HINTS = {
    "configuration_update": ": give the settings with each request",
    "compaction": ", and this one was not made by this server",
}


def check(request: CreateResponse, upstream: Upstream) -> None:
    """Raise InvalidRequest, naming the parameter, for what a Chat Completions server cannot be sent."""
    check_items(request.input, _Chat("system", {}, strict=True).take)
    check_tools_of(request, upstream)


def render(call: ModelCall, upstream: Upstream) -> Json:
    """Render the body to send. Raises InvalidRequest naming what cannot be sent."""
    request = call.request
    offer = make_offer(request, call.items)
    chat = _Chat("developer" if upstream.developer_role else "system", offer.names)
    if request.instructions:
        chat.say("system", [text_part(request.instructions)])
    for item in call.items:
        chat.take(item)
    body: Json = {
        **read_extra(request),  # first, because extras never override what is set here (D13)
        "model": call.model,
        "messages": chat.render(),
        "stream": True,
    }
    if upstream.stream_options:
        body["stream_options"] = {"include_usage": True}
    if upstream.sends_store:
        body["store"] = False
    for field in _SAME:
        if (value := getattr(request, field)) is not None:
            body[field] = value
    if (most := request.max_output_tokens) is not None:
        body[upstream.max_tokens_field] = max(1, most - (call.resume.deltas if call.resume is not None else 0))
    body |= _render_form(request) | _render_tools(offer, request.parallel_tool_calls)
    if call.resume is not None:
        last: Json = {"role": "assistant", "content": call.resume.text}
        body["messages"].append(last | ({"prefix": True} if upstream.continuation == "prefix" else {}))
        body |= _CONTINUE_FIELDS.get(upstream.continuation, {})
    return body


def _render_form(request: CreateResponse) -> Json:
    """Render the form of the answer: format, verbosity, effort, log probabilities."""
    fields: Json = {}
    form = request.text.get("format") or {"type": "text"}
    if form["type"] == "json_schema":
        schema = {
            name: form[name] for name in ("name", "description", "schema", "strict") if form.get(name) is not None
        }
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form["type"] != "text":
        fields["response_format"] = {"type": form["type"]}
    if request.text.get("verbosity"):
        fields["verbosity"] = request.text["verbosity"]
    if request.reasoning and request.reasoning.get("effort"):
        fields["reasoning_effort"] = request.reasoning["effort"]
    if wants_logprobs(request):
        fields["logprobs"] = True
        if request.top_logprobs:
            fields["top_logprobs"] = request.top_logprobs
    return fields


def _render_tools(offer: Offer, parallel: bool | None) -> Json:
    if not offer.functions:
        return {}  # servers refuse a choice, or parallel_tool_calls, where there are no tools
    choice = offer.choice
    fields: Json = {"tools": [_render_tool(tool) for tool in offer.functions]}
    if isinstance(choice, dict):
        fields["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif choice != "auto":
        fields["tool_choice"] = choice
    if parallel is not None:
        fields["parallel_tool_calls"] = parallel
    return fields


def _render_tool(tool: Json) -> Json:
    function: Json = {"name": tool.get("name"), "parameters": tool.get("parameters") or _NO_PARAMETERS}
    if tool.get("strict"):
        function["strict"] = True
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


# -- messages


class _Message(msgspec.Struct):
    """One message while neighbours may still join it. Texts are joined at the end: joining each as it comes would be
    quadratic."""

    role: str
    parts: list[Json] = []
    calls: list[Json] = []

    def render(self) -> Json:
        message: Json = {"role": self.role, "content": _join(self.parts, "\n\n")}
        if self.calls:
            message["content"] = message["content"] or None
            message["tool_calls"] = self.calls
        return message


class _Chat:
    """The messages so far. `strict`: an item that a chat has no place for is refused; otherwise it is left out, so that
    one in a history already, from another upstream or an older version, cannot block the conversation."""

    def __init__(self, developer: str, names: Names, *, strict: bool = False) -> None:
        self._developer = developer
        self._names = names
        self._strict = strict
        self._messages: list[_Message | Json] = []
        self._shown: list[Json] = []  # images and files of outputs, until their group is over

    def take(self, item: Json) -> None:
        kind = str(item.get("type"))
        if kind != "message" and is_output(item):
            self._answer(str(call_of(item)), item)
            return
        self._show()
        if kind == "message":
            self._take_message(item)
        elif is_call(item):
            name, arguments = read_call(item, self._names)
            self._call(item["call_id"], name, _read_arguments(arguments))
        elif self._strict and kind not in LEFT_OUT and ":" not in kind:  # a vendor's own kinds are named `vendor:kind`
            message = f"Items of type '{kind}' cannot be sent to this model's server, which speaks Chat Completions"
            raise InvalidRequest(f"{message}{_HINTS.get(kind, '')}.", param="type", code="unsupported_parameter")

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
        role, parts = read_role(item), self._read_parts(item.get("content"))
        if role == "assistant" and any(part["type"] != "text" for part in parts):
            if self._strict:
                raise InvalidRequest("An assistant's message can only have text in it.", param="content")
            parts = [part if part["type"] == "text" else text_part(name_unsendable(part)) for part in parts]
        joined = _join(parts, "" if role == "assistant" else "\n")
        if isinstance(joined, str):
            parts = [text_part(joined)] if joined or role != "assistant" else []
        self.say(self._developer if role == "developer" else role, parts)

    def _call(self, call_id: str, name: str, arguments: str) -> None:
        function = {"name": name, "arguments": arguments}
        self._last("assistant").calls.append({"id": call_id, "type": "function", "function": function})

    def _answer(self, call_id: str, item: Json) -> None:
        parts = self._read_parts(read_output(item, _PARTS, self._names), "output")
        texts = [part["text"] for part in parts if part["type"] == "text"]
        shown = [part for part in parts if part["type"] != "text"]
        if shown:
            # A tool's message can only have text in it, so images and files go into a message of the user.
            self._shown += [text_part(f"From the output of {call_id}:"), *shown]
            texts = texts or [OUTPUT_ELSEWHERE]
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)})

    def _read_parts(self, content: object, field: str = "content") -> list[Json]:
        return [part for _, part in read_parts(content, field, _PARTS, strict=self._strict)]

    def _show(self) -> None:
        if self._shown:
            shown, self._shown = self._shown, []
            self.say("user", shown)


def _join(parts: list[Json], seam: str) -> str | list[Json]:
    """Join parts into plain text where all are text: not every server takes parts."""
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return seam.join(texts) if len(texts) == len(parts) else parts


def _read_arguments(arguments: object) -> str:
    """Return the arguments as JSON: some servers parse those of old calls, and would refuse the whole context."""
    if not isinstance(arguments, str):
        return msgspec.json.encode(arguments or {}).decode()
    if not arguments.strip():
        return "{}"
    return arguments if is_json(arguments) else msgspec.json.encode({"unparsed": arguments}).decode()


def _read_image(part: Json) -> Json:
    image = {"url": read_image_url(part)}
    if part.get("detail") in ("low", "high"):  # "auto" is what servers do anyway, "original" not all of them know
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}


def _read_field(part: Json, name: str, kind: type) -> object:
    if not isinstance(value := part.get(name), kind):
        raise InvalidRequest(f"'{name}' is missing, or of another type.", param=name)
    return value


def _read_file(part: Json) -> Json:
    refuse_file_id(part)
    file = {name: part[name] for name in ("file_data", "filename") if part.get(name)}
    if "file_data" not in file:
        raise InvalidRequest(
            "A file given as 'file_url' cannot be sent to this model's server; send it as 'file_data'.",
            param="file_url",
        )
    return {"type": "file", "file": file}


_PARTS: dict[str, Callable[[Json], Json]] = {
    **TEXT_PARTS,
    "input_image": _read_image,
    "computer_screenshot": _read_image,
    "input_file": _read_file,
    "input_audio": lambda part: {"type": "input_audio", "input_audio": _read_field(part, "input_audio", dict)},
    "input_video": lambda part: {"type": "video_url", "video_url": {"url": _read_field(part, "video_url", str)}},
}

"""The Chat Completions request made of a Responses request.

A context of items becomes messages, merged so that even strict chat templates accept them: many models' templates
refuse two messages of one role in a row, and a cancelled turn without an answer leaves just that. So neighbours of one
role become one message; calls join the assistant message before them; and the outputs of calls stand right behind it,
where `core.context.assemble` has put them.
"""

from collections.abc import Callable

import msgspec

from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.body import encode_joined
from outlive.core.requests.create import CreateResponse
from outlive.dialects import request as shared
from outlive.dialects.offer import Offer, check_tools_of, make_offer
from outlive.dialects.request import text_part
from outlive.ports.backend import ModelCall, Upstream

# Fields that mean the same in both, and are sent when they were given.
_SAME = (
    "temperature", "top_p", "presence_penalty", "frequency_penalty", "service_tier", "prompt_cache_key",
    "prompt_cache_retention", "safety_identifier", "user",
)  # fmt: skip

_NO_PARAMETERS: Json = {"type": "object", "properties": {}, "additionalProperties": False}

_LONG = 1024 * 1024  # characters of a message

OUTPUT_ELSEWHERE = "The output of this call is in the next message."


def check(request: CreateResponse, upstream: Upstream) -> None:
    """Raise InvalidRequest, naming the parameter, for what a Chat Completions server cannot be sent."""
    _Chat(strict=True).check(request.input)
    check_tools_of(request, upstream)


def render(call: ModelCall, upstream: Upstream) -> Json:
    """Render the body to send. Raises InvalidRequest naming what cannot be sent."""
    request = call.request
    offer = make_offer(request, call.items)
    chat = _Chat(offered=offer.names, developer="developer" if upstream.developer_role else "system")
    if request.instructions:
        chat.say("system", [text_part(request.instructions)])
    for item in call.items:
        chat.take(item)
    body: Json = {
        **shared.read_extra(request),  # first, because extras never override what is set here (D13)
        "model": call.model,
        "messages": chat.render(),
        "stream": True,
    }
    if upstream.stream_options:
        body["stream_options"] = {"include_usage": True}
    if upstream.sends_store:
        body["store"] = False
    body |= shared.read_given(request, _SAME)
    if request.max_output_tokens is not None:
        body[upstream.max_tokens_field] = shared.read_limit(call, request.max_output_tokens)
    body |= _render_form(request) | _render_tools(offer, request.parallel_tool_calls)
    if call.resume is not None:
        last: Json = {"role": "assistant", "content": call.resume.text}
        body["messages"].append(last | ({"prefix": True} if upstream.continuation == "prefix" else {}))
        if upstream.continuation == "continue_final_message":
            body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body


def _render_form(request: CreateResponse) -> Json:
    """Render the form of the answer: format, verbosity, effort, log probabilities."""
    fields: Json = {}
    form = request.text.get("format") or {"type": "text"}
    if form["type"] == "json_schema":
        names = ("name", "description", "schema", "strict")
        schema = {name: form[name] for name in names if form.get(name) is not None}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form["type"] != "text":
        fields["response_format"] = {"type": form["type"]}
    if request.text.get("verbosity"):
        fields["verbosity"] = request.text["verbosity"]
    if request.reasoning and request.reasoning.get("effort"):
        fields["reasoning_effort"] = request.reasoning["effort"]
    if shared.wants_logprobs(request):
        fields["logprobs"] = True
        if request.top_logprobs:
            fields["top_logprobs"] = request.top_logprobs
    return fields


def _render_tools(offer: Offer, parallel: bool | None) -> Json:
    if not offer.functions:
        return {}  # servers refuse a choice, or parallel_tool_calls, where there are no tools
    choice = offer.choice
    fields: Json = {"tools": []}
    for tool in offer.functions:
        function: Json = {"name": tool.get("name"), "parameters": tool.get("parameters") or _NO_PARAMETERS}
        if tool.get("strict"):
            function["strict"] = True
        if tool.get("description"):
            function["description"] = tool["description"]
        fields["tools"].append({"type": "function", "function": function})
    if isinstance(choice, dict):
        fields["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    elif choice != "auto":
        fields["tool_choice"] = choice
    if parallel is not None:
        fields["parallel_tool_calls"] = parallel
    return fields


# -- messages


def _read_image(part: Json) -> Json:
    image = {"url": shared.read_image_url(part)}
    if part.get("detail") in ("low", "high"):  # "auto" is what servers do anyway, "original" not all of them know
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}


def _read_field(part: Json, name: str, kind: type) -> object:
    if not isinstance(value := part.get(name), kind):
        raise InvalidRequest(f"'{name}' is missing, or of another type.", param=name)
    return value


def _read_file(part: Json) -> Json:
    shared.refuse_file_id(part)
    file = {name: part[name] for name in ("file_data", "filename") if part.get(name)}
    if "file_data" not in file:
        raise InvalidRequest(
            "A file given as 'file_url' cannot be sent to this model's server; send it as 'file_data'.",
            param="file_url",
        )
    return {"type": "file", "file": file}


_PARTS: dict[str, Callable[[Json], Json]] = {
    **shared.TEXT_PARTS,
    "input_image": _read_image,
    "computer_screenshot": _read_image,
    "input_file": _read_file,
    "input_audio": lambda part: {"type": "input_audio", "input_audio": _read_field(part, "input_audio", dict)},
    "input_video": lambda part: {"type": "video_url", "video_url": {"url": _read_field(part, "video_url", str)}},
}


class _Message(msgspec.Struct):
    """One message while neighbours may still join it. Texts are joined at the end, which takes linear time."""

    role: str
    parts: list[Json] = []
    calls: list[Json] = []

    def render(self) -> Json:
        content: str | list[Json] | msgspec.Raw | None = self.parts
        texts = _read_texts(self.parts)
        if len(texts) == len(self.parts):
            # Plain text where all parts are: not every server takes parts. A long one is encoded, too.
            content = "\n\n".join(texts) if sum(map(len, texts)) < _LONG else encode_joined(texts, "\n\n")
        if not self.calls:
            return {"role": self.role, "content": content}
        return {"role": self.role, "content": content or None, "tool_calls": self.calls}


class _Chat(shared.ItemReader):
    """The messages so far."""

    readers = _PARTS
    server = "this model's server, which speaks Chat Completions"
    hints = {
        "configuration_update": ": give the settings with each request",
        "compaction": ", and this one was not made by this server",
    }
    developer: str = "system"  # the role of a developer's messages
    _messages: list[_Message | Json] = []
    _shown: list[Json] = []  # images and files of outputs, until their group is over

    def say(self, role: str, parts: list[Json]) -> None:
        if parts:
            self._last(role).parts.extend(parts)

    def render(self) -> list[Json]:
        if self._shown:
            self._last("user")
        return [message.render() if isinstance(message, _Message) else message for message in self._messages]

    def _last(self, role: str) -> _Message:
        """Return the message to add to: the last one, if it has that role, else a new one."""
        if self._shown:
            shown, self._shown = self._shown, []
            self._last("user").parts.extend(shown)
        last = self._messages[-1] if self._messages else None
        if not isinstance(last, _Message) or last.role != role:
            last = _Message(role)
            self._messages.append(last)
        return last

    def _take_message(self, item: Json) -> None:
        role, content = shared.read_role(item), item.get("content")
        parts: list[Json] = []
        if (texts := shared.read_texts(content)) is None:
            parts = [part for _, part in self._read_parts(content)]
            if role == "assistant":
                parts = self._as_texts(parts, "An assistant's message")
            texts = _read_texts(parts)
        if len(texts) >= len(parts):
            joined = ("" if role == "assistant" else "\n").join(texts)
            parts = [text_part(joined)] if joined or role != "assistant" else []
        self.say(self.developer if role == "developer" else role, parts)

    def _take_call(self, call_id: str, name: str, arguments: object) -> None:
        function = {"name": name, "arguments": shared.write_arguments(arguments)}
        self._last("assistant").calls.append({"id": call_id, "type": "function", "function": function})

    def _take_output(self, call_id: str, item: Json) -> None:
        parts = [part for _, part in self._read_output(item)]
        texts = _read_texts(parts)
        if shown := [part for part in parts if part["type"] != "text"]:
            # A tool's message can only have text in it, so images and files go into a message of the user.
            self._shown += [text_part(f"From the output of {call_id}:"), *shown]
            texts = texts or [OUTPUT_ELSEWHERE]
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)})


def _read_texts(parts: list[Json]) -> list[str]:
    return [part["text"] for part in parts if part["type"] == "text"]

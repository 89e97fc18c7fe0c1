"""The request to Anthropic's Messages API made of a Responses request.

The API is strict about the order of its messages. The first is the user's and so is the last, unless a text is to be
continued. Neighbours of one role are one message. Each call's result stands in the very next message, under an id that
no other call of the context has. Nothing in it is empty.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import msgspec

from outlive.core.context.assemble import PLACEHOLDER_OUTPUT
from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import refuse, refuse_unsupported
from outlive.core.requests.create import CreateResponse
from outlive.dialects import request as shared
from outlive.dialects.offer import Offer, check_tools_of, make_offer, make_safe
from outlive.dialects.request import CallIds, text_part
from outlive.ports.backend import ModelCall, Upstream

# Tokens to think with, for models that take a number instead of a word. The API refuses fewer than LEAST_BUDGET.
BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 24_000, "max": 32_000}
LEAST_BUDGET = 1024
_EFFORTS = {"minimal": "low"}  # the others have the same name

# Claude before 4.6. A closed set: all newer models decide themselves how much to think.
_BUDGETED = re.compile(
    r"claude-(?:[1-3]|instant|4-(?:opus|sonnet)|(?:opus|sonnet|haiku)-4(?:[-.][0-5](?!\d)|[-@]20\d{6}|$))"
)

_CHOICES = {"auto": "auto", "required": "any", "none": "none"}
_MOST_TEMPERATURE = 1.0
_MOST_USER = 256  # characters


def check(request: CreateResponse, upstream: Upstream) -> None:
    """Raise InvalidRequest, naming the parameter, for what this API cannot be sent."""
    if (request.text.get("format") or {}).get("type") == "json_object":
        why = "this model's server has no JSON without a schema. Use 'json_schema'."
        refuse_unsupported("text.format.type", why)
    if shared.wants_logprobs(request):
        param = "top_logprobs" if request.top_logprobs else "include"
        refuse_unsupported(param, "this model's server returns no log probabilities.")
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(request, name):
            refuse_unsupported(name, "this model's server has no such penalty.")
    if request.temperature is not None and request.temperature > _MOST_TEMPERATURE:
        refuse("'temperature' must be at most 1 for this model's server.", "temperature", "decimal_above_max_value")
    check_tools_of(request, upstream)
    MessagesContext(strict=True).check(request.input)


def render(call: ModelCall, upstream: Upstream, *, with_thoughts: bool = True) -> Json:
    """Render the body to send. Raises InvalidRequest naming what cannot be sent."""
    request, resume = call.request, call.resume
    # No API takes a text to be continued together with thoughts.
    may_think, offer = with_thoughts and resume is None, make_offer(request, call.items)
    context = MessagesContext(inline=upstream.developer_role, with_thoughts=may_think, offered=offer.names)
    if request.instructions and request.instructions.strip():
        context.system.append(request.instructions)
    for item in call.items:
        context.take(item)
    context.end(resume.text if resume is not None else None)
    body: Json = {
        **shared.read_extra(request),  # first, because extras never override what is set here (D13)
        "model": call.model,
        "max_tokens": shared.read_limit(call, request.max_output_tokens or upstream.default_max_tokens),
        "messages": context.messages,
        "stream": True,
    }
    if context.system:
        body["system"] = "\n\n".join(context.system)
    body |= shared.read_given(request, ("temperature", "top_p"))
    if request.service_tier is not None:
        body["service_tier"] = "standard_only" if request.service_tier in ("default", "flex") else "auto"
    if user := request.safety_identifier or request.user:
        body["metadata"] = {"user_id": user[:_MOST_USER]}
    body |= _render_tools(offer, request.parallel_tool_calls, context.names)
    if resume is None:
        body |= _render_thinking(request, upstream, body, with_thoughts=with_thoughts)
    if (form := request.text.get("format") or {}).get("type") == "json_schema":
        shape = {"type": "json_schema", "schema": fit(form["schema"])}
        body["output_config"] = {**body.get("output_config", {}), "format": shape}
    if upstream.prompt_cache and not context.has_marks:
        ttl = request.prompt_cache_retention or (request.prompt_cache_options or {}).get("ttl")
        body["cache_control"] = _render_cache(ttl)
    return body


def _render_thinking(request: CreateResponse, upstream: Upstream, body: Json, *, with_thoughts: bool) -> Json:
    """Render how much to think, and whether to show it."""
    wish = request.reasoning or {}
    effort, shown = wish.get("effort"), shared.wants_summary(request)
    display = {"display": "summarized"} if shown else {}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if upstream.thinking == "budget" or (upstream.thinking == "auto" and _BUDGETED.search(str(body["model"]))):
        # A budget is refused in the middle of a turn whose last message begins without a thought. Calls that are
        # repeated for a late output have none, nor have those of other dialects.
        messages, most = body["messages"], body["max_tokens"]
        made = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
        is_answered = any(block["type"] == "tool_result" for block in messages[-1]["content"])
        is_thought = made is None or made["content"][0]["type"] in ("thinking", "redacted_thinking")
        forced = (body.get("tool_choice") or {}).get("type") in ("any", "tool")
        may_think = with_thoughts and not forced and (is_thought or not is_answered)
        # A quarter is for the answer.
        budget = max(min(BUDGETS[effort], most * 3 // 4), LEAST_BUDGET) if effort else 0
        if not may_think or not 0 < budget < most:
            return {}
        return {"thinking": {"type": "enabled", "budget_tokens": budget, **display}}
    if not effort and not shown:
        return {}
    fields: Json = {"thinking": {"type": "adaptive", **display}}
    if effort:
        fields["output_config"] = {"effort": _EFFORTS.get(effort, effort)}
    return fields


def _render_tools(offer: Offer, parallel: bool | None, called: Iterable[str]) -> Json:
    choice = offer.choice
    if not offer.functions:
        # With calls in the context the API wants tools to be declared, though none may be called.
        declared = [{"name": name, "input_schema": {"type": "object"}} for name in called]
        return {"tools": declared, "tool_choice": {"type": "none"}} if declared else {}
    fields: Json = {"tools": []}
    for tool in offer.functions:
        schema: Json = {"type": "object", **(tool.get("parameters") or {})}
        rendered: Json = {"name": tool["name"], "input_schema": fit(schema) if tool.get("strict") else schema}
        if tool.get("description"):
            rendered["description"] = tool["description"]
        if tool.get("strict"):
            rendered["strict"] = True
        fields["tools"].append(rendered)
    if isinstance(choice, dict):
        fields["tool_choice"] = {"type": "tool", "name": choice["name"]}
    elif choice != "auto":
        fields["tool_choice"] = {"type": _CHOICES[choice]}
    if parallel is False and choice != "none":
        fields["tool_choice"] = {**fields.get("tool_choice", {"type": "auto"}), "disable_parallel_tool_use": True}
    return fields


# -- schemas of structured outputs

# Limits that the API refuses to compile.
_LIMITS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength",
    "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
)  # fmt: skip
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")


def fit(schema: Any) -> Any:
    """Return the schema without what the API refuses, which the descriptions say in words.

    An answer that keeps to the fitted schema keeps to the caller's own as far as objects, types and names go; the
    limits that became words are for the model to heed, and for the caller to check.
    """
    if not isinstance(schema, dict):
        return schema
    fitted: Json = {}
    refused: list[str] = []
    for name, value in schema.items():
        is_limit = name in _LIMITS and not (name == "minItems" and value in (0, 1))
        if is_limit or (name == "format" and value not in _FORMATS):
            refused.append(f"{name}: {msgspec.json.encode(value).decode()}")
        else:
            name = "anyOf" if name == "oneOf" and "anyOf" not in schema else name
            if name in ("properties", "$defs", "definitions") and isinstance(value, dict):
                value = {key: fit(each) for key, each in value.items()}
            elif name in ("anyOf", "allOf") and isinstance(value, list):
                value = [fit(each) for each in value]
            fitted[name] = fit(value) if name == "items" else value
    kind = fitted.get("type")
    is_object = "properties" in fitted or "object" in (kind if isinstance(kind, list) else (kind,))
    if is_object and (fitted.get("properties") or not fitted.get("additionalProperties")):
        fitted["additionalProperties"] = False  # it is not only a map of others
    if refused:
        fitted["description"] = " ".join(filter(None, (fitted.get("description"), f"({', '.join(refused)})")))
    return fitted


# -- blocks of messages and of outputs, and thoughts that can be sent back

# Prefixes of the seal, the `encrypted_content`, of a reasoning item that was a thought, which tell it from the seals of
# other vendors in the same history. The data follows that the API must get back unchanged.
SIGNATURE, REDACTED = "anthropic:signature:", "anthropic:redacted:"

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*?(;base64)?,", re.I)
_IMAGES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_PDF = "application/pdf"
_TEXT_ENDINGS = (".txt", ".md", ".csv", ".json", ".xml", ".html", ".yaml", ".yml", ".toml", ".py", ".js", ".ts", ".log")
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/yaml", "application/x-yaml")
_LONG = frozenset({"1h", "12h", "24h", "30m"})  # longer than the default, five minutes


def open_seal(item: Json) -> Json | None:
    """Return the block that a reasoning item was made of; None when it was made elsewhere, or was never finished."""
    seal = item.get("encrypted_content")
    if item.get("type") != "reasoning" or not isinstance(seal, str):
        return None
    if seal.startswith(REDACTED):
        return {"type": "redacted_thinking", "data": seal.removeprefix(REDACTED)}
    if not seal.startswith(SIGNATURE):
        return None
    summary = item.get("summary")
    parts = [part for part in summary if isinstance(part, dict)] if isinstance(summary, list) else []
    thought = "".join(part["text"] for part in parts if isinstance(part.get("text"), str))
    return {"type": "thinking", "thinking": thought, "signature": seal.removeprefix(SIGNATURE)}


def _make_blocks(parts: Iterable[tuple[Json, Json]]) -> list[Json]:
    """Make the blocks of parts and what was read of each; blank blocks, which the API refuses, are left out."""
    blocks: list[Json] = []
    for part, block in parts:
        if block["type"] != "text" or block["text"].strip():
            mark = part.get("prompt_cache_breakpoint")
            marked = {"cache_control": _render_cache(mark.get("ttl"))} if isinstance(mark, dict) else {}
            blocks.append({**block, **marked})
    return blocks


def _render_cache(ttl: object) -> Json:
    return {"type": "ephemeral", "ttl": "1h"} if ttl in _LONG else {"type": "ephemeral"}


def _read_image(part: Json) -> Json:
    url = shared.read_image_url(part)
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    kind, data = _open_data_url(url)
    kind = "image/jpeg" if kind == "image/jpg" else kind
    if kind not in _IMAGES or data is None:
        raise InvalidRequest(
            "An image in a data URL must be JPEG, PNG, GIF or WebP, in base64, for this model's server.",
            param="image_url",
        )
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def _read_file(part: Json) -> Json:
    shared.refuse_file_id(part)
    name, given, source = part.get("filename"), str(part.get("file_data")), None
    kind, data = _open_data_url(given) if given.startswith("data:") else (None, given)
    if part.get("file_url") and not part.get("file_data"):
        source = {"type": "url", "url": part["file_url"]}
    elif data is not None and (kind == _PDF or (kind is None and data.startswith("JVBERi0"))):  # "%PDF-" in base64
        source = {"type": "base64", "media_type": _PDF, "data": data}
    elif (kind is not None and kind.startswith(_TEXT_TYPES)) or str(name or "").lower().endswith(_TEXT_ENDINGS):
        with suppress(binascii.Error, UnicodeDecodeError):
            text = base64.b64decode(data or "", validate=True).decode()
            source = {"type": "text", "media_type": "text/plain", "data": text}
    if source is None:
        raise InvalidRequest("A file must be a PDF or text, as base64, for this model's server.", param="file_data")
    title = {"title": name} if isinstance(name, str) and name else {}
    return {"type": "document", "source": source, **title}


def _open_data_url(url: str) -> tuple[str | None, str | None]:
    """Return the media type and the base64 of a data URL, each None where there is none."""
    match = _DATA_URL.match(url)
    if match is None or not match[2]:
        return None, None
    return (match[1] or "").lower() or None, url[match.end() :]


_PARTS: dict[str, Callable[[Json], Json]] = {
    **shared.TEXT_PARTS,
    "input_image": _read_image,
    "computer_screenshot": _read_image,
    "input_file": _read_file,
}


# -- messages

# Stand where the API wants a message of the user, and there is none.
BEGIN, GO_ON = "Please begin.", "Please continue."

_JSON = msgspec.json.Decoder()
_MOST_NAME = 128


class MessagesContext(shared.ItemReader):
    """The context so far. `inline`: a model that takes system messages between others gets them there."""

    readers = _PARTS
    inline: bool = False
    with_thoughts: bool = True
    system: list[str] = []
    messages: list[Json] = []
    names: dict[str, None] = {}  # of the tools that were called, in order
    has_marks: bool = False  # the caller marks where the prompt may be cached
    _later: list[str] = []  # system messages that wait for the end of the user's message before them
    _ids: CallIds = msgspec.field(default_factory=CallIds)

    def end(self, partial: str | None) -> None:
        """End the context, with the text to be continued if there is one."""
        self._say_later()
        if self._later:
            self._say("user", [text_part(text) for text in self._later])
        if not self.messages:
            self._say("user", [text_part(BEGIN)])
        if partial is not None and partial.strip():
            self._say("assistant", [text_part(partial.rstrip())])
        elif self.messages[-1]["role"] == "assistant":
            self._say("user", [text_part(GO_ON)])

    def _take_message(self, item: Json) -> None:
        role, blocks = shared.read_role(item), _make_blocks(self._read_parts(item.get("content")))
        self.has_marks = self.has_marks or any("cache_control" in block for block in blocks)
        if role != "user":
            blocks = self._as_texts(blocks, f"A message of the role '{role}'")
        if role == "assistant":
            text = "".join(block["text"] for block in blocks)
            blocks = [text_part(text)] if text else []
        if role in ("user", "assistant"):
            self._say(role, blocks)
        elif blocks:
            text = "\n".join(block["text"] for block in blocks)
            (self._later if self.inline and self.messages else self.system).append(text)

    def _take_reasoning(self, item: Json) -> None:
        if self.with_thoughts and (block := open_seal(item)) is not None:
            self._say("assistant", [block])

    def _take_call(self, call_id: str, name: str, arguments: object) -> None:
        name = name[:_MOST_NAME]
        self.names[name] = None
        sent = self._ids.add(call_id, make_safe(call_id))
        if isinstance(arguments, str) and arguments.strip():
            try:
                value = _JSON.decode(arguments)
                arguments = value if isinstance(value, dict) else {"value": value}
            except msgspec.DecodeError:
                arguments = {"unparsed": arguments}
        given = arguments if isinstance(arguments, dict) else {}  # the API takes nothing but an object
        self._say("assistant", [{"type": "tool_use", "id": sent, "name": name, "input": given}])

    def _take_output(self, call_id: str, item: Json) -> None:
        result: Json = {"type": "tool_result", "tool_use_id": self._ids.find(call_id)}
        if content := _make_blocks(self._read_output(item)):
            result["content"] = content
        # The Responses API has no field for a call that failed, so a caller may add Anthropic's own.
        if item.get("is_error") is True or item.get("status") == "failed" or item.get("output") == PLACEHOLDER_OUTPUT:
            result["is_error"] = True
        self._say("user", [result])

    def _say(self, role: str, blocks: list[Json]) -> None:
        if not blocks:
            return
        if role == "assistant":
            self._say_later()
            if not self.messages:
                self._say("user", [text_part(BEGIN)])
        last = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == role:
            last["content"] += blocks
        else:
            self.messages.append({"role": role, "content": blocks})

    def _say_later(self) -> None:
        """Add the waiting system messages: behind a message of the user, and before one of the assistant or the end."""
        if self._later and self.messages and self.messages[-1]["role"] == "user":
            later, self._later = self._later, []
            self.messages.append({"role": "system", "content": [text_part("\n\n".join(later))]})

"""The request to Anthropic's Messages API made of a Responses request.

The API is strict about the order of its messages. The first is the user's and so is the last, unless a text is to be
continued. Neighbours of one role are one message. Each call's result stands in the very next message, under an id that
no other call of the context has. Nothing in it is empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from outlive.core.context.assemble import PLACEHOLDER_OUTPUT, call_of, is_call, is_output
from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import refuse, refuse_unsupported
from outlive.core.requests.create import CreateResponse
from outlive.dialects.anthropic.blocks import PARTS, open_seal, read_blocks, render_cache
from outlive.dialects.offer import Names, Offer, check_tools_of, make_offer
from outlive.dialects.request import (
    LEFT_OUT,
    CallIds,
    check_items,
    name_unsendable,
    read_call,
    read_extra,
    read_output,
    read_role,
    text_part,
    wants_logprobs,
    wants_summary,
)
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
    form = request.text.get("format") or {}
    if form.get("type") == "json_object":
        why = "this model's server has no JSON without a schema. Use 'json_schema'."
        refuse_unsupported("text.format.type", why)
    if wants_logprobs(request):
        param = "top_logprobs" if request.top_logprobs else "include"
        refuse_unsupported(param, "this model's server returns no log probabilities.")
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(request, name):
            refuse_unsupported(name, "this model's server has no such penalty.")
    if request.temperature is not None and request.temperature > _MOST_TEMPERATURE:
        refuse("'temperature' must be at most 1 for this model's server.", "temperature", "decimal_above_max_value")
    check_tools_of(request, upstream)
    check_items(request.input, MessagesContext(strict=True).take)


def render(call: ModelCall, upstream: Upstream, *, with_thoughts: bool = True) -> tuple[Json, bool]:
    """Render the body to send, and a flag that thoughts are in it. Raises InvalidRequest naming what cannot be sent."""
    request, resume = call.request, call.resume
    # No API takes a text to be continued together with thoughts.
    may_think, offer = with_thoughts and resume is None, make_offer(request, call.items)
    context = MessagesContext(inline=upstream.developer_role, with_thoughts=may_think, offered=offer.names)
    if request.instructions and request.instructions.strip():
        context.system.append(request.instructions)
    for item in call.items:
        context.take(item)
    context.end(resume.text if resume is not None else None)
    limit = request.max_output_tokens or upstream.default_max_tokens
    body: Json = {
        **read_extra(request),  # first, because extras never override what is set here (D13)
        "model": call.model,
        "max_tokens": max(1, limit - (resume.deltas if resume is not None else 0)),
        "messages": context.messages,
        "stream": True,
    }
    if context.system:
        body["system"] = "\n\n".join(context.system)
    body |= _render_hints(request) | _render_tools(offer, request.parallel_tool_calls, context.names)
    if resume is None:
        may_think = with_thoughts and _may_think(context.messages)
        body |= _render_thinking(request, upstream, body, may_think=may_think)
    if (form := request.text.get("format") or {}).get("type") == "json_schema":
        shape = {"type": "json_schema", "schema": fit(form["schema"])}
        body["output_config"] = {**body.get("output_config", {}), "format": shape}
    if upstream.prompt_cache and not context.has_marks:
        ttl = request.prompt_cache_retention or (request.prompt_cache_options or {}).get("ttl")
        body["cache_control"] = render_cache(ttl)
    return body, context.has_thoughts


def count_body(body: Json) -> Json:
    """Return the request that counts the tokens of this one: without the fields about the answer."""
    kept = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")
    return {name: body[name] for name in kept if name in body}


def _render_hints(request: CreateResponse) -> Json:
    fields: Json = {name: value for name in ("temperature", "top_p") if (value := getattr(request, name)) is not None}
    if request.service_tier is not None:
        fields["service_tier"] = "standard_only" if request.service_tier in ("default", "flex") else "auto"
    if user := request.safety_identifier or request.user:
        fields["metadata"] = {"user_id": user[:_MOST_USER]}
    return fields


def _may_think(messages: list[Json]) -> bool:
    """Return False in the middle of a turn whose last message begins without a thought: a budget is refused there.
    Calls that are repeated for a late output have none, nor have those of other dialects."""
    made = next((message for message in reversed(messages) if message["role"] == "assistant"), None)
    is_answered = any(block["type"] == "tool_result" for block in messages[-1]["content"])
    return made is None or not is_answered or made["content"][0]["type"] in ("thinking", "redacted_thinking")


def _render_thinking(request: CreateResponse, upstream: Upstream, body: Json, *, may_think: bool) -> Json:
    """Render how much to think, and whether to show it."""
    wish = request.reasoning or {}
    effort, shown = wish.get("effort"), wants_summary(request)
    display = {"display": "summarized"} if shown else {}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if upstream.thinking == "budget" or (upstream.thinking == "auto" and _BUDGETED.search(str(body["model"]))):
        forced = (body.get("tool_choice") or {}).get("type") in ("any", "tool")
        budget = min(BUDGETS[effort], body["max_tokens"] * 3 // 4) if effort else 0  # a quarter is for the answer
        if forced or not may_think or max(budget, LEAST_BUDGET) >= body["max_tokens"] or not effort:
            return {}
        return {"thinking": {"type": "enabled", "budget_tokens": max(budget, LEAST_BUDGET), **display}}
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
    fields: Json = {"tools": [_render_tool(tool) for tool in offer.functions]}
    if isinstance(choice, dict):
        fields["tool_choice"] = {"type": "tool", "name": choice["name"]}
    elif choice != "auto":
        fields["tool_choice"] = {"type": _CHOICES[choice]}
    if parallel is False and choice != "none":
        fields["tool_choice"] = {**fields.get("tool_choice", {"type": "auto"}), "disable_parallel_tool_use": True}
    return fields


def _render_tool(tool: Json) -> Json:
    schema: Json = {"type": "object", **(tool.get("parameters") or {})}
    rendered: Json = {"name": tool["name"], "input_schema": fit(schema) if tool.get("strict") else schema}
    if tool.get("description"):
        rendered["description"] = tool["description"]
    if tool.get("strict"):
        rendered["strict"] = True
    return rendered


# -- schemas of structured outputs

# Limits that the API refuses to compile.
_LIMITS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength",
    "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
)  # fmt: skip
_FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
_MAPS = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "allOf")


def fit(schema: Any) -> Any:
    """Return the schema without what the API refuses, which the descriptions say in words.

    An answer that keeps to the fitted schema keeps to the caller's own as far as objects, types and names go; the
    limits that became words are for the model to heed, and for the caller to check.
    """
    if not isinstance(schema, dict):
        return schema
    fitted, refused = _split(schema)
    for name in _MAPS:
        if isinstance(fitted.get(name), dict):
            fitted[name] = {key: fit(value) for key, value in fitted[name].items()}
    for name in _LISTS:
        if isinstance(fitted.get(name), list):
            fitted[name] = [fit(value) for value in fitted[name]]
    if "items" in fitted:
        fitted["items"] = fit(fitted["items"])
    if _is_closed(fitted):
        fitted["additionalProperties"] = False
    if refused:
        fitted["description"] = " ".join(filter(None, (fitted.get("description"), f"({', '.join(refused)})")))
    return fitted


def _split(schema: Json) -> tuple[Json, list[str]]:
    """Return the fields that can stay, and in words those that cannot."""
    fitted: Json = {}
    refused: list[str] = []
    for name, value in schema.items():
        is_limit = name in _LIMITS and not (name == "minItems" and value in (0, 1))
        if is_limit or (name == "format" and value not in _FORMATS):
            refused.append(f"{name}: {msgspec.json.encode(value).decode()}")
        else:
            fitted["anyOf" if name == "oneOf" and "anyOf" not in schema else name] = value
    return fitted, refused


def _is_closed(schema: Json) -> bool:
    """Return True for an object that may be kept to its own properties; one that is only a map of others may not."""
    kind = schema.get("type")
    if "properties" not in schema and "object" not in (kind if isinstance(kind, list) else (kind,)):
        return False
    return bool(schema.get("properties")) or not schema.get("additionalProperties")


# Stand where the API wants a message of the user, and there is none.
BEGIN, GO_ON = "Please begin.", "Please continue."

_JSON = msgspec.json.Decoder()
_NO_ID = re.compile(r"[^A-Za-z0-9_-]")
_MOST_NAME = 128


class MessagesContext(msgspec.Struct, eq=False):
    """The context so far. `inline`: a model that takes system messages between others gets them there. `strict`: an
    item that cannot be sent is refused; otherwise it is left out, so that what is in a history already cannot block the
    conversation."""

    inline: bool = False
    with_thoughts: bool = True
    strict: bool = False
    offered: Names = {}  # of functions that are called otherwise than their tool
    system: list[str] = []
    messages: list[Json] = []
    names: dict[str, None] = {}  # of the tools that were called, in order
    has_thoughts: bool = False
    has_marks: bool = False  # the caller marks where the prompt may be cached
    _later: list[str] = []  # system messages that wait for the end of the user's message before them
    _ids: CallIds = msgspec.field(default_factory=CallIds)

    def take(self, item: Json) -> None:
        kind = str(item.get("type"))
        if kind == "message":
            self._take_message(item)
        elif kind == "reasoning":
            self._take_thought(item)
        elif is_output(item):
            self._answer(item)
        elif is_call(item):
            name, arguments = read_call(item, self.offered)
            self._call(str(item["call_id"]), name, _read_arguments(arguments))
        elif self.strict and kind not in LEFT_OUT and ":" not in kind:  # a vendor's own kinds are named `vendor:kind`
            message = f"Items of type '{kind}' cannot be sent to this model's server."
            raise InvalidRequest(message, param="type", code="unsupported_parameter")

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
        role, blocks = read_role(item), read_blocks(item.get("content"), strict=self.strict)
        self.has_marks = self.has_marks or any("cache_control" in block for block in blocks)
        if role == "user":
            self._say(role, blocks)
            return
        if self.strict and any(block["type"] != "text" for block in blocks):
            raise InvalidRequest(f"A message of the role '{role}' can only have text in it.", param="content")
        blocks = [block if block["type"] == "text" else text_part(name_unsendable(block)) for block in blocks]
        if role == "assistant":
            text = "".join(block["text"] for block in blocks)
            self._say(role, [text_part(text)] if text else [])
        elif blocks:
            text = "\n".join(block["text"] for block in blocks)
            (self._later if self.inline and self.messages else self.system).append(text)

    def _take_thought(self, item: Json) -> None:
        block = open_seal(item) if self.with_thoughts else None
        if block is not None:
            self.has_thoughts = True
            self._say("assistant", [block])

    def _call(self, call_id: str, name: str, arguments: Json) -> None:
        name = _NO_ID.sub("_", name)[:_MOST_NAME] or "_"
        self.names[name] = None
        sent = self._ids.add(call_id, _NO_ID.sub("_", call_id) or "_")
        self._say("assistant", [{"type": "tool_use", "id": sent, "name": name, "input": arguments}])

    def _answer(self, item: Json) -> None:
        call_id = str(call_of(item))
        result: Json = {"type": "tool_result", "tool_use_id": self._ids.find(call_id)}
        if content := read_blocks(read_output(item, PARTS, self.offered), "output", strict=self.strict):
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

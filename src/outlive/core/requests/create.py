"""What callers ask for: the body of a create, checked and made one value."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.naming import EventNames
from outlive.core.requests.body import canonical, decode_body
from outlive.core.requests.checks import (
    check_bool,
    check_depth,
    check_enum,
    check_id,
    check_int,
    check_number,
    check_str,
    refuse,
    refuse_missing,
    refuse_type,
)
from outlive.core.requests.content import check_text
from outlive.core.requests.items import STANDING_IN, TRIGGER, parse_input, parse_items, user_message
from outlive.core.requests.limits import Limits
from outlive.core.requests.options import (
    SERVICE_TIERS,
    parse_cache_options,
    parse_context_management,
    parse_conversation,
    parse_include,
    parse_metadata,
    parse_reasoning,
    parse_stream_options,
    parse_text,
    parse_truncation,
    refuse_agents,
    refuse_compression,
    refuse_moderation,
    refuse_prompt,
)
from outlive.core.requests.response import header
from outlive.core.requests.secrets import split_secrets
from outlive.core.requests.tools import parse_tool_choice, parse_tools

__all__ = [
    "CreateResponse",
    "Limits",
    "canonical",
    "decode_body",
    "header",
    "pack",
    "parse_create",
    "parse_items",
    "parse_metadata",
    "unpack",
]


class CreateResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accepted request to create a response. None means that the caller left the field out."""

    model: str
    input: list[Json]  # normalised items, each with an id and a type
    given_ids: bool = False  # some input item came with an id of its own: only then can it be a repeat
    refers: bool = False  # some of it stands for other items, which lie elsewhere or are sealed in it
    instructions: str | None = None
    stream: bool = False
    generate: bool = True  # False: keep the input for a later turn, and ask no model
    background: bool = False
    store: bool = True
    previous_response_id: str | None = None
    conversation: str | None = None
    include: list[str] = []
    metadata: dict[str, str] = {}
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    parallel_tool_calls: bool | None = None
    tools: list[Json] = []
    tool_choice: str | Json = "auto"
    text: Json = {}  # {"format", "verbosity"}, each only when given
    reasoning: Json | None = None
    truncation: str | None = None
    context_management: int | None = None  # compact above so many tokens; 0: above what suits the model
    compacts: bool = False  # the input ended with a trigger: compact what there is, and answer nothing
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prompt_cache_options: Json | None = None
    safety_identifier: str | None = None
    user: str | None = None
    extra: Json = {}  # unknown top-level fields, for the upstream
    event_names: EventNames = "openai"  # as the server was set when this was accepted
    secrets: dict[str, Json] = {}  # of tools, by label; never packed, so that they are kept sealed or not at all


def parse_create(body: object, ids: IdSource, limits: Limits) -> CreateResponse:
    """The request in a decoded body, or InvalidRequest naming the field that is wrong. `body` stays as it is."""
    if type(body) is not dict:
        refuse("The request body must be a JSON object.", None, "invalid_type")
    fields = _parse_fields(body, limits)
    if "model" not in fields:
        refuse_missing("model")
    if body.get("instructions") is not None:
        fields["instructions"] = check_text(body["instructions"], "instructions", limits)
    if body.get("tools") is not None:
        fields["tools"], fields["secrets"] = split_secrets(parse_tools(body["tools"], limits))
    if body.get("tool_choice") is not None:
        fields["tool_choice"] = parse_tool_choice(body["tool_choice"], fields.get("tools", []))
    _check_state(fields)
    if (fields.get("prompt_cache_options") or {}).get("prewarm"):
        fields["generate"] = False
    given = body.get("input")
    if type(given) is str:
        fields["input"] = [user_message(check_text(given, "input", limits), ids)]
    else:
        fields["input"] = _parse_input(body, fields, ids, limits)
        fields["given_ids"] = given is not None and any(item.get("id") is not None for item in given)
        if fields["input"] and fields["input"][-1]["type"] == TRIGGER:
            _take_trigger(fields)
        fields["refers"] = any(item["type"] in STANDING_IN for item in fields["input"])
    return CreateResponse(**fields)


def pack(request: CreateResponse) -> bytes:
    """Everything but the input and the secrets, for storage; items are kept one by one elsewhere."""
    return _encode(msgspec.structs.replace(request, input=[], secrets={}))


def unpack(raw: bytes, input: list[Json]) -> CreateResponse:
    return msgspec.structs.replace(_decode(raw), input=input)


def _parse_fields(body: Json, limits: Limits) -> dict[str, Any]:
    """The fields that can be read one by one. A known field that is null counts as left out."""
    fields: dict[str, Any] = {}
    extra: Json = {}
    for name, value in body.items():
        if (type(value) is dict or type(value) is list) and name != "input":  # items are measured where they are read
            check_depth(value, name, limits.max_depth)
        if name in _LATER:
            continue
        if name in _PARSERS:
            if value is not None:
                fields[name] = _PARSERS[name](value, name)
        elif name in _UNKEPT:
            if value is not None:
                _UNKEPT[name](value, name)
        else:
            extra[name] = value
    if extra:
        fields["extra"] = extra
    return fields


def _check_state(fields: dict[str, Any]) -> None:
    if fields.get("background") and not fields.get("store", True):
        refuse(
            "A background response cannot have 'store' false: it is fetched after its request is over, and a response "
            "that is not stored is gone by then. Leave 'store' out, or 'background'.",
            "store",
        )
    if "conversation" in fields and "previous_response_id" in fields:
        refuse(
            "'conversation' and 'previous_response_id' exclude each other: both say what came before. Give one.",
            "previous_response_id",
        )


def _parse_input(body: Json, fields: dict[str, Any], ids: IdSource, limits: Limits) -> list[Json]:
    given = body.get("input")
    # What is never sent to a model may be empty.
    continues = "conversation" in fields or "previous_response_id" in fields or not fields.get("generate", True)
    if given is None:
        if continues:
            return []
        refuse_missing("input", " Chat Completions calls it 'messages'." if "messages" in body else "")
    if type(given) is not list:
        refuse_type(given, "input", "a string or an array of items")
    if not given and not continues:
        refuse("'input' must not be empty when nothing came before.", "input", "empty_array")
    return parse_input(given, "input", ids, limits)


def _take_trigger(fields: dict[str, Any]) -> None:
    """A trigger says what to do; it is no part of the conversation, and is not kept."""
    fields["input"].pop()
    fields["compacts"] = True
    if not fields["input"] and "conversation" not in fields and "previous_response_id" not in fields:
        refuse("There is nothing to compact: 'input' has a trigger alone, and nothing came before.", "input")


def _refuse_other_name(value: object, name: str) -> None:
    refuse(f"'{name}' is unknown here. Did you mean 'conversation'?", name, "unknown_parameter")


def _ignore(value: object, name: str) -> None:
    """A field that means something to one vendor only, and nothing to what the model answers."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(CreateResponse).decode

# Read after the others, because they need the limits or each other.
_LATER = frozenset({"input", "instructions", "tools", "tool_choice"})

_PARSERS: dict[str, Callable[[object, str], object]] = {
    "model": partial(check_str, least=1, most=256),
    "stream": check_bool,
    "generate": check_bool,
    "background": check_bool,
    "store": check_bool,
    "previous_response_id": check_id,
    "conversation": parse_conversation,
    "include": parse_include,
    "metadata": parse_metadata,
    "max_output_tokens": partial(check_int, least=16),
    "max_tool_calls": partial(check_int, least=1),
    "temperature": partial(check_number, least=0, most=2),
    "top_p": partial(check_number, least=0, most=1),
    "top_logprobs": partial(check_int, least=0, most=20),
    "presence_penalty": partial(check_number, least=-2, most=2),
    "frequency_penalty": partial(check_number, least=-2, most=2),
    "parallel_tool_calls": check_bool,
    "text": parse_text,
    "reasoning": parse_reasoning,
    "truncation": parse_truncation,
    "context_management": parse_context_management,
    "service_tier": partial(check_enum, values=SERVICE_TIERS),
    "prompt_cache_key": partial(check_str, most=512),
    "prompt_cache_retention": partial(check_enum, values=("in_memory", "24h")),
    "prompt_cache_options": parse_cache_options,
    "safety_identifier": partial(check_str, most=128),
    "user": partial(check_str, most=512),
}

# Known, but not kept: checked for what cannot be honoured, or ignored.
_UNKEPT: dict[str, Callable[[object, str], object]] = {
    "access_programs": _ignore,
    "conversation_id": _refuse_other_name,
    "image": refuse_compression,
    "moderation": refuse_moderation,
    "multi_agent": refuse_agents,
    "prompt": refuse_prompt,
    "session_id": _refuse_other_name,
    "stream_options": parse_stream_options,
    "thread_id": _refuse_other_name,
}

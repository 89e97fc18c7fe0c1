"""Requests to create a response: the body's fields, each declared once, and the value they are parsed into."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NoReturn

import msgspec
from msgspec import Meta, Struct

from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.naming import EventNames
from outlive.core.requests import options
from outlive.core.requests.checks import (
    Check,
    Id,
    Text,
    WrongField,
    check_depth,
    check_text,
    check_value,
    make_checks,
    note,
    refuse,
    refuse_missing,
    refuse_type,
    refuse_unsupported,
    shaped,
)
from outlive.core.requests.items import STANDING_IN, TRIGGER, InputItem, parse_input, user_message
from outlive.core.requests.limits import Limits
from outlive.core.requests.secrets import split_secrets
from outlive.core.requests.tools import ToolChoice, Tools, match_tool_choice

ModelName = Annotated[
    str, Meta(min_length=1, max_length=256, description="As an upstream knows it, or `UPSTREAM/model`.")
]
Input = str | list[InputItem] | None
Personality = Annotated[str, Meta(max_length=64)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class ContextFields(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields that add to the tokens of a context, kept as they are given."""

    instructions: Text | None = None
    previous_response_id: Id | None = None
    tools: Tools = []
    text: Annotated[Json, shaped(options.TextOptions)] = {}
    reasoning: Annotated[Json, shaped(options.ReasoningOptions)] | None = None
    truncation: options.Truncation | None = None


class CreateFields(ContextFields, frozen=True, kw_only=True):
    """Fields of a create, kept as they are given. None: the caller left the field out."""

    model: ModelName
    stream: bool = False
    background: Annotated[bool, note("Needs `store`.")] = False
    store: bool = True
    generate: Annotated[bool, note("false: keep the input for a later turn, and ask no model.")] = True
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    max_output_tokens: Annotated[int, Meta(ge=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    include: list[options.Includable] = []
    metadata: options.Metadata = {}
    service_tier: options.ServiceTier | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=512)] | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: Annotated[Json, shaped(options.CacheOptions)] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None


class CreateBody(CreateFields, frozen=True, kw_only=True):
    """A response to be made. Fields that do not stand here are passed on to the upstream."""

    input: Annotated[Input, note("Required, unless something came before.")] = None
    conversation: Annotated[Id | options.ConversationRef | None, note("Not with `previous_response_id`.")] = None
    context_management: list[options.ContextManagement] = []
    # These change no answer, and are not kept.
    access_programs: Any = None
    image: options.ImageOptions | None = None
    stream_options: options.StreamingOptions | None = None


class CreateResponse(CreateFields, frozen=True, kw_only=True):
    """One accepted request to create a response."""

    input: list[Json]  # normalised items, each with an id and a type
    given_ids: bool = False  # some input item came with an id of its own: only then can it be a repeat
    refers: bool = False  # some of it stands for other items, which lie elsewhere or are sealed in it
    conversation: str | None = None
    context_management: int | None = None  # compact above so many tokens; 0: above what suits the model
    compacts: bool = False  # the input ended with a trigger: compact what there is, and answer nothing
    extra: Json = {}  # unknown top-level fields, for the upstream
    event_names: EventNames = "openai"  # as the server was set when this was accepted
    secrets: dict[str, Json] = {}  # of tools, by label; never packed, so that they are kept sealed or not at all


class CountBody(ContextFields, frozen=True, kw_only=True):
    """A context to be measured."""

    model: ModelName | None = None
    input: Input = None
    conversation: Id | options.ConversationRef | None = None
    personality: Personality | None = None


class CompactBody(Struct, kw_only=True):
    """A context to be made shorter."""

    model: ModelName | None
    input: Input = None
    instructions: Text | None = None
    previous_response_id: Id | None = None


def parse_create(body: object, ids: IdSource, limits: Limits) -> CreateResponse:
    """Parse a decoded body, or raise InvalidRequest naming the field that is wrong. `body` stays as it is."""
    if type(body) is not dict:
        refuse("The request body must be a JSON object.", None, "invalid_type")
    fields = _parse_fields(body, limits)
    if "model" not in fields:
        refuse_missing("model")
    if "tools" in fields:
        fields["tools"], fields["secrets"] = split_secrets(fields["tools"])
    if "tool_choice" in fields:
        fields["tool_choice"] = match_tool_choice(fields["tool_choice"], fields.get("tools", []), limits)
    _check_state(fields)
    if (fields.get("prompt_cache_options") or {}).get("prewarm"):
        fields["generate"] = False
    given = body.get("input")
    if type(given) is str:
        fields["input"] = [user_message(check_value(check_text, given, "input", limits), ids)]
    else:
        fields["input"] = _parse_input(body, fields, ids, limits)
        fields["given_ids"] = given is not None and any(item.get("id") is not None for item in given)
        if fields["input"] and fields["input"][-1]["type"] == TRIGGER:
            _take_trigger(fields)
        fields["refers"] = any(item["type"] in STANDING_IN for item in fields["input"])
    return CreateResponse(**fields)


def pack(request: CreateResponse) -> bytes:
    """Encode everything but the input and the secrets, for storage; items are kept one by one elsewhere."""
    return _encode(msgspec.structs.replace(request, input=[], secrets={}))


def unpack(raw: bytes, input: list[Json]) -> CreateResponse:
    return msgspec.structs.replace(_decode(raw), input=input)


def _parse_fields(body: Json, limits: Limits) -> dict[str, Any]:
    """Parse the fields that can be read one by one. A known field that is null counts as left out."""
    fields: dict[str, Any] = {}
    extra: Json = {}
    name = ""
    try:
        for name, value in body.items():
            if name == "input":
                continue
            if type(value) is dict or type(value) is list:
                check_depth(value, limits.max_depth)
            if (check := _KEPT.get(name)) is not None:
                if value is not None:
                    fields[name] = check(value, limits)
            elif name not in _UNKEPT:
                extra[name] = value
            elif value is not None:
                _UNKEPT[name](value, limits)
    except WrongField as wrong:
        raise wrong.under(name) from None
    if extra:
        fields["extra"] = extra
    if type(fields.get("conversation")) is dict:
        fields["conversation"] = fields["conversation"]["id"]
    if "context_management" in fields:
        thresholds = [entry.get("compact_threshold") or 0 for entry in fields["context_management"]]
        fields["context_management"] = min(thresholds, default=None)
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
    # Input that is never sent to a model may be empty.
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
    """Act on a trigger and drop it: it is no part of the conversation."""
    fields["input"].pop()
    fields["compacts"] = True
    if not fields["input"] and "conversation" not in fields and "previous_response_id" not in fields:
        refuse("There is nothing to compact: 'input' has a trigger alone, and nothing came before.", "input")


def _refusing(why: str) -> Check:
    return lambda value, limits: refuse_unsupported("", why)


def _ask_for_conversation(value: object, limits: Limits) -> NoReturn:
    raise WrongField("is unknown here. Did you mean 'conversation'?", code="unknown_parameter")


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(CreateResponse).decode

_KEPT = make_checks(CreateBody)
_UNKEPT: dict[str, Check] = {
    **{name: _KEPT.pop(name) for name in ("access_programs", "image", "stream_options")},
    **dict.fromkeys(("conversation_id", "session_id", "thread_id"), _ask_for_conversation),
    "moderation": _refusing("it does not moderate."),
    "multi_agent": _refusing("it runs one model per response."),
    "prompt": _refusing("it has no prompt templates. Send 'instructions' and 'input'."),
}

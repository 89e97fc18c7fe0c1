"""Requests to create a response: the body's fields, each declared once, the value they are parsed into, and the
Response that echoes them when the request is accepted."""

from typing import Annotated, Any, Literal, NoReturn

import msgspec
from msgspec import UNSET, Meta, Struct

from outlive.core.events import EventNames, Json
from outlive.core.ids import IdSource
from outlive.core.origin import Origin
from outlive.core.requests import checks
from outlive.core.requests.checks import Given, IdOfConversation, IdOfResponse, Limits, Text, WrongField, note, refuse
from outlive.core.requests.items import STANDING_IN, TRIGGER, InputItem, make_message, parse_items
from outlive.core.requests.tools import ToolChoice, Tools, list_brought, match_tool_choice, split_secrets

Includable = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]

Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]
Summary = Literal["auto", "concise", "detailed"]
Truncation = Literal["auto", "disabled"]


class ConversationRef(Struct):
    """A conversation, by its id."""

    id: IdOfConversation


SimpleFormat = checks.shape("SimpleFormat", "Text, or JSON of any shape.", type=Literal["text", "json_object"])


class SchemaFormat(Struct, kw_only=True):
    """JSON of the shape that the schema describes."""

    type: Literal["json_schema"]
    name: Annotated[str, checks.name_of(64)]
    schema: Json
    description: str | None = None
    strict: bool = False


class TextOptions(Struct):
    """The form of the answer's text."""

    format: Given[Annotated[Json, checks.one_of(SimpleFormat, SchemaFormat)]] = UNSET
    verbosity: Given[Literal["low", "medium", "high"]] = UNSET

    complete = staticmethod(checks.drop_nulls)  # so that defaults show in their place


class ReasoningOptions(Struct):
    """The amount of reasoning, and how much of it is shown."""

    effort: Given[Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]] = UNSET
    summary: Given[Summary] = UNSET
    generate_summary: Given[Summary] = UNSET
    context: Given[Literal["auto", "current_turn", "all_turns"]] = UNSET
    mode: Given[str] = UNSET


class CacheOptions(Struct):
    """The use of the model server's cache of prompts; with `prewarm` the model is not asked."""

    mode: Given[Literal["implicit", "explicit"]] = UNSET
    ttl: Given[str] = UNSET
    prewarm: Given[bool] = UNSET


class StreamingOptions(Struct):
    """Options of a stream, which change nothing here."""

    include_obfuscation: Given[bool] = UNSET


class ImageOptions(Struct):
    context_compression: Given[Literal["auto", "enabled", "disabled"]] = UNSET

    @staticmethod
    def complete(image: Json) -> None:
        if image.get("context_compression") == "enabled":
            checks.refuse_unsupported(".context_compression", "it does not compress images.")


class ContextManagement(Struct):
    """The length above which a context is made shorter: so many tokens, or as many as suit the model."""

    type: Annotated[str, Meta(extra_json_schema={"const": "compaction"})]
    compact_threshold: Given[Annotated[int, Meta(ge=1000)]] = UNSET

    @staticmethod
    def complete(entry: Json) -> None:
        if entry["type"] != "compaction":
            checks.refuse_unsupported(".type", "'compaction' is the only way it manages a context.")


class OutliveOptions(Struct, forbid_unknown_fields=True):
    """Options of this server alone, which no upstream sees and which override its settings: the days that a response is
    kept after its last use, the seconds after which it ends at the latest, what it does when its client leaves."""

    expires_after_days: Given[Annotated[float, Meta(gt=0, le=36_500)]] = UNSET
    deadline_seconds: Given[Annotated[float, Meta(gt=0, le=31_536_000)]] = UNSET
    on_disconnect: Given[Literal["continue", "cancel"]] = UNSET

    @staticmethod
    def complete(options: Json) -> None:
        checks.drop_nulls(options)
        for name in options:
            if name not in OutliveOptions.__struct_fields__:
                raise WrongField("is unknown here.", f".{checks.shorten(name)}", "unknown_parameter")


_check_metadata, _check_text = checks.make_check(Metadata), checks.make_check(Text)


def parse_metadata(value: object) -> dict[str, str]:
    return {} if value is None else checks.check_value(_check_metadata, value, "metadata")


ModelName = Annotated[
    str, Meta(min_length=1, max_length=256, description="As an upstream knows it, or `UPSTREAM/model`.")
]
Input = str | list[InputItem] | None
Personality = Annotated[str, Meta(max_length=64)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class ContextFields(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Fields that add to the tokens of a context, kept as they are given."""

    instructions: Text | None = None
    previous_response_id: IdOfResponse | None = None
    tools: Tools = []
    text: Annotated[Json, checks.shaped(TextOptions)] = {}
    reasoning: Annotated[Json, checks.shaped(ReasoningOptions)] | None = None
    truncation: Truncation | None = None


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
    include: list[Includable] = []
    metadata: Metadata = {}
    service_tier: ServiceTier | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=512)] | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: Annotated[Json, checks.shaped(CacheOptions)] | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: Annotated[str, Meta(max_length=512)] | None = None
    outlive: Annotated[Json, checks.shaped(OutliveOptions)] = {}


class CreateBody(CreateFields, frozen=True, kw_only=True):
    """A response to be made. Fields that do not stand here are passed on to the upstream."""

    input: Annotated[Input, note("Required, unless something came before.")] = None
    conversation: Annotated[IdOfConversation | ConversationRef | None, note("Not with `previous_response_id`.")] = None
    context_management: list[ContextManagement] = []
    # These change no answer, and are not kept.
    access_programs: Any = None
    image: ImageOptions | None = None
    stream_options: StreamingOptions | None = None


class CreateResponse(CreateFields, frozen=True, kw_only=True):
    """One accepted request to create a response."""

    input: list[Json]  # normalised items, each with an id and a type
    given_ids: bool = False  # some input item came with an id of its own: only then can it be a repeat
    refers: bool = False  # some of it stands for other items, which lie elsewhere or are sealed in it
    conversation: str | None = None
    context_management: int | None = None  # compact above so many tokens; 0: above what suits the model
    compacts: bool = False  # the input ended with a trigger: compact what there is, and answer nothing
    extra: Json = {}  # unknown top-level fields, for the upstream
    deadline: float | None = None  # unix seconds at which it is to end, at the latest
    event_names: EventNames = "openai"  # as the server was set when this was accepted
    origin: Origin = Origin()
    secrets: dict[str, Json] = {}  # of tools, by label; never packed, so that they are kept sealed or not at all


class CountBody(ContextFields, frozen=True, kw_only=True):
    """A context to be measured."""

    model: ModelName | None = None
    input: Input = None
    conversation: IdOfConversation | ConversationRef | None = None
    personality: Personality | None = None


class CompactBody(Struct, kw_only=True):
    """A context to be made shorter."""

    model: ModelName | None
    input: Input = None
    instructions: Text | None = None
    previous_response_id: IdOfResponse | None = None


def parse_create(body: object, ids: IdSource, limits: Limits, **given: Any) -> CreateResponse:
    """Parse a decoded body, and add the fields that no body has. Raises InvalidRequest naming the field that is wrong.
    `body` stays as it is."""
    if type(body) is not dict:
        refuse("The request body must be a JSON object.", None, "invalid_type")
    fields = _parse_fields(body, limits)
    if "model" not in fields:
        checks.refuse_missing("model")
    if "tools" in fields:
        fields["tools"], fields["secrets"] = split_secrets(fields["tools"])
    _check_state(fields)
    if (fields.get("prompt_cache_options") or {}).get("prewarm"):
        fields["generate"] = False
    asked = body.get("input")
    if type(asked) is str:
        text = checks.check_value(_check_text, asked, "input", limits)
        fields["input"] = [make_message(text, ids)]
    else:
        fields["input"] = _parse_input(body, fields, ids, limits)
        fields["given_ids"] = asked is not None and any(item.get("id") is not None for item in asked)
        if fields["input"] and fields["input"][-1]["type"] == TRIGGER:
            fields["input"].pop()  # it is acted on, and is no part of the conversation
            fields["compacts"] = True
            if not fields["input"] and "conversation" not in fields and "previous_response_id" not in fields:
                refuse("There is nothing to compact: 'input' has a trigger alone, and nothing came before.", "input")
        fields["refers"] = any(item["type"] in STANDING_IN for item in fields["input"])
    if "tool_choice" in fields:
        tools = [*fields.get("tools", ()), *list_brought(fields["input"])]
        fields["tool_choice"] = match_tool_choice(fields["tool_choice"], tools, limits)
    return CreateResponse(**fields, **given)


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
                checks.check_depth(value, limits.max_depth)
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
    if "outlive" in fields:
        check_options(fields["outlive"], background=fields.get("background", False), store=fields.get("store", True))


def check_options(options: Json, *, background: bool, store: bool) -> None:
    """Refuse options of this server that cannot be honoured."""
    if background and options.get("on_disconnect") == "cancel":
        refuse("A background response does not end with its connection.", "outlive.on_disconnect")
    if not store and "expires_after_days" in options:
        refuse("A response that is not stored is not kept for any time.", "outlive.expires_after_days")
    if not store and options.get("on_disconnect") == "continue":
        refuse("A response that is not stored ends with its connection.", "outlive.on_disconnect")


def _parse_input(body: Json, fields: dict[str, Any], ids: IdSource, limits: Limits) -> list[Json]:
    given = body.get("input")
    # Input that is never sent to a model may be empty.
    continues = "conversation" in fields or "previous_response_id" in fields or not fields.get("generate", True)
    if given is None:
        if continues:
            return []
        checks.refuse_missing("input", " Chat Completions calls it 'messages'." if "messages" in body else "")
    if type(given) is not list:
        checks.refuse_type(given, "input", "a string or an array of items")
    if not given and not continues:
        refuse("'input' must not be empty when nothing came before.", "input", "empty_array")
    return parse_items(given, "input", ids, limits, in_request=True)


def _refusing(why: str) -> checks.Check:
    return lambda value, limits: checks.refuse_unsupported("", why)


def _ask_for_conversation(value: object, limits: Limits) -> NoReturn:
    raise WrongField("is unknown here. Did you mean 'conversation'?", code="unknown_parameter")


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(CreateResponse).decode

_KEPT = checks.make_checks(CreateBody)
_UNKEPT: dict[str, checks.Check] = {
    **{name: _KEPT.pop(name) for name in ("access_programs", "image", "stream_options")},
    **dict.fromkeys(("conversation_id", "session_id", "thread_id"), _ask_for_conversation),
    "moderation": _refusing("it does not moderate."),
    "multi_agent": _refusing("it runs one model per response."),
    "prompt": _refusing("it has no prompt templates. Send 'instructions' and 'input'."),
}


def header(request: CreateResponse, response_id: str, created_at: int, model: str, status: str) -> Json:
    """Make a Response without output and usage. It shares the request's mappings; neither may be changed in place."""
    # `fast` is only a name in requests; the tier that serves it is called `priority`.
    tier = "priority" if request.service_tier == "fast" else request.service_tier or "auto"
    response: Json = {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": status,
        "background": request.background,
        "completed_at": None,
        "error": None,
        "frequency_penalty": 0.0 if request.frequency_penalty is None else request.frequency_penalty,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": 0.0 if request.presence_penalty is None else request.presence_penalty,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
        "reasoning": {"effort": None, "summary": None, **(request.reasoning or {})},
        "safety_identifier": request.safety_identifier,
        "service_tier": tier,
        "store": request.store,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": {"type": "text"}, "verbosity": "medium", **request.text},
        "tool_choice": request.tool_choice,
        "tools": request.tools,
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
        "metadata": request.metadata,
    }
    if request.conversation is not None:
        response["conversation"] = {"id": request.conversation}
    return response

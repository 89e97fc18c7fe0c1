"""What requests hold: their bodies, and the parameters in their addresses and headers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, field

from outlive.core.requests.options import INCLUDABLE, LEAST_THRESHOLD, SERVICE_TIERS
from outlive.http.conversations import MAX_ITEMS
from outlive.http.openapi.shapes import (
    KNOWN_ITEMS,
    Given,
    ItemReference,
    Maybe,
    Metadata,
    OtherItem,
    Tool,
    choice,
    note,
    one_of,
)
from outlive.http.request import MAX_PAGE
from outlive.http.responses import MAX_NUMBER, MAX_WAIT_SECONDS, STATUSES

Id = Annotated[str, Meta(min_length=1, max_length=256, pattern="^[A-Za-z0-9_-]+$")]
Model = Annotated[str, Meta(min_length=1, max_length=256, description="As an upstream knows it, or `UPSTREAM/model`.")]
Item = Annotated[Any, one_of(*KNOWN_ITEMS.values(), OtherItem)]
InputItem = Annotated[Any, one_of(*KNOWN_ITEMS.values(), ItemReference, OtherItem)]
Input = Maybe[str | list[InputItem]]
Flag = Maybe[bool]
Penalty = Maybe[Annotated[float, Meta(ge=-2, le=2)]]


class ConversationRef(Struct):
    """A conversation, by its id."""

    id: Id


class ReasoningOptions(Struct):
    """How much the model thinks, and what it tells of that."""

    effort: Maybe[Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]] = UNSET
    summary: Maybe[Literal["auto", "concise", "detailed"]] = UNSET


class Format(Struct):
    """What the answer's text is: with `json_schema` there must be a `name` and a `schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Given[Annotated[str, Meta(min_length=1, max_length=64, pattern="^[A-Za-z0-9_-]+$")]] = UNSET
    schema: Given[dict[str, Any]] = UNSET
    description: Maybe[str] = UNSET
    strict: Flag = UNSET


class TextOptions(Struct):
    """How the answer is to be written."""

    format: Maybe[Format] = UNSET
    verbosity: Maybe[Literal["low", "medium", "high"]] = UNSET


class ContextManagement(Struct):
    """When to make a long context shorter by itself."""

    type: Literal["compaction"]
    compact_threshold: Maybe[Annotated[int, Meta(ge=LEAST_THRESHOLD)]] = UNSET


class CreateBody(Struct):
    """A response to be made. Fields that do not stand here are passed on to the upstream."""

    model: Model
    input: Annotated[Input, note("Required, unless something came before.")] = UNSET
    instructions: Maybe[str] = UNSET
    conversation: Annotated[Maybe[Id | ConversationRef], note("Not with `previous_response_id`.")] = UNSET
    previous_response_id: Maybe[Id] = UNSET
    stream: Flag = UNSET
    background: Annotated[Flag, note("Needs `store`.")] = UNSET
    store: Annotated[Flag, note("true, unless it is said otherwise.")] = UNSET
    generate: Annotated[Flag, note("false: keep the input for a later turn, and ask no model.")] = UNSET
    tools: Maybe[list[Tool]] = UNSET
    tool_choice: Maybe[Literal["none", "auto", "required"] | dict[str, Any]] = UNSET
    parallel_tool_calls: Flag = UNSET
    max_tool_calls: Maybe[Annotated[int, Meta(ge=1)]] = UNSET
    max_output_tokens: Maybe[Annotated[int, Meta(ge=16)]] = UNSET
    temperature: Maybe[Annotated[float, Meta(ge=0, le=2)]] = UNSET
    top_p: Maybe[Annotated[float, Meta(ge=0, le=1)]] = UNSET
    top_logprobs: Maybe[Annotated[int, Meta(ge=0, le=20)]] = UNSET
    presence_penalty: Penalty = UNSET
    frequency_penalty: Penalty = UNSET
    text: Maybe[TextOptions] = UNSET
    reasoning: Maybe[ReasoningOptions] = UNSET
    include: Maybe[list[Annotated[str, choice(INCLUDABLE)]]] = UNSET
    truncation: Maybe[Literal["auto", "disabled"]] = UNSET
    context_management: Maybe[list[ContextManagement]] = UNSET
    metadata: Maybe[Metadata] = UNSET
    service_tier: Maybe[Annotated[str, choice(SERVICE_TIERS)]] = UNSET
    prompt_cache_key: Maybe[Annotated[str, Meta(max_length=512)]] = UNSET
    prompt_cache_retention: Maybe[Literal["in_memory", "24h"]] = UNSET
    prompt_cache_options: Maybe[dict[str, Any]] = UNSET
    safety_identifier: Maybe[Annotated[str, Meta(max_length=128)]] = UNSET
    user: Maybe[Annotated[str, Meta(max_length=512)]] = UNSET
    stream_options: Maybe[dict[str, Any]] = UNSET


class CountBody(Struct):
    """A context to be measured."""

    model: Maybe[Model] = UNSET
    input: Input = UNSET
    instructions: Maybe[str] = UNSET
    conversation: Maybe[Id | ConversationRef] = UNSET
    previous_response_id: Maybe[Id] = UNSET
    tools: Maybe[list[Tool]] = UNSET
    text: Maybe[TextOptions] = UNSET
    reasoning: Maybe[ReasoningOptions] = UNSET
    truncation: Maybe[Literal["auto", "disabled"]] = UNSET


class CompactBody(Struct):
    """A context to be made shorter."""

    model: Model | None
    input: Input = UNSET
    instructions: Maybe[str] = UNSET
    previous_response_id: Maybe[Id] = UNSET


class CreateConversationBody(Struct):
    """A conversation to be made."""

    items: Maybe[Annotated[list[Item], Meta(max_length=MAX_ITEMS)]] = UNSET
    metadata: Maybe[Metadata] = UNSET


class UpdateConversationBody(Struct):
    """What the conversation's metadata is from now on."""

    metadata: Metadata | None


class CreateItemsBody(Struct):
    """Items to be added to a conversation."""

    items: Annotated[list[Item], Meta(max_length=MAX_ITEMS)]


class ChatBody(Struct):
    """A Chat Completions request, which is passed on as it is."""

    model: Model
    messages: list[dict[str, Any]]
    stream: Flag = UNSET


# -- parameters


class Repeatable(Struct):
    """In headers: what a request may be repeated under."""

    key: Given[Annotated[str, note("The same key and body get the same answer, and are done once.")]] = field(
        name="Idempotency-Key", default=UNSET
    )


class PageQuery(Struct):
    """Which part of a list."""

    after: Given[Annotated[str, note("The id after which to begin.")]] = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 20
    order: Literal["asc", "desc"] = "desc"


class ResponsesQuery(PageQuery):
    """Which responses."""

    status: Given[list[Annotated[str, choice(STATUSES)]]] = UNSET
    conversation: Given[str] = UNSET


class RetrieveQuery(Struct):
    """How a response is shown."""

    stream: Annotated[bool, note("Its events, from the first, and then as they come.")] = False
    starting_after: Given[Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="With `stream`.")]] = UNSET
    wait: Given[Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for its end.")]] = UNSET

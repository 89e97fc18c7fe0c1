"""What answers hold, errors included."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

from outlive.core.events import Json
from outlive.http.openapi.shapes import KNOWN_ITEMS, Given, Metadata, OtherItem, Tool, note, refer

# An item that the server gives out. One of a known kind has that kind's shape, and every one has an id and a type.
ITEM: Json = {
    "title": "Item",
    "description": "One message, tool call, tool output or piece of reasoning.",
    "type": "object",
    "required": ["id", "type"],
    "allOf": [
        refer(OtherItem.__name__),
        *(
            {"if": {"properties": {"type": {"const": kind}}}, "then": refer(shape.__name__)}
            for kind, shape in KNOWN_ITEMS.items()
        ),
    ],
}
Item = Annotated[Any, Meta(extra_json_schema=refer("Item"))]
Seconds = Annotated[int, note("Unix time, in seconds.")]


class Event(Struct):
    """One event of a response: what happened, and its number. The other fields depend on the type."""

    type: str
    sequence_number: Annotated[int, Meta(ge=0)]


class Error(Struct):
    """What went wrong: the message for people, the code for programs, and the field it is about."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Struct):
    """The envelope of every error."""

    error: Error


class ResponseError(Struct):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(Struct):
    """Why a response is not whole."""

    reason: str
    message: Given[str] = UNSET


class InputTokensDetails(Struct):
    cached_tokens: int


class OutputTokensDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    """The tokens that a response took."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ConversationId(Struct):
    id: str


class Attempts(Struct):
    """How often a response was begun, and at which events it was joined."""

    attempts: int
    resumed_at: list[int]


class ResponseSummary(Struct, kw_only=True):
    """A response without what may be long."""

    id: str
    object: Literal["response"]
    created_at: Seconds
    status: Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
    background: bool
    completed_at: int | None
    error: ResponseError | None
    frequency_penalty: float
    incomplete_details: IncompleteDetails | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_retention: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: Usage | None
    user: str | None
    metadata: Metadata
    conversation: Given[ConversationId] = UNSET
    outlive: Given[Attempts] = UNSET


class Response(ResponseSummary, kw_only=True):
    """One run of a model and everything it said."""

    instructions: str | None
    output: list[Item]
    tools: list[Tool]


class InputTokens(Struct):
    """How long a context is."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class CompactedResponse(Struct):
    """A context made shorter: what to send as the input of a new chain."""

    id: str
    object: Literal["response.compaction"]
    created_at: Seconds
    output: list[Item]
    usage: Usage


class Conversation(Struct):
    """A named line of items."""

    id: str
    object: Literal["conversation"]
    created_at: Seconds
    metadata: Metadata


class DeletedResponse(Struct):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class DeletedConversation(Struct):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class Model(Struct):
    """A model that may be asked for."""

    id: str
    object: Literal["model"]


class ListAnswer(Struct, kw_only=True):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseList(ListAnswer, kw_only=True):
    data: list[ResponseSummary]


class ConversationList(ListAnswer, kw_only=True):
    data: list[Conversation]


class ItemList(ListAnswer, kw_only=True):
    data: list[Item]


class ModelList(Struct):
    object: Literal["list"]
    data: list[Model]


class Health(Struct):
    """Whether the process lives, or should be sent requests."""

    status: Literal["ok", "ready", "not ready"]
    reason: Given[str] = UNSET


class Anything(Struct):
    """What the upstream answered."""

"""The description of the API at /openapi.json: the document, made of the route table, and the shapes it names."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, defstruct, field

from outlive import __version__
from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import REF, REFERRED, Given, IdOfConversation, kinds_of, note, refer, shorten
from outlive.core.requests.create import Metadata, ModelName, Truncation
from outlive.core.requests.items import KEPT_ITEMS, KeptItem, OtherItem
from outlive.core.requests.tools import Tool
from outlive.http.conversations import MAX_ITEMS
from outlive.http.request import MAX_PAGE, Reply, Request
from outlive.http.responses import MAX_NUMBER, MAX_WAIT_SECONDS, STATUSES

# -- shapes of answers and errors

# An item that the server gives out. One of a known kind has that kind's shape, and every one has an id and a type.
ITEM: Json = {
    "title": "Item",
    "description": "One message, tool call, tool output or piece of reasoning.",
    "type": "object",
    "required": ["id", "type"],
    "allOf": [
        refer(OtherItem),
        *({"if": {"properties": {"type": {"enum": kinds_of(shape)}}}, "then": refer(shape)} for shape in KEPT_ITEMS),
    ],
}
Item = Annotated[Any, Meta(extra_json_schema={"$ref": REF.format(name="Item")})]
Seconds = Annotated[int, note("Unix time, in seconds.")]


class Event(Struct):
    """One event of a response, and its number. The other fields depend on the type."""

    type: str
    sequence_number: Annotated[int, Meta(ge=0)]


class Error(Struct):
    """An error: the message for people, the code for programs, and the field it is about."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Struct):
    """The envelope of every error."""

    error: Error


class ResponseError(Struct):
    """The reason why a response failed."""

    code: str
    message: str


class IncompleteDetails(Struct):
    """The reason why a response is not whole."""

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


class QueuePlace(Struct):
    """A queued response's place, 1 being the next, and the seconds since it was created."""

    place: int
    seconds: int


class OutliveDetails(Struct):
    """Fields of this server alone: the place of a queued response; the tools that its model was not given; of one that
    was resumed, how often and where; in a list with `details`, also where it ran, how far, and until when."""

    queue: Given[QueuePlace] = UNSET
    trace_id: Given[Annotated[str, note("Of its trace, where the server exports traces.")]] = UNSET
    left_out_tools: Given[Annotated[list[str], note("The types of the tools that no server here runs.")]] = UNSET
    attempts: Given[int] = UNSET
    resumed_at: Given[Annotated[list[int], note("The numbers of the events before which it was resumed.")]] = UNSET
    node: Given[str | None] = UNSET
    events: Given[int | None] = UNSET
    ended_at: Given[float | None] = UNSET
    joints: Given[Annotated[list[int], Meta(extra_json_schema={"deprecated": True})]] = UNSET  # its older name


class ResponseSummary(Struct, kw_only=True):
    """A response without the fields that may be long."""

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
    truncation: Truncation
    usage: Usage | None
    user: str | None
    metadata: Metadata
    conversation: Given[ConversationId] = UNSET
    outlive: Given[OutliveDetails] = UNSET


class Response(ResponseSummary, kw_only=True):
    """One run of a model with all of its output."""

    instructions: str | None
    output: list[Item]
    tools: list[Tool]


class InputTokens(Struct):
    """The length of a context."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class CompactedResponse(Struct):
    """A context made shorter: the input to begin a new chain with."""

    id: str
    object: Literal["response.compaction"]
    created_at: Seconds
    output: list[Item]
    usage: Usage


class Conversation(Struct):
    """A named sequence of items."""

    id: str
    object: Literal["conversation"]
    created_at: Seconds
    metadata: Metadata


class Model(Struct):
    """A model that may be asked for."""

    id: str
    object: Literal["model"]


class Health(Struct):
    """The state of the process: alive, ready for requests, or not."""

    status: Literal["ok", "ready", "not ready"]
    reason: Given[str] = UNSET


class Anything(Struct):
    """An answer of any shape."""


def _deleted(name: str, kind: Any) -> type[Struct]:
    return defstruct(name, {"id": str, "object": kind, "deleted": Literal[True]}.items())


def _list(name: str, element: Any) -> type[Struct]:
    page = {"first_id": str | None, "last_id": str | None, "has_more": bool}
    return defstruct(name, {"object": Literal["list"], "data": list[element], **page}.items())


DeletedResponse = _deleted("DeletedResponse", Literal["response"])
DeletedConversation = _deleted("DeletedConversation", Literal["conversation.deleted"])
ResponseList = _list("ResponseList", ResponseSummary)
ConversationList = _list("ConversationList", Conversation)
ItemList = _list("ItemList", Item)
_FOR_CODEX = Given[Annotated[list[Any], note("Only with `client_version`, for Codex: always empty.")]]
ModelList = defstruct(
    "ModelList",
    [("object", Literal["list"]), ("data", list[Model]), ("models", _FOR_CODEX, UNSET)],
)


# -- bodies

KeptItems = Annotated[list[KeptItem], Meta(max_length=MAX_ITEMS)]


class CreateConversationBody(Struct):
    """A conversation to be made."""

    items: Given[KeptItems] = UNSET
    metadata: Given[Metadata] = UNSET


class UpdateConversationBody(Struct):
    """The metadata that replaces a conversation's."""

    metadata: Metadata | None


class CreateItemsBody(Struct):
    """Items to be added to a conversation."""

    items: KeptItems


class ChatBody(Struct):
    """A Chat Completions request, which is passed on as it is."""

    model: ModelName
    messages: list[dict[str, Any]]
    stream: Given[bool] = UNSET


# -- parameters


class Repeatable(Struct):
    """The header under which a request may be repeated."""

    key: Given[Annotated[str, note("The same key and body get the same answer, and are done once.")]] = field(
        name="Idempotency-Key", default=UNSET
    )


# Query parameters that clients add to any request, and that change nothing here: Azure's, Codex's (but for the list of
# models) and the beta SDK's.
IGNORED_QUERY = frozenset({"api-version", "client_version", "beta", "ticket"})  # the last was read by `Auth`
Ignored = Given[Annotated[Any, note("Accepted for OpenAI's clients; changes nothing.")]]


class PageQuery(Struct):
    """A part of a list."""

    after: Given[Annotated[str, note("The id after which to begin.")]] = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 20
    order: Literal["asc", "desc"] = "desc"


class ItemsQuery(PageQuery):
    """A part of a list of items."""

    include: Ignored = UNSET


class ItemQuery(Struct):
    """One item."""

    include: Ignored = UNSET


class ResponsesQuery(PageQuery):
    """Responses of some statuses, or of one conversation."""

    details: Annotated[bool, note("Add to `outlive` each response's node, attempts, events and end.")] = False
    status: Given[list[Annotated[str, Meta(extra_json_schema={"enum": list(STATUSES)})]]] = UNSET
    conversation: Given[IdOfConversation] = UNSET


class RetrieveQuery(Struct):
    """A response as an object or as a stream."""

    stream: Annotated[bool, note("Its events, from the first, and then as they come.")] = False
    starting_after: Given[Annotated[int, Meta(ge=0, le=MAX_NUMBER, description="With `stream`.")]] = UNSET
    sse_ids: Annotated[bool, note("With `stream`: `id:` lines, `Last-Event-ID`, and 204 after the end.")] = False
    wait: Given[Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for its end.")]] = UNSET
    include: Ignored = UNSET
    include_obfuscation: Ignored = UNSET


# -- the document

ABOUT = (
    "Responses and Conversations whose answers outlive the connection and the process. "
    "Works with OpenAI's clients as they are."
)

Handler: TypeAlias = Callable[[Request], Awaitable[Reply | None]]


class Route(Struct, frozen=True):
    """One route: the handler of its requests, and all that the document says of it."""

    method: str
    path: str
    handler: Handler
    id: str
    answer: type[Struct] | Literal["Item", "text/plain", "text/javascript", "text/html"]
    summary: str
    body: type[Struct] | None = None
    query: type[Struct] | None = None
    streams: type[Struct] | None = None  # an event of the stream that it may answer with instead
    repeatable: bool = False  # takes an Idempotency-Key
    refuses: tuple[int, ...] = ()  # besides the statuses that follow from the other fields
    open: bool = False  # needs no key
    ticket: bool = False  # can be opened with a ticket
    leads_to: tuple[str, ...] = ()  # operations that take the id of what this one answers with

    @property
    def checks_query(self) -> bool:
        """True for the GETs of the API; a probe may carry anything."""
        return self.method == "GET" and not self.open

    def check_query(self, names: Iterable[str]) -> None:
        """Refuse a parameter that a GET does not know: it may be a filter, whose caller would take all for some (D13).

        A name that begins with `_` only keeps caches from answering.
        """
        known = () if self.query is None else self.query.__struct_fields__
        for name in names:
            if name not in known and name not in IGNORED_QUERY and not name.startswith("_"):
                raise InvalidRequest(
                    f"Unknown query parameter: '{shorten(name)}'. This route knows {', '.join(known) or 'none'}.",
                    param=shorten(name),
                    code="unknown_parameter",
                )

    @property
    def statuses(self) -> list[int]:
        """The statuses of its errors."""
        found = {*self.refuses, *(() if self.open else (401, 403))}
        found |= {400, 413, 415} if self.body is not None else set()
        found |= {400} if self.checks_query else set()
        found |= {404} if "{" in self.path else set()
        return sorted(found | ({409} if self.repeatable else set()))


def make_document(routes: Sequence[Route], root_path: str = "") -> Json:
    """Make the document; the table's order is the document's."""
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path.replace(":path", ""), {})[route.method.lower()] = _describe(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Outlive", "version": __version__, "summary": ABOUT, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": root_path or "/"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": _make_schemas(routes),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "ticket": {"type": "apiKey", "in": "query", "name": "ticket"},
            },
        },
    }


def _describe(route: Route) -> Json:
    noun = route.path.split("/")[2] if route.path.startswith("/v1/") else "server"
    required = {"in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    in_path = [{"name": name, **required} for name in re.findall(r"{(\w+)", route.path)]
    described: Json = {
        "operationId": route.id,
        "tags": [noun.capitalize()],
        "summary": route.summary,
        "parameters": [*in_path, *_parameters(route.query, "query")],
        "responses": _describe_answers(route),
    }
    if route.repeatable:
        described["parameters"] += _parameters(Repeatable, "header")
    if route.body is not None:
        described["requestBody"] = {"required": True, "content": _json(route.body)}
    if route.open or route.ticket:
        described["security"] = [] if route.open else [{"key": []}, {"ticket": []}]
    return described


def _describe_answers(route: Route) -> Json:
    content = _json(route.answer)
    if isinstance(route.answer, str) and route.answer != "Item":
        content = {route.answer: {"schema": {"type": "string"}}}
    if route.streams is not None:
        content["text/event-stream"] = {"schema": _streamed(route.streams)}
    found: Json = {"200": {"description": "Done.", "content": content}}
    if route.query is RetrieveQuery:
        found["204"] = {"description": "With `sse_ids`: no event follows the one that was named."}
    if route.leads_to:
        found["200"]["links"] = {
            name: {"operationId": name, "parameters": {"id": "$response.body#/id"}} for name in route.leads_to
        }
    for status in route.statuses:
        found[str(status)] = {"description": f"{HTTPStatus(status).phrase}.", "content": _json(ErrorAnswer)}
    if route.answer is Health:
        found["503"] = {"description": "Not ready.", "content": content}
    else:
        found["default"] = {"description": "Another error.", "content": _json(ErrorAnswer)}
    return found


def _streamed(shape: type[Struct]) -> Json:
    """Describe one event of a stream: its data is JSON, but for the last."""
    payload = {"contentMediaType": "application/json", "contentSchema": _refer(shape)}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {
            "event": {"type": "string"},
            "data": {"type": "string", "anyOf": [{"const": "[DONE]"}, payload]},
        },
    }


def _json(shape: type[Struct] | str) -> Json:
    return {"application/json": {"schema": _refer(shape)}}


def _refer(shape: type[Struct] | str) -> Json:
    return {"$ref": REF.format(name=shape if isinstance(shape, str) else shape.__name__)}


def _parameters(shape: type[Struct] | None, place: str) -> Iterable[Json]:
    """Describe the fields of a shape as parameters that may all be left out."""
    if shape is None:
        return
    (_, schemas) = msgspec.json.schema_components((shape,), ref_template=REF)
    for name, schema in schemas[shape.__name__]["properties"].items():
        parameter: Json = {"name": name, "in": place, "required": False, "schema": schema}
        if "description" in schema:
            parameter["description"] = schema.pop("description")
        yield parameter


def _make_schemas(routes: Sequence[Route]) -> Json:
    sent = [*REFERRED, *(route.body for route in routes if route.body is not None)]
    given = [shape for route in routes for shape in (route.answer, route.streams) if isinstance(shape, type)]
    (_, requests) = msgspec.json.schema_components(sent, ref_template=REF)
    (_, replies) = msgspec.json.schema_components([*given, ErrorAnswer], ref_template=REF)
    for schema in requests.values():
        _allow_null(schema)
    schemas = replies | requests
    return {name: schemas[name] for name in sorted(schemas)} | {"Item": ITEM}


def _allow_null(schema: Json) -> None:
    """Let each field of a request that may be left out be null, which is the same."""
    null = {"type": "null"}
    for name, described in schema["properties"].items():
        if name not in schema.get("required", ()) and null not in described.get("anyOf", ()):
            schema["properties"][name] = {"anyOf": [described, null]}

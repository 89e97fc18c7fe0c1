"""The description of the API at /openapi.json: the shapes of bodies, queries and answers, and the document made of them
and of the route table.

Bodies are also checked by their shapes. No object of a shape is ever made: requests and answers are plain JSON.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, UnsetType

from outlive import __version__
from outlive.core.endings import EndReason
from outlive.core.errors import InvalidRequest
from outlive.core.events import Json
from outlive.core.requests.checks import REF, REFERRED, IdOfConversation, kinds_of, refer, shape, shorten
from outlive.core.requests.create import Metadata, ModelName, Truncation
from outlive.core.requests.items import KEPT_ITEMS, KeptItem, OtherItem
from outlive.core.requests.tools import Tool
from outlive.core.webhooks import EVENT_TYPES, EventType
from outlive.engine.keys import MAX_DAYS
from outlive.engine.usage import GROUPS
from outlive.http.request import MAX_PAGE, Reply, Request
from outlive.ports.storage import Role

MAX_ITEMS = 20
MAX_USAGE_ROWS = 10_000
MAX_WAIT_SECONDS = 60.0
MAX_TICKET_SECONDS = 7 * 86_400
# More than any response has events, and still a number that every database can count to.
MAX_NUMBER = 1 << 53
STATUSES = ("queued", "in_progress", "completed", "failed", "cancelled", "incomplete")


def _if_type(kinds: list[str]) -> Json:
    return {"if": {"properties": {"type": {"enum": kinds}}}}


# An item that the server gives out. One of a known kind has that kind's shape, and every one has an id and a type.
ITEM: Json = {
    "title": "Item",
    "description": "One message, tool call, tool output or piece of reasoning.",
    "type": "object",
    "required": ["id", "type"],
    "allOf": [
        *(_if_type(kinds_of(each)) | {"then": refer(each)} for each in KEPT_ITEMS),
        _if_type([kind for each in KEPT_ITEMS for kind in kinds_of(each)]) | {"else": refer(OtherItem)},
    ],
}


def noted(kind: Any, about: str, **limits: Any) -> Any:
    """Describe a field in words, and by its limits."""
    return Annotated[kind, Meta(description=about, **limits)]


def given(kind: Any, about: str = "", **limits: Any) -> Any:
    """Describe a field that may be left out."""
    return (noted(kind, about, **limits) if about else kind) | UnsetType


def many(kind: Any) -> Any:
    return list[kind]


def list_of(name: str, element: Any, about: str = "") -> Any:
    """Make the shape of a page of a list."""
    ends = {"first_id": str | None, "last_id": str | None, "has_more": bool}
    return shape(name, about, object=Literal["list"], data=many(element), **ends)


Item = Annotated[Any, Meta(extra_json_schema={"$ref": REF.format(name="Item")})]
Items = Annotated[list[KeptItem], Meta(max_length=MAX_ITEMS)]
Seconds = noted(int, "Unix time, in seconds.")
Time = noted(int | None, "Unix time, in seconds.")
Ignored = given(Any, "Accepted for OpenAI's clients; changes nothing.")

# A table, like that of the routes: one shape after the other, set by hand.
# fmt: off

# -- errors, and what every part of the API shares

Error = shape("Error", "An error: the message for people, the code for programs, and the field it is about.",
    message=str, type=str, param=str | None, code=str | None)
ErrorAnswer = shape("ErrorAnswer", "The envelope of every error.", error=Error)
Anything = shape("Anything", "An answer of any shape.")
Health = shape("Health", "The state of the process: alive, ready for requests, or not.",
    status=Literal["ok", "ready", "not ready"], reason=given(str))
NewestQuery = shape("NewestQuery", "A part of a list, newest first.",
    after=given(str, "The id after which to begin."), limit=(Annotated[int, Meta(ge=1, le=MAX_PAGE)], 20))
PageQuery = shape("PageQuery", "A part of a list.", NewestQuery, order=(Literal["asc", "desc"], "desc"))
ItemsQuery = shape("ItemsQuery", "A part of a list of items.", PageQuery, include=Ignored)
ItemQuery = shape("ItemQuery", "One item.", include=Ignored)
ConversationsQuery = shape(
    "ConversationsQuery", "Conversations of the caller or, for admins, of another owner.", PageQuery,
    owner=given(str, "For admins: an owner's name, or `*` for all."),
    end_user=given(str, "For keys that act for end users, and for admins."),
    created_after=given(Seconds), created_before=given(Seconds),
    metadata=given(dict[str, str], "`metadata[KEY]=VALUE`; all must match."))

# -- responses

Event = shape("Event", "One event of a response, and its number. The other fields depend on the type.",
    type=str, sequence_number=Annotated[int, Meta(ge=0)])
ResponseError = shape("ResponseError", "The reason why a response failed.", code=str, message=str)
IncompleteDetails = shape(
    "IncompleteDetails", "The reason why a response is not whole.", reason=str, message=given(str))
InputTokensDetails = shape("InputTokensDetails", "", cached_tokens=int)
OutputTokensDetails = shape("OutputTokensDetails", "", reasoning_tokens=int)
Usage = shape("Usage", "The tokens that a response took.", input_tokens=int, input_tokens_details=InputTokensDetails,
    output_tokens=int, output_tokens_details=OutputTokensDetails, total_tokens=int)
ConversationId = shape("ConversationId", "", id=str)
QueuePlace = shape("QueuePlace", "A queued response's place, 1 being the next, and the seconds since it was created.",
    place=int, seconds=int)
OutliveDetails = shape("OutliveDetails",
    "Fields of this server alone: the place of a queued response; the tools that its model was not given; of one that"
    "\n    was resumed, how often and where; what cut it off; in a list with `details`, also where it ran, and until "
    "when.",
    queue=given(QueuePlace),
    trace_id=given(str, "Of its trace, where the server exports traces."),
    left_out_tools=given(list[str], "The types of the tools that no server here runs."),
    attempts=given(int),
    resumed_at=given(list[int], "The numbers of the events before which it was resumed."),
    reason=given(EndReason), node=given(str | None), events=given(int | None), ended_at=given(float | None),
    joints=given(Annotated[list[int], Meta(extra_json_schema={"deprecated": True})]))  # its older name
ResponseSummary = shape("ResponseSummary", "A response without the fields that may be long.",
    id=str, object=Literal["response"], created_at=Seconds, status=Literal[STATUSES], background=bool,
    completed_at=int | None, error=ResponseError | None, frequency_penalty=float,
    incomplete_details=IncompleteDetails | None, max_output_tokens=int | None, max_tool_calls=int | None, model=str,
    parallel_tool_calls=bool, presence_penalty=float, previous_response_id=str | None, prompt_cache_key=str | None,
    prompt_cache_retention=str | None, reasoning=dict[str, Any], safety_identifier=str | None, service_tier=str,
    store=bool, temperature=float, text=dict[str, Any], tool_choice=str | dict[str, Any], top_logprobs=int, top_p=float,
    truncation=Truncation, usage=Usage | None, user=str | None, metadata=Metadata, conversation=given(ConversationId),
    outlive=given(OutliveDetails))
Response = shape("Response", "One run of a model with all of its output.", ResponseSummary,
    instructions=str | None, output=many(Item), tools=many(Tool))
ResponseList = list_of("ResponseList", ResponseSummary)
DeletedResponse = shape("DeletedResponse", "", id=str, object=Literal["response"], deleted=Literal[True])
ResponsesQuery = shape("ResponsesQuery", "Responses of some statuses, or of one conversation.", ConversationsQuery,
    details=(noted(bool, "Add to `outlive` each response's node, attempts, events and end."), False),
    status=given(many(Annotated[str, Meta(extra_json_schema={"enum": list(STATUSES)})])),
    conversation=given(IdOfConversation), model=given(str, "As the request named it."))
RetrieveQuery = shape("RetrieveQuery", "A response as an object or as a stream.",
    stream=(noted(bool, "Its events, from the first, and then as they come."), False),
    starting_after=given(int, "With `stream`.", ge=0, le=MAX_NUMBER),
    sse_ids=(noted(bool, "With `stream`: `id:` lines, `Last-Event-ID`, and 204 after the end."), False),
    wait=given(float, "Seconds to wait for its end.", ge=0, le=MAX_WAIT_SECONDS),
    include=Ignored, include_obfuscation=Ignored)
InputTokens = shape(
    "InputTokens", "The length of a context.", object=Literal["response.input_tokens"], input_tokens=int)
CompactedResponse = shape("CompactedResponse", "A context made shorter: the input to begin a new chain with.",
    id=str, object=Literal["response.compaction"], created_at=Seconds, output=many(Item), usage=Usage)
TimelineEntry = shape("TimelineEntry", "One milestone of a response; a tool call also has an end.",
    type=Literal["queued", "start", "takeover", "first_token", "tool_call", "continuation", "cancel", "end"],
    at=noted(float, "Unix time, in seconds."),
    sequence_number=noted(int | None, "The event; none for what a node does."),
    node=given(str, "The node that took the response."), item_id=given(str | None), item_type=given(str),
    name=given(str | None), ended_at=given(float | None), status=given(str | None))
Timeline = shape("Timeline", "The course of a response: its milestones, in order, and the times of its commits.",
    object=Literal["response.timeline"], response_id=str, status=str, attempts=int, created_at=float,
    first_token_at=float | None, ended_at=float | None, events=noted(int, "How many it has so far."),
    entries=many(TimelineEntry),
    flushes=noted(
        list[tuple[int, float]], "First event and time of each commit; of very many, some are left out."))

# -- conversations

Conversation = shape("Conversation", "A named sequence of items.",
    id=str, object=Literal["conversation"], created_at=Seconds, metadata=Metadata)
ConversationList = list_of("ConversationList", Conversation)
ItemList = list_of("ItemList", Item)
DeletedConversation = shape(
    "DeletedConversation", "", id=str, object=Literal["conversation.deleted"], deleted=Literal[True])
CreateConversationBody = shape(
    "CreateConversationBody", "A conversation to be made.", items=given(Items), metadata=given(Metadata))
UpdateConversationBody = shape(
    "UpdateConversationBody", "The metadata that replaces a conversation's.", metadata=Metadata | None)
CreateItemsBody = shape("CreateItemsBody", "Items to be added to a conversation.", items=Items)

# -- chat completions and models

ChatBody = shape("ChatBody", "A Chat Completions request, which is passed on as it is.",
    model=ModelName, messages=list[dict[str, Any]], stream=given(bool))
Model = shape("Model", "A model that may be asked for.", id=str, object=Literal["model"])
ModelList = shape("ModelList", "", object=Literal["list"], data=many(Model),
    models=given(list[Any], "Only with `client_version`, for Codex: always empty."))

# -- keys, tickets and usage

CreateKeyBody = shape(
    "CreateKeyBody", "", owner=noted(str, "1 to 64 letters, digits, `_`, `.`, `@` and `-`."), role=(Role, "user"),
    expires_in_days=given(Annotated[float, Meta(gt=0, le=MAX_DAYS)] | None),
    acts_for=(noted(bool, "Its requests may name an end user."), False))
ApiKey = shape("ApiKey", "A key, without the key itself.",
    id=str, object=Literal["key"], owner=str, role=Role, acts_for=bool, created_at=Seconds, expires_at=Time,
    last_used_at=noted(int | None, "Unix time, in seconds; within a minute."), revoked_at=Time)
CreatedKey = shape("CreatedKey", "A new key. The key itself is shown only here.", ApiKey,
    key=noted(str, "For the header `Authorization: Bearer`."))
RevokedKey = shape("RevokedKey", "", id=str, object=Literal["key.deleted"], deleted=bool)
KeyList = shape("KeyList", "", object=Literal["list"], data=many(ApiKey))
AuditRecord = shape("AuditRecord", "A change of a key or an owner.",
    at=Seconds, actor=noted(str, "The owner whose key was used, or the command line."), action=str,
    subject=noted(str, "The id of a key, or the name of an owner."), detail=str)
AuditLog = shape("AuditLog", "", object=Literal["list"], data=many(AuditRecord))
AuditQuery = shape("AuditQuery", "The newest entries.", limit=(Annotated[int, Meta(ge=1, le=MAX_PAGE)], 20))
CreateTicketBody = shape("CreateTicketBody", "",
    expires_in=given(int, "Seconds; by default as the settings say.", ge=1, le=MAX_TICKET_SECONDS))
CreatedTicket = shape(
    "CreatedTicket", "Read-only access to one response or conversation. The ticket itself is shown only here.",
    id=str, object=Literal["ticket"], target=noted(str, "The id of what it opens."), created_at=Seconds,
    expires_at=Seconds, ticket=noted(str, "For the query of an address: `?ticket=`."))
RevokedTicket = shape("RevokedTicket", "", id=str, object=Literal["ticket.deleted"], deleted=bool)
UsageQuery = shape("UsageQuery", "A time, and the columns to sum up by.",
    group_by=given(list[str], f"Some of {', '.join(GROUPS)}: repeated, or with commas between."),
    start=given(str, "The first day, or a Unix time."),
    end=given(str, "The day, or the Unix time, before which to end."),
    limit=(Annotated[int, Meta(ge=1, le=MAX_USAGE_ROWS)], 1000), after=given(str, "The id after which to begin."))
UsageRow = shape("UsageRow",
    "What some responses used. `owner`, `end_user`, `model` and `day` are there if they were asked for.",
    id=str, object=Literal["usage"], owner=given(str), end_user=given(str | None), model=given(str), day=given(str),
    responses=int, input_tokens=int, cached_tokens=noted(int, "Of the input."), output_tokens=int,
    reasoning_tokens=noted(int, "Of the output."),
    estimated_input_tokens=noted(int, "Of the input: those that no upstream reported."),
    estimated_output_tokens=noted(int, "Of the output: those that no upstream reported."),
    attempts=int, tool_calls=int, cost=float, currency=str,
    unpriced_models=noted(list[str], "The models that `cost` leaves out: their prices are not known."))
UsageList = list_of("UsageList", UsageRow, "Sums of usage, in the order of their columns.")

# -- webhooks

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Address = Annotated[str, Meta(min_length=1, max_length=2048)]
EventTypes = Annotated[list[EventType], Meta(max_length=len(EVENT_TYPES))]
CreateEndpointBody = shape(
    "CreateEndpointBody", "An address that gets events.", name=Name, url=Address, event_types=EventTypes)
UpdateEndpointBody = shape(
    "UpdateEndpointBody", "The fields to change.", name=given(Name), url=given(Address), event_types=given(EventTypes))
RotateSecretBody = shape("RotateSecretBody", "The end of the secret before: at once, or a day later.",
    keep_old_secret_active_for_24_hours=given(bool))
TestEndpointBody = shape("TestEndpointBody", "The event to send an example of.", event_type=EventType)
EndpointView = shape("EndpointView", "An address that gets events.",
    id=str, object=Literal["webhook_endpoint"], name=str, url=str, event_types=list[str], created_at=Seconds,
    updated_at=Seconds, signing_secret_hint=str,
    status=noted(Literal["enabled", "disabled"], "`disabled` after it answered 410, until it is updated."))
EndpointWithSecret = shape(
    "EndpointWithSecret", "An endpoint with its secret, which is shown only here.", EndpointView, signing_secret=str)
EndpointList = list_of("EndpointList", EndpointView)
DeletedEndpoint = shape(
    "DeletedEndpoint", "", id=str, object=Literal["webhook_endpoint.deleted"], deleted=Literal[True])
EndpointTest = shape("EndpointTest", "The answer to an example.",
    object=Literal["webhook_endpoint.test"], webhook_endpoint_id=str, event_type=str, status_code=int, success=bool)
EventTypeList = shape("EventTypeList", "", object=Literal["list"], data=list[str])
AttemptView = shape("AttemptView", "An attempt; without a `status_code` there was no answer.",
    at=float, status_code=int | None, reason=str, seconds=float)
DeliveryView = shape("DeliveryView", "One event for one endpoint. Its id is the header `webhook-id` of every attempt.",
    id=str, object=Literal["webhook_delivery"], webhook_endpoint_id=str, event_type=str, response_id=str,
    created_at=Seconds, status=Literal["pending", "delivered", "failed"], next_attempt_at=float | None,
    attempts=many(AttemptView))
DeliveryList = list_of("DeliveryList", DeliveryView)
DeliveriesQuery = shape(
    "DeliveriesQuery", "A part of a list, of one endpoint or of all.", NewestQuery, webhook_endpoint_id=given(str))
# fmt: on

# -- the document

# Query parameters that clients add to any request, and that change nothing here: Azure's, Codex's (but for the list of
# models) and the beta SDK's.
IGNORED_QUERY = frozenset({"api-version", "client_version", "beta", "ticket"})  # the last was read by `Auth`
IDEMPOTENCY_KEY: Json = {"name": "Idempotency-Key", "in": "header", "required": False, "schema": {"type": "string"}}
IDEMPOTENCY_KEY["description"] = "The same key and body get the same answer, and are done once."
ABOUT = (
    "Responses and Conversations whose answers outlive the connection and the process. "
    "Works with OpenAI's clients as they are."
)
SECURITY = {
    "key": {"type": "http", "scheme": "bearer"},
    "ticket": {"type": "apiKey", "in": "query", "name": "ticket"},
}

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
    admin: bool = False  # needs the role admin
    ticket: bool = False  # can be opened with a ticket
    leads_to: tuple[str, ...] = ()  # operations that take the id of what this one answers with

    def check_query(self, query: list[tuple[str, str]]) -> None:
        """Refuse a parameter that a GET does not know: it may be a filter, whose caller would take all for some (D13).
        A name that begins with `_` only keeps caches from answering, and a probe may carry anything."""
        if self.method != "GET" or self.open:
            return
        known = () if self.query is None else self.query.__struct_fields__
        for name, _ in query:
            declared = "metadata" if name.startswith("metadata[") and name.endswith("]") else name
            if declared not in known and name not in IGNORED_QUERY and not name.startswith("_"):
                param = shorten(name)
                message = f"Unknown query parameter: '{param}'. This route knows {', '.join(known) or 'none'}."
                raise InvalidRequest(message, param=param, code="unknown_parameter")


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
        "components": {"schemas": _make_schemas(routes), "securitySchemes": SECURITY},
    }


def _describe(route: Route) -> Json:
    noun = route.path.split("/")[2] if route.path.startswith("/v1/") else "server"
    required = {"in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    in_path = [{"name": name, **required} for name in re.findall(r"{(\w+)", route.path)]
    described: Json = {
        "operationId": route.id,
        "tags": [noun.capitalize()],
        "summary": route.summary,
        "parameters": [*in_path, *_describe_query(route.query)],
        "responses": _describe_answers(route),
    }
    if route.repeatable:
        described["parameters"].append(IDEMPOTENCY_KEY)
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
        # One event of a stream: its data is JSON, but for the last.
        payload = {"contentMediaType": "application/json", "contentSchema": refer(route.streams)}
        fields = {"event": {"type": "string"}, "data": {"type": "string", "anyOf": [{"const": "[DONE]"}, payload]}}
        content["text/event-stream"] = {"schema": {"type": "object", "required": ["data"], "properties": fields}}
    found: Json = {"200": {"description": "Done.", "content": content}}
    if route.query is RetrieveQuery:
        found["204"] = {"description": "With `sse_ids`: no event follows the one that was named."}
    if route.leads_to:
        found["200"]["links"] = {
            name: {"operationId": name, "parameters": {"id": "$response.body#/id"}} for name in route.leads_to
        }
    statuses = {*route.refuses, *(() if route.open else (401, 403))}
    statuses |= {400, 413, 415} if route.body is not None else set()
    statuses |= {400} if route.method == "GET" and not route.open else set()
    statuses |= {404} if "{" in route.path else set()
    for status in sorted(statuses | ({409} if route.repeatable else set())):
        found[str(status)] = {"description": f"{HTTPStatus(status).phrase}.", "content": _json(ErrorAnswer)}
    if route.answer is Health:
        found["503"] = {"description": "Not ready.", "content": content}
    else:
        found["default"] = {"description": "Another error.", "content": _json(ErrorAnswer)}
    return found


def _json(shape: type[Struct] | str) -> Json:
    name = shape if isinstance(shape, str) else shape.__name__
    return {"application/json": {"schema": {"$ref": REF.format(name=name)}}}


def _describe_query(shape: type[Struct] | None) -> Iterable[Json]:
    """Describe the fields of a query, which may all be left out."""
    if shape is None:
        return
    (_, schemas) = msgspec.json.schema_components((shape,), ref_template=REF)
    for name, schema in schemas[shape.__name__]["properties"].items():
        parameter: Json = {"name": name, "in": "query", "required": False, "schema": schema}
        if "description" in schema:
            parameter["description"] = schema.pop("description")
        if schema.get("type") == "object":
            parameter |= {"style": "deepObject", "explode": True}
        yield parameter


def _make_schemas(routes: Sequence[Route]) -> Json:
    sent = [*REFERRED, *(route.body for route in routes if route.body is not None)]
    given = [shape for route in routes for shape in (route.answer, route.streams) if isinstance(shape, type)]
    (_, requests) = msgspec.json.schema_components(sent, ref_template=REF)
    (_, replies) = msgspec.json.schema_components([*given, ErrorAnswer], ref_template=REF)
    null = {"type": "null"}
    for schema in requests.values():
        for name, described in schema["properties"].items():
            # A field of a request that may be left out may be null, which is the same.
            if name not in schema.get("required", ()) and null not in described.get("anyOf", ()):
                schema["properties"][name] = {"anyOf": [described, null]}
    schemas = replies | requests
    return {name: schemas[name] for name in sorted(schemas)} | {"Item": ITEM}

"""The route table: each route's handler, its description in /openapi.json, and the search for it; and the handlers of
what is no part of the API: probes, metrics, the document, and the files that browsers load."""

import asyncio
import re
from functools import cache
from hashlib import sha256
from operator import attrgetter
from pathlib import Path

import msgspec

from outlive.core.errors import NotFound
from outlive.core.requests.create import CompactBody, CountBody, CreateBody
from outlive.http import accounts, chat, conversations, openapi, responses
from outlive.http.errors import envelope
from outlive.http.metrics import CONTENT_TYPE, METRICS_PATH
from outlive.http.openapi import Handler, Route, make_document
from outlive.http.request import Reply, Request, json_reply, list_reply, read_paging

FOLDER = Path(__file__).parents[1] / "console"
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The console may load what this server serves, and nothing else; what a model writes can never run as a script.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
PAGE_HEADERS = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}


def call(verb: str, *, paged: bool = False, reserves: bool = False, deleted: str = "") -> Handler:
    """Return a handler that calls a verb of the engine, or of a part of it (`part.verb`), with the owner, the ids of
    the path and, if it is `paged`, the asked part of a list. It answers with what the verb returns, which may be much
    if it `reserves`, or else with the id of what was deleted, as an object of that name."""
    find = attrgetter(verb)

    async def handle(request: Request) -> Reply:
        ids, paging = list(request.params.values()), [read_paging(request)] if paged else []
        if reserves:
            await request.reserve_answer()
        found = await find(request.engine)(request.owner, *ids, *paging)
        if deleted:
            found = {"id": ids[-1], "object": deleted, "deleted": True}
        return list_reply(found) if paged else json_reply(found)

    return handle


async def healthz(request: Request) -> Reply:
    """Answer that the process is alive."""
    return json_reply({"status": "ok"})


async def readyz(request: Request) -> Reply:
    """Answer 200 if this server should be sent requests, else 503 with the reason."""
    reason = await request.engine.find_problem()
    if reason is None:
        return json_reply({"status": "ready"})
    return json_reply({"status": "not ready", "reason": reason}, {"retry-after": "1"}, 503)


async def metrics(request: Request) -> Reply:
    """Answer with the metrics of this process."""
    if request.scrape is None:
        raise NotFound("This server has no metrics.", code="unknown_url")
    return Reply(await request.scrape(), content_type=CONTENT_TYPE)


async def describe(request: Request) -> Reply:
    return Reply(await asyncio.to_thread(render, request.scope["root_path"]))


@cache
def render(root_path: str = "") -> bytes:
    return msgspec.json.format(msgspec.json.encode(make_document(ROUTES, root_path)))


async def serve_file(request: Request) -> Reply:
    """Answer with a file for browsers, or with 304 to one that has it. Files need no key: what they ask for does."""
    path = request.scope["path"]
    name = request.params.get("file") or path[1:] or "index.html"
    body, etag = _read_file(name)
    headers = PAGE_HEADERS if path == "/" else {}
    headers = {**headers, "cache-control": "no-cache", "etag": etag, "x-content-type-options": "nosniff"}
    if request.header(b"if-none-match") == etag:
        return Reply(b"", 304, headers)
    return Reply(body, 200, headers, TYPES[Path(name).suffix])


@cache
def _read_file(name: str) -> tuple[bytes, str]:
    if name not in {path.name for path in FOLDER.iterdir()}:
        raise NotFound(f"The console has no file {name!r}.", code="unknown_url")
    body = (FOLDER / name).read_bytes()
    return body, f'"{sha256(body).hexdigest()[:16]}"'


# fmt: off
_revoke_ticket = call("tickets.revoke", deleted="ticket.deleted")
ROUTES = [
    Route("POST", "/v1/responses", responses.create, "createResponse", openapi.Response,
          "Create a response: answered with its end, with its events (`stream`), or at once (`background`). "
          "The same path takes WebSockets.",
          body=CreateBody, streams=openapi.Event, repeatable=True, refuses=(404, 429),
          leads_to=("getResponse", "listInputItems", "cancelResponse", "deleteResponse")),
    Route("POST", "/v1/responses/input_tokens", responses.count_tokens, "countInputTokens", openapi.InputTokens,
          "Count the tokens of a context. A header says whether they were counted or estimated.",
          body=CountBody, refuses=(404,)),
    Route("POST", "/v1/responses/compact", responses.compact, "compactResponse", openapi.CompactedResponse,
          "Make a context shorter, to begin a new chain with.", body=CompactBody, refuses=(404, 429)),
    Route("GET", "/v1/responses/{id}", responses.retrieve, "getResponse", openapi.Response,
          "A response as it stands, or its events: all of them, or those after a number.",
          query=openapi.RetrieveQuery, streams=openapi.Event, ticket=True),
    Route("GET", "/v1/responses", responses.list_all, "listResponses", openapi.ResponseList,
          "List your responses, without what may be long in them.",
          query=openapi.ResponsesQuery, refuses=(404,), ticket=True),
    Route("DELETE", "/v1/responses/{id}", call("delete", deleted="response"), "deleteResponse",
          openapi.DeletedResponse, "Delete a response; one that runs is cancelled first."),
    Route("POST", "/v1/responses/{id}/cancel", responses.cancel, "cancelResponse", openapi.Response,
          "Cancel a running response, and answer with it as it ended."),
    Route("GET", "/v1/responses/{id}/input_items", call("list_input_items", paged=True, reserves=True),
          "listInputItems", openapi.ItemList, "List a response's own input.", query=openapi.ItemsQuery),
    Route("GET", "/v1/responses/{id}/timeline", call("show_timeline"), "getTimeline", openapi.Timeline,
          "The course of a response: when it was queued, began, called tools, changed nodes, was continued and ended."),
    Route("POST", "/v1/responses/{id}/tickets", accounts.create_ticket, "createTicket", openapi.CreatedTicket,
          "Create a ticket with which a page reads this response, and nothing else.", body=openapi.CreateTicketBody),
    Route("DELETE", "/v1/responses/{id}/tickets/{ticket_id}", _revoke_ticket, "revokeTicket", openapi.RevokedTicket,
          "Revoke a ticket, and cut the streams that were opened with it."),
    Route("POST", "/v1/conversations", conversations.create, "createConversation", openapi.Conversation,
          "Create a conversation.", body=openapi.CreateConversationBody, repeatable=True,
          leads_to=("getConversation", "updateConversation", "createItems", "listItems", "deleteConversation")),
    Route("GET", "/v1/conversations", conversations.list_all, "listConversations", openapi.ConversationList,
          "List your conversations.", query=openapi.ConversationsQuery, refuses=(404,)),
    Route("GET", "/v1/conversations/{id}", call("get_conversation"), "getConversation", openapi.Conversation,
          "One conversation.", ticket=True),
    Route("POST", "/v1/conversations/{id}", conversations.update, "updateConversation", openapi.Conversation,
          "Replace its metadata.", body=openapi.UpdateConversationBody),
    Route("DELETE", "/v1/conversations/{id}", call("delete_conversation", deleted="conversation.deleted"),
          "deleteConversation", openapi.DeletedConversation, "Delete it and its items."),
    Route("POST", "/v1/conversations/{id}/items", conversations.create_items, "createItems", openapi.ItemList,
          "Add items, and answer with those.", body=openapi.CreateItemsBody, repeatable=True),
    Route("GET", "/v1/conversations/{id}/items", call("list_items", paged=True, reserves=True),
          "listItems", openapi.ItemList, "List its items.", query=openapi.ItemsQuery, ticket=True),
    Route("GET", "/v1/conversations/{id}/items/{item_id}", call("get_item", reserves=True),
          "getItem", "Item", "One item.", query=openapi.ItemQuery, ticket=True),
    Route("DELETE", "/v1/conversations/{id}/items/{item_id}", call("delete_item"), "deleteItem",
          openapi.Conversation, "Delete an item, and answer with the conversation.", refuses=(400,)),
    Route("POST", "/v1/conversations/{id}/tickets", accounts.create_ticket, "createConversationTicket",
          openapi.CreatedTicket, "Create a ticket with which a page reads this conversation, and the responses in it.",
          body=openapi.CreateTicketBody),
    Route("DELETE", "/v1/conversations/{id}/tickets/{ticket_id}", _revoke_ticket, "revokeConversationTicket",
          openapi.RevokedTicket, "Revoke a ticket, and cut the streams that were opened with it."),
    Route("POST", "/v1/keys", accounts.create_key, "createKey", openapi.CreatedKey,
          "Make a key, for admins.", body=openapi.CreateKeyBody, admin=True),
    Route("GET", "/v1/keys", accounts.list_keys, "listKeys", openapi.KeyList,
          "List all keys of the database, without the keys themselves, for admins.", admin=True),
    Route("DELETE", "/v1/keys/{id}", accounts.revoke_key, "revokeKey", openapi.RevokedKey,
          "Revoke a key, and cut the streams that it has open, for admins.", admin=True),
    Route("GET", "/v1/audit", accounts.list_audit, "listAudit", openapi.AuditLog,
          "List changes of keys and owners, newest first, for admins.", query=openapi.AuditQuery, admin=True),
    Route("GET", "/v1/usage", accounts.show_usage, "getUsage", openapi.UsageList,
          "What your responses used, summed up, and its cost; of all owners with an admin's key.",
          query=openapi.UsageQuery, refuses=(400,)),
    Route("POST", "/v1/webhook_endpoints", accounts.create_endpoint, "createWebhookEndpoint",
          openapi.EndpointWithSecret, "Add an address that gets events. Its secret is shown only here.",
          body=openapi.CreateEndpointBody),
    Route("GET", "/v1/webhook_endpoints", call("webhooks.list_endpoints", paged=True), "listWebhookEndpoints",
          openapi.EndpointList, "List your webhook endpoints, newest first.", query=openapi.NewestQuery),
    Route("GET", "/v1/webhook_endpoints/{id}", call("webhooks.get"), "getWebhookEndpoint",
          openapi.EndpointView, "One webhook endpoint."),
    Route("POST", "/v1/webhook_endpoints/{id}", accounts.update_endpoint, "updateWebhookEndpoint", openapi.EndpointView,
          "Change it; one that was disabled gets events again.", body=openapi.UpdateEndpointBody),
    Route("DELETE", "/v1/webhook_endpoints/{id}", call("webhooks.delete", deleted="webhook_endpoint.deleted"),
          "deleteWebhookEndpoint", openapi.DeletedEndpoint, "Delete it and its deliveries."),
    Route("POST", "/v1/webhook_endpoints/{id}/rotate_secret", accounts.rotate_secret, "rotateWebhookSecret",
          openapi.EndpointWithSecret, "Give it a new secret, shown only here.", body=openapi.RotateSecretBody),
    Route("POST", "/v1/webhook_endpoints/{id}/test", accounts.test_endpoint, "testWebhookEndpoint",
          openapi.EndpointTest, "Send it an example of an event, and answer with the status of its answer.",
          body=openapi.TestEndpointBody, refuses=(429,)),
    Route("GET", "/v1/webhook_event_types", accounts.list_event_types, "listWebhookEventTypes", openapi.EventTypeList,
          "List the types of events."),
    Route("GET", "/v1/webhook_deliveries", accounts.list_deliveries, "listWebhookDeliveries", openapi.DeliveryList,
          "List what was sent, and what is to be sent, newest first.", query=openapi.DeliveriesQuery),
    Route("POST", "/v1/webhook_deliveries/{id}/redeliver", call("webhooks.redeliver"), "redeliverWebhook",
          openapi.DeliveryView, "Send it once more, whatever became of it."),
    Route("GET", "/v1/models", chat.list_models, "listModels", openapi.ModelList, "List the upstreams' models."),
    Route("GET", "/v1/models/{model:path}", call("find_model"), "getModel", openapi.Model,
          "One of them; its name may hold slashes."),
    Route("POST", "/v1/chat/completions", chat.create, "createChatCompletion", openapi.Anything,
          "Passed through to the upstream, and nothing of it is kept.",
          body=openapi.ChatBody, streams=openapi.Anything, refuses=(429,)),
    Route("GET", "/healthz", healthz, "isAlive", openapi.Health, "200 while the process lives.", open=True),
    Route("GET", "/readyz", readyz, "isReady", openapi.Health,
          "200 when it should be sent requests, else 503.", open=True),
    Route("GET", METRICS_PATH, metrics, "getMetrics", "text/plain",
          "The metrics of this process in the Prometheus text format, for this machine or with an admin's key."),
    Route("GET", "/outlive.js", serve_file, "getClient", "text/javascript",
          "The client for browsers and JavaScript runtimes, as an ES module.", open=True),
    Route("GET", "/", serve_file, "getConsole", "text/html",
          "The console: a page to chat, to look at responses, and to watch the server.", open=True),
    Route("GET", "/console/{file}", serve_file, "getConsoleFile", "text/javascript",
          "A file of the console.", open=True),
    Route("GET", "/openapi.json", describe, "describe", openapi.Anything, "This document.", open=True),
]
# fmt: on

# Most requests are for a path without a parameter, and need no search.
_EXACT = {(route.method, route.path): route for route in ROUTES if "{" not in route.path}
# Probes come without a key, and from any name that a load balancer uses; the API's description is no secret.
OPEN_PATHS = frozenset(route.path for route in ROUTES if route.open)


def _compile(path: str) -> re.Pattern[str]:
    parameter = re.compile(r"\\{(\w+)(:path)?\\}")  # the braces are escaped
    return re.compile(parameter.sub(lambda found: f"(?P<{found[1]}>{'.*' if found[2] else '[^/]+'})", re.escape(path)))


PATHS = frozenset(path for _, path in _EXACT)
_PATTERNS: dict[str, list[tuple[re.Pattern[str], Route]]] = {}  # by the beginnings of their paths
for _route in ROUTES:
    _PATTERNS.setdefault(_route.path[: _route.path.find("/", 4) + 1], []).append((_compile(_route.path), _route))


def find_route(request: Request) -> Route | Reply:
    """Return the route of a request, or the refusal of its method. Raises NotFound if there is none."""
    asked, path = request.scope["method"], request.scope["path"]
    if (route := _EXACT.get((asked, path))) is not None:
        return route
    method = "GET" if asked == "HEAD" else asked
    patterns = _PATTERNS.get(path[: path.find("/", 4) + 1], ())
    found = [(route, match) for pattern, route in patterns if (match := pattern.fullmatch(path)) is not None]
    for route, match in found:
        if route.method == method:
            request.params = match.groupdict()
            return route
    if not found:
        # Most often the base URL lacks its /v1, or has it twice.
        likely = (f"/v1{path}", path.removeprefix("/v1"), path.rstrip("/"))
        near = [each for each in likely if any(p.fullmatch(each) for group in _PATTERNS.values() for p, _ in group)]
        hint = f" Did you mean {near[0]}?" if near else ""
        raise NotFound(f"There is no {asked} {path} here.{hint}", code="unknown_url")
    # A path that is a route by its own words is not the id of something.
    methods = {route.method for route, _ in found if route.path == path} or {route.method for route, _ in found}
    allowed = sorted(methods | ({"HEAD"} if "GET" in methods else set()))
    error = envelope(f"{asked} is not allowed on {path}.", "invalid_request_error", None, "method_not_allowed")
    return json_reply(error, {"allow": ", ".join(allowed)}, 405)

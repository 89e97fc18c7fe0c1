"""The route table: each route's handler, its description in /openapi.json, and the search for it."""

from __future__ import annotations

import asyncio
import re
from functools import cache

import msgspec

from outlive.core.errors import NotFound
from outlive.core.requests.create import CompactBody, CountBody, CreateBody
from outlive.http import chat, conversations, openapi, responses, tickets, timeline
from outlive.http.assets import PAGE_HEADERS, serve_console_file, serve_file
from outlive.http.errors import envelope
from outlive.http.metrics import CONTENT_TYPE
from outlive.http.metrics import PATH as METRICS_PATH
from outlive.http.openapi import Route, make_document
from outlive.http.request import Reply, Request, json_reply


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


# fmt: off
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
          "Make a context shorter, to begin a new chain with.",
          body=CompactBody, refuses=(404, 429)),
    Route("GET", "/v1/responses/{id}", responses.retrieve, "getResponse", openapi.Response,
          "A response as it stands, or its events: all of them, or those after a number.",
          query=openapi.RetrieveQuery, streams=openapi.Event, ticket=True),
    Route("GET", "/v1/responses", responses.list_all, "listResponses", openapi.ResponseList,
          "List your responses, without what may be long in them.",
          query=openapi.ResponsesQuery, refuses=(404,), ticket=True),
    Route("DELETE", "/v1/responses/{id}", responses.delete, "deleteResponse", openapi.DeletedResponse,
          "Delete a response; one that runs is cancelled first."),
    Route("POST", "/v1/responses/{id}/cancel", responses.cancel, "cancelResponse", openapi.Response,
          "Cancel a running response, and answer with it as it ended."),
    Route("GET", "/v1/responses/{id}/input_items", responses.list_input_items, "listInputItems", openapi.ItemList,
          "List a response's own input.", query=openapi.ItemsQuery),
    Route("GET", "/v1/responses/{id}/timeline", timeline.show, "getTimeline", timeline.Timeline,
          "The course of a response: when it was queued, began, called tools, changed nodes, was continued and ended."),
    Route("POST", "/v1/responses/{id}/tickets", tickets.create, "createTicket", tickets.CreatedTicket,
          "Create a ticket with which a page reads this response, and nothing else.", body=tickets.CreateTicketBody),
    Route("DELETE", "/v1/responses/{id}/tickets/{ticket_id}", tickets.revoke, "revokeTicket", tickets.RevokedTicket,
          "Revoke a ticket, and cut the streams that were opened with it."),
    Route("POST", "/v1/conversations", conversations.create, "createConversation", openapi.Conversation,
          "Create a conversation.",
          body=openapi.CreateConversationBody, repeatable=True,
          leads_to=("getConversation", "updateConversation", "createItems", "listItems", "deleteConversation")),
    Route("GET", "/v1/conversations", conversations.list_all, "listConversations", openapi.ConversationList,
          "List your conversations.", query=openapi.PageQuery, refuses=(404,)),
    Route("GET", "/v1/conversations/{id}", conversations.retrieve, "getConversation", openapi.Conversation,
          "One conversation.", ticket=True),
    Route("POST", "/v1/conversations/{id}", conversations.update, "updateConversation", openapi.Conversation,
          "Replace its metadata.", body=openapi.UpdateConversationBody),
    Route("DELETE", "/v1/conversations/{id}", conversations.delete, "deleteConversation", openapi.DeletedConversation,
          "Delete it and its items."),
    Route("POST", "/v1/conversations/{id}/items", conversations.create_items, "createItems", openapi.ItemList,
          "Add items, and answer with those.", body=openapi.CreateItemsBody, repeatable=True),
    Route("GET", "/v1/conversations/{id}/items", conversations.list_items, "listItems", openapi.ItemList,
          "List its items.", query=openapi.ItemsQuery, ticket=True),
    Route("GET", "/v1/conversations/{id}/items/{item_id}", conversations.retrieve_item, "getItem", "Item",
          "One item.", query=openapi.ItemQuery, ticket=True),
    Route("DELETE", "/v1/conversations/{id}/items/{item_id}", conversations.delete_item, "deleteItem",
          openapi.Conversation, "Delete an item, and answer with the conversation.", refuses=(400,)),
    Route("POST", "/v1/conversations/{id}/tickets", tickets.create, "createConversationTicket", tickets.CreatedTicket,
          "Create a ticket with which a page reads this conversation, and the responses in it.",
          body=tickets.CreateTicketBody),
    Route("DELETE", "/v1/conversations/{id}/tickets/{ticket_id}", tickets.revoke, "revokeConversationTicket",
          tickets.RevokedTicket, "Revoke a ticket, and cut the streams that were opened with it."),
    Route("GET", "/v1/models", chat.list_models, "listModels", openapi.ModelList, "List the upstreams' models."),
    Route("GET", "/v1/models/{model:path}", chat.retrieve_model, "getModel", openapi.Model,
          "One of them; its name may hold slashes."),
    Route("POST", "/v1/chat/completions", chat.create, "createChatCompletion", openapi.Anything,
          "Passed through to the upstream, and nothing of it is kept.",
          body=openapi.ChatBody, streams=openapi.Anything, refuses=(429,)),
    Route("GET", "/healthz", healthz, "isAlive", openapi.Health, "200 while the process lives.", open=True),
    Route("GET", "/readyz", readyz, "isReady", openapi.Health,
          "200 when it should be sent requests, else 503.", open=True),
    Route("GET", METRICS_PATH, metrics, "getMetrics", "text/plain",
          "The metrics of this process in the Prometheus text format, for this machine or with an admin's key."),
    Route("GET", "/outlive.js", serve_file("outlive.js"), "getClient", "text/javascript",
          "The client for browsers and JavaScript runtimes, as an ES module.", open=True),
    Route("GET", "/", serve_file("index.html", PAGE_HEADERS), "getConsole", "text/html",
          "The console: a page to chat, to look at responses, and to watch the server.", open=True),
    Route("GET", "/console/{file}", serve_console_file, "getConsoleFile", "text/javascript",
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


PATHS = frozenset(route.path for route in ROUTES if "{" not in route.path)
_PATTERNS = [(_compile(route.path), route) for route in ROUTES]


async def answer(request: Request) -> Reply | None:
    """Let the handler of a request's route answer it. Raises NotFound if there is none."""
    route = _EXACT.get((request.scope["method"], request.scope["path"])) or _find(request)
    if isinstance(route, Reply):
        return route
    if request.ticket is not None:
        await tickets.check(request, request.ticket, route.path if route.ticket else None)
    if route.checks_query:
        route.check_query(name for name, _ in request.query())
    return await route.handler(request)


def _find(request: Request) -> Route | Reply:
    """Return the route of a request, or the refusal of its method."""
    asked, path = request.scope["method"], request.scope["path"]
    method = "GET" if asked == "HEAD" else asked
    found = [(route, match) for pattern, route in _PATTERNS if (match := pattern.fullmatch(path)) is not None]
    for route, match in found:
        if route.method == method:
            request.params = match.groupdict()
            return route
    if not found:
        raise NotFound(f"There is no {asked} {path} here.", code="unknown_url")
    # A path that is a route by its own words is not the id of something.
    methods = {route.method for route, _ in found if route.path == path} or {route.method for route, _ in found}
    allowed = sorted(methods | ({"HEAD"} if "GET" in methods else set()))
    error = envelope(f"{asked} is not allowed on {path}.", "invalid_request_error", None, "method_not_allowed")
    return json_reply(error, {"allow": ", ".join(allowed)}, 405)

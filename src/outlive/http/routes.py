"""The route table: each route's handler, and its description in /openapi.json."""

from __future__ import annotations

import asyncio
from functools import cache

import msgspec

from outlive.core.requests.create import CompactBody, CountBody, CreateBody
from outlive.http import chat, conversations, responses
from outlive.http.openapi import shapes
from outlive.http.openapi.document import Route, make_document
from outlive.http.request import Reply, Request, json_reply


async def healthz(request: Request) -> Reply:
    """Answer that the process is alive."""
    return json_reply({"status": "ok"})


async def readyz(request: Request) -> Reply:
    """Answer 200 if this server should be sent requests, else 503 with the reason."""
    reason = await request.engine.find_problem()
    if reason is None:
        return json_reply({"status": "ready"})
    reply = json_reply({"status": "not ready", "reason": reason}, {"retry-after": "1"})
    reply.status = 503
    return reply


async def describe(request: Request) -> Reply:
    return Reply(await asyncio.to_thread(render))


@cache
def render() -> bytes:
    return msgspec.json.format(msgspec.json.encode(make_document(ROUTES)))


# fmt: off
ROUTES = [
    Route("POST", "/v1/responses", responses.create, "createResponse", shapes.Response,
          "Create a response: answered with its end, with its events (`stream`), or at once (`background`). "
          "The same path takes WebSockets.",
          body=CreateBody, streams=shapes.Event, repeatable=True, refuses=(404, 429),
          leads_to=("getResponse", "listInputItems", "cancelResponse", "deleteResponse")),
    Route("POST", "/v1/responses/input_tokens", responses.count_tokens, "countInputTokens", shapes.InputTokens,
          "Count the tokens of a context. A header says whether they were counted or estimated.",
          body=CountBody, refuses=(404,)),
    Route("POST", "/v1/responses/compact", responses.compact, "compactResponse", shapes.CompactedResponse,
          "Make a context shorter, to begin a new chain with.",
          body=CompactBody, refuses=(404, 429)),
    Route("GET", "/v1/responses/{id}", responses.retrieve, "getResponse", shapes.Response,
          "A response as it stands, or its events: all of them, or those after a number.",
          query=shapes.RetrieveQuery, streams=shapes.Event),
    Route("GET", "/v1/responses", responses.list_all, "listResponses", shapes.ResponseList,
          "List your responses, without what may be long in them.",
          query=shapes.ResponsesQuery, refuses=(404,)),
    Route("DELETE", "/v1/responses/{id}", responses.delete, "deleteResponse", shapes.DeletedResponse,
          "Delete a response; one that runs is cancelled first."),
    Route("POST", "/v1/responses/{id}/cancel", responses.cancel, "cancelResponse", shapes.Response,
          "Cancel a running response, and answer with it as it ended."),
    Route("GET", "/v1/responses/{id}/input_items", responses.list_input_items, "listInputItems", shapes.ItemList,
          "List a response's own input.", query=shapes.PageQuery),
    Route("POST", "/v1/conversations", conversations.create, "createConversation", shapes.Conversation,
          "Create a conversation.",
          body=shapes.CreateConversationBody, repeatable=True,
          leads_to=("getConversation", "updateConversation", "createItems", "listItems", "deleteConversation")),
    Route("GET", "/v1/conversations", conversations.list_all, "listConversations", shapes.ConversationList,
          "List your conversations.", query=shapes.PageQuery, refuses=(404,)),
    Route("GET", "/v1/conversations/{id}", conversations.retrieve, "getConversation", shapes.Conversation,
          "One conversation."),
    Route("POST", "/v1/conversations/{id}", conversations.update, "updateConversation", shapes.Conversation,
          "Replace its metadata.", body=shapes.UpdateConversationBody),
    Route("DELETE", "/v1/conversations/{id}", conversations.delete, "deleteConversation", shapes.DeletedConversation,
          "Delete it and its items."),
    Route("POST", "/v1/conversations/{id}/items", conversations.create_items, "createItems", shapes.ItemList,
          "Add items, and answer with those.", body=shapes.CreateItemsBody, repeatable=True),
    Route("GET", "/v1/conversations/{id}/items", conversations.list_items, "listItems", shapes.ItemList,
          "List its items.", query=shapes.PageQuery),
    Route("GET", "/v1/conversations/{id}/items/{item_id}", conversations.retrieve_item, "getItem", "Item",
          "One item."),
    Route("DELETE", "/v1/conversations/{id}/items/{item_id}", conversations.delete_item, "deleteItem",
          shapes.Conversation, "Delete an item, and answer with the conversation.", refuses=(400,)),
    Route("GET", "/v1/models", chat.list_models, "listModels", shapes.ModelList, "List the upstreams' models."),
    Route("GET", "/v1/models/{model:path}", chat.retrieve_model, "getModel", shapes.Model,
          "One of them; its name may hold slashes."),
    Route("POST", "/v1/chat/completions", chat.create, "createChatCompletion", shapes.Anything,
          "Passed through to the upstream, and nothing of it is kept.",
          body=shapes.ChatBody, streams=shapes.Anything, refuses=(429,)),
    Route("GET", "/healthz", healthz, "isAlive", shapes.Health, "200 while the process lives.", open=True),
    Route("GET", "/readyz", readyz, "isReady", shapes.Health,
          "200 when it should be sent requests, else 503.", open=True),
    Route("GET", "/openapi.json", describe, "describe", shapes.Anything, "This document.", open=True),
]
# fmt: on

# Most requests are for a path without a parameter, and need no search.
EXACT = {(route.method, route.path): route.handler for route in ROUTES if "{" not in route.path}
# Probes come without a key, and from any name that a load balancer uses; the API's description is no secret.
OPEN_PATHS = frozenset(route.path for route in ROUTES if route.open)

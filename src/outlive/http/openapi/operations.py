"""Every route in a few words: what it takes, what it answers, and how it may refuse."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from outlive.http.openapi import answers, bodies

RESPONSES, CONVERSATIONS, MODELS, CHAT, SERVER = "Responses", "Conversations", "Models", "Chat", "Server"


class Operation(Struct, frozen=True, kw_only=True):
    """One route. Every one may also answer 401, 403 and 5xx."""

    id: str
    tag: str
    says: str
    answer: type[Struct] | Literal["Item"]
    streams: type[Struct] | None = None  # what it streams, if it may answer with an event stream instead
    body: type[Struct] | None = None
    query: type[Struct] | None = None
    repeatable: bool = False  # takes an Idempotency-Key
    refuses: tuple[int, ...] = ()
    open: bool = False  # needs no key
    leads_to: tuple[str, ...] = ()  # operations that take the id of what this one answers with


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/responses"): Operation(
        id="createResponse",
        tag=RESPONSES,
        says="Create a response: answered with its end, with its events (`stream`), or at once (`background`). "
        "The same path takes WebSockets.",
        body=bodies.CreateBody,
        answer=answers.Response,
        streams=answers.Event,
        repeatable=True,
        refuses=(400, 404, 409, 413, 415, 429),
        leads_to=("getResponse", "listInputItems", "cancelResponse", "deleteResponse"),
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        id="countInputTokens",
        tag=RESPONSES,
        says="How many tokens a context has. A header tells whether that was counted or guessed.",
        body=bodies.CountBody,
        answer=answers.InputTokens,
        refuses=(400, 404, 413, 415),
    ),
    ("POST", "/v1/responses/compact"): Operation(
        id="compactResponse",
        tag=RESPONSES,
        says="Make a context shorter, to begin a new chain with.",
        body=bodies.CompactBody,
        answer=answers.CompactedResponse,
        refuses=(400, 404, 413, 415, 429),
    ),
    ("GET", "/v1/responses"): Operation(
        id="listResponses",
        tag=RESPONSES,
        says="List your responses, without what may be long in them.",
        query=bodies.ResponsesQuery,
        answer=answers.ResponseList,
        refuses=(400, 404),
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        id="getResponse",
        tag=RESPONSES,
        says="A response as it stands, or its events: all of them, or those after a number.",
        query=bodies.RetrieveQuery,
        answer=answers.Response,
        streams=answers.Event,
        refuses=(400, 404),
    ),
    ("DELETE", "/v1/responses/{id}"): Operation(
        id="deleteResponse",
        tag=RESPONSES,
        says="Delete a response; one that runs is cancelled first.",
        answer=answers.DeletedResponse,
        refuses=(404,),
    ),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        id="cancelResponse",
        tag=RESPONSES,
        says="Cancel a running response, and answer with it as it ended.",
        answer=answers.Response,
        refuses=(404,),
    ),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        id="listInputItems",
        tag=RESPONSES,
        says="List a response's own input.",
        query=bodies.PageQuery,
        answer=answers.ItemList,
        refuses=(400, 404),
    ),
    ("POST", "/v1/conversations"): Operation(
        id="createConversation",
        tag=CONVERSATIONS,
        says="Create a conversation.",
        body=bodies.CreateConversationBody,
        answer=answers.Conversation,
        repeatable=True,
        refuses=(400, 409, 413, 415),
        leads_to=("getConversation", "updateConversation", "createItems", "listItems", "deleteConversation"),
    ),
    ("GET", "/v1/conversations"): Operation(
        id="listConversations",
        tag=CONVERSATIONS,
        says="List your conversations.",
        query=bodies.PageQuery,
        answer=answers.ConversationList,
        refuses=(400, 404),
    ),
    ("GET", "/v1/conversations/{id}"): Operation(
        id="getConversation",
        tag=CONVERSATIONS,
        says="One conversation.",
        answer=answers.Conversation,
        refuses=(404,),
    ),
    ("POST", "/v1/conversations/{id}"): Operation(
        id="updateConversation",
        tag=CONVERSATIONS,
        says="Replace its metadata.",
        body=bodies.UpdateConversationBody,
        answer=answers.Conversation,
        refuses=(400, 404, 413, 415),
    ),
    ("DELETE", "/v1/conversations/{id}"): Operation(
        id="deleteConversation",
        tag=CONVERSATIONS,
        says="Delete it and its items.",
        answer=answers.DeletedConversation,
        refuses=(404,),
    ),
    ("POST", "/v1/conversations/{id}/items"): Operation(
        id="createItems",
        tag=CONVERSATIONS,
        says="Add items, and answer with those.",
        body=bodies.CreateItemsBody,
        answer=answers.ItemList,
        repeatable=True,
        refuses=(400, 404, 409, 413, 415),
    ),
    ("GET", "/v1/conversations/{id}/items"): Operation(
        id="listItems",
        tag=CONVERSATIONS,
        says="List its items.",
        query=bodies.PageQuery,
        answer=answers.ItemList,
        refuses=(400, 404),
    ),
    ("GET", "/v1/conversations/{id}/items/{item_id}"): Operation(
        id="getItem",
        tag=CONVERSATIONS,
        says="One item.",
        answer="Item",
        refuses=(404,),
    ),
    ("DELETE", "/v1/conversations/{id}/items/{item_id}"): Operation(
        id="deleteItem",
        tag=CONVERSATIONS,
        says="Delete an item, and answer with the conversation.",
        answer=answers.Conversation,
        refuses=(400, 404),
    ),
    ("GET", "/v1/models"): Operation(
        id="listModels",
        tag=MODELS,
        says="What the upstreams list.",
        answer=answers.ModelList,
    ),
    ("GET", "/v1/models/{model:path}"): Operation(
        id="getModel",
        tag=MODELS,
        says="One of them; its name may hold slashes.",
        answer=answers.Model,
        refuses=(404,),
    ),
    ("POST", "/v1/chat/completions"): Operation(
        id="createChatCompletion",
        tag=CHAT,
        says="Passed through to the upstream, and nothing of it is kept.",
        body=bodies.ChatBody,
        answer=answers.Anything,
        streams=answers.Anything,
        refuses=(400, 413, 415, 429),
    ),
    ("GET", "/healthz"): Operation(
        id="isAlive",
        tag=SERVER,
        says="200 while the process lives.",
        answer=answers.Health,
        open=True,
    ),
    ("GET", "/readyz"): Operation(
        id="isReady",
        tag=SERVER,
        says="200 when it should be sent requests, else 503.",
        answer=answers.Health,
        open=True,
    ),
    ("GET", "/openapi.json"): Operation(
        id="describe",
        tag=SERVER,
        says="This document.",
        answer=answers.Anything,
        open=True,
    ),
}

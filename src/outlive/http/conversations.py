"""/v1/conversations: conversations and their items."""

from hashlib import sha256
from typing import Any

from outlive.core.errors import InvalidRequest
from outlive.core.requests.body import canonical
from outlive.core.requests.create import parse_metadata
from outlive.core.requests.items import parse_items
from outlive.http.openapi import MAX_ITEMS
from outlive.http.request import Reply, Request, json_reply, list_owned, list_reply
from outlive.ports.ledger import Idempotency


async def create(request: Request) -> Reply:
    body = await request.object()
    items, idempotency = await _read(request, body)
    metadata = parse_metadata(body.get("metadata"))
    made = await request.engine.create_conversation(request.owner, metadata, items, idempotency, request.size > 0)
    return json_reply(made)


async def update(request: Request) -> Reply:
    body = await request.object()
    if "metadata" not in body:
        raise InvalidRequest("metadata is required.", param="metadata", code="missing_required_parameter")
    metadata = parse_metadata(body["metadata"])
    return json_reply(await request.engine.update_conversation(request.owner, request.params["id"], metadata))


async def list_all(request: Request) -> Reply:
    return await list_owned(request, request.engine.list_conversations)


async def create_items(request: Request) -> Reply:
    body = await request.object()
    if body.get("items") is None:
        raise InvalidRequest("items is required.", param="items", code="missing_required_parameter")
    items, idempotency = await _read(request, body)
    conversation_id = request.params["id"]
    page = await request.engine.add_items(request.owner, conversation_id, items, idempotency, request.size > 0)
    return await request.work(list_reply, page)


async def _read(request: Request, body: dict[str, Any]) -> tuple[list[dict[str, Any]], Idempotency | None]:
    """Read the items of a body, and its idempotency key; in a thread if the body is large."""
    engine, given, key = request.engine, body.get("items"), request.idempotency_key()

    def read() -> tuple[list[dict[str, Any]], Idempotency | None]:
        items = parse_items(given, "items", engine.ids, engine.limits, at_most=MAX_ITEMS) if given is not None else []
        return items, Idempotency(key, sha256(canonical(body)).digest()) if key is not None else None

    return await request.work(read)

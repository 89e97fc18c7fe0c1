"""/v1/conversations: conversations and their items."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

from outlive.core.errors import InvalidRequest
from outlive.core.requests.create import canonical
from outlive.core.requests.items import parse_items
from outlive.core.requests.options import parse_metadata
from outlive.http.request import Call, Reply, json_reply, list_reply, read_paging
from outlive.ports.catalog import Page
from outlive.ports.ledger import Idempotency

MAX_ITEMS = 20


async def create(call: Call) -> Reply:
    body = await call.object()
    engine = call.engine
    items, idempotency = await _read(call, body)
    now = engine.clock.now()
    conversation = {
        "id": engine.ids.new("conv"),
        "object": "conversation",
        "created_at": int(now),
        "metadata": _read_metadata(body.get("metadata")),
    }
    made = await engine.conversations.create(call.owner, conversation, items, now, idempotency, call.large)
    if made != conversation["id"]:
        return json_reply(await engine.catalog.conversation(call.owner, made))
    return json_reply(conversation)


async def retrieve(call: Call) -> Reply:
    return json_reply(await call.engine.catalog.conversation(call.owner, call.params["id"]))


async def update(call: Call) -> Reply:
    body = await call.object()
    if "metadata" not in body:
        raise InvalidRequest("metadata is required.", param="metadata", code="missing_required_parameter")
    metadata = _read_metadata(body["metadata"])
    return json_reply(await call.engine.conversations.update(call.owner, call.params["id"], metadata))


async def delete(call: Call) -> Reply:
    await call.engine.conversations.delete(call.owner, call.params["id"])
    call.engine.sweeper.wake()
    return json_reply({"id": call.params["id"], "object": "conversation.deleted", "deleted": True})


async def list_all(call: Call) -> Reply:
    return list_reply(await call.engine.catalog.conversations(call.owner, read_paging(call.query())))


async def create_items(call: Call) -> Reply:
    body = await call.object()
    if body.get("items") is None:
        raise InvalidRequest("items is required.", param="items", code="missing_required_parameter")
    items, idempotency = await _read(call, body)
    engine = call.engine
    added = await engine.conversations.add_items(
        call.owner, call.params["id"], items, engine.clock.now(), idempotency, call.large
    )
    page = Page(added, False)
    return await asyncio.to_thread(list_reply, page) if call.large else list_reply(page)


async def list_items(call: Call) -> Reply:
    return list_reply(await call.engine.catalog.items(call.owner, call.params["id"], read_paging(call.query())))


async def retrieve_item(call: Call) -> Reply:
    return json_reply(await call.engine.catalog.item(call.owner, call.params["id"], call.params["item_id"]))


async def delete_item(call: Call) -> Reply:
    conversation = await call.engine.conversations.delete_item(call.owner, call.params["id"], call.params["item_id"])
    call.engine.sweeper.wake()
    return json_reply(conversation)


async def _read(call: Call, body: dict[str, Any]) -> tuple[list[dict[str, Any]], Idempotency | None]:
    """The items in a body, and the key that it may be repeated under; a large one is looked through in a thread."""

    def read() -> tuple[list[dict[str, Any]], Idempotency | None]:
        given, key = body.get("items"), call.header(b"idempotency-key")
        engine = call.engine
        items = parse_items(given, "items", engine.ids, engine.limits, at_most=MAX_ITEMS) if given is not None else []
        return items, Idempotency(key, sha256(canonical(body)).digest()) if key is not None else None

    return await asyncio.to_thread(read) if call.large else read()


def _read_metadata(value: object) -> dict[str, str]:
    return parse_metadata(value) if value is not None else {}

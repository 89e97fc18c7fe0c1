"""Lines of items: what stands in the way of continuing one, and how its items are read and written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from outlive.core.errors import ClientFault, Conflict, ConversationLocked, InvalidRequest, MustWait, NotFound
from outlive.core.events import Json
from outlive.storage.postgres.connection import as_text
from outlive.storage.postgres.schema import load_queries

SQL = load_queries()

# More than this is decoded in a thread, so that streams do not wait for it.
MANY_BYTES = 256 * 1024

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


def ids_of(items: list[Json]) -> list[str]:
    return [as_text(item["id"]) for item in items]


async def load_all(rows: Iterable[Any]) -> list[Json]:
    """The items whose bodies are the first column of these rows."""
    bodies: list[bytes] = [row[0] for row in rows]
    if sum(map(len, bodies)) > MANY_BYTES:
        return await asyncio.to_thread(lambda: [decode(body) for body in bodies])
    return [decode(body) for body in bodies]


def refuse(
    refusal: str, detail: str | None, *, conversation: str | None = None, parent: str | None = None
) -> ClientFault:
    """What a refusal of the database's functions means to whoever asked."""
    if refusal == "locked":
        return ConversationLocked(conversation or "", detail or "")
    if refusal == "no conversation":
        return NotFound(f"Conversation with id '{conversation}' not found.", param="conversation")
    if refusal == "conflict":
        return Conflict(
            f"The same Idempotency-Key was used with another body, for response {detail}.", param="Idempotency-Key"
        )
    if refusal == "must wait":
        return MustWait()
    return _refuse_parent(refusal, detail, parent)


def _refuse_parent(refusal: str, detail: str | None, parent: str | None) -> InvalidRequest:
    whose, param = f"Previous response with id '{parent}'", "previous_response_id"
    if refusal == "parent unfinished":
        message = f"{whose} has not finished (it is {detail}). Wait for it, or cancel it."
        return InvalidRequest(message, param=param, code="response_not_finished")
    if refusal == "parent failed":
        message = f"{whose} failed, so there is nothing to continue from."
        return InvalidRequest(message, param=param, code="previous_response_failed")
    incomplete = refusal == "parent incomplete"
    why = " (an earlier response of its chain was deleted or has expired)" if incomplete else ""
    return InvalidRequest(f"{whose} not found{why}.", param=param, code="previous_response_not_found")

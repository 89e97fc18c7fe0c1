"""/v1/responses/input_tokens and /v1/responses/compact: questions about a context, which store nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from outlive.core.events import Json
from outlive.core.requests.checks import check_str, refuse_missing, refuse_unsupported
from outlive.core.requests.create import CreateResponse, parse_create
from outlive.core.usage import NOTHING_USED
from outlive.http.request import Call, ClientDisconnected, Reply, json_reply

T = TypeVar("T")

# Tells whether a model's server has counted, or this one has guessed.
COUNTED = "x-outlive-token-count"


async def count(call: Call) -> Reply:
    body = await call.object()
    if (personality := body.pop("personality", None)) is not None:
        check_str(personality, "personality", most=64)
    model_given = body.get("model") is not None
    # Nothing at all has a length, too: so the input may be left out.
    request = await _parse(call, {**body, "generate": False, "model": body["model"] if model_given else "any"})
    counted = await _while_there(call, call.engine.contexts.count(call.owner, request, model_given))
    header = {COUNTED: "exact" if counted.exact else "estimate"}
    return json_reply({"object": "response.input_tokens", "input_tokens": counted.tokens}, header)


async def compact(call: Call) -> Reply:
    body = await call.object()
    if body.get("conversation") is not None:
        refuse_unsupported(
            "conversation", "it compacts a chain or an input; use 'context_management' in a conversation."
        )
    request = await _parse(call, {**body, "model": await _find_model(call, body)})
    output, usage = await _while_there(call, call.engine.contexts.compact(call.owner, request))
    return json_reply(
        {
            "id": call.engine.ids.new("resp"),
            "object": "response.compaction",
            "created_at": int(call.engine.clock.now()),
            "output": output,
            "usage": usage or NOTHING_USED,
        }
    )


async def _parse(call: Call, body: Json) -> CreateResponse:
    """Read as a response that will not be stored."""
    made = {**body, "store": False, "background": None, "stream": None}
    if call.large:
        return await asyncio.to_thread(parse_create, made, call.engine.ids, call.engine.limits)
    return parse_create(made, call.engine.ids, call.engine.limits)


async def _find_model(call: Call, body: Json) -> Any:
    """The model that was given; where that is null, the one that gave the answer that is continued."""
    if body.get("model") is None and isinstance(parent := body.get("previous_response_id"), str):
        record = await call.engine.catalog.response(call.owner, parent)
        if record.snapshot is not None:
            return msgspec.json.decode(record.snapshot)["model"]
    if body.get("model") is None:
        refuse_missing("model")
    return body["model"]


async def _while_there(call: Call, work: Coroutine[Any, Any, T]) -> T:
    """Do it, unless the client leaves: then nobody would ever see what came of it."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_wait_gone(call))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnected
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


async def _wait_gone(call: Call) -> None:
    while (await call.receive())["type"] != "http.disconnect":
        pass

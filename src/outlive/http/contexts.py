"""/v1/responses/input_tokens and /v1/responses/compact: questions about a context, which store nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from outlive.core.events import Json
from outlive.core.requests.checks import check_value, make_check, refuse_missing, refuse_unsupported
from outlive.core.requests.create import CreateResponse, Personality, parse_create
from outlive.core.usage import NOTHING_USED
from outlive.http.request import Reply, Request, json_reply, while_connected

# "exact" if the model's server has counted, "estimate" if this one has estimated.
COUNTED = "x-outlive-token-count"
_check_personality = make_check(Personality)


async def count(request: Request) -> Reply:
    """Count the tokens of a context."""
    body = await request.object()
    if (personality := body.pop("personality", None)) is not None:
        check_value(_check_personality, personality, "personality")
    model_given = body.get("model") is not None
    # The input may be left out: an empty context has a length, too.
    parsed = await _parse(request, {**body, "generate": False, "model": body["model"] if model_given else "any"})
    counted = await while_connected(request, request.engine.count_tokens(request.owner, parsed, model_given))
    header = {COUNTED: "exact" if counted.exact else "estimate"}
    return json_reply({"object": "response.input_tokens", "input_tokens": counted.tokens}, header)


async def compact(request: Request) -> Reply:
    """Compact a context."""
    body = await request.object()
    if body.get("conversation") is not None:
        refuse_unsupported(
            "conversation", "it compacts a chain or an input; use 'context_management' in a conversation."
        )
    engine = request.engine
    parsed = await _parse(request, {**body, "model": await _find_model(request, body)})
    output, usage = await while_connected(request, engine.compact(request.owner, parsed))
    return json_reply(
        {
            "id": engine.new_id("resp"),
            "object": "response.compaction",
            "created_at": int(engine.now()),
            "output": output,
            "usage": usage or NOTHING_USED,
        }
    )


async def _parse(request: Request, body: Json) -> CreateResponse:
    """Parse a body like a create that is not stored."""
    made = {**body, "store": False, "background": None, "stream": None}
    engine = request.engine
    if request.large:
        return await asyncio.to_thread(parse_create, made, engine.ids, engine.limits)
    return parse_create(made, engine.ids, engine.limits)


async def _find_model(request: Request, body: Json) -> Any:
    """Return the given model or, if that is null, the one that gave the answer which is continued."""
    model = body.get("model")
    if model is None and isinstance(parent := body.get("previous_response_id"), str):
        model = await request.engine.find_model_of(request.owner, parent)
    if model is None:
        refuse_missing("model")
    return model

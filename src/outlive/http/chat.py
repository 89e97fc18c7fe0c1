"""/v1/chat/completions, a stateless pass-through that refuses state (D12), and /v1/models."""

from __future__ import annotations

import asyncio
import contextlib

from outlive.core.errors import InvalidRequest, NotFound, UpstreamFault
from outlive.core.events import Json
from outlive.http.request import Reply, Request, json_reply, while_connected
from outlive.ports.backend import PassedAnswer

# Fields that ask for state, and what to do instead.
STATEFUL = {
    "previous_response_id": "it continues a stored response",
    "conversation": "it names a stored conversation",
    "conversation_id": "it names a stored conversation",
    "background": "a response that outlives its connection must be stored",
    "store": "completions are not stored here",
}


async def create(request: Request) -> None:
    """Pass a Chat Completions request through to its upstream."""
    body = await _read(request)
    with request.engine.hold_chat_slot(request.owner):
        passed = await while_connected(request, request.engine.pass_through(body, request.origin()))
        del body  # it may be large, and the answer may take long
        request.release_body()
        await _relay(request, passed)


async def _read(request: Request) -> Json:
    body = await request.object()
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise InvalidRequest("model is required.", param="model", code="missing_required_parameter")
    for field, why in STATEFUL.items():
        if body.get(field) not in (None, False) and not request.lenient_chat:
            raise InvalidRequest(
                f"{field} is not supported on /v1/chat/completions, which keeps no state: {why}. "
                f"Use /v1/responses, which honours it.",
                param=field,
                code="unsupported_parameter",
            )
        if field in body and (field != "store" or request.lenient_chat):
            del body[field]
    return body


async def _relay(request: Request, passed: PassedAnswer) -> None:
    leaving = asyncio.create_task(request.wait_disconnected())
    leaving.add_done_callback(lambda _: passed.close())
    try:
        await request.start(passed.status, passed.headers.pop("content-type", "application/json"), passed.headers)
        with contextlib.suppress(OSError, UpstreamFault):
            async for piece in passed.body():
                await request.send({"type": "http.response.body", "body": piece, "more_body": True})
            await request.send({"type": "http.response.body", "body": b""})
        # A broken upstream ends the stream without a last chunk, so that the client sees that it is not whole.
    finally:
        leaving.cancel()


async def list_models(request: Request) -> Reply:
    body: Json = {"object": "list", "data": await request.engine.list_models()}
    if any(name == "client_version" for name, _ in request.query()):
        # Codex asks for a list in a form of its own, with the prompts of its models. An empty one makes it use what it
        # has; without one it logs an error and asks again.
        body["models"] = []
    return json_reply(body)


async def retrieve_model(request: Request) -> Reply:
    wanted = request.params["model"]
    for model in await request.engine.list_models():
        if model["id"] == wanted:
            return json_reply(model)
    raise NotFound(f"The model '{wanted}' does not exist.", param="model", code="model_not_found")

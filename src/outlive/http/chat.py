"""/v1/chat/completions: a stateless pass-through that says so when it is asked for state (D12)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.http.request import Call, ClientDisconnected
from outlive.ports.backend import PassedAnswer

# Fields that ask for state, and what to do instead.
STATEFUL = {
    "previous_response_id": "it continues a stored response",
    "conversation": "it names a stored conversation",
    "conversation_id": "it names a stored conversation",
    "background": "a response that outlives its connection must be stored",
    "store": "completions are not stored here",
}


async def create(call: Call) -> None:
    body = await call.object()
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise InvalidRequest("model is required.", param="model", code="missing_required_parameter")
    for field, why in STATEFUL.items():
        if body.get(field) not in (None, False) and not call.lenient_chat:
            raise InvalidRequest(
                f"{field} is not supported on /v1/chat/completions, which keeps no state: {why}. "
                f"Use /v1/responses, which honours it.",
                param=field,
                code="unsupported_parameter",
            )
        if field in body and (field != "store" or call.lenient_chat):
            del body[field]
    await _pass_on(call, body)


async def _pass_on(call: Call, body: dict[str, Any]) -> None:
    backend, model = call.engine.route(body["model"])
    asking = asyncio.create_task(backend.pass_through({**body, "model": model}))
    leaving = asyncio.create_task(_wait_gone(call))
    try:
        await asyncio.wait((asking, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not asking.done():
            raise ClientDisconnected
        passed = asking.result()
        leaving.add_done_callback(lambda _: passed.close())
        await _relay(call, passed)
    finally:
        asking.cancel()
        leaving.cancel()


async def _relay(call: Call, passed: PassedAnswer) -> None:
    await call.start(passed.status, passed.headers.pop("content-type", "application/json"), passed.headers)
    with contextlib.suppress(OSError, UpstreamFault):
        async for piece in passed.body():
            await call.send({"type": "http.response.body", "body": piece, "more_body": True})
        await call.send({"type": "http.response.body", "body": b""})
    # A broken upstream ends the stream without a last chunk, so that the client sees that it is not whole.


async def _wait_gone(call: Call) -> None:
    while (await call.receive())["type"] != "http.disconnect":
        pass

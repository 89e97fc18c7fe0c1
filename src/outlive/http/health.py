"""/healthz says that the process lives, /readyz whether it should be sent requests."""

from __future__ import annotations

from outlive.http.request import Call, Reply, json_reply


async def healthz(call: Call) -> Reply:
    return json_reply({"status": "ok"})


async def readyz(call: Call) -> Reply:
    if call.engine.worker.draining:
        return _not_ready("shutting down")
    if not await call.engine.is_healthy():
        return _not_ready("the database is unavailable")
    return json_reply({"status": "ready"})


def _not_ready(why: str) -> Reply:
    reply = json_reply({"status": "not ready", "reason": why}, {"retry-after": "1"})
    reply.status = 503
    return reply

"""/healthz: the process is alive. /readyz: it should be sent requests."""

from __future__ import annotations

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

"""/metrics on a port of its own, for a Prometheus on another machine: no key, and no other path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from outlive.http.request import Receive, Scope, Send

Scrape = Callable[[], Awaitable[bytes]]
PATH = "/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsApplication:
    """Serves the metrics alone, as plain ASGI."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = scope["path"] == PATH and scope["method"] in ("GET", "HEAD")
        body = await self._scrape() if found else b"Only GET /metrics is served here.\n"
        headers = [(b"content-type", CONTENT_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": body})

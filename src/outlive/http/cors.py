"""Cross-origin requests from the configured origins."""

from __future__ import annotations

from outlive.http.request import Reply, Request

EXPOSED = "x-request-id, retry-after, openai-poll-after-ms"
METHODS = "GET, POST, DELETE, OPTIONS"
# Requested by browsers on the SDK's behalf; x-stainless-* is a family, so requested headers are checked one by one.
HEADERS = frozenset(
    {
        "authorization",
        "content-type",
        "accept",
        "idempotency-key",
        "openai-organization",
        "openai-project",
        "openai-beta",
        "last-event-id",
        "x-client-request-id",
    }
)


class Cors:
    """Answers browsers that ask across origins."""

    def __init__(self, origins: list[str]) -> None:
        self._origins = frozenset(origins)

    def headers(self, request: Request) -> dict[str, str]:
        """Return the headers of an answer to a cross-origin request; none for any other."""
        if not self._origins:
            return {}
        origin = request.header(b"origin")
        if origin is None or not (origin in self._origins or "*" in self._origins):
            return {"vary": "origin"}
        return {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED, "vary": "origin"}

    def preflight(self, request: Request) -> Reply | None:
        """Return the answer to a preflight request; None for any other request."""
        if request.scope["method"] != "OPTIONS" or request.header(b"access-control-request-method") is None:
            return None
        asked = [name.strip().lower() for name in (request.header(b"access-control-request-headers") or "").split(",")]
        allowed = [name for name in asked if name in HEADERS or name.startswith("x-stainless-")]
        return Reply(
            b"",
            204,
            {
                "access-control-allow-methods": METHODS,
                "access-control-allow-headers": ", ".join(allowed),
                "access-control-max-age": "600",
            },
        )

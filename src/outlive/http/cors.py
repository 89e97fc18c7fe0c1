"""Cross-origin requests from the configured origins."""

from __future__ import annotations

from outlive.http.request import Call, Reply

EXPOSED = "x-request-id, retry-after, openai-poll-after-ms"
METHODS = "GET, POST, DELETE, OPTIONS"
# Asked for by browsers on the SDK's behalf; x-stainless-* is a family, so what is asked for is looked at one by one.
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
    def __init__(self, origins: list[str]) -> None:
        self._origins = frozenset(origins)

    def headers(self, call: Call) -> dict[str, str]:
        """What a cross-origin answer must carry; nothing for any other."""
        if not self._origins:
            return {}
        origin = call.header(b"origin")
        if origin is None or not (origin in self._origins or "*" in self._origins):
            return {"vary": "origin"}
        return {"access-control-allow-origin": origin, "access-control-expose-headers": EXPOSED, "vary": "origin"}

    def preflight(self, call: Call) -> Reply | None:
        """The answer to a browser that asks first; None when this is no such question."""
        if call.scope["method"] != "OPTIONS" or call.header(b"access-control-request-method") is None:
            return None
        asked = [name.strip().lower() for name in (call.header(b"access-control-request-headers") or "").split(",")]
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

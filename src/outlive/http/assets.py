"""Files of the package that browsers load. They need no key: what they ask for does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from outlive.http.request import Reply, Request

FOLDER = Path(__file__).parents[1] / "console"
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
}


def serve_file(name: str, headers: dict[str, str] | None = None) -> Callable[[Request], Awaitable[Reply]]:
    """Return a handler that answers with a file of the folder, or with 304 to a browser that has it already."""

    async def handle(request: Request) -> Reply:
        body, etag = _read(name)
        known = {**(headers or {}), "cache-control": "no-cache", "etag": etag, "x-content-type-options": "nosniff"}
        if request.header(b"if-none-match") == etag:
            return Reply(b"", 304, known)
        return Reply(body, 200, known, TYPES[Path(name).suffix])

    return handle


@cache
def _read(name: str) -> tuple[bytes, str]:
    body = (FOLDER / name).read_bytes()
    return body, f'"{sha256(body).hexdigest()[:16]}"'

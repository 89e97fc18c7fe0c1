"""Files of the package that browsers load. They need no key: what they ask for does."""

from collections.abc import Awaitable, Callable
from functools import cache
from hashlib import sha256
from pathlib import Path

from outlive.core.errors import NotFound
from outlive.http.request import Reply, Request

FOLDER = Path(__file__).parents[1] / "console"
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".svg": "image/svg+xml",
}

# The console may load what this server serves, and nothing else; what a model writes can never run as a script.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
PAGE_HEADERS = {
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}


def is_console(path: str) -> bool:
    """Return True for the console's page and its files."""
    return path == "/" or path.startswith("/console/")


async def serve_console_file(request: Request) -> Reply:
    """Answer with a file of the console by its name."""
    name = request.params["file"]
    if name not in {path.name for path in FOLDER.iterdir()}:
        raise NotFound(f"The console has no file {name!r}.", code="unknown_url")
    return await serve_file(name)(request)


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

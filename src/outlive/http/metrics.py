"""/metrics on a port of its own, without a key and any other path; and the metrics of several processes as one."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from outlive.http.request import Receive, Scope, Send

Scrape = Callable[[], Awaitable[bytes]]
METRICS_PATH = "/metrics"
FETCH_SECONDS = 5.0  # more than a process waits for its database
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsApplication:
    """Serves the metrics alone, as plain ASGI."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = scope["path"] == METRICS_PATH and scope["method"] in ("GET", "HEAD")
        body = await self._scrape() if found else b"Only GET /metrics is served here.\n"
        headers = [(b"content-type", CONTENT_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def fetch_metrics(port: int) -> bytes:
    """Fetch the metrics of another process on this machine; nothing if it does not answer."""
    try:
        async with asyncio.timeout(FETCH_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {METRICS_PATH} HTTP/1.0\r\n\r\n".encode())
                return (await reader.read()).partition(b"\r\n\r\n")[2]
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


def merge_metrics(scrapes: Mapping[str, bytes]) -> bytes:
    """Join scrapes: every metric once, and its samples with the label `process` of each."""
    families: dict[str, list[str]] = {}
    for process, text in scrapes.items():
        lines: list[str] = []
        for line in text.decode().splitlines():
            name, brace, rest = line.partition("{")
            if line.startswith("# "):
                lines = families.setdefault(line.split(" ")[2], [])
                lines += [line] * (len(lines) < 2)  # HELP and TYPE, once
            elif brace:
                lines.append(f'{name}{{process="{process}",{rest}')
            else:
                name, _, value = line.partition(" ")
                lines.append(f'{name}{{process="{process}"}} {value}')
    return "".join(f"{line}\n" for lines in families.values() for line in lines).encode()

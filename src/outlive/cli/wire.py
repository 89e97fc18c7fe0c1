"""One HTTP exchange, read as it comes; for commands, which do one thing at a time."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import msgspec


class Broken(Exception):
    """The other side could not be reached, or the connection was cut."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause) or type(cause).__name__)
        self.nobody_there = isinstance(cause, ConnectionRefusedError)


@contextmanager
def exchange(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None = None, timeout: float = 60.0
) -> Iterator[http.client.HTTPResponse]:
    """Send a request; what happens to the connection until the end of the block is raised as Broken."""
    parts = urlsplit(url)
    assert parts.hostname
    secure = parts.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port or (443 if secure else 80), timeout=timeout)
    try:
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, target or "/", body, {"connection": "close", **headers})
        with connection.getresponse() as response:
            yield response
    except (OSError, http.client.HTTPException) as error:
        raise Broken(error) from error
    finally:
        connection.close()


def decode(body: bytes) -> object:
    """The JSON in a body; None if there is none."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None

"""Requests of the commands to a running server: JSON, pages of a list, and event streams."""

import http.client
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from outlive.config.load import check_url
from outlive.config.sources import resolve
from outlive.core.errors import OutliveError, require
from outlive.core.events import Json
from outlive.dialects.transport.event_stream import EventStream

# Seconds: a server sends a keep-alive comment every 15; after four missed ones the connection is dead.
SILENCE_LIMIT = 60.0


class RequestRefused(OutliveError):
    """The server answered with an error status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ServerUnreachable(OutliveError):
    """No server answered, or the connection broke."""


class ApiClient:
    """Sends requests to one server, with a key. Of a query, what is None or empty is not sent."""

    def __init__(self, url: str, key: str | None = None, seconds: float = SILENCE_LIMIT) -> None:
        self.url = check_url(url, "--server")[0].removesuffix("/v1")
        self._seconds = seconds
        self._headers = {"accept": "application/json", "content-type": "application/json", "connection": "close"}
        if key:
            self._headers["authorization"] = f"Bearer {resolve(key, '--key', os.environ)}"

    def call(self, method: str, path: str, query: Json | None = None, body: Json | None = None) -> Json:
        """Return the JSON that the server answers with; {} for an answer without a body."""
        with self._send(method, path, query or {}, body) as response:
            answer = response.read()
        value = _decode(answer) if answer else {}
        if not isinstance(value, dict):
            raise RequestRefused(f"{self.url} does not answer like an Outlive server.", response.status)
        return value

    def events(self, path: str, query: Json) -> Iterator[Json]:
        """Yield the events of a stream until it ends. Raise ServerUnreachable if it breaks."""
        stream = EventStream()
        with self._send("GET", path, query) as response:
            while not stream.done and (piece := response.read1()):
                yield from (event for payload in stream.feed(piece) if isinstance(event := _decode(payload), dict))

    def pages(self, path: str, query: Json, limit: int, most: int = 100) -> Json:
        """Return a list of up to `limit` elements as one list envelope, fetched in as many pages as it takes."""
        data: list[Any] = []
        while True:
            envelope = self.call("GET", path, query | {"limit": min(most, limit - len(data))})
            data += envelope.get("data", [])
            if not envelope.get("has_more") or not envelope.get("data") or len(data) >= limit:
                ids = {"first_id": data[0].get("id"), "last_id": data[-1].get("id")} if data else {}
                return {**envelope, **ids, "data": data}
            query = query | {"after": envelope.get("last_id") or data[-1]["id"]}

    @contextmanager
    def _send(
        self, method: str, path: str, query: Json, body: Json | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request and read its answer in the block. Raise RequestRefused or ServerUnreachable."""
        parts = urlsplit(self.url + path)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self._seconds)
        given = urlencode({name: value for name, value in query.items() if value not in (None, "")}, doseq=True)
        sent = None if body is None else msgspec.json.encode(body)
        try:
            connection.request(method, parts.path + (f"?{given}" if given else ""), sent, self._headers)
            with connection.getresponse() as response:
                if response.status >= 400:
                    raise _refusal(response.status, _decode(response.read()))
                yield response
        except ConnectionRefusedError as error:
            raise ServerUnreachable(
                f"No server answers at {self.url}; start one with `outlive serve`, or give --server URL."
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise ServerUnreachable(f"The connection to {self.url} failed: {reason}.") from error
        finally:
            connection.close()


def segment(identifier: str) -> str:
    """Quote an id as part of a path."""
    require(identifier, "The id is empty.")
    return quote(identifier, safe="")


def _decode(body: bytes) -> object:
    """Return the JSON in a body, or None."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None


def _refusal(status: int, value: object) -> RequestRefused:
    """Return the error with the envelope's message, or at least the status."""
    if status == 401:  # the server's words are for programs
        return RequestRefused("The server needs a valid key: give --key KEY, or set OUTLIVE_KEY.", status)
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return RequestRefused(str(message) if message else f"The server answered with status {status}.", status)

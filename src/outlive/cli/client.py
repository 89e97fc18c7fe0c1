"""A running server, as the commands talk to it."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator, Sequence
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from outlive.cli.wire import Broken, decode, exchange
from outlive.config.sources import resolve
from outlive.config.upstreams import check_url
from outlive.core.errors import OutliveError, SettingsError
from outlive.core.events import Json

DEFAULT_SERVER = "http://127.0.0.1:7878"
# A server sends a keep-alive comment every 15 seconds; after four missed ones the connection is dead.
SILENCE_SECONDS = 60.0

ServerOption = Annotated[str, typer.Option("--server", envvar="OUTLIVE_SERVER", help="The server to ask.")]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", envvar="OUTLIVE_KEY", help="Your key, or env:NAME for the variable that holds it."),
]
Query = Sequence[tuple[str, str]]


class Refused(OutliveError):
    """The server said no."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(OutliveError):
    """Nobody answered, or the connection was cut."""


class Server:
    """One server and the key to it."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.url = check_url(url, "--server")[0].removesuffix("/v1")
        self._headers = {"accept": "application/json", "content-type": "application/json"}
        if key:
            self._headers["authorization"] = f"Bearer {resolve(key, '--key', os.environ)}"

    def call(self, method: str, path: str, query: Query = (), timeout: float = SILENCE_SECONDS) -> Json:
        """The JSON that the server answers with; {} for an answer without a body."""
        try:
            with exchange(method, self._at(path, query), self._headers, timeout=timeout) as response:
                body, status = response.read(), response.status
        except Broken as error:
            raise self._unreachable(error) from error
        value = decode(body) if body else {}
        if status >= 400:
            raise _refusal(status, value)
        if not isinstance(value, dict):
            raise Refused(f"{self.url} does not answer like an Outlive server.", status)
        return value

    def events(self, path: str, query: Query = ()) -> Iterator[Json]:
        """The events of a stream, until it ends. Raises Unreachable when it is cut in the middle."""
        try:
            with exchange("GET", self._at(path, query), self._headers, timeout=SILENCE_SECONDS) as response:
                if response.status >= 400:
                    raise _refusal(response.status, decode(response.read()))
                yield from _read_events(response)
        except Broken as error:
            raise self._unreachable(error) from error

    def _at(self, path: str, query: Query) -> str:
        return self.url + path + ("?" + urlencode(query) if query else "")

    def _unreachable(self, error: Broken) -> Unreachable:
        if error.nobody_there:
            return Unreachable(
                f"No server answers at {self.url}; start one with `outlive serve`, or give --server URL."
            )
        return Unreachable(f"The connection to {self.url} failed: {error}.")


def segment(identifier: str) -> str:
    """An id as part of a path."""
    if not identifier:
        raise SettingsError("The id is empty.")
    return quote(identifier, safe="")


def page(server: Server, path: str, query: Query, limit: int) -> Json:
    """A list of up to `limit` elements, fetched in as many pages as it takes, as one list envelope."""
    data: list[Any] = []
    after: Query = ()
    while True:
        size = ("limit", str(min(100, limit - len(data))))
        envelope = server.call("GET", path, [*query, size, *after])
        data += envelope.get("data", [])
        if not envelope.get("has_more") or not envelope.get("data") or len(data) >= limit:
            ids = {"first_id": data[0].get("id"), "last_id": data[-1].get("id")} if data else {}
            return {**envelope, **ids, "data": data}
        query = [(name, value) for name, value in query if name != "after"]
        after = [("after", envelope.get("last_id") or data[-1]["id"])]


def _read_events(response: http.client.HTTPResponse) -> Iterator[Json]:
    data: list[bytes] = []
    while line := response.readline():
        text = line.rstrip(b"\r\n")
        if text.startswith(b"data:"):
            data.append(text.removeprefix(b"data:").removeprefix(b" "))
        elif not text and data:
            payload, data = b"\n".join(data), []
            if payload == b"[DONE]":
                return
            event = decode(payload)
            if isinstance(event, dict):
                yield event


def _refusal(status: int, value: object) -> Refused:
    """The sentence of the error envelope, or at least the status."""
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return Refused(str(message) if message else f"The server answered with status {status}.", status)

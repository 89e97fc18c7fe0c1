"""A minimal client: JSON requests, and event streams that can be closed before their end."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

_TIMEOUT_SECONDS = 90


@dataclass(frozen=True)
class Answer:
    """The answer to one request."""

    status: int
    headers: http.client.HTTPMessage
    body: Json


@dataclass
class Stream:
    """An open event stream, and the events read so far."""

    connection: http.client.HTTPConnection
    response: http.client.HTTPResponse
    frames: list[bytes] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)

    def __iter__(self) -> Iterator[Json]:
        """Yield events as they arrive, until the stream ends or breaks."""
        frame = b""
        while line := self._read_line():
            frame += line
            if line != b"\n":
                continue
            data = b"".join(part[6:] for part in frame.splitlines() if part.startswith(b"data: "))
            if data == b"[DONE]":
                return
            if data:
                self.frames.append(frame)
                self.events.append(json.loads(data))
                yield self.events[-1]
            frame = b""

    def close(self) -> None:
        self.response.close()
        self.connection.close()

    @property
    def last(self) -> int:
        return int(self.events[-1]["sequence_number"])

    @property
    def numbers(self) -> list[int]:
        return [event["sequence_number"] for event in self.events]

    @property
    def text(self) -> str:
        return "".join(event["delta"] for event in self.events if is_text(event))

    @property
    def response_id(self) -> str:
        return str(self.events[0]["response"]["id"])

    def _read_line(self) -> bytes:
        try:
            return self.response.readline()
        except (OSError, http.client.HTTPException):
            return b""  # the server was killed


class Client:
    """Sends requests to one server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str) -> Answer:
        return self._ask("GET", path, None)

    def post(self, path: str, body: Json | None = None) -> Answer:
        return self._ask("POST", path, body or {})

    def stream(self, path: str, body: Json | None = None) -> Stream:
        """Open a stream: a POST when there is a body, a GET when there is none."""
        connection, response = self._send("POST" if body else "GET", path, body)
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}: {response.read().decode(errors='replace')}")
        return Stream(connection, response)

    def _ask(self, method: str, path: str, body: Json | None) -> Answer:
        connection, response = self._send(method, path, body)
        try:
            return Answer(response.status, response.headers, json.loads(response.read()))
        finally:
            connection.close()

    def _send(
        self, method: str, path: str, body: Json | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_SECONDS)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection, connection.getresponse()


def is_text(event: Json) -> bool:
    return bool(event["type"] == "response.output_text.delta")


def text_of(thing: Json) -> str:
    """Return all text of a response or an item."""
    items = thing["output"] if thing.get("object") == "response" else [thing]
    parts = [part for item in items for part in item.get("content") or []]
    return "".join(part.get("text", "") for part in parts)

"""HTTP by hand, for what an SDK would hide: headers, bytes, half-read streams and broken connections."""

from __future__ import annotations

import json
import socket
import struct
from http.client import HTTPConnection, HTTPResponse
from types import TracebackType
from typing import Any, Self

Json = dict[str, Any]

TIMEOUT = 30.0


class Answer:
    """A whole answer."""

    def __init__(self, response: HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Json:
        """The error, after a look at its envelope, which is the same for all of them."""
        body = self.json()
        assert set(body) == {"error"}, body
        assert set(body["error"]) == {"message", "type", "param", "code"}, body
        assert isinstance(body["error"]["message"], str) and body["error"]["message"], body
        assert isinstance(body["error"]["type"], str), body
        error: Json = body["error"]
        return error


class Stream:
    """An answer that is read frame by frame, and may be left in the middle."""

    def __init__(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        self._connection = connection
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def frame(self) -> bytes:
        """The next frame with its blank line; empty at a clean end."""
        lines = []
        while line := self._response.readline():
            lines.append(line)
            if line == b"\n":
                break
        return b"".join(lines)

    def until(self, type_: str) -> list[bytes]:
        """Frames up to the first event of that type, comments left out."""
        frames: list[bytes] = []
        while not (frames and frames[-1].startswith(b"event: %b\n" % type_.encode())):
            frame = self.frame()
            assert frame, f"the stream ended without {type_}"
            if not frame.startswith(b":"):
                frames.append(frame)
        return frames

    def rest(self) -> bytes:
        """Everything that is still to come, up to a clean end."""
        return self._response.read()

    def ask_more(self, request: bytes) -> None:
        """Send another request behind this one, whose answer must wait for the end of this answer."""
        self._connection.sock.sendall(request)

    def close(self) -> None:
        """Leave, whatever was read."""
        self._response.close()
        self._connection.close()

    def reset(self) -> None:
        """Leave as a crashed machine's network does: with a reset."""
        self._connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


class Wire:
    """A client of one server."""

    def __init__(self, port: int, key: str | None = None) -> None:
        self.port = port
        self.headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        self._streams: list[Stream] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for stream in self._streams:
            stream.close()

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Ask, and read the whole answer. Header names are written with underscores."""
        connection, response = self._send(method, path, body, headers)
        try:
            return Answer(response)
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: object = None, **headers: str) -> Answer:
        return self.ask("POST", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Answer:
        return self.ask("DELETE", path, **headers)

    def create(self, **body: Any) -> Answer:
        return self.post("/v1/responses", body)

    def open(self, method: str, path: str, body: object = None, **headers: str) -> Stream:
        """Ask, and leave the answer to be read piece by piece."""
        stream = Stream(*self._send(method, path, body, headers))
        self._streams.append(stream)
        return stream

    def stream(self, **body: Any) -> Stream:
        """A create that is streamed."""
        return self.open("POST", "/v1/responses", {"stream": True, **body})

    def follow(self, response_id: str, after: int | None = None) -> Stream:
        cursor = f"&starting_after={after}" if after is not None else ""
        return self.open("GET", f"/v1/responses/{response_id}?stream=true{cursor}")

    def said(self, conversation_id: str) -> list[tuple[str, str]]:
        """The messages of a conversation, oldest first: who, and what."""
        items = self.get(f"/v1/conversations/{conversation_id}/items?order=asc&limit=100").json()["data"]
        return [(item["role"], item["content"][0]["text"]) for item in items if item["type"] == "message"]

    def running(self, name: str) -> str:
        """The id of the running response whose metadata says that this is its name."""
        (response_id,) = self.named(name, "status=in_progress&")
        return response_id

    def named(self, name: str, query: str = "") -> list[str]:
        """The ids of all responses whose metadata says that this is their name."""
        data = self.get(f"/v1/responses?{query}limit=100").json()["data"]
        return [each["id"] for each in data if each["metadata"] == {"name": name}]

    def post_and_leave(self, path: str, body: object, **headers: str) -> HTTPConnection:
        """Send a request whose answer nobody has read yet; the caller closes the connection."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        connection.request("POST", path, json.dumps(body).encode(), self._headers(headers) | {"Content-Type": JSON})
        return connection

    def _send(
        self, method: str, path: str, body: object, headers: dict[str, str]
    ) -> tuple[HTTPConnection, HTTPResponse]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        given = self._headers(headers)
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if raw is not None and not any(name.lower() == "content-type" for name in given):
            given["Content-Type"] = JSON
        connection.request(method, path, raw, given)
        return connection, connection.getresponse()

    def _headers(self, headers: dict[str, str]) -> dict[str, str]:
        return self.headers | {name.replace("_", "-"): value for name, value in headers.items()}


JSON = "application/json"

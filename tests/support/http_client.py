"""A plain HTTP client of one server: it shows headers, bytes, partly read streams and cut connections, and keeps the
exact bytes of every event, so that they can be compared after a crash."""

from __future__ import annotations

import itertools
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self

from tests.support.waiting import TIMEOUT_SECONDS

Json = dict[str, Any]

ENDED = ("completed", "incomplete", "failed", "cancelled")
TERMINAL = tuple(f"response.{status}" for status in ENDED)
DONE = b"data: [DONE]\n\n"


_strangers = itertools.count(1)


def come_from_elsewhere() -> dict[str, str]:
    """Return the header of a request from an address of its own; one that sends wrong keys must soon wait."""
    return {"X-Forwarded-For": str(ip_address("10.0.0.0") + next(_strangers))}


class Answer:
    """A complete HTTP answer."""

    def __init__(self, response: HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    def __repr__(self) -> str:
        return f"{self.status} {self.headers} {self.body!r}"

    def json(self) -> Any:
        return json.loads(self.body) if self.body else {}

    @property
    def error(self) -> Json:
        """The error, after checking its envelope, which is the same for all errors."""
        body = self.json()
        assert set(body) == {"error"}, body
        assert set(body["error"]) == {"message", "type", "param", "code"}, body
        assert isinstance(body["error"]["message"], str) and body["error"]["message"], body
        assert isinstance(body["error"]["type"], str), body
        error: Json = body["error"]
        return error


class EventStream:
    """A streamed answer, read event by event. `frames` holds the bytes of the events read so far, without comments."""

    def __init__(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        self.connection = connection
        self.response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.frames: list[bytes] = []
        self.times: list[float] = []
        self.done = False  # `data: [DONE]` has arrived
        self.cut = False  # the body ended without its last chunk
        self._last_frame_at = time.monotonic()
        self._frame_added = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def complete(self) -> bool:
        return self.done and not self.cut

    @property
    def events(self) -> list[Json]:
        return [event_of(frame) for frame in self.frames]

    @property
    def id(self) -> str:
        return str(event_of(self.frames[0])["response"]["id"])

    @property
    def last_number(self) -> int:
        """The number of the last event read; -1 before the first."""
        return int(event_of(self.frames[-1])["sequence_number"]) if self.frames else -1

    def read_frame(self) -> bytes:
        """Return the next frame with its blank line, comments and [DONE] included; empty at a clean end."""
        lines: list[bytes] = []
        while line := self.response.readline():
            lines.append(line)
            if line == b"\n":
                break
        return b"".join(lines)

    def read(self) -> bytes | None:
        """Return the next event's frame; None when there are no more, however the stream ended."""
        try:
            while not self.done:
                frame = self.read_frame()
                if not frame.endswith(b"\n\n") and frame != b"\n":
                    # Without [DONE] only a missing last chunk is honest.
                    self.cut = True
                elif frame == DONE:
                    self.done = True
                    # The body must end properly, too.
                    assert self.response.read() == b""
                elif not frame.startswith(b":"):
                    self._add(frame)
                    return frame
                # Keep-alive comments are no progress.
                assert time.monotonic() - self._last_frame_at < TIMEOUT_SECONDS, f"no event after {self.frames[-1:]}"
                if self.cut:
                    return None
        except (HTTPException, OSError):
            self.cut = True
        return None

    def read_until(self, matches: Callable[[Json], bool]) -> Json:
        """Read up to the first event that matches, and return it."""
        while (frame := self.read()) is not None:
            event = event_of(frame)
            if matches(event):
                return event
        raise AssertionError(f"the stream ended before such an event: {self.frames[-1:]}")

    def read_type(self, type_: str) -> Json:
        return self.read_until(lambda event: event["type"] == type_)

    def read_delta(self, delta: str) -> Json:
        """Read up to the first event that adds this text."""
        return self.read_until(lambda event: event.get("delta") == delta)

    def read_through(self, type_: str) -> list[bytes]:
        """Return the frames up to the first event of that type."""
        first = len(self.frames)
        self.read_type(type_)
        return self.frames[first:]

    def read_all(self) -> Self:
        """Read to the end and close the connection."""
        while self.read() is not None:
            pass
        self.close()
        return self

    def read_rest(self) -> bytes:
        """Return the bytes still to come, up to a clean end."""
        return self.response.read()

    def read_in_background(self) -> threading.Thread:
        """Read to the end in a thread."""
        thread = threading.Thread(target=self.read_all, daemon=True)
        thread.start()
        return thread

    def wait_frames(self, count: int) -> None:
        """Wait until the thread that reads has read so many frames."""
        with self._frame_added:
            arrived = self._frame_added.wait_for(lambda: len(self.frames) >= count, TIMEOUT_SECONDS)
        assert arrived, self.frames[-1:]

    def send_more(self, request: bytes) -> None:
        """Send another request on this connection; its answer must wait for the end of this one."""
        self.connection.sock.sendall(request)

    def shut_down(self) -> None:
        """End the connection while a thread reads from it."""
        if self.connection.sock is not None:
            self.connection.sock.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Close the connection with a TCP reset, as the network of a crashed machine does."""
        self.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        self.response.close()
        self.connection.close()

    def _add(self, frame: bytes) -> None:
        with self._frame_added:
            self._last_frame_at = time.monotonic()
            self.times.append(self._last_frame_at)
            self.frames.append(frame)
            self._frame_added.notify_all()


class HttpClient:
    """Sends requests to one server, with an API key where one is given. Header names are written with underscores."""

    def __init__(self, port: int, key: str | None = None) -> None:
        self.port = port
        self.headers = {"authorization": f"Bearer {key}"} if key is not None else {}
        self._streams: list[EventStream] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for stream in self._streams:
            stream.close()

    def connect(self) -> HTTPConnection:
        """Return the connection of one request, which is not open yet."""
        return HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Send a request and read the complete answer."""
        connection, response = self._open(method, path, body, headers)
        try:
            return Answer(response)
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, **headers)

    def post(self, path: str, body: object = None, **headers: str) -> Answer:
        return self.request("POST", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Answer:
        return self.request("DELETE", path, **headers)

    def send(self, path: str, body: object, **headers: str) -> HTTPConnection:
        """Send a POST without reading its answer; the caller closes the connection."""
        return self._send("POST", path, body, headers)

    def open_stream(self, method: str, path: str, body: object = None, **headers: str) -> EventStream:
        """Send a request whose answer is read piece by piece."""
        stream = EventStream(*self._open(method, path, body, headers))
        self._streams.append(stream)
        return stream

    # -- responses; a model that is given by position gets the input "Hi" where there is no other

    def create(self, model: str | None = None, /, **body: Any) -> Answer:
        return self.post("/v1/responses", _with_input(model, body))

    def stream(self, model: str | None = None, /, **body: Any) -> EventStream:
        """Create a response that is streamed."""
        return self.open_stream("POST", "/v1/responses", {"stream": True, **_with_input(model, body)})

    def submit(self, model: str | None = None, /, **body: Any) -> str:
        """Create a background response and return its id."""
        answer = self.create(model, background=True, **body)
        assert answer.status == 200, answer
        return str(answer.json()["id"])

    def follow(self, response_id: str, after: int | None = None) -> EventStream:
        cursor = "" if after is None else f"&starting_after={after}"
        return self.open_stream("GET", f"/v1/responses/{response_id}?stream=true{cursor}")

    def replay(self, response_id: str) -> list[bytes]:
        """Return every frame from the first event to the end."""
        stream = self.follow(response_id).read_all()
        assert stream.complete, stream.frames[-1:]
        return stream.frames

    def retrieve(self, response_id: str, query: str = "") -> Json:
        answer = self.get(f"/v1/responses/{response_id}{query}")
        assert answer.status == 200, answer
        body: Json = answer.json()
        return body

    def wait_ended(self, response_id: str) -> Json:
        body = self.retrieve(response_id, "?wait=30")
        assert body["status"] in ENDED, body
        return body

    def cancel(self, response_id: str) -> Answer:
        return self.post(f"/v1/responses/{response_id}/cancel")

    def list_responses(self, query: str = "") -> list[Json]:
        """Return a page of the list, the newest first unless the query has another order."""
        data: list[Json] = self.get(f"/v1/responses{query}").json()["data"]
        return data

    def find_named(self, name: str, query: str = "") -> list[str]:
        """Return the ids of all responses whose metadata is this name alone."""
        return [each["id"] for each in self.list_responses(f"?{query}limit=100") if each["metadata"] == {"name": name}]

    def find_running(self, name: str) -> str:
        """Return the id of the only running response with this name in its metadata."""
        (response_id,) = self.find_named(name, "status=in_progress&")
        return response_id

    # -- conversations

    def create_conversation(self, **fields: Any) -> str:
        return str(self.post("/v1/conversations", fields).json()["id"])

    def list_items(self, conversation: str) -> list[Json]:
        """Return all items, the oldest first."""
        return self.list_all(f"/v1/conversations/{conversation}/items")

    def list_messages(self, conversation: str) -> list[tuple[str, str]]:
        """Return role and text of the newest 100 items that are messages, the oldest first."""
        items = self.get(f"/v1/conversations/{conversation}/items?order=asc&limit=100").json()["data"]
        return [(item["role"], item["content"][0]["text"]) for item in items if item["type"] == "message"]

    def list_all(self, path: str) -> list[Json]:
        """Return every entry of a list, page by page, the oldest first."""
        entries: list[Json] = []
        query = "order=asc&limit=100"
        while True:
            page = self.get(f"{path}?{query}").json()
            entries += page["data"]
            if not page["has_more"]:
                return entries
            query = f"order=asc&limit=100&after={page['last_id']}"

    def ready_status(self) -> int:
        """Return the status of GET /readyz; 0 where nothing answers."""
        try:
            return self.get("/readyz").status
        except (OSError, HTTPException):
            return 0

    def _open(
        self, method: str, path: str, body: object, headers: dict[str, str]
    ) -> tuple[HTTPConnection, HTTPResponse]:
        connection = self._send(method, path, body, headers)
        try:
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise

    def _send(self, method: str, path: str, body: object, headers: dict[str, str]) -> HTTPConnection:
        connection = self.connect()
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if raw is not None and not any(name.lower() == "content-type" for name in sent):
            sent["content-type"] = "application/json"
        try:
            connection.request(method, path, raw, sent)
        except BaseException:
            connection.close()
            raise
        return connection


def _with_input(model: str | None, body: Json) -> Json:
    return body if model is None else {"model": model, "input": "Hi", **body}


def event_of(frame: bytes) -> Json:
    event: Json = json.loads(frame[frame.index(b"\ndata: ") + 7 :])
    return event


def text_of(response: Json) -> str:
    """Return all the text in a response's output."""
    return "".join(
        part.get("text") or ""
        for item in response["output"]
        if item["type"] == "message"
        for part in item.get("content") or ()
    )

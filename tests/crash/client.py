"""A client that keeps the very bytes it is sent, so that they can be compared after a crash."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any, NamedTuple

Json = dict[str, Any]

PATIENCE = 30.0
ENDED = ("completed", "incomplete", "failed", "cancelled")
TERMINAL = tuple(f"response.{status}" for status in ENDED)
DONE = b"data: [DONE]\n\n"


class Answer(NamedTuple):
    status: int
    body: Json
    headers: dict[str, str]


class Client:
    """Asks one server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        connection, response = self._open(method, path, body, headers)
        try:
            raw = response.read()
            got = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, json.loads(raw) if raw else {}, got)
        finally:
            connection.close()

    def create(self, model: str, input: object = "Hi", **fields: Any) -> Answer:
        return self.ask("POST", "/v1/responses", {"model": model, "input": input, **fields})

    def start(self, model: str, input: object = "Hi", **fields: Any) -> str:
        """Start a response in the background; its id."""
        answer = self.create(model, input, background=True, **fields)
        assert answer.status == 200, answer
        return str(answer.body["id"])

    def get(self, response_id: str, query: str = "") -> Json:
        answer = self.ask("GET", f"/v1/responses/{response_id}{query}")
        assert answer.status == 200, answer
        return answer.body

    def wait_end(self, response_id: str) -> Json:
        body = self.get(response_id, "?wait=30")
        assert body["status"] in ENDED, body
        return body

    def stream(self, model: str, input: object = "Hi", **fields: Any) -> Stream:
        return self.open_stream("/v1/responses", {"model": model, "input": input, "stream": True, **fields})

    def open_stream(self, path: str, body: object) -> Stream:
        return Stream(*self._open("POST", path, body))

    def follow(self, response_id: str, after: int | None = None) -> Stream:
        cursor = "" if after is None else f"&starting_after={after}"
        return Stream(*self._open("GET", f"/v1/responses/{response_id}?stream=true{cursor}", None))

    def replay(self, response_id: str) -> list[bytes]:
        """Everything from the first event to the end."""
        stream = self.follow(response_id).read_all()
        assert stream.whole, stream.frames[-1:]
        return stream.frames

    def new_conversation(self, **fields: Any) -> str:
        return str(self.ask("POST", "/v1/conversations", fields).body["id"])

    def items(self, conversation: str) -> list[Json]:
        """Oldest first."""
        items: list[Json] = []
        query = "order=asc&limit=100"
        while True:
            page = self.ask("GET", f"/v1/conversations/{conversation}/items?{query}").body
            items += page["data"]
            if not page["has_more"]:
                return items
            query = f"order=asc&limit=100&after={page['last_id']}"

    def readyz(self) -> int:
        try:
            return self.ask("GET", "/readyz").status
        except (OSError, HTTPException):
            return 0

    def _open(
        self, method: str, path: str, body: object, headers: dict[str, str] | None = None
    ) -> tuple[HTTPConnection, HTTPResponse]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        raw = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, raw, {"content-type": "application/json", **(headers or {})})
            return connection, connection.getresponse()
        except BaseException:
            connection.close()
            raise


class Stream:
    """A stream of events. `frames` are the bytes of those seen so far, without comments."""

    def __init__(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        self.connection = connection
        self.response = response
        self.status = response.status
        self.frames: list[bytes] = []
        self.times: list[float] = []
        self.done = False  # `data: [DONE]` came
        self.cut = False  # it broke off without a last chunk
        self._heard_at = time.monotonic()
        self._seen = threading.Condition()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def whole(self) -> bool:
        return self.done and not self.cut

    @property
    def events(self) -> list[Json]:
        return [event_of(frame) for frame in self.frames]

    @property
    def id(self) -> str:
        return str(event_of(self.frames[0])["response"]["id"])

    @property
    def last(self) -> int:
        """The number of the last event seen; -1 before the first."""
        return int(event_of(self.frames[-1])["sequence_number"]) if self.frames else -1

    def read(self) -> bytes | None:
        """The next frame; None when there are no more, in whatever way it ended."""
        try:
            while not self.done:
                frame = self._read_frame()
                if frame is None:
                    # Without [DONE] only a missing last chunk is honest.
                    self.cut = True
                elif frame == DONE:
                    self.done = True
                    # The body must end properly, too.
                    assert self.response.read() == b""
                elif not frame.startswith(b":"):
                    self._keep(frame)
                    return frame
                # Keep-alive comments are no progress.
                assert time.monotonic() - self._heard_at < PATIENCE, f"nothing after {self.frames[-1:]}"
                if self.cut:
                    return None
        except (HTTPException, OSError):
            self.cut = True
        return None

    def read_until(self, wanted: Callable[[Json], bool]) -> Json:
        """Read up to the first event that is wanted."""
        while (frame := self.read()) is not None:
            event = event_of(frame)
            if wanted(event):
                return event
        raise AssertionError(f"it ended before that: {self.frames[-1:]}")

    def read_type(self, type_: str) -> Json:
        return self.read_until(lambda event: event["type"] == type_)

    def read_all(self) -> Stream:
        """Read to the end and hang up."""
        while self.read() is not None:
            pass
        self.close()
        return self

    def read_behind(self) -> threading.Thread:
        """Read to the end in a thread of its own."""
        thread = threading.Thread(target=self.read_all, daemon=True)
        thread.start()
        return thread

    def wait_seen(self, count: int) -> None:
        """While a thread reads: until so many frames have come."""
        with self._seen:
            assert self._seen.wait_for(lambda: len(self.frames) >= count, PATIENCE), self.frames[-1:]

    def hang_up(self) -> None:
        """While a thread reads: end that."""
        if self.connection.sock is not None:
            self.connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.response.close()
        self.connection.close()

    def _keep(self, frame: bytes) -> None:
        with self._seen:
            self._heard_at = time.monotonic()
            self.times.append(self._heard_at)
            self.frames.append(frame)
            self._seen.notify_all()

    def _read_frame(self) -> bytes | None:
        lines: list[bytes] = []
        while line := self.response.readline():
            lines.append(line)
            if line == b"\n":
                return b"".join(lines)
        return None


def event_of(frame: bytes) -> Json:
    event: Json = json.loads(frame[frame.index(b"\ndata: ") + 7 :])
    return event


def text_of(response: Json) -> str:
    """All the text in a response's output."""
    return "".join(
        part.get("text") or ""
        for item in response["output"]
        if item["type"] == "message"
        for part in item.get("content") or ()
    )


def wait_until(condition: Callable[[], bool], what: str, timeout: float = PATIENCE) -> None:
    """For what shows only from outside; polls."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"it never came: {what}"
        time.sleep(0.02)

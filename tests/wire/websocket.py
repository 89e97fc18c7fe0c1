"""A WebSocket client of the server that shows every frame."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from outlive.core.grammar import TERMINAL_EVENTS
from tests.support.http_client import Json

TIMEOUT = 20.0


class WebSocketClient:
    """One connection, read frame by frame; every frame must be one JSON object in text."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.texts: list[str] = []  # of all frames read so far

    def send(self, **frame: Any) -> None:
        self.connection.send(json.dumps(frame))

    def create(self, **body: Any) -> None:
        self.send(type="response.create", **body)

    def frame(self) -> Json:
        text = self.connection.recv(timeout=TIMEOUT)
        assert isinstance(text, str)
        self.texts.append(text)
        frame: Json = json.loads(text)
        return frame

    def until(self, *types: str) -> list[Json]:
        """Read up to the first frame of one of these types."""
        frames = [self.frame()]
        while frames[-1]["type"] not in types:
            frames.append(self.frame())
        return frames

    def rest(self) -> list[Json]:
        """Read up to the end of a turn, however it ends."""
        return self.until("error", *TERMINAL_EVENTS)

    def turn(self, **body: Any) -> list[Json]:
        self.create(**body)
        return self.rest()

    def answer(self, **body: Any) -> Json:
        """Run a turn that completes, and return its response."""
        last = self.turn(**body)[-1]
        assert last["type"] == "response.completed", last
        response: Json = last["response"]
        return response

    def refusal(self, **body: Any) -> Json:
        """Run a turn that is refused, check the envelope, and return the error."""
        (frame,) = self.turn(**body)
        return check_error(frame)

    def wait_close(self) -> tuple[int, str]:
        """Read to the end, and return the close code and reason."""
        self.wait_end()
        code = self.connection.close_code
        assert code is not None
        return code, self.connection.close_reason or ""

    def wait_end(self) -> list[Json]:
        """Read all frames up to the end of the connection, however it ends."""
        frames = []
        with contextlib.suppress(ConnectionClosed):
            while True:
                frames.append(self.frame())
        return frames


def check_error(frame: Json) -> Json:
    assert set(frame) <= {"type", "status", "error", "stream_id"}, frame
    assert frame["type"] == "error" and isinstance(frame["status"], int)
    assert set(frame["error"]) - {"headers"} == {"type", "code", "message", "param"}, frame
    assert frame["error"]["message"]
    return {**frame["error"], "status": frame["status"]}


@contextmanager
def open_websocket(
    port: int, key: str | None = None, path: str = "/v1/responses", **headers: str
) -> Iterator[WebSocketClient]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    if key is not None:
        given["Authorization"] = f"Bearer {key}"
    url = f"ws://127.0.0.1:{port}{path}"
    connection = connect(url, additional_headers=given, max_size=None, open_timeout=TIMEOUT, proxy=None)
    with connection:
        yield WebSocketClient(connection)


def text_of(response: Json) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text

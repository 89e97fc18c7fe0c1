"""A server other than Outlive, which imitates OpenAI: each request takes the next scripted reply."""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from types import TracebackType
from typing import Any, Self

from tests.support.fake_server import Exchange, serving

Json = dict[str, Any]


def response(status: str, **fields: Any) -> Json:
    """Make a Response object with the fields that clients read."""
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": status, "background": True,
        "output": [], "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "error": None,
        "incomplete_details": None, "instructions": None, "metadata": {}, "temperature": 1, "top_p": 1, **fields,
    }  # fmt: skip


def event(number: int, type: str = "response.output_text.delta", **fields: Any) -> Json:
    if type.rpartition(".")[2] in ("created", "queued", "in_progress", "completed", "failed", "incomplete"):
        fields.setdefault("response", response(type.rpartition(".")[2].replace("created", "queued")))
    else:
        fields = {
            "delta": f"word {number}",
            "item_id": "i",
            "output_index": 0,
            "content_index": 0,
            "logprobs": [],
        } | fields
    return {"type": type, "sequence_number": number, **fields}


class Reply:
    """`body` as JSON, or `events` as a stream that just ends, after `hang` seconds. DROP ends the connection."""

    def __init__(
        self, body: Json | None = None, status: int = 200, *, events: list[Json] | None = None, **headers: Any
    ) -> None:
        self.body = body
        self.status = status
        self.events = events
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


DROP = Reply(status=0)


def refuse(status: int, message: str = "no", **headers: Any) -> Reply:
    return Reply(
        {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}, status, **headers
    )


class Stub:
    def __init__(self) -> None:
        self.replies: deque[Reply] = deque()
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self._running = contextlib.ExitStack()
        self._url = ""

    def __enter__(self) -> Self:
        self._url = self._running.enter_context(serving(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._running.close()

    @property
    def base_url(self) -> str:
        return f"{self._url}/v1"

    @property
    def requests(self) -> list[str]:
        return [f"{method} {path.removeprefix('/v1')}" for method, path, _ in self.asked]

    def script(self, *replies: Reply) -> None:
        self.replies.extend(replies)

    def answer(self, handler: Exchange, *_: object) -> None:
        self.asked.append(
            (handler.command, handler.path, {name.lower(): value for name, value in handler.headers.items()})
        )
        reply = self.replies.popleft() if self.replies else refuse(418, "no reply is scripted")
        time.sleep(float(reply.headers.pop("hang", 0)))
        if reply is DROP:
            return
        handler.send_response(reply.status)
        streamed = reply.events is not None
        if streamed:
            body = b"".join(
                b"event: %b\ndata: %b\n\n" % (each["type"].encode(), json.dumps(each).encode())
                for each in reply.events or []
            )
        else:
            body = json.dumps(reply.body).encode()
            handler.send_header("content-length", str(len(body)))
        handler.send_header("content-type", "text/event-stream" if streamed else "application/json")
        handler.send_header("connection", "close")
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        with contextlib.suppress(OSError):  # the client may have left
            handler.end_headers()
            handler.wfile.write(body)

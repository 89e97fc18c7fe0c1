"""HTTP servers for the tests of commands: a fake Outlive, and a chat server with configurable quirks."""

from __future__ import annotations

import json
from typing import Any

from tests.support.fake_server import Exchange


def event(number: int, kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': number, **fields})}\n\n"


def response(identifier: str = "resp_1", **fields: Any) -> dict[str, Any]:
    return {
        "id": identifier,
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": "demo",
        "conversation": {"id": "conv_1"},
        "usage": {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8},
        "error": None,
        "incomplete_details": None,
        **fields,
    }


MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Once upon\x1b[31m a time", "annotations": []}],
}


def make_frames(status: str = "completed", **fields: Any) -> list[str]:
    """Return the events of a response with a text of two words."""
    ended = response(status=status, **fields)
    running = response(status="in_progress", usage=None)
    return [
        event(0, "response.created", response=running),
        event(1, "response.in_progress", response=running),
        event(2, "response.output_item.added", item={"type": "message"}),
        event(3, "response.output_text.delta", delta="Once "),
        event(4, "response.output_text.delta", delta="upon"),
        event(5, "response.output_item.done", item=MESSAGE),
        event(6, f"response.{status}", response=ended),
    ]


class FakeOutlive:
    """Endpoints of a running server, which record the requests."""

    def __init__(self, key: str | None = None) -> None:
        self.key = key
        self.asked: list[tuple[str, str, dict[str, list[str]]]] = []
        self.cuts: list[int] = []  # frames that each of the first streams sends before it breaks
        self.refusals: list[int] = []  # statuses that the first streams are refused with
        self.frames = make_frames()
        self.waiting: list[dict[str, Any]] = []  # listed after the two ended responses
        self.items = [{**MESSAGE, "id": f"msg_{n}"} for n in range(250)]

    def answer(self, exchange: Exchange, method: str, path: str, query: dict[str, list[str]], body: Any) -> None:
        self.asked.append((method, path, query))
        if self.key and exchange.headers.get("authorization") != f"Bearer {self.key}":
            exchange.error(401, "No valid API key was given.")
        elif path in ("/healthz", "/readyz"):
            exchange.json(200, {"status": "ok"})
        elif method == "GET" and path == "/v1/responses":
            data = [response(), response("resp_2", status="failed", usage=None, conversation=None)]
            data += self.waiting
            exchange.json(200, _envelope(data, False))
        elif path == "/v1/responses/resp_1" and query.get("stream") == ["true"]:
            self._stream(exchange, query)
        elif path in ("/v1/responses/resp_1", "/v1/responses/resp_1/cancel") and method in ("GET", "POST"):
            status = "cancelled" if path.endswith("cancel") else "completed"
            exchange.json(200, response(status=status, output=[MESSAGE]))
        elif method == "GET" and path == "/v1/responses/resp_3" and self.waiting:
            exchange.json(200, self.waiting[0])
        elif method == "DELETE" and path == "/v1/responses/resp_1":
            exchange.json(204, None)
        elif path == "/v1/conversations":
            data = [{"id": "conv_1", "created_at": 1_700_000_000, "metadata": {"topic": "otters"}}]
            exchange.json(200, _envelope(data, False))
        elif path == "/v1/conversations/conv_1":
            deleted = {"id": "conv_1", "object": "conversation.deleted", "deleted": True}
            found = {"id": "conv_1", "object": "conversation", "created_at": 1_700_000_000, "metadata": {}}
            exchange.json(200, deleted if method == "DELETE" else found)
        elif path == "/v1/conversations/conv_1/items":
            self._page(exchange, query)
        else:
            exchange.error(404, f"There is no {path.rpartition('/')[2]}.")

    def _stream(self, exchange: Exchange, query: dict[str, list[str]]) -> None:
        if self.refusals:
            exchange.error(self.refusals.pop(0), "Not now.")
            return
        frames = self.frames[int(query.get("starting_after", ["-1"])[0]) + 1 :]
        if self.cuts:
            exchange.stream(frames[: self.cuts.pop(0)], clean_end=False)
        else:
            exchange.stream([": keep-alive\n\n", *frames, "data: [DONE]\n\n"])

    def _page(self, exchange: Exchange, query: dict[str, list[str]]) -> None:
        items = list(reversed(self.items)) if query["order"] == ["desc"] else self.items
        start = 0
        if "after" in query:
            start = 1 + next(n for n, item in enumerate(items) if item["id"] == query["after"][0])
        limit = int(query["limit"][0])
        assert 1 <= limit <= 100
        exchange.json(200, _envelope(items[start : start + limit], start + limit < len(items)))


def _envelope(data: list[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}


class FakeChatServer:
    """A Chat Completions server with configurable quirks."""

    def __init__(self, **quirks: Any) -> None:
        self.prefix: str = quirks.get("prefix", "/v1")
        self.key: str | None = quirks.get("key")
        self.models: list[str] | None = quirks.get("models", ["text-embedding-x", "tiny"])
        self.honours: set[str] = quirks.get("honours", {"max_tokens", "max_completion_tokens"})
        self.refuses: set[str] = quirks.get("refuses", set())  # fields, or "developer"
        self.heeds: set[str] = quirks.get("heeds", {"developer", "system"})
        self.continues: str = quirks.get("continues", "none")
        self.sends_usage: bool = quirks.get("sends_usage", True)
        self.responds: bool = quirks.get("responds", False)
        self.broken: str | None = quirks.get("broken")
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []

    def answer(self, exchange: Exchange, method: str, path: str, query: dict[str, list[str]], body: Any) -> None:
        self.paths.append(exchange.path)
        given = exchange.headers.get("authorization") or exchange.headers.get("api-key") or ""
        if not path.startswith(self.prefix + "/"):
            exchange.error(404, "Nothing here.")
        elif self.key and given.removeprefix("Bearer ") != self.key:
            exchange.error(401, f"Incorrect API key provided: {given}")
        elif path.endswith("/models"):
            if self.models is None:
                exchange.error(404, "No list.")
            else:
                exchange.json(200, {"object": "list", "data": [{"id": name} for name in self.models]})
        elif path.endswith("/responses"):
            self._respond(exchange)
        else:
            self._chat(exchange, body)

    def _respond(self, exchange: Exchange) -> None:
        if self.responds:
            exchange.json(200, {"id": "resp_1", "object": "response", "status": "completed", "output": []})
        else:
            exchange.error(404, "Nothing here.")

    def _chat(self, exchange: Exchange, body: dict[str, Any]) -> None:
        self.bodies.append(body)
        if self.broken:
            exchange.error(500, self.broken)
            return
        roles = {message["role"] for message in body["messages"]}
        for name in self.refuses & ({*body} | roles):
            exchange.error(400, f"Unknown {name}.")
            return
        limit = next((body[field] for field in self.honours if field in body), 1000)
        words = self._words(body)[:limit]
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]} for word in words
        ]
        chunks.append(
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "length" if len(words) == limit else "stop"}]}
        )
        if self.sends_usage and (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": len(words)}})
        exchange.stream([f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"])

    def _words(self, body: dict[str, Any]) -> list[str]:
        first, last = body["messages"][0], body["messages"][-1]
        if last["role"] == "assistant":
            mode = (
                "continue_final_message"
                if body.get("continue_final_message")
                else "prefix"
                if last.get("prefix")
                else "prefill"
            )
            return [", five", ", six"] if mode == self.continues else ["One", ", two"]
        if "secret" in last["content"]:
            known = first["role"] in self.heeds and "tangerine" in first["content"]
            return ["tangerine"] if known else ["I", " do", " not", " know"]
        return [f"{n} " for n in range(1, 101)]

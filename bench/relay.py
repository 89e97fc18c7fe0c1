"""The yardstick: a lean relay that keeps nothing. What Outlive costs above it is the price of durability.

It turns a Chat Completions stream into Responses events with the libraries that Outlive uses, one client write per
upstream read, and forgets everything at once.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import uvloop
from aiohttp import ClientResponse, ClientSession, ClientTimeout, TCPConnector, web

Json = dict[str, Any]

JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream"}
CLIENT = web.AppKey("client", ClientSession)
UPSTREAM = web.AppKey("upstream", str)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Answer:
    """One response in the making: chunks in, frames out."""

    def __init__(self, model: str) -> None:
        self.response: Json = {
            "id": "resp_" + os.urandom(16).hex(),
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "model": model,
            "output": [],
            "usage": None,
            "metadata": {},
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
        }
        self.usage: Json | None = None
        self.pieces: list[str] = []
        self._item_id = "msg_" + os.urandom(16).hex()
        self._place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        self._number = -1

    def _frame(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        data = _encode({"type": kind, "sequence_number": self._number, **fields})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _item(self, status: str, content: list[Json]) -> Json:
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def begin(self) -> bytes:
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._frame(kind, response=self.response) for kind in kinds)

    def feed(self, chunk: Json) -> list[bytes]:
        self.usage = chunk.get("usage") or self.usage
        frames = []
        for choice in chunk["choices"]:
            if text := choice["delta"].get("content"):
                if not self.pieces:
                    part = {"type": "output_text", "text": "", "annotations": []}
                    item = self._item("in_progress", [])
                    frames.append(self._frame("response.output_item.added", output_index=0, item=item))
                    frames.append(self._frame("response.content_part.added", **self._place, part=part))
                self.pieces.append(text)
                frames.append(self._frame("response.output_text.delta", **self._place, delta=text, logprobs=[]))
        return frames

    def end(self) -> bytes:
        text = "".join(self.pieces)
        part = {"type": "output_text", "text": text, "annotations": []}
        item = self._item("completed", [part])
        self.response.update(status="completed", output=[item], usage=self.usage)
        return b"".join(
            (
                self._frame("response.output_text.done", **self._place, text=text, logprobs=[]),
                self._frame("response.content_part.done", **self._place, part=part),
                self._frame("response.output_item.done", output_index=0, item=item),
                self._frame("response.completed", response=self.response),
            )
        )


async def create(request: web.Request) -> web.StreamResponse:
    body = _decode(await request.read())
    answer = Answer(body["model"])
    ask: Json = {"model": body["model"], "messages": [{"role": "user", "content": body["input"]}]}
    if body.get("stream"):
        ask |= {"stream": True, "stream_options": {"include_usage": True}}
    async with request.app[CLIENT].post(request.app[UPSTREAM], data=_encode(ask), headers=JSON) as upstream:
        if body.get("stream"):
            return await _stream(request, answer, upstream)
        chat = _decode(await upstream.read())
    answer.pieces, answer.usage = [chat["choices"][0]["message"]["content"]], chat["usage"]
    answer.end()
    return web.Response(body=_encode(answer.response), headers=JSON)


async def _stream(request: web.Request, answer: Answer, upstream: ClientResponse) -> web.StreamResponse:
    reply = web.StreamResponse(headers=SSE)
    await reply.prepare(request)
    await reply.write(answer.begin())
    rest = b""
    async for data in upstream.content.iter_any():
        *events, rest = (rest + data).split(b"\n\n")
        frames = [frame for event in events if event[6:7] == b"{" for frame in answer.feed(_decode(event[6:]))]
        if frames:
            await reply.write(b"".join(frames))
    await reply.write(answer.end())
    await reply.write_eof()
    return reply


def build(upstream: str) -> web.Application:
    app = web.Application()
    app[UPSTREAM] = upstream + "/chat/completions"
    app.router.add_post("/v1/responses", create)

    async def client(app: web.Application) -> AsyncIterator[None]:
        connector = TCPConnector(limit=0)
        async with ClientSession(
            connector=connector, timeout=ClientTimeout(total=None), auto_decompress=False
        ) as session:
            app[CLIENT] = session
            yield

    app.cleanup_ctx.append(client)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=9200)
    parser.add_argument("--upstream", default="http://127.0.0.1:9100/v1")
    args = parser.parse_args()
    uvloop.install()
    web.run_app(build(args.upstream), host="127.0.0.1", port=args.port, access_log=None, print=None, backlog=4096)

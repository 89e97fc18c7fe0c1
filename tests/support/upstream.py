"""A Chat Completions server on a real socket, in a thread of the test: it plays scripts, with gates and faults."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from aiohttp import web

Json = dict[str, Any]

TIMEOUT_SECONDS = 40.0


class Gate:
    """A step at which a script waits until the test opens it."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._reached = threading.Event()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._lock = threading.Lock()

    def open(self) -> None:
        with self._lock:
            self._opened.set()
            for loop, event in self._waiting:
                loop.call_soon_threadsafe(event.set)

    def wait_reached(self, timeout: float = TIMEOUT_SECONDS) -> None:
        assert self._reached.wait(timeout), "no script has reached the gate"

    async def wait_open(self) -> None:
        event = asyncio.Event()
        with self._lock:
            self._reached.set()
            if self._opened.is_set():
                return
            self._waiting.append((asyncio.get_running_loop(), event))
        await event.wait()


class Refuse:
    """Answer with an error status instead of a stream."""

    def __init__(self, status: int, body: Json | str | None = None, **headers: str) -> None:
        self.status = status
        self.body = body if body is not None else {"error": {"message": f"upstream says {status}", "type": "x"}}
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Whole:
    """Answer with one JSON body, even where a stream was requested."""

    def __init__(self, body: Json) -> None:
        self.body = body


class Pause:
    """Send nothing for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class _Cut:
    """Reset the connection before the end of the answer."""


class _Hang:
    """Send nothing more until the client disconnects."""


CUT = _Cut()
HANG = _Hang()
DONE = b"data: [DONE]\n\n"

Step = Json | bytes | Gate | Refuse | Whole | Pause | _Cut | _Hang
Script = Sequence[Step]
Choice = Script | Callable[[Json], Script]


# -- chunks


def chunk(delta: Json | None = None, finish: str | None = None, **fields: Any) -> Json:
    choice: Json = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "upstream-model",
        "choices": [choice], **fields,
    }  # fmt: skip


def text(piece: str) -> Json:
    return chunk({"content": piece})


def reasoning(piece: str, field: str = "reasoning_content") -> Json:
    return chunk({field: piece})


def refusal(piece: str) -> Json:
    return chunk({"refusal": piece})


def call(index: int, arguments: str, id: str | None = None, name: str | None = None) -> Json:
    """Return a piece of a function call; its first piece has the id and the name."""
    function: Json = {"arguments": arguments, **({"name": name} if name is not None else {})}
    head: Json = {"id": id, "type": "function"} if id is not None else {}
    return chunk({"tool_calls": [{"index": index, **head, "function": function}]})


def finish(reason: str = "stop") -> Json:
    return chunk(finish=reason)


def usage(prompt: int = 5, completion: int = 2) -> Json:
    return chunk(
        choices=[],
        usage={"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion},
    )


def ending(reason: str = "stop") -> list[Step]:
    """Return the last steps of a complete stream."""
    return [finish(reason), usage(), DONE]


def say(*pieces: str) -> list[Step]:
    """Return the script of a complete answer of text."""
    return [*(text(piece) for piece in pieces), *ending()]


# -- the server


class UpstreamCall:
    """One request that the upstream received."""

    def __init__(self, path: str, headers: dict[str, str], body: Json) -> None:
        self.path = path
        self.headers = headers
        self.body = body
        self.disconnected_at: float | None = None
        self.reported: Json | None = None  # the usage that was sent, whether or not it arrived
        self._disconnected = threading.Event()
        self._finished = threading.Event()

    @property
    def messages(self) -> list[Json]:
        messages: list[Json] = self.body["messages"]
        return messages

    @property
    def disconnected(self) -> bool:
        """True if the client disconnected before the end of the script."""
        return self._disconnected.is_set()

    @property
    def finished(self) -> bool:
        """True if the script has ended, in whatever way."""
        return self._finished.is_set()

    def wait_disconnected(self) -> None:
        assert self._disconnected.wait(TIMEOUT_SECONDS), "the client is still connected"

    def wait_finished(self) -> None:
        assert self._finished.wait(TIMEOUT_SECONDS), "the script has not ended"

    def finish(self, disconnected: bool) -> None:
        if disconnected:
            self.disconnected_at = time.monotonic()
            self._disconnected.set()
        self._finished.set()


class FakeUpstream:
    """Plays scripts by model name, queued ones first, and records every request."""

    def __init__(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        """`host` is a name of this machine."""
        self._host, self._tls = host, tls
        self._by_model: dict[str, Choice] = {}
        self._queued: dict[str | None, deque[Choice]] = {}
        self._calls: list[UpstreamCall] = []
        self._arrived = threading.Condition()
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True, name="upstream")
        self._started = threading.Event()
        self.port = 0
        self.models: list[str] = ["first-model", "second-model"]
        self.otherwise: Choice = say("Hello", " there")  # the script of models without one

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(TIMEOUT_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self._host}:{self.port}/v1"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_SECONDS)

    # -- scripts

    def model(self, *scripts: Choice) -> str:
        """Return a new model name that answers with these scripts in turn, and then always with the last one."""
        name = f"model-{next(self._numbers)}"
        self._queued[name] = deque(scripts[:-1])
        self._by_model[name] = scripts[-1] if scripts else self.otherwise
        return name

    def on(self, model: str, script: Choice) -> None:
        """Replace a model's script."""
        self._by_model[model] = script

    def queue(self, script: Choice, model: str | None = None) -> None:
        """Answer the next request for that model, or for any model, with this script."""
        self._queued.setdefault(model, deque()).append(script)

    # -- received requests

    def calls(self, model: str | None = None) -> list[UpstreamCall]:
        with self._arrived:
            return [each for each in self._calls if model is None or each.body.get("model") == model]

    def bodies(self, model: str | None = None) -> list[Json]:
        return [each.body for each in self.calls(model)]

    def wait_call(self, model: str | None = None, number: int = 1, timeout: float = TIMEOUT_SECONDS) -> UpstreamCall:
        """Wait for the number-th request for the model, and return it."""

        def is_there() -> bool:
            return sum(model is None or each.body.get("model") == model for each in self._calls) >= number

        with self._arrived:
            assert self._arrived.wait_for(is_there, timeout), "there was no such request"
        return self.calls(model)[number - 1]

    def forget(self) -> None:
        """Forget the requests received so far."""
        with self._arrived:
            self._calls.clear()

    # -- in its thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        runner = self._loop.run_until_complete(self._open())
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _open(self) -> web.AppRunner:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_post("/{path:.*}", self._take)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, backlog=2048, ssl_context=self._tls)
        await site.start()
        self.port = runner.addresses[0][1]
        return runner

    async def _list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    async def _take(self, request: web.Request) -> web.StreamResponse:
        asked = UpstreamCall(
            request.path, {name.lower(): value for name, value in request.headers.items()}, await request.json()
        )
        with self._arrived:
            script = self._choose(asked.body)
            self._calls.append(asked)
            self._arrived.notify_all()
        try:
            answer = await self._play(request, asked, script)
        except asyncio.CancelledError:
            asked.finish(disconnected=True)
            raise
        except ConnectionError:
            asked.finish(disconnected=True)
            return web.Response()  # the client is gone
        asked.finish(disconnected=False)
        return answer

    def _choose(self, body: Json) -> Script:
        model = body.get("model")
        choice: Choice | None = None
        for name in (model, None):
            if choice is None and self._queued.get(name):
                choice = self._queued[name].popleft()
        if choice is None:
            choice = self._by_model.get(str(model), self.otherwise)
        return choice(body) if callable(choice) else choice

    async def _play(self, request: web.Request, asked: UpstreamCall, script: Script) -> web.StreamResponse:
        if not asked.body.get("stream"):
            return await self._answer_whole(script)
        stream: web.StreamResponse | None = None
        for step in script:
            if isinstance(step, Refuse):
                return _refuse(step)
            if isinstance(step, Whole):
                return web.json_response(step.body)
            if isinstance(step, Gate):
                await step.wait_open()
            elif isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, _Hang):
                await asyncio.Event().wait()
            elif isinstance(step, _Cut):
                assert request.transport is not None
                request.transport.abort()
                return stream or web.Response()
            else:
                if stream is None:
                    stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
                    await stream.prepare(request)
                if isinstance(step, dict) and step.get("usage"):
                    asked.reported = step["usage"]
                await stream.write(step if isinstance(step, bytes) else b"data: %b\n\n" % json.dumps(step).encode())
        if stream is None:
            stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await stream.prepare(request)
        await stream.write_eof()
        return stream

    async def _answer_whole(self, script: Script) -> web.StreamResponse:
        """Answer with the script as one completion, where no stream was requested."""
        content, reason = "", "stop"
        for step in script:
            if isinstance(step, Refuse):
                return _refuse(step)
            if isinstance(step, Whole):
                return web.json_response(step.body)
            if isinstance(step, Gate):
                await step.wait_open()
            elif isinstance(step, _Hang):
                await asyncio.Event().wait()
            elif isinstance(step, dict) and step["choices"]:
                content += step["choices"][0]["delta"].get("content", "")
                reason = step["choices"][0]["finish_reason"] or reason
        message = {"role": "assistant", "content": content}
        return web.json_response(
            {
                "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "upstream-model",
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
            }
        )  # fmt: skip


def _refuse(step: Refuse) -> web.Response:
    if (encoding := step.headers.get("content-encoding")) in ("gzip", "deflate"):
        squeezed = zlib.compress(json.dumps(step.body).encode(), wbits=31 if encoding == "gzip" else 15)
        return web.Response(body=squeezed, status=step.status, headers=step.headers)
    if isinstance(step.body, str):
        return web.Response(text=step.body, status=step.status, headers=step.headers)
    return web.json_response(step.body, status=step.status, headers=step.headers)

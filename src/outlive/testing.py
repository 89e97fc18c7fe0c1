"""For tests of clients: a scripted model, and a real server in this process that answers with it.

A script is what the model does in one call. Each step is a text, a chunk as an upstream sends it, several chunks of one
read, a pause in seconds, an event to wait for, or an error to raise.
"""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import msgspec

from outlive.app import open_engine
from outlive.clock import RandomIds
from outlive.config.settings import Settings
from outlive.core.errors import InvalidRequest
from outlive.core.errors import UpstreamFault as UpstreamFault  # noqa: PLC0414 - public here
from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.dialects.chat.translator import ChatTranslator
from outlive.http.compatibility import find_fault
from outlive.ports.backend import Backend, Backends, ContinuationMode, ModelCall, OnChunks
from outlive.server import EngineServer, listen

# Seconds between two looks at a `threading.Event`.
POLL_SECONDS = 0.005

Step: TypeAlias = str | bytes | list[bytes] | float | threading.Event | asyncio.Event | BaseException
Script: TypeAlias = Sequence[Step]
Ready: TypeAlias = Future[tuple[str, Callable[[], object]]]  # of a server's URL, and a function that stops it


@contextlib.contextmanager
def serve(*backends: "ScriptedBackend", **settings: Any) -> Iterator[str]:
    """Run a server on a free port, in a thread, and give its base URL. Each model has its backend's name.

    `settings` are fields of `outlive.config.settings.Settings`. The database is temporary unless they name one.
    """
    ready: Ready = Future()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as thread:
        given: dict[str, Any] = {"port": 0, "database": f"sqlite:///{folder}/outlive.db", **settings}
        running = thread.submit(asyncio.run, _serve(Settings(**given), backends, ready))
        # Raise the reason here if the server does not start.
        running.add_done_callback(lambda ended: ready.done() or ready.set_exception(ended.exception()))  # type: ignore[func-returns-value]
        url, stop = ready.result()
        try:
            yield url
        finally:
            stop()
            running.result()


async def _serve(settings: Settings, backends: Sequence["ScriptedBackend"], ready: Ready) -> None:
    by_name = {backend.name: backend for backend in backends}

    def route(model: str) -> tuple[ScriptedBackend, str]:
        name = model.rpartition("/")[2]  # where there are several, the list of models has them as NAME/NAME
        if name not in by_name:
            raise InvalidRequest(f"There is no model {model!r} here.", param="model", code="model_not_found")
        return by_name[name], name

    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    with listen(settings.host, settings.port) as listening:
        async with open_engine(settings, Backends({**by_name}, route)) as engine:
            server = EngineServer(settings, engine, own=await find_fault() is None)
            tasks = [asyncio.create_task(engine.run()), asyncio.create_task(server.serve(sockets=[listening]))]
            url = f"http://{settings.host}:{listening.getsockname()[1]}/v1"
            ready.set_result((url, lambda: loop.call_soon_threadsafe(stopped.set)))
            await stopped.wait()
            await server.stop(grace=0)
            await tasks[1]
            tasks[0].cancel()
            await asyncio.wait(tasks)


class ScriptedAnswer:
    """A script as the event stream of an answer that is passed through."""

    def __init__(self, chunks: AsyncGenerator[list[bytes], None]) -> None:
        self._chunks = chunks
        self.status = 200
        self.headers = {"content-type": "text/event-stream"}

    async def body(self) -> AsyncGenerator[bytes, None]:
        async with contextlib.aclosing(self._chunks):
            async for chunks in self._chunks:
                yield b"".join(b"data: %b\n\n" % chunk for chunk in chunks)
            yield b"data: [DONE]\n\n"

    def close(self) -> None:
        pass


class ScriptedBackend(Backend):
    """A model that follows one script per call, and the last one again when there are more calls."""

    def __init__(
        self,
        name: str,
        scripts: Sequence[Script],
        *,
        continuation: ContinuationMode = "none",
        ids: IdSource | None = None,
    ) -> None:
        self.name = name
        self.scripts = list(scripts)
        self.continuation: ContinuationMode = continuation  # not "none": it can continue an interrupted text
        self.calls: list[ModelCall] = []
        self.passed: list[Json] = []  # the bodies of Chat Completions requests, which are passed through
        self.context_window: int | None = None
        self.counter: Callable[[ModelCall], int] | None = None  # None: it cannot count tokens
        self.left = 0  # streams that were closed before the end of their script
        self._ids: IdSource = ids if ids is not None else RandomIds()

    def translator(self, call: ModelCall) -> ChatTranslator:
        return ChatTranslator(call, self._ids)

    def stream(self, call: ModelCall, on_chunks: OnChunks | None = None) -> AsyncGenerator[list[bytes], None]:
        self.calls.append(call)
        return self._play(len(self.calls) + len(self.passed))

    async def pass_through(self, body: Json, headers: dict[str, str] | None = None) -> ScriptedAnswer:
        self.passed.append(body)
        return ScriptedAnswer(self._play(len(self.calls) + len(self.passed)))

    async def models(self) -> list[Json]:
        return [{"id": self.name, "object": "model", "created": 0, "owned_by": "outlive"}]

    async def count(self, call: ModelCall) -> int | None:
        return self.counter(call) if self.counter is not None else None

    async def window(self, model: str) -> int | None:
        return self.context_window

    async def _play(self, nth: int) -> AsyncGenerator[list[bytes], None]:
        over = False
        try:
            for step in self.scripts[min(nth, len(self.scripts)) - 1]:
                if isinstance(step, BaseException):
                    over = True
                    raise step
                if isinstance(step, str | bytes):
                    yield [text_chunk(step) if isinstance(step, str) else step]
                elif isinstance(step, list):
                    yield step
                elif isinstance(step, int | float):
                    await asyncio.sleep(step)
                elif isinstance(step, threading.Event):
                    while not step.is_set():  # noqa: ASYNC110 - a thread sets it, and one that waits cannot be cancelled
                        await asyncio.sleep(POLL_SECONDS)
                else:
                    await step.wait()
            over = True
        finally:
            self.left += not over


# -- chunks as an upstream sends them


def chunk(delta: Json | None = None, finish_reason: str | None = None, **fields: Any) -> bytes:
    """Make a chunk with one choice; `fields` stand beside `choices`."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish_reason}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    return msgspec.json.encode({**head, "choices": [choice], **fields})


def role_chunk() -> bytes:
    return chunk({"role": "assistant", "content": ""})


def text_chunk(text: str) -> bytes:
    return chunk({"content": text})


def refusal_chunk(text: str) -> bytes:
    return chunk({"refusal": text})


def reasoning_chunk(text: str) -> bytes:
    return chunk({"reasoning_content": text})


def call_chunk(
    index: int | None = 0, call_id: str | None = None, name: str | None = None, arguments: object = None
) -> bytes:
    """Make a fragment of a function call. Fields that are None are left out."""
    function = {field: value for field, value in (("name", name), ("arguments", arguments)) if value is not None}
    entry: Json = {field: value for field, value in (("index", index), ("id", call_id)) if value is not None}
    return chunk({"tool_calls": [entry | {"type": "function", "function": function}]})


def finish_chunk(reason: str = "stop") -> bytes:
    return chunk({}, reason)


def usage_chunk(prompt: int = 1, completion: int = 1, **fields: Any) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **fields}
    return chunk(choices=[], usage=usage)


def error_chunk(message: str, **fields: Any) -> bytes:
    return msgspec.json.encode({"error": {"message": message, **fields}})


# -- whole answers: a script of their own, or one step of a script


def answer(*texts: str) -> list[bytes]:
    """Make a complete answer of these pieces of text."""
    pieces = [text_chunk(text) for text in texts]
    return [role_chunk(), *pieces, finish_chunk(), usage_chunk(1, len(texts))]


def function_call(name: str, call_id: str = "call_1", **arguments: Any) -> list[bytes]:
    """Make a complete answer that calls a function of the client's."""
    written = msgspec.json.encode(arguments).decode()
    return [role_chunk(), call_chunk(0, call_id, name, written), finish_chunk("tool_calls"), usage_chunk()]

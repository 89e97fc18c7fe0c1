"""A model that says what its script says, for tests: every chunk, pause and fault at the point where it is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypeAlias

import msgspec

from outlive.clock import RandomIds
from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.requests.create import CreateResponse
from outlive.dialects.chat.translator import ChatTranslator
from outlive.ports.backend import BackgroundRuns, ContinuationMode, ModelCall, OnChunks


class Waitable(Protocol):
    """A point in a script where the model waits, such as an `asyncio.Event`."""

    async def wait(self) -> object: ...


# A text, a chunk, several chunks of one read, a pause in seconds, a point to wait at, or an error to raise.
Step: TypeAlias = str | bytes | list[bytes] | float | Waitable | BaseException
Script: TypeAlias = Sequence[Step]


class ScriptedPassed:
    """A script as the event stream of an answer that is passed through."""

    def __init__(self, chunks: AsyncGenerator[list[bytes], None]) -> None:
        self._chunks = chunks
        self.status = 200
        self.headers = {"content-type": "text/event-stream"}

    async def body(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._chunks):
            async for chunks in self._chunks:
                yield b"".join(b"data: %b\n\n" % chunk for chunk in chunks)
            yield b"data: [DONE]\n\n"

    def close(self) -> None:
        pass


class ScriptedBackend:
    """Plays one script per call, passed through or not, and the last one again when there are more calls."""

    stepwise = False
    background_runs: BackgroundRuns | None = None

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
        self.continuation: ContinuationMode = continuation
        self.calls: list[ModelCall] = []
        self.passed: list[Json] = []  # the bodies that were passed through
        self.context_window: int | None = None
        self.counter: Callable[[ModelCall], int] | None = None  # None: it cannot count
        self.left = 0  # streams that were closed before their script was over
        self._ids: IdSource = ids if ids is not None else RandomIds()

    def check(self, request: CreateResponse) -> None:
        """A script answers whatever is asked."""

    def translator(self, call: ModelCall) -> ChatTranslator:
        return ChatTranslator(call, self._ids)

    def stream(self, call: ModelCall, on_chunks: OnChunks | None = None) -> AsyncGenerator[list[bytes], None]:
        self.calls.append(call)
        return self._play(len(self.calls) + len(self.passed))

    async def pass_through(self, body: Json) -> ScriptedPassed:
        self.passed.append(body)
        return ScriptedPassed(self._play(len(self.calls) + len(self.passed)))

    async def models(self) -> list[Json]:
        return [{"id": self.name, "object": "model", "created": 0, "owned_by": "outlive"}]

    async def count(self, call: ModelCall) -> int | None:
        return self.counter(call) if self.counter is not None else None

    async def window(self, model: str) -> int | None:
        return self.context_window

    async def close(self) -> None:
        pass

    async def _play(self, nth: int) -> AsyncGenerator[list[bytes], None]:
        script = self.scripts[min(nth, len(self.scripts)) - 1]
        over = False
        try:
            for step in script:
                if isinstance(step, BaseException):
                    over = True
                    raise step
                if isinstance(step, str | bytes | list):
                    yield _chunks(step)
                elif isinstance(step, int | float):
                    await asyncio.sleep(step)
                else:
                    await step.wait()
            over = True
        finally:
            self.left += not over


def _chunks(step: str | bytes | list[bytes]) -> list[bytes]:
    if isinstance(step, str):
        return [text_chunk(step)]
    return [step] if isinstance(step, bytes) else step


# -- chunks as an upstream sends them


def chunk(delta: Json | None = None, finish_reason: str | None = None, **fields: Any) -> bytes:
    """Any chunk with one choice; `fields` stand beside `choices`."""
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
    """A fragment of a function call; what is None is left out."""
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


def answer(*texts: str) -> list[bytes]:
    """The whole of a plain answer, in one read."""
    pieces = [text_chunk(text) for text in texts]
    return [role_chunk(), *pieces, finish_chunk(), usage_chunk(1, len(texts))]

"""The base of backends that reach their upstream over HTTP."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from functools import partial
from typing import Any

import msgspec

from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.recovery import OpenText
from outlive.core.requests.body import EncodedBody, encode_body, has_too_many_values
from outlive.core.requests.create import CreateResponse
from outlive.dialects.offer import find_left_out
from outlive.dialects.transport.endpoint import Endpoint
from outlive.dialects.transport.event_stream import EventStream
from outlive.dialects.transport.http1 import AnswerTooLong, Connection, HttpPool
from outlive.ports.backend import Backend, ModelCall, OnChunks, Upstream

log = logging.getLogger(__name__)

_MANY_ITEMS = 500
_MOST_LOGGED = 100  # callers name the types
_KEPT_SECONDS = 300.0  # a server may be restarted with another window
_UNKNOWN_SECONDS = 30.0

# Bytes of an answer that comes as a whole, which is decoded in a thread if it is longer than the second.
_MOST_WHOLE = 32 * 1024 * 1024
_INLINE_BYTES = 256 * 1024
# Content types of servers that answer as a whole, though they were asked for a stream.
_WHOLE = ("application/json", "text/html")

# The names under which servers list a model's window, the surest first: the one it was started with before the one it
# was trained with.
_WINDOWS = (
    "context_window", "loaded_context_length", "max_model_len", "n_ctx", "context_length", "max_context_length",
    "max_input_tokens", "inputTokenLimit",
)  # fmt: skip

Connect = Callable[[], Awaitable[Connection]]


class HttpBackend(Endpoint, Backend):
    """One upstream. The pool is shared by all of them, and is not closed here."""

    path: str  # of the requests for answers, below the upstream's URL
    last: re.Pattern[bytes] | None = None  # is found in a payload that nothing follows
    enough: re.Pattern[bytes] | None = None  # in one after which an answer is whole, though the connection may break

    def __init__(self, upstream: Upstream, pool: HttpPool, ids: IdSource) -> None:
        super().__init__(upstream, pool)
        self.continuation = upstream.continuation
        self._windows: dict[str, tuple[int | None, float]] = {}  # by model, until a time
        self._ids = ids
        self._url = self.url(self.path)
        self._logged: set[str] = set()  # types of tools that were left out

    def _ask(self, call: ModelCall) -> Awaitable[Connection]:
        """Send the request, again without what a server refuses, and wait for the head of the answer."""
        raise NotImplementedError

    def _to_chunks(self, body: bytes, resume: OpenText | None) -> list[bytes]:
        """Make payloads of an answer that came whole, although a stream was asked for. Raises UpstreamFault."""
        raise NotImplementedError

    def stream(self, call: ModelCall, on_chunks: OnChunks | None = None) -> AsyncGenerator[list[bytes], None]:
        return self._read(partial(self._ask, call), on_chunks, call.resume)

    async def _read(
        self, ask: Connect, on_chunks: OnChunks | None = None, resume: OpenText | None = None
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield the payloads of each read; with `on_chunks`, all but the first are given to that instead. Closing the
        generator closes the connection at once."""
        answer = await ask()
        events, last = EventStream(), self.last
        recent: list[list[bytes]] = [[], []]  # the last two
        waiting: list[list[bytes]] = []

        def take(give: "Callable[[list[bytes]], object]", piece: bytes) -> bool:
            if not (payloads := events.feed(piece)):
                return not events.done
            recent[0], recent[1] = recent[1], payloads
            if last is not None and last.search(payloads[-1]):
                events.done = True  # not every server says so, or closes the connection
            return give(payloads) is not False and not events.done

        try:
            if answer.content_type in _WHOLE:
                yield await self._decode(await answer.read_whole(_MOST_WHOLE), resume)
                return
            while piece := await answer.read():
                take(waiting.append, piece)
                if waiting:
                    yield waiting.pop()
                if on_chunks is not None and not events.done:
                    await answer.forward_to(partial(take, on_chunks))
                    yield []  # `on_chunks` may have asked for it
                if events.done:
                    return
            if payloads := events.end():
                yield payloads
        except OSError as error:
            if self.enough is None or not any(map(self.enough.search, recent[0] + recent[1])):
                raise self.broken(error) from error
        finally:
            self.leave(answer, events.done)

    async def _decode(self, body: bytes, resume: OpenText | None) -> list[bytes]:
        if len(body) <= _INLINE_BYTES:
            return self._to_chunks(body, resume)
        if await asyncio.to_thread(has_too_many_values, body):
            raise AnswerTooLong("The answer has too many JSON values.")
        return await asyncio.to_thread(self._to_chunks, body, resume)

    async def window(self, model: str) -> int | None:
        """Return the most tokens that a model can hold: as the settings say, else as the server lists it, which may
        list its only model under whatever name."""
        if self.upstream.context_window is not None:
            return self.upstream.context_window
        known, until = self._windows.get(model, (None, 0.0))
        if time.monotonic() >= until:
            models = await self._fetch_models()
            found = [entry for entry in models if entry.get("id") == model] or (models if len(models) == 1 else [])
            places = (place for entry in found for place in (entry, entry.get("meta")))
            known = next((size for place in places for name in _WINDOWS if (size := _read_number(place, name))), None)
            self._windows[model] = known, time.monotonic() + (_KEPT_SECONDS if known else _UNKNOWN_SECONDS)
        return known

    async def _ask_count(
        self, path: str, body: Json, counted: Collection[str], field: str = "input_tokens"
    ) -> int | None:
        """Ask for the number of tokens in these fields of a body; None when there is none to be had. `../` leads out of
        the API's own folder."""
        url = self.url(path)
        if path.startswith("../"):
            url = url.replace("/v1/../", "/").replace("/../", "/")
        return _read_number(await self.fetch(url, {name: body[name] for name in counted if name in body}), field)

    async def _post(self, call: ModelCall, render: Callable[[], Json], **headers: str) -> Connection:
        """Render a request and send it: one with a long context is rendered in a thread, so that streams do not wait
        for it. Raises UpstreamFault for a refusal."""
        data: EncodedBody
        if call.large or len(call.items) > _MANY_ITEMS:
            data = await asyncio.to_thread(lambda: encode_body(render()))
        else:
            data = msgspec.json.encode(render())
        return await self.request("POST", self._url, data, call.headers | headers if headers else call.headers)


class FunctionsBackend(HttpBackend):
    """An upstream that knows no tools but functions."""

    def find_left_out(self, request: CreateResponse) -> list[str]:
        """Return the types of the tools in a checked request that the model is not given; log each once."""
        left_out = find_left_out(request)
        for kind in left_out:
            if kind not in self._logged and len(self._logged) < _MOST_LOGGED:
                self._logged.add(kind)
                log.warning(
                    "leaving out a tool that no server here runs (this is logged once; "
                    'unrunnable_tools = "refuse" refuses such requests)',
                    extra={"upstream": self.name, "tool": kind},
                )
        return left_out


def _read_number(answer: Any, name: str) -> int | None:
    number = answer.get(name) if isinstance(answer, dict) else None
    return number if isinstance(number, int) and number >= 0 else None

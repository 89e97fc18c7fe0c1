"""An upstream that speaks Chat Completions over HTTP."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from outlive import __version__
from outlive.adapters.backends.event_stream import EventStream
from outlive.adapters.backends.http1 import BadUrl, Connection, Pool, Unreachable
from outlive.adapters.backends.refusals import read_refusal
from outlive.adapters.backends.silence import Silence
from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.requests import CreateResponse
from outlive.ports.backend import ContinuationMode, ModelCall, Upstream
from outlive.translate.chat_completions import ChatTranslator
from outlive.translate.chat_request import check, render
from outlive.translate.chat_whole import to_chunk

_MODELS_SECONDS = 10.0
_DRAIN_SECONDS = 1.0
_MANY_ITEMS = 500

_HEADERS = {
    "accept": "text/event-stream, application/json",
    "accept-encoding": "identity",  # compression would hold chunks back until there is enough to compress
    "content-type": "application/json",
    "user-agent": f"outlive/{__version__}",
}

_RELAYED = ("content-type", "retry-after", "retry-after-ms", "x-should-retry")
_RELAYED_FAMILIES = ("openai-", "x-ratelimit-")

_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')


class Passed:
    """An answer that is passed through as it comes. Whoever has it reads `body` to its end, or closes it."""

    __slots__ = ("_answer", "_backend", "headers", "status")

    def __init__(self, backend: ChatBackend, answer: Connection) -> None:
        self._backend = backend
        self._answer: Connection | None = answer
        self.status = answer.status
        self.headers = {
            name: value
            for name, value in answer.headers.items()
            if name in _RELAYED or name.startswith(_RELAYED_FAMILIES)
        }

    async def body(self) -> AsyncGenerator[bytes, None]:
        try:
            while self._answer is not None and (piece := await self._answer.read()):
                yield piece
        except OSError as error:
            raise self._backend.broken(error) from error
        finally:
            self.close()

    def close(self) -> None:
        # Once only: a connection that was left may be carrying somebody else's answer already.
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.leave()


class ChatBackend:
    """One upstream. The pool is shared by all of them, and is not closed here."""

    def __init__(self, upstream: Upstream, pool: Pool, ids: IdSource) -> None:
        self.name = upstream.name
        self.continuation: ContinuationMode = upstream.continuation
        self._upstream = upstream
        self._pool = pool
        self._ids = ids
        self._url = _make_url(upstream, "chat/completions")
        self._headers = _make_headers(upstream)
        self._secrets = (upstream.key or "", *upstream.headers.values(), *upstream.query.values())
        self._draining: set[asyncio.Task[None]] = set()

    def check(self, request: CreateResponse) -> None:
        check(request)

    def translator(self, call: ModelCall) -> ChatTranslator:
        return ChatTranslator(call, self._ids)

    async def stream(self, call: ModelCall) -> AsyncGenerator[list[bytes], None]:
        """Ask, and yield the payloads of each read. Closing the generator closes the connection at once."""
        answer = await self._post(await self._render(call))
        silence = Silence(self._upstream.silence_seconds, lambda: answer.fail(TimeoutError()))
        events = EventStream()
        before: list[bytes] = []
        last: list[bytes] = []
        try:
            if answer.status != 200:
                raise await read_refusal(answer, self._secrets)
            if answer.content_type in ("application/json", "text/html"):
                yield [to_chunk(await answer.read_whole(), call.resume)]
                return
            while piece := await answer.read():
                silence.heard()
                if payloads := events.feed(piece):
                    before, last = last, payloads
                    yield payloads
                if events.done:
                    return
            if payloads := events.end():
                yield payloads
        except OSError as error:
            # After the finish only the usage can be missing, and the answer is whole without it.
            if not any(_FINISH.search(payload) for payload in before + last):
                raise self.broken(error) from error
        finally:
            silence.stop()
            self._leave(answer, events.done)

    async def pass_through(self, body: Json) -> Passed:
        """Send a Chat Completions request as it is, and hand back the answer as it comes, errors included."""
        # No upstream is asked to keep anything (D4).
        sent = {**body, "store": False} if self._upstream.sends_store else body
        answer = await self._post(msgspec.json.encode(sent))
        if answer.status in (401, 403) or 300 <= answer.status < 400:
            # Such an answer is about this server's settings, and may quote its key: not for the caller.
            try:
                raise await read_refusal(answer, self._secrets)
            finally:
                answer.close()
        return Passed(self, answer)

    async def models(self) -> list[Json]:
        """The aliases, then what the upstream lists; one that lists nothing has at least its aliases."""
        listed = {model["id"]: model for model in await self._list_models()}
        found: dict[str, Json] = {}
        for alias, target in self._upstream.models.items():
            found[alias] = {**_as_model({}, self.name), **listed.get(target, {}), "id": alias}
        return [*found.values(), *(model for name, model in listed.items() if name not in found)]

    async def close(self) -> None:
        for task in self._draining:
            task.cancel()
        await asyncio.gather(*self._draining, return_exceptions=True)

    def broken(self, error: Exception) -> UpstreamFault:
        """The fault behind an error of the network; neither the URL nor a header is in its message."""
        if isinstance(error, Unreachable):
            return self._unreachable(error.__cause__)
        if isinstance(error, TimeoutError):
            seconds = self._upstream.silence_seconds
            return UpstreamFault(f"The model's server ({self.name}) was silent for {seconds:g} s.", timed_out=True)
        if isinstance(error, BadUrl):
            return UpstreamFault(f"The URL of the model's server ({self.name}) is wrong.", retryable=False)
        return UpstreamFault(f"The connection to the model's server ({self.name}) broke.")

    def _unreachable(self, cause: BaseException | None) -> UpstreamFault:
        if isinstance(cause, TimeoutError):
            return UpstreamFault(f"The model's server ({self.name}) could not be reached in time.", timed_out=True)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return UpstreamFault(f"The certificate of the model's server ({self.name}) is not valid.", retryable=False)
        reason = _reason(cause) if isinstance(cause, OSError) else "no reason given"
        return UpstreamFault(f"The model's server ({self.name}) could not be reached: {reason}.")

    async def _render(self, call: ModelCall) -> bytes:
        """The request's body; a long context is put together in a thread, so that streams do not wait for it."""
        if len(call.items) > _MANY_ITEMS:
            return await asyncio.to_thread(lambda: msgspec.json.encode(render(call, self._upstream)))
        return msgspec.json.encode(render(call, self._upstream))

    async def _post(self, data: bytes) -> Connection:
        try:
            async with asyncio.timeout(self._upstream.silence_seconds):
                return await self._pool.request("POST", self._url, self._headers, data)
        except (OSError, BadUrl) as error:
            raise self.broken(error) from error

    async def _list_models(self) -> list[Json]:
        try:
            async with asyncio.timeout(_MODELS_SECONDS):
                answer = await self._pool.request("GET", _make_url(self._upstream, "models"), self._headers)
                try:
                    body: Any = msgspec.json.decode(await answer.read_whole()) if answer.status == 200 else {}
                finally:
                    answer.leave()
        except (OSError, ValueError):
            return []
        data = body.get("data") if isinstance(body, dict) else None
        models = data if isinstance(data, list) else []
        return [_as_model(model, self.name) for model in models if isinstance(model, dict) and model.get("id")]

    def _leave(self, answer: Connection, done: bool) -> None:
        """Close the connection, unless it can serve again: then wait for its body's end, which comes after [DONE]."""
        if answer.is_complete or not done:
            answer.leave()
            return
        task = asyncio.get_running_loop().create_task(_drain(answer))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)


async def _drain(answer: Connection) -> None:
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            await answer.read_whole()
    except OSError:
        pass
    finally:
        answer.leave()


def _reason(error: OSError) -> str:
    """Why, without where: the error's own words may hold an address."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or type(error).__name__


def _make_url(upstream: Upstream, path: str) -> str:
    base = urlsplit(upstream.url)
    query = urlencode({**dict(parse_qsl(base.query)), **upstream.query})
    return urlunsplit((base.scheme, base.netloc, f"{base.path.rstrip('/')}/{path}", query, ""))


def _make_headers(upstream: Upstream) -> bytes:
    """The lines that every request carries; what the settings say wins, whatever its spelling."""
    headers = dict(_HEADERS)
    if upstream.key is not None:
        bearer = upstream.key_header == "authorization"
        headers["authorization" if bearer else "api-key"] = f"Bearer {upstream.key}" if bearer else upstream.key
    headers |= {name.lower(): value for name, value in upstream.headers.items()}
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1", "replace")


def _as_model(model: Json, owner: str) -> Json:
    """An OpenAI Model object, whatever the upstream left out or added."""
    created = model.get("created")
    return {
        "id": str(model.get("id")),
        "object": "model",
        "created": created if isinstance(created, int) else 0,
        "owned_by": str(model.get("owned_by") or owner),
    }

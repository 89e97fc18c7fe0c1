"""An upstream that speaks Chat Completions over HTTP."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from outlive import __version__
from outlive.adapters.backends.event_stream import EventStream
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

_CONNECT_SECONDS = 30.0
_MODELS_SECONDS = 10.0
_DRAIN_SECONDS = 1.0
_MANY_ITEMS = 500

_HEADERS = {
    "Accept": "text/event-stream, application/json",
    "Accept-Encoding": "identity",  # compression would hold chunks back until there is enough to compress
    "Content-Type": "application/json",
    "User-Agent": f"outlive/{__version__}",
}

_RELAYED = ("content-type", "retry-after", "retry-after-ms", "x-should-retry")
_RELAYED_FAMILIES = ("openai-", "x-ratelimit-")

_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')


class Passed:
    """An answer that is passed through as it comes. Whoever has it reads `body` to its end, or closes it."""

    __slots__ = ("_backend", "_response", "headers", "status")

    def __init__(self, backend: ChatBackend, response: aiohttp.ClientResponse) -> None:
        self._backend = backend
        self._response = response
        self.status = response.status
        self.headers = {
            name.lower(): value
            for name, value in response.headers.items()
            if name.lower() in _RELAYED or name.lower().startswith(_RELAYED_FAMILIES)
        }

    async def body(self) -> AsyncGenerator[bytes, None]:
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise self._backend.broken(error) from error
        finally:
            self.close()

    def close(self) -> None:
        self._response.close()


class ChatBackend:
    """One upstream. The session is shared by all of them, and is not closed here."""

    def __init__(self, upstream: Upstream, session: aiohttp.ClientSession, ids: IdSource) -> None:
        self.name = upstream.name
        self.continuation: ContinuationMode = upstream.continuation
        self._upstream = upstream
        self._session = session
        self._ids = ids
        self._timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS)
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
        response = await self._post(await self._render(call))
        content = response.content
        silence = Silence(self._upstream.silence_seconds, lambda: content.set_exception(TimeoutError()))
        events = EventStream()
        before: list[bytes] = []
        last: list[bytes] = []
        try:
            if response.status != 200:
                raise await read_refusal(response, self._secrets)
            if response.content_type in ("application/json", "text/html"):
                yield [to_chunk(await response.read(), call.resume)]
                return
            async for piece in content.iter_any():
                silence.heard()
                if payloads := events.feed(piece):
                    before, last = last, payloads
                    yield payloads
                if events.done:
                    return
            if payloads := events.end():
                yield payloads
        except (aiohttp.ClientError, OSError) as error:
            # After the finish only the usage can be missing, and the answer is whole without it.
            if not any(_FINISH.search(payload) for payload in before + last):
                raise self.broken(error) from error
        finally:
            silence.stop()
            self._leave(response, events.done)

    async def pass_through(self, body: Json) -> Passed:
        """Send a Chat Completions request as it is, and hand back the answer as it comes, errors included."""
        # No upstream is asked to keep anything (D4).
        sent = {**body, "store": False} if self._upstream.sends_store else body
        response = await self._post(msgspec.json.encode(sent))
        if response.status in (401, 403) or 300 <= response.status < 400:
            # Such an answer is about this server's settings, and may quote its key: not for the caller.
            try:
                raise await read_refusal(response, self._secrets)
            finally:
                response.close()
        return Passed(self, response)

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
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return UpstreamFault(f"The model's server ({self.name}) could not be reached in time.", timed_out=True)
        if isinstance(error, TimeoutError):
            seconds = self._upstream.silence_seconds
            return UpstreamFault(f"The model's server ({self.name}) was silent for {seconds:g} s.", timed_out=True)
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return UpstreamFault(f"The certificate of the model's server ({self.name}) is not valid.", retryable=False)
        if isinstance(error, aiohttp.ClientConnectorError):
            return UpstreamFault(f"The model's server ({self.name}) could not be reached: {_reason(error.os_error)}.")
        if isinstance(error, aiohttp.InvalidURL):
            return UpstreamFault(f"The URL of the model's server ({self.name}) is wrong.", retryable=False)
        return UpstreamFault(f"The connection to the model's server ({self.name}) broke.")

    async def _render(self, call: ModelCall) -> bytes:
        """The request's body; a long context is put together in a thread, so that streams do not wait for it."""
        if len(call.items) > _MANY_ITEMS:
            return await asyncio.to_thread(lambda: msgspec.json.encode(render(call, self._upstream)))
        return msgspec.json.encode(render(call, self._upstream))

    async def _post(self, data: bytes) -> aiohttp.ClientResponse:
        try:
            try:
                return await self._send(data)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # A server may close an idle connection in the moment in which it is used again; a new one will do.
                if isinstance(error, aiohttp.ClientConnectorError):
                    raise
                return await self._send(data)
        except (aiohttp.ClientError, OSError) as error:
            raise self.broken(error) from error

    async def _send(self, data: bytes) -> aiohttp.ClientResponse:
        async with asyncio.timeout(self._upstream.silence_seconds):
            return await self._session.post(
                self._url,
                data=data,
                headers=self._headers,
                timeout=self._timeout,
                allow_redirects=False,  # a redirected POST arrives as a GET, or with the key at a stranger's
            )

    async def _list_models(self) -> list[Json]:
        try:
            async with self._session.get(
                _make_url(self._upstream, "models"),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=_MODELS_SECONDS),
                allow_redirects=False,
            ) as response:
                body: Any = msgspec.json.decode(await response.read()) if response.status == 200 else {}
        except (aiohttp.ClientError, OSError, ValueError):
            return []
        data = body.get("data") if isinstance(body, dict) else None
        models = data if isinstance(data, list) else []
        return [_as_model(model, self.name) for model in models if isinstance(model, dict) and model.get("id")]

    def _leave(self, response: aiohttp.ClientResponse, done: bool) -> None:
        """Close the connection, unless it can serve again: then wait for its body's end, which comes after [DONE]."""
        if not done or response.closed:
            response.close()
            return
        task = asyncio.get_running_loop().create_task(_drain(response))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)


async def _drain(response: aiohttp.ClientResponse) -> None:
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in response.content.iter_any():
                pass
    except (aiohttp.ClientError, OSError):
        pass
    finally:
        response.close()


def _reason(error: OSError) -> str:
    """Why, without where: the error's own words may hold an address."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or type(error).__name__


def _make_url(upstream: Upstream, path: str) -> URL:
    base = URL(upstream.url)
    return base.joinpath(*path.split("/")).update_query(base.query).update_query(upstream.query)


def _make_headers(upstream: Upstream) -> CIMultiDict[str]:
    headers = CIMultiDict(_HEADERS)
    if upstream.key is not None:
        bearer = upstream.key_header == "authorization"
        headers["Authorization" if bearer else "api-key"] = f"Bearer {upstream.key}" if bearer else upstream.key
    headers.update(upstream.headers)
    return headers


def _as_model(model: Json, owner: str) -> Json:
    """An OpenAI Model object, whatever the upstream left out or added."""
    created = model.get("created")
    return {
        "id": str(model.get("id")),
        "object": "model",
        "created": created if isinstance(created, int) else 0,
        "owned_by": str(model.get("owned_by") or owner),
    }

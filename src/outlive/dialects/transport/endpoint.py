"""The HTTP endpoint of one upstream: its address, key, list of models, and faults without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import ssl
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec

from outlive import __version__
from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import Json
from outlive.core.redactor import MIN_LENGTH, MIN_LENGTH_IN_ANSWERS, Redactor
from outlive.core.requests.body import EncodedBody, decode_body, encode_body
from outlive.dialects.faults import read_fault
from outlive.dialects.transport.http1 import AnswerTooLong, BadUrl, ConnectFailed, Connection, HttpPool, ProxyFailed
from outlive.dialects.transport.route import Route
from outlive.ports.backend import Upstream

Headers = dict[str, str] | None
CHAT_PATH = "chat/completions"

_FETCH_SECONDS = 10.0
_DRAIN_SECONDS = 1.0
_MOST_BYTES = 64 * 1024  # of an error's body
MOST_LISTED = 8 * 1024 * 1024  # bytes of a list of models
_MOST_PAUSE_SECONDS = 86_400.0

_HEADERS = {
    "accept": "text/event-stream, application/json",
    "accept-encoding": "identity",  # compression would hold chunks back until there is enough to compress
    "content-type": "application/json",
    "user-agent": f"outlive/{__version__}",
}

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_RELAYED = ("content-type", "content-encoding", "retry-after", "retry-after-ms", "x-should-retry")
_RELAYED_FAMILIES = ("openai-", "x-ratelimit-")


class RelayedAnswer:
    """An answer that is passed through as it comes. Read `body` to its end, or close it."""

    def __init__(self, endpoint: Endpoint, answer: Connection) -> None:
        self._endpoint = endpoint
        self._answer: Connection | None = answer
        self.status = answer.status
        self.headers = {
            name: endpoint.redactor.redact(value)
            for name, value in answer.headers.items()
            if name in _RELAYED or name.startswith(_RELAYED_FAMILIES)
        }

    async def body(self) -> AsyncGenerator[bytes, None]:
        least = MIN_LENGTH if self.status >= 400 else MIN_LENGTH_IN_ANSWERS
        redactor = self._endpoint.redactor.make_stream(least)
        try:
            while self._answer is not None and (piece := await self._answer.read()):
                if piece := redactor.feed(piece):
                    yield piece
            if rest := redactor.end():
                yield rest
        except OSError as error:
            raise self._endpoint.broken(error) from error
        finally:
            self.close()

    def close(self) -> None:
        # Once only: a connection that was released may carry another answer already.
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.leave()


class Endpoint:
    """Sends requests to one upstream. The pool is shared by all of them, and is not closed here."""

    headers: dict[str, str] = {}  # of the dialect; those of the settings win
    list_query: dict[str, str] = {}  # of requests for the list of models

    def __init__(self, upstream: Upstream, pool: HttpPool) -> None:
        self.name = upstream.name
        self.upstream = upstream
        route = Route(upstream)
        credentials = route.proxy.authorization.strip() if route.proxy is not None else None
        secrets = [upstream.key, credentials, *upstream.headers.values(), *upstream.query.values()]
        self.redactor = Redactor(secrets)
        self._pool = pool.via(route)
        own = {name.lower(): value for name, value in upstream.headers.items()}
        scheme = "Bearer " if upstream.key_header == "authorization" else ""
        key = {upstream.key_header: f"{scheme}{upstream.key}"} if upstream.key is not None else {}
        lines = (f"{name}: {value}\r\n" for name, value in (_HEADERS | self.headers | key | own).items())
        self._headers = "".join(lines).encode("latin-1", "replace")  # of every request
        self._own = own.keys()  # set by the settings, which win, whatever their case
        self._draining: set[asyncio.Task[None]] = set()

    def url(self, path: str, **query: str) -> str:
        base = urlsplit(self.upstream.url)
        written = urlencode({**query, **dict(parse_qsl(base.query)), **self.upstream.query})
        return urlunsplit((base.scheme, base.netloc, f"{base.path.rstrip('/')}/{path}", written, ""))

    async def request(
        self, method: str, url: str, data: EncodedBody = b"", headers: Headers = None, *, any_status: bool = False
    ) -> Connection:
        """Send a request; wait for the answer's head. Raises UpstreamFault, by default also for a status but 200."""
        lines = self._headers
        for name, value in headers.items() if headers is not None else ():
            if name not in self._own:
                lines += f"{name}: {value}\r\n".encode("latin-1", "replace")
        try:
            answer = await self._pool.request(method, url, lines, data, self.upstream.silence_seconds)
        except (OSError, BadUrl) as error:
            raise self.broken(error) from error
        if answer.status != 200 and not any_status:
            raise await self._refuse(answer)
        return answer

    async def fetch(self, url: str, body: Json | None = None) -> Any:
        """Return the JSON at an address, or the JSON that answers a body; None for whatever else happens."""
        method = "GET" if body is None else "POST"
        try:
            async with asyncio.timeout(_FETCH_SECONDS):
                data = b"" if body is None else await asyncio.to_thread(encode_body, body)
                answer = await self._pool.request(method, url, self._headers, data)
                try:
                    if answer.status != 200:
                        return None
                    return await asyncio.to_thread(decode_body, await answer.read_whole(MOST_LISTED))
                finally:
                    answer.leave()
        except (OSError, ValueError, InvalidRequest):
            return None

    async def _refuse(self, answer: Connection) -> UpstreamFault:
        """Return the fault in an answer with a status other than 200, which is over then."""
        status = answer.status
        try:
            if status in (401, 403):
                # No status: to the caller a 401 would mean that his own key is wrong.
                message = f"The model's server refused this server's key (it answered {status})."
            elif status == 407:
                return self._refused_by_proxy(status)
            elif status < 400:
                message = f"The model's server answered {status} instead of a stream; is its URL right?"
            else:
                return await read_error(answer, self.redactor)
            return UpstreamFault(message, retryable=False)
        finally:
            answer.leave()

    def read_fault(self, error: object) -> UpstreamFault:
        """Read the fault in an error that came within an answer of status 200, without secrets."""
        return read_fault(self.redactor.redact(error))

    async def pass_through(self, body: Json, headers: Headers = None) -> RelayedAnswer:
        """Send a Chat Completions request as it is, and relay the answer as it comes, errors included (D12)."""
        # No upstream is asked to keep anything (D4).
        sent = {**body, "store": False} if self.upstream.sends_store else body
        data, large = msgspec.json.encode(sent), isinstance(body.get("messages"), msgspec.Raw)
        asking = self.request("POST", self.url(CHAT_PATH), [data] if large else data, headers, any_status=True)
        del data  # what is large is held by no one once it was sent
        answer = await asking
        status = answer.status
        if status in (401, 403) or 300 <= status < 400 or status >= (400 if answer.is_encoded else 600):
            # Such an answer is about this server's settings, and may quote its key: the caller must not see it. Nor an
            # error in which secrets cannot be found, nor a status that HTTP does not have.
            raise await self._refuse(answer)
        return RelayedAnswer(self, answer)

    async def models(self) -> list[Json]:
        """List the aliases, then the upstream's own models; one that lists none has at least its aliases."""
        own = [_as_model(model, self.name) for model in await self._fetch_models() if model.get("id")]
        listed = {model["id"]: model for model in own}
        found: dict[str, Json] = {}
        for alias, target in self.upstream.models.items():
            found[alias] = {**_as_model({}, self.name), **listed.get(target, {}), "id": alias}
        return [*found.values(), *(model for name, model in listed.items() if name not in found)]

    async def _fetch_models(self) -> list[Json]:
        """Return the upstream's list of models as it came; an empty one for whatever else happens."""
        body = await self.fetch(self.url("models", **self.list_query))
        data = body.get("data") if isinstance(body, dict) else None
        return [model for model in data if isinstance(model, dict)] if isinstance(data, list) else []

    def leave(self, answer: Connection, done: bool) -> None:
        """Release an answer. If it is `done`, its connection can be used again: wait for the end of the body, which
        comes after the last event. Otherwise close it."""
        if answer.is_complete or not done:
            answer.leave()
            return
        task = asyncio.create_task(_drain(answer))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)
        # Not in the task itself: one that is cancelled before it begins never runs its `finally`.
        task.add_done_callback(lambda _: answer.leave())

    async def close(self) -> None:
        for task in self._draining:
            task.cancel()
        await asyncio.gather(*self._draining, return_exceptions=True)

    def broken(self, error: Exception) -> UpstreamFault:
        """Return the fault for a network error; neither the URL nor a header is in its message."""
        if isinstance(error, ProxyFailed) and error.status is not None:
            return self._refused_by_proxy(error.status)
        if isinstance(error, ConnectFailed):
            proxy = "proxy of the " if isinstance(error, ProxyFailed) else ""
            return _explain(error.__cause__, f"{proxy}model's server ({self.name})")
        if isinstance(error, TimeoutError):
            seconds = self.upstream.silence_seconds
            return UpstreamFault(f"The model's server ({self.name}) was silent for {seconds:g} s.", timed_out=True)
        if isinstance(error, AnswerTooLong):
            return UpstreamFault(f"The model's server ({self.name}) sent more than is taken of it.", retryable=False)
        if isinstance(error, BadUrl):
            return UpstreamFault(f"The URL of the model's server ({self.name}) is wrong.", retryable=False)
        return UpstreamFault(f"The connection to the model's server ({self.name}) broke.", reason="upstream_lost")

    def _refused_by_proxy(self, status: int) -> UpstreamFault:
        subject = f"proxy of the model's server ({self.name})"
        if status in (401, 407):
            return UpstreamFault(f"The {subject} refused this server's user name or password.", retryable=False)
        return UpstreamFault(
            f"The {subject} could not open a connection: it answered {status}.", retryable=status >= 500
        )


async def _drain(answer: Connection) -> None:
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            await answer.read_start(_MOST_BYTES)


def _explain(cause: BaseException | None, subject: str) -> UpstreamFault:
    """Return the fault for a connection that could not be made, without the address, which an error may contain."""
    if isinstance(cause, TimeoutError):
        return UpstreamFault(f"The {subject} could not be reached in time.", timed_out=True)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return UpstreamFault(f"The certificate of the {subject} is not valid.", retryable=False)
    reason = "no reason given"
    if isinstance(cause, ssl.SSLError):
        reason = f"TLS failed ({cause.reason})"
    elif isinstance(cause, OSError):
        number = cause.errno or 0
        reason = os.strerror(number) if number > 0 else cause.strerror or type(cause).__name__
    return UpstreamFault(f"The {subject} could not be reached: {reason}.", reason="upstream_lost")


def _as_model(model: Json, owner: str) -> Json:
    """Make an OpenAI Model object, whatever the upstream left out or added."""
    created = model.get("created")
    if not isinstance(created, int):
        try:
            created = int(datetime.fromisoformat(str(model.get("created_at"))).timestamp())
        except (ValueError, OverflowError):
            created = 0
    owner = str(model.get("owned_by") or owner)
    return {"id": str(model.get("id")), "object": "model", "created": created, "owned_by": owner}


async def read_error(response: Connection, redactor: Redactor) -> UpstreamFault:
    """Return the fault in an error's body, in the upstream's own words without secrets."""
    raw = b""  # the status is enough
    with contextlib.suppress(OSError):
        async with asyncio.timeout(_FETCH_SECONDS):
            raw = b"" if response.is_encoded else await response.read_start(_MOST_BYTES)
    error: Any
    try:
        error = decode_body(raw)
        if isinstance(error, list) and error:
            error = error[0]  # Gemini
        if isinstance(error, dict):
            error = error.get("error") or error  # out of any of the envelopes that servers use
    except InvalidRequest:
        # An HTML page is for browsers; plain text is a message.
        is_plain = response.content_type == "text/plain"
        error = raw.decode(errors="replace") if is_plain else _PHRASES.get(response.status, "")
    return read_fault(redactor.redact(error), response.status, read_retry_after(response.headers))


def read_retry_after(headers: dict[str, str]) -> float | None:
    """Return the seconds that the upstream asks to wait, given in milliseconds, in seconds or as a date."""
    try:
        value = headers.get("retry-after", "").strip()
        if "retry-after-ms" in headers:
            seconds = float(headers["retry-after-ms"]) / 1000
        elif value.replace(".", "", 1).isdecimal():
            seconds = float(value)
        else:
            # The date was made with its own clock, so that is compared with, where the answer has it.
            now = parsedate_to_datetime(headers["date"]) if "date" in headers else datetime.now(UTC)
            seconds = (parsedate_to_datetime(value) - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return None if math.isnan(seconds) else min(max(0.0, seconds), _MOST_PAUSE_SECONDS)

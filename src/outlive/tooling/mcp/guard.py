"""HTTP to addresses that callers name: never to a private one, and never for an answer without an end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx2

from outlive.tooling.mcp.addresses import is_private

# The limit of one answer, or of one event of a stream.
MAX_BYTES = 4 * 1024 * 1024
# So many of a host's addresses are tried.
MAX_ADDRESSES = 3
# Shared by all connections: to read the certificates takes some 50 ms. This module is imported in a thread.
TLS = httpx2.create_ssl_context(trust_env=False)


class PrivateAddress(httpx2.TransportError):
    """The address is private, and this server may not be sent there."""


class AnswerTooLong(httpx2.TransportError):
    """The answer is longer than the limit."""


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Resolves the host itself and connects to the address it has checked: a second lookup might find another."""

    def __init__(self, *, private: bool, proxy: str | None = None, max_bytes: int = MAX_BYTES) -> None:
        self._private = private
        self._proxied = proxy is not None
        self._max_bytes = max_bytes
        # Without the environment's proxy, unless the operator wants it: it may reach what this server may not.
        self._inner = httpx2.AsyncHTTPTransport(trust_env=False, verify=TLS, proxy=proxy)
        self.refused: int | None = None  # the status of the last answer that was a refusal

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        ask = self._inner.handle_async_request if self._private else self._ask_public
        answer = await ask(request)
        if answer.status_code in (401, 403, 429) or answer.status_code >= 500:
            self.refused = answer.status_code
        assert isinstance(answer.stream, httpx2.AsyncByteStream)
        by_event = answer.headers.get("content-type", "").startswith("text/event-stream")
        answer.stream = _BoundedStream(answer.stream, self._max_bytes, by_event)
        return answer

    async def _ask_public(self, request: httpx2.Request) -> httpx2.Response:
        """Send the request to the first of the host's addresses that accepts a connection."""
        host, url = request.url.host, request.url
        if self._proxied:
            # By its name, which the proxy resolves: this server may not know it.
            with contextlib.suppress(httpx2.ConnectError):
                await _resolve_public(host, url.port or 443)
            return await self._inner.handle_async_request(request)
        *others, last = await _resolve_public(host, url.port or (443 if url.scheme == "https" else 80))
        request.extensions = {**request.extensions, "sni_hostname": host}
        for address in others:
            request.url = url.copy_with(host=address)  # the Host header names the host as before
            with contextlib.suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                return await self._inner.handle_async_request(request)
        request.url = url.copy_with(host=last)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass
class _BoundedStream(httpx2.AsyncByteStream):
    """Breaks off an answer that is too long. A stream of events may go on, as long as each of them ends."""

    _inner: httpx2.AsyncByteStream
    _max_bytes: int
    _by_event: bool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for piece in self._inner:
            length += len(piece)
            if self._by_event and (b"\n\n" in piece or b"\r\n\r\n" in piece):
                length = 0
            if length > self._max_bytes:
                raise AnswerTooLong(f"The answer has more than {self._max_bytes} bytes.")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _resolve_public(host: str, port: int) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpx2.ConnectError("The host is not known.") from error
    addresses = [str(entry[4][0]) for entry in found]
    if not addresses or any(is_private(address) for address in addresses):
        raise PrivateAddress("The host has a private address.")
    return addresses[:MAX_ADDRESSES]

"""What an upstream's HTTP answer means when it is not the answer: the fault in it, without secrets."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.redactor import Redactor
from outlive.core.requests.body import decode_body
from outlive.dialects.faults import read_fault
from outlive.dialects.transport.http1 import Connection

_MOST_BYTES = 64 * 1024  # of an error's body
_MOST_SECONDS = 10.0  # to wait for it


async def read_refusal(response: Connection, redactor: Redactor) -> UpstreamFault:
    """The fault that an answer with a status other than 200 tells of."""
    status = response.status
    if status in (401, 403):
        # No status: to the caller a 401 would say that his own key is wrong.
        return UpstreamFault(f"The model's server refused this server's key (it answered {status}).", retryable=False)
    if status < 400:
        return UpstreamFault(
            f"The model's server answered {status} instead of a stream; is its URL right?", retryable=False
        )
    return await read_error(response, redactor)


async def read_error(response: Connection, redactor: Redactor) -> UpstreamFault:
    """Return the fault in an error's body, in the upstream's own words without secrets."""
    envelope = redactor.redact(_open_envelope(await _read_some(response), response))
    return read_fault(envelope, response.status, read_retry_after(response.headers))


def read_retry_after(headers: dict[str, str]) -> float | None:
    """The seconds that the upstream asks us to wait; it may say so in milliseconds, in seconds or as a date."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        if "retry-after" not in headers:
            return None
        value = headers["retry-after"].strip()
        if value.replace(".", "", 1).isdecimal():
            return float(value)
        # Its own clock, where it tells it, is the one that its date was made with.
        now = parsedate_to_datetime(headers["date"]) if "date" in headers else datetime.now(UTC)
        return max(0.0, (parsedate_to_datetime(value) - now).total_seconds())
    except (ValueError, TypeError):
        return None


async def _read_some(response: Connection) -> bytes:
    try:
        async with asyncio.timeout(_MOST_SECONDS):
            return await response.read_whole(_MOST_BYTES)
    except OSError:
        return b""  # the status says enough


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _open_envelope(raw: bytes, response: Connection) -> object:
    """The error object, in any of the envelopes that servers put it in."""
    try:
        body = decode_body(raw)
    except InvalidRequest:
        # A page is written for people with a browser; plain text is a message.
        return raw.decode(errors="replace") if response.content_type == "text/plain" else _phrase(response.status)
    if isinstance(body, list) and body:
        body = body[0]  # Gemini
    if isinstance(body, dict):
        return body.get("error") or body
    return body

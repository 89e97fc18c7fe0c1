"""Errors of the SDK and of whatever carries its bytes, sorted by what can be done about them."""

from __future__ import annotations

import openai

from outlive.client.actions import Fault, Kind
from outlive.client.errors import ConnectionLost

BUSY = (408, 409, 425, 429)
FINAL = (401, 403)
# SDKs have changed their HTTP library, and some let its errors through: known by name, so that none must be imported.
CARRIERS = {"httpx", "httpx2", "httpcore", "httpcore2", "h11", "h2", "anyio", "aiohttp"}
BROKEN = {
    "TransportError",
    "NetworkError",
    "TimeoutException",
    "ProtocolError",
    "StreamError",
    "ConnectionNotAvailable",
    "BrokenResourceError",
    "ClosedResourceError",
    "EndOfStream",
    "ClientConnectionError",
    "ClientPayloadError",
}


def classify(error: Exception, reading: bool = False) -> Fault:
    """`reading` is true in the middle of a stream, where a cut may also show as half a character or half a number."""
    if isinstance(error, openai.APIStatusError):
        return Fault(_kind_of_status(error.status_code), error, error.status_code, error.response.headers)
    if isinstance(error, openai.APIConnectionError) or _is_broken(error):
        return Fault(Kind.LOST, error)
    if reading and (isinstance(error, ValueError) or type(error) is openai.APIError):
        return Fault(Kind.GARBLED, error)
    return Fault(Kind.FINAL, error)


def interrupted(interruption: BaseException) -> Fault:
    """For a step that its caller cut short: what came of it is unknown, as when a connection is lost."""
    error = ConnectionLost("The call was interrupted.")
    error.__cause__ = interruption
    return Fault(Kind.LOST, error)


def _kind_of_status(status: int) -> Kind:
    if status >= 500 or status in BUSY:
        return Kind.BUSY
    if status in FINAL:
        return Kind.FINAL
    return Kind.MISSING if status == 404 else Kind.REFUSED


def _is_broken(error: Exception) -> bool:
    if isinstance(error, OSError | EOFError):
        return True
    return any(
        kind.__name__ in BROKEN and kind.__module__.partition(".")[0] in CARRIERS for kind in type(error).__mro__
    )

"""Errors of the client library, and the continuation token that one of them carries: one string with which another
process resumes a response. Errors that the server answers with stay those of the SDK."""

import base64
import binascii
import json
import re
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from openai.types.responses import Response

PREFIX = "ot1_"
# Matches tokens of every version, so that a token of another version is never mistaken for a response id.
ANY_VERSION = re.compile(r"ot(\d+)_")
CHECKSUM_BYTES = 4


class ClientError(Exception):
    """Base of all errors of this library."""


class InvalidToken(ClientError, ValueError):
    """The string is not a continuation token, or is damaged."""


@dataclass(frozen=True, slots=True)
class Token:
    """A response and a position in its stream.

    `cursor` is the sequence number of the last event delivered, None before the first; `ended` is True if that was the
    terminal event. `str(token)` is `token.encode()`.
    """

    response_id: str
    cursor: int | None = None
    ended: bool = False

    def encode(self) -> str:
        """Return the token as letters, digits, `-` and `_` only: fit for URLs, headers, file names and job tables."""
        body = json.dumps([self.response_id, self.cursor, int(self.ended)], separators=(",", ":")).encode()
        checked = zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "big") + body
        return PREFIX + base64.urlsafe_b64encode(checked).decode().rstrip("=")

    __str__ = encode

    @classmethod
    def parse(cls, text: str) -> Self:
        """Decode what `encode` returned. Raise InvalidToken, with the reason, for anything else."""
        text = text.strip()
        if text.startswith("resp_"):
            raise InvalidToken(f"{text!r} is the id of a response, not a continuation token.")
        if (version := ANY_VERSION.match(text)) is None:
            raise InvalidToken(f"A continuation token begins with {PREFIX!r}.")
        if version.group() != PREFIX:
            raise InvalidToken(f"This continuation token is of version {version[1]}; this Outlive reads version 1.")
        packed = text.removeprefix(PREFIX)
        try:
            checked = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise InvalidToken("This continuation token has characters that no token has.") from None
        checksum, body = checked[:CHECKSUM_BYTES], checked[CHECKSUM_BYTES:]
        if zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "big") != checksum:
            raise InvalidToken("This continuation token was cut short or changed.")
        response_id, cursor, ended = json.loads(body)
        return cls(response_id, cursor, bool(ended))

    @classmethod
    def of(cls, target: "Token | str") -> "Token":
        """Return the token for a token, its string, or the bare id of a response."""
        if isinstance(target, Token):
            return target
        return cls.parse(target) if ANY_VERSION.match(target.strip()) else cls(target.strip())


class ConnectionLost(ClientError, ConnectionError):
    """The connection broke and could not be resumed. The error that broke it is the `__cause__`.

    `response_id` and `token` are None if the connection broke before the server sent the response's id.
    """

    def __init__(self, reason: str, token: Token | None = None) -> None:
        super().__init__(reason)
        self.token = token
        self.response_id = None if token is None else token.response_id


class PollTimeout(ClientError, TimeoutError):
    """The response had not ended after the longest wait. It keeps running: poll it again, or cancel it."""

    def __init__(self, response_id: str, waited_seconds: float) -> None:
        advice = "It keeps running: poll it again, or cancel it."
        super().__init__(f"Response {response_id} had not ended after {waited_seconds:.1f} s. {advice}")
        self.response_id = response_id
        self.waited_seconds = waited_seconds


class UnsuccessfulResponse(ClientError):
    """The response ended with another status than completed; `response` is the response as far as it got."""

    def __init__(self, response: Response) -> None:
        reason = ""
        if response.error is not None:
            reason = f": {response.error.message}"
        elif response.incomplete_details is not None:
            reason = f": {response.incomplete_details.reason}"
        super().__init__(f"Response {response.id} ended as {response.status}{reason}")
        self.response = response
        self.response_id = response.id


class ResponseFailed(UnsuccessfulResponse):
    """The response failed; `response.error` gives the reason."""


class ResponseCancelled(UnsuccessfulResponse):
    """The response was cancelled; `response.output` is its output up to then."""


class ResponseIncomplete(UnsuccessfulResponse):
    """The response ended early; `response.incomplete_details.reason` gives the reason."""


ERRORS: dict[str, type[UnsuccessfulResponse]] = {
    "failed": ResponseFailed,
    "cancelled": ResponseCancelled,
    "incomplete": ResponseIncomplete,
}
UNSUCCESSFUL = tuple(ERRORS)


def check(response: Response, raise_on: Collection[str] = UNSUCCESSFUL) -> Response:
    """Return the response, or raise the error for its status if that is among `raise_on`."""
    if response.status is not None and response.status in raise_on:
        raise ERRORS[response.status](response)
    return response

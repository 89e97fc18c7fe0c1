"""Continuation token: one string with which another process resumes a response, and the error that carries one."""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from dataclasses import dataclass
from typing import Self

from outlive.client.errors import ClientError, InvalidToken

PREFIX = "ot1_"
# Matches tokens of every version, so that a token of another version is never mistaken for a response id.
ANY_VERSION = re.compile(r"ot(\d+)_")
CHECKSUM_BYTES = 4


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

    def __str__(self) -> str:
        return self.encode()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Decode what `encode` returned. Raise InvalidToken, with the reason, for anything else."""
        text = text.strip()
        if not text.startswith(PREFIX):
            raise InvalidToken(_explain_prefix(text))
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
    def of(cls, target: Token | str) -> Token:
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


def _explain_prefix(text: str) -> str:
    if text.startswith("resp_"):
        return f"{text!r} is the id of a response, not a continuation token."
    if found := ANY_VERSION.match(text):
        return f"This continuation token is of version {found[1]}; this Outlive reads version 1."
    return f"A continuation token begins with {PREFIX!r}."

"""The continuation token: one string with which another process takes up a response where this one left it."""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from dataclasses import dataclass
from typing import Self

from outlive.client.errors import InvalidToken

PREFIX = "ot1_"
# Of whatever version: what looks like a token is never taken for the id of a response.
LOOKS_LIKE_ONE = re.compile(r"ot(\d+)_")
CHECK_BYTES = 4


@dataclass(frozen=True, slots=True)
class Token:
    """A response, and how far its reader has come.

    `cursor` is the sequence number of the last event that was delivered, None when there was none yet; `ended` says
    that it was the terminal one. `str(token)` is `token.encode()`.
    """

    response_id: str
    cursor: int | None = None
    ended: bool = False

    def encode(self) -> str:
        """Letters, digits, `-` and `_` only: fit for URLs, headers, file names and job tables."""
        body = json.dumps([self.response_id, self.cursor, int(self.ended)], separators=(",", ":")).encode()
        checked = zlib.crc32(body).to_bytes(CHECK_BYTES, "big") + body
        return PREFIX + base64.urlsafe_b64encode(checked).decode().rstrip("=")

    def __str__(self) -> str:
        return self.encode()

    @classmethod
    def parse(cls, text: str) -> Self:
        """What `encode` made. Raises InvalidToken, which says what is wrong with it."""
        text = text.strip()
        if not text.startswith(PREFIX):
            raise InvalidToken(_explain_prefix(text))
        packed = text.removeprefix(PREFIX)
        try:
            checked = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise InvalidToken("This continuation token has characters that no token has.") from None
        check, body = checked[:CHECK_BYTES], checked[CHECK_BYTES:]
        if zlib.crc32(body).to_bytes(CHECK_BYTES, "big") != check:
            raise InvalidToken("This continuation token was cut short or changed on its way.")
        response_id, cursor, ended = json.loads(body)
        return cls(response_id, cursor, bool(ended))

    @classmethod
    def of(cls, target: Token | str) -> Token:
        """A token, its string, or the bare id of a response."""
        if isinstance(target, Token):
            return target
        return cls.parse(target) if LOOKS_LIKE_ONE.match(target.strip()) else cls(target.strip())


def _explain_prefix(text: str) -> str:
    if text.startswith("resp_"):
        return f"{text!r} is the id of a response, not a continuation token."
    if found := LOOKS_LIKE_ONE.match(text):
        return f"This continuation token is of version {found[1]}; this Outlive reads version 1."
    return f"A continuation token begins with {PREFIX!r}."

"""Removal of secrets from what other servers answer: some repeat a key they refuse, and answers are kept and shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

HIDDEN = "***"
# Shorter values are left alone: they occur by chance in almost every text.
MIN_LENGTH = 4
# In a model's answer, which is full of short words, only secrets of this length are searched for.
MIN_LENGTH_IN_ANSWERS = 8
# Header values that are switches, not secrets. Hiding them would spoil the JSON in an answer.
_SWITCHES = frozenset({"true", "false", "null", "none"})


class Redactor:
    """Replaces the secrets of one server wherever they occur in a JSON value."""

    def __init__(self, secrets: Iterable[str | None]) -> None:
        found = {secret for secret in secrets if secret}
        found |= {secret.rpartition(" ")[2] for secret in found}  # "Bearer TOKEN" may come back without its scheme
        secret = [each for each in found if len(each) >= MIN_LENGTH and each.lower() not in _SWITCHES]
        self._secrets = sorted(secret, key=len, reverse=True)  # one secret may be the beginning of another

    def redact(self, value: Any) -> Any:
        """Return a text, or every text inside lists and objects, with the secrets replaced."""
        if isinstance(value, str):
            for secret in self._secrets:
                value = value.replace(secret, HIDDEN)
        elif isinstance(value, list):
            return [self.redact(each) for each in value]
        elif isinstance(value, dict):
            # A `type` is a word of the protocol, which a header's value may happen to be as well.
            return {name: each if name == "type" else self.redact(each) for name, each in value.items()}
        return value

    def make_stream(self, least: int = MIN_LENGTH) -> StreamRedactor:
        """Make the redactor, for secrets of `least` characters, of one answer that is passed on as it comes."""
        return StreamRedactor([secret for secret in self._secrets if len(secret) >= least])


class StreamRedactor:
    """Replaces secrets in a stream of bytes, also one that the network cut in two."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[bytes] = set()
        for secret in secrets:
            # JSON writes some characters in other ways: a quotation mark always, a slash with some encoders.
            written = msgspec.json.encode(secret)[1:-1]
            forms |= {secret.encode(), written, written.replace(b"/", b"\\/")}
        self._secrets = sorted(forms, key=len, reverse=True)
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Return the piece without secrets; an end that may be the beginning of a secret is held until the next."""
        piece = self._held + piece
        cut = min((_find_end(piece, secret) for secret in self._secrets), default=len(piece))
        while (start := self._find_across(piece, cut)) is not None:
            cut = start
        self._held = piece[cut:]
        return self._replace(piece[:cut])

    def end(self) -> bytes:
        return self._replace(self._held)

    def _replace(self, piece: bytes) -> bytes:
        for secret in self._secrets:
            piece = piece.replace(secret, HIDDEN.encode())
        return piece

    def _find_across(self, piece: bytes, cut: int) -> int | None:
        """Return the start of a secret that lies on both sides of the cut; None if there is none."""
        if cut == len(piece):
            return None
        found = (piece.find(each, max(0, cut - len(each) + 1), cut + len(each) - 1) for each in self._secrets)
        return next((start for start in found if 0 <= start < cut), None)


def _find_end(piece: bytes, secret: bytes) -> int:
    """Return the start of the piece's longest end that is the beginning of a secret."""
    longest = range(min(len(secret) - 1, len(piece)), 0, -1)
    return len(piece) - next((size for size in longest if piece.endswith(secret[:size])), 0)

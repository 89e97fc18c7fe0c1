"""Removal of secrets from what other servers answer: some repeat a key they refuse, and answers are kept and shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

HIDDEN = "***"
# Shorter values are left alone: they occur by chance in almost every text.
MIN_LENGTH = 4
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

"""Secrets in what a server answers: some say which token they did not like, and the answer is kept and shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from outlive.core.toolcalls.calls import ToolOutcome

HIDDEN = "***"
# What is shorter is no secret, and may well be a word.
SHORTEST = 8


class Redactor:
    """Hides the secrets of one server."""

    def __init__(self, secrets: Iterable[str]) -> None:
        bare = {secret.rpartition(" ")[2] for secret in secrets}  # "Bearer TOKEN" may come back without its first word
        self._secrets = sorted((secret for secret in bare if len(secret) >= SHORTEST), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text

    def from_outcome(self, outcome: ToolOutcome) -> ToolOutcome:
        if not self._secrets:
            return outcome
        output = outcome.output if outcome.output is None else self(outcome.output)
        return msgspec.structs.replace(outcome, output=output, error=self._from_value(outcome.error))

    def _from_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self(value)
        if isinstance(value, list):
            return [self._from_value(each) for each in value]
        if isinstance(value, dict):
            return {name: self._from_value(each) for name, each in value.items()}
        return value

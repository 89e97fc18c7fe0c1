"""Ids that come out the same whenever the same run is told again."""

from __future__ import annotations

from hashlib import sha256

_LENGTH = 48


class DerivedIds:
    """Counts from a seed that is nobody else's, such as a response's id."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._count = 0

    def new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{sha256(f'{self._seed}/{self._count}'.encode()).hexdigest()[:_LENGTH]}"

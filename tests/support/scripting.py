"""Helpers for scripted models: a point in a script to wait at, and ids that count."""

from __future__ import annotations

import asyncio
from typing import Literal


class Gate(asyncio.Event):
    """An event that records when a script waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    def open(self) -> None:
        self.set()

    async def wait(self) -> Literal[True]:
        self.reached.set()
        return await super().wait()


class CountingIds:
    """Identifiers that count: `msg_1`, `fc_2`, ..."""

    def __init__(self) -> None:
        self._count = 0

    def new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count}"

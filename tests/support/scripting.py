"""Helpers for scripted models: a point in a script to wait at, and ids that count."""

from __future__ import annotations

import asyncio


class Gate:
    """A point in a script where the model waits until the test opens it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    def open(self) -> None:
        self._opened.set()

    async def wait(self) -> None:
        self.reached.set()
        await self._opened.wait()


class CountingIds:
    """Identifiers that count: `msg_1`, `fc_2`, ..."""

    def __init__(self) -> None:
        self._count = 0

    def new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count}"

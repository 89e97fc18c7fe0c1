"""Answering: which creating connections are still there, so that no silent retry takes their answer (D17)."""

from __future__ import annotations

import asyncio

from outlive.ports.bell import Bell, Ring

# How long another node may take to say that it still has the connection. One that was killed never does.
PATIENCE_SECONDS = 0.2


class PendingCreates:
    def __init__(self, bell: Bell, *, alone: bool = True) -> None:
        self._bell = bell
        self._alone = alone  # no other node could have it
        self._here: set[str] = set()
        self._asking: dict[str, asyncio.Future[None]] = {}

    def add(self, response_id: str) -> None:
        self._here.add(response_id)

    def discard(self, response_id: str) -> None:
        self._here.discard(response_id)

    async def holds(self, response_id: str) -> bool:
        """Whether the connection that created this response is still there, on whichever node."""
        if response_id in self._here:
            return True
        if self._alone:
            return False
        told = self._asking.get(response_id)
        if told is None:
            told = self._asking[response_id] = asyncio.get_running_loop().create_future()
            self._bell.ring(Ring("asking", response_id))
        await asyncio.wait([told], timeout=PATIENCE_SECONDS)
        self._asking.pop(response_id, None)
        return told.done()

    def asked(self, response_id: str) -> None:
        """Another node wants to know."""
        if response_id in self._here:
            self._bell.ring(Ring("answering", response_id))

    def told(self, response_id: str) -> None:
        """Another node has it."""
        told = self._asking.get(response_id)
        if told is not None and not told.done():
            told.set_result(None)

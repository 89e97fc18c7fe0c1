"""A bell between nodes in one process, which a test may cut, and a heartbeat that only counts."""

from __future__ import annotations

import asyncio

from outlive.ports.bell import Bell, Listener, Ring
from outlive.ports.storage import Heartbeat


class Bus:
    """Carries rings from each node to all others while it is not cut."""

    def __init__(self) -> None:
        self.cut = False
        self.rung: list[Ring] = []
        self.bells: list[BusBell] = []

    def bell(self) -> BusBell:
        self.bells.append(BusBell(self))
        return self.bells[-1]

    def count(self, kind: str) -> int:
        return sum(ring.kind == kind for ring in self.rung)


class BusBell(Bell):
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._heard: Listener | None = None

    def ring(self, ring: Ring) -> None:
        self._bus.rung.append(ring)
        if self._bus.cut:
            return
        for other in self._bus.bells:
            if other is not self:
                asyncio.get_running_loop().call_soon(other.receive, ring)

    def listen(self, heard: Listener) -> None:
        self._heard = heard

    def receive(self, ring: Ring) -> None:
        if self._heard is not None:
            self._heard(ring)


class CountingHeartbeat(Heartbeat):
    """Counts its ticks, and beats until a test stops it."""

    def __init__(self) -> None:
        self.ticks = 0
        self.beating = True

    async def start(self) -> None:
        self.beating = True

    def tick(self) -> None:
        self.ticks += 1

    def is_beating(self) -> bool:
        return self.beating

    async def stop(self) -> None:
        self.beating = False

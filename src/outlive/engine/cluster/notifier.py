"""The crier: rings the bell for responses that run here and are read on other nodes, and for no others."""

from __future__ import annotations

import asyncio
from functools import partial

from outlive.engine.delivery.live import LiveResponse, LiveResponses
from outlive.ports.bell import Bell, Ring
from outlive.ports.clock import Clock

# How long to ring for a response after a node has said that it is read there. Nodes say so again well within that.
WANTED_SECONDS = 15.0


class Interest:
    """A response that is read elsewhere: up to where that is known there, and until when to ring for it."""

    __slots__ = ("live", "rung", "until")

    def __init__(self, live: LiveResponse, rung: int, until: float) -> None:
        self.live = live
        self.rung = rung
        self.until = until


class ProgressNotifier:
    """A reader among others of what runs here, that rings instead of sending: the commits themselves know nothing
    of it, and pay nothing for it."""

    def __init__(self, lives: LiveResponses, bell: Bell, clock: Clock) -> None:
        self._lives = lives
        self._bell = bell
        self._clock = clock
        self._interests: dict[str, Interest] = {}

    def __len__(self) -> int:
        return len(self._interests)

    def wanted(self, response_id: str, number: int) -> None:
        """Somebody reads this on another node, and has it up to that number."""
        live = self._lives.get(response_id)
        if live is None or live.lost:
            return
        if number < live.committed:
            self._bell.ring(Ring("advanced", response_id, live.committed))
        until = self._clock.monotonic() + WANTED_SECONDS
        interest = self._interests.get(response_id)
        if interest is not None and interest.live is live:
            interest.until = until
        elif not live.ended:
            live.readers += 1  # whoever reads elsewhere keeps it from being abandoned here (D1)
            interest = self._interests[response_id] = Interest(live, live.committed, until)
            self._follow(interest)

    def _follow(self, interest: Interest) -> None:
        interest.live.wait().add_done_callback(partial(self._moved, interest))

    def _moved(self, interest: Interest, _: asyncio.Future[None]) -> None:
        live = interest.live
        if live.committed > interest.rung:
            interest.rung = live.committed
            self._bell.ring(Ring("advanced", live.lease.response_id, live.committed))
        now = self._clock.monotonic()
        if live.ended or live.lost or now > interest.until:
            live.readers -= 1
            live.read_at = now
            if self._interests.get(live.lease.response_id) is interest:
                del self._interests[live.lease.response_id]
        else:
            self._follow(interest)

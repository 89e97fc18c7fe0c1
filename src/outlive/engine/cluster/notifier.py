"""The progress notifier: rings the bell for responses that run here and are read on other nodes, and for no others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from outlive.engine.delivery.live import LiveResponses
from outlive.engine.delivery.tail import Tail
from outlive.ports.bell import Bell, Ring
from outlive.ports.clock import Clock

# Seconds to ring for a response after a node has subscribed to it. Nodes renew their subscriptions well within that.
SUBSCRIPTION_SECONDS = 15.0


@dataclass(slots=True, eq=False)
class Subscription:
    """A response that is read on other nodes."""

    tail: Tail
    notified: int  # the number that they were last notified of
    until: float  # when to stop ringing


class ProgressNotifier:
    """Reads tails like any reader, and rings instead of sending: the commits themselves cost nothing more."""

    def __init__(self, live: LiveResponses, bell: Bell, clock: Clock) -> None:
        self._live = live
        self._bell = bell
        self._clock = clock
        self._subscriptions: dict[str, Subscription] = {}

    def __len__(self) -> int:
        return len(self._subscriptions)

    def on_wanted(self, response_id: str, number: int) -> None:
        """Subscribe another node, which has the response up to that number."""
        tail = self._live.tail(response_id)
        if tail is None:
            return
        if number < tail.committed:
            self._bell.ring(Ring("advanced", response_id, tail.committed))
        until = self._clock.monotonic() + SUBSCRIPTION_SECONDS
        subscription = self._subscriptions.get(response_id)
        if subscription is not None and subscription.tail is tail:
            subscription.until = until
        elif not tail.ended:
            tail.readers += 1  # a reader elsewhere keeps the run from being abandoned here (D1)
            subscription = self._subscriptions[response_id] = Subscription(tail, tail.committed, until)
            self._follow(subscription)

    def _follow(self, subscription: Subscription) -> None:
        subscription.tail.wait().add_done_callback(partial(self._on_wake, subscription))

    def _on_wake(self, subscription: Subscription, _: asyncio.Future[None]) -> None:
        tail = subscription.tail
        if tail.committed > subscription.notified:
            subscription.notified = tail.committed
            self._bell.ring(Ring("advanced", tail.response_id, tail.committed))
        now = self._clock.monotonic()
        if tail.ended or tail.lost or now > subscription.until:
            tail.readers -= 1
            tail.read_at = now
            if self._subscriptions.get(tail.response_id) is subscription:
                del self._subscriptions[tail.response_id]
        else:
            self._follow(subscription)

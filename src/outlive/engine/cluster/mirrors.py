"""Reading across nodes: mirrors of responses that run elsewhere and are read here, and the progress notifier, which
rings the bell for responses that run here and are read elsewhere."""

import asyncio
from dataclasses import dataclass, field
from functools import partial

from outlive.core.errors import StorageUnavailable
from outlive.engine.delivery.live import LiveResponses
from outlive.engine.delivery.tail import Tail
from outlive.ports.bell import Bell, Ring
from outlive.ports.clock import Clock
from outlive.ports.journal import Journal

# Read of one response in one query.
PAGE_BYTES = 64 * 1024
# The node that runs the response may not know yet that it is read here: a second look finds what it commits until then.
SECOND_LOOK_SECONDS = 0.05
# A query that takes longer hangs in a connection that is dead without knowing it; the next takes another one.
QUERY_SECONDS = 5.0
# Responses in one query.
MAX_QUERIED = 1000
# Seconds to ring for a response after a node has subscribed to it. Nodes renew their subscriptions well within that.
SUBSCRIPTION_SECONDS = 15.0


@dataclass(eq=False)
class Mirrors:
    """Keeps a tail for each response that runs elsewhere and is read here. One query serves them all. The bell signals
    when to look at the journal; once a second all are looked at anyway, for a ring may be lost."""

    _journal: Journal
    _live: LiveResponses
    _bell: Bell
    _tails: dict[str, Tail] = field(default_factory=dict)
    _due: set[str] = field(default_factory=set)
    _polling: asyncio.Task[None] | None = None

    def count_readers(self) -> int:
        return sum(tail.readers for tail in self._tails.values())

    def join(self, response_id: str, after: int) -> Tail:
        """Return the tail to read on from, for a reader that has read the journal up to that number."""
        tail = self._tails.get(response_id)
        if tail is None or tail.lost or tail.ended:
            tail = self._tails[response_id] = Tail(response_id, after)
            self._live.wait(response_id).add_done_callback(partial(self._on_live, tail))
            self.on_taken(response_id)
        return tail

    # -- rings of other nodes

    def on_advanced(self, response_id: str, number: int) -> None:
        """Poll a response whose journal has reached that number."""
        tail = self._tails.get(response_id)
        if tail is not None and number > tail.committed:
            self._poll_one(response_id)

    def on_taken(self, response_id: str) -> None:
        """Subscribe: the response runs on a node that does not know yet that it is read here."""
        if (tail := self._tails.get(response_id)) is not None:
            self._bell.ring(Ring("wanted", response_id, tail.committed))
            self._poll_one(response_id)
            asyncio.get_running_loop().call_later(SECOND_LOOK_SECONDS, self._poll_one, response_id)

    # -- regularly

    def subscribe_all(self) -> None:
        """Repeat all subscriptions: a node stops ringing for a response whose subscription is not renewed."""
        for response_id, tail in self._tails.items():
            self._bell.ring(Ring("wanted", response_id, tail.committed))

    def poll_all(self) -> None:
        """Poll everything, in case a ring was lost, and drop the tails without readers."""
        self._tails = {response_id: tail for response_id, tail in self._tails.items() if tail.readers}
        self._due.update(self._tails)
        self._start_polling()

    # -- polling the journal

    def _poll_one(self, response_id: str) -> None:
        if response_id in self._tails:
            self._due.add(response_id)
            self._start_polling()

    def _start_polling(self) -> None:
        if self._due and (self._polling is None or self._polling.done()):
            self._polling = asyncio.create_task(self._poll_due())

    async def _poll_due(self) -> None:
        """Poll until nothing is due: what becomes due during one query is part of the next."""
        while self._due:
            due = [self._due.pop() for _ in range(min(len(self._due), MAX_QUERIED))]
            tails = {each: self._tails[each] for each in due if each in self._tails}
            after = {each: tail.committed for each, tail in tails.items()}
            try:
                async with asyncio.timeout(QUERY_SECONDS):
                    batches = await self._journal.read_many(after, PAGE_BYTES)
            except (StorageUnavailable, TimeoutError):
                return  # the next round polls all of them again
            for response_id, batch in batches.items():
                tail = tails[response_id]
                if batch is None:
                    self._lose(tail)  # deleted: the readers find that out when they read the journal
                    continue
                tail.mirror(batch)
                if tail.ended:
                    self._drop(tail)
                elif len(batch.frames) >= PAGE_BYTES:
                    self._due.add(response_id)  # there is more

    def _on_live(self, tail: Tail, _: asyncio.Future[None]) -> None:
        """Give the readers of a tail to the response if it begins to run here."""
        if self._tails.get(tail.response_id) is not tail:
            return
        if self._live.tail(tail.response_id) is not None:
            self._lose(tail)
        else:
            self._live.wait(tail.response_id).add_done_callback(partial(self._on_live, tail))
            tail.wake()  # a keep-alive may be due, or the server may be shutting down

    def _lose(self, tail: Tail) -> None:
        self._drop(tail)
        tail.lose()

    def _drop(self, tail: Tail) -> None:
        if self._tails.get(tail.response_id) is tail:
            del self._tails[tail.response_id]


@dataclass(slots=True, eq=False)
class Subscription:
    """A response that is read on other nodes."""

    tail: Tail
    notified: int  # the number that they were last notified of
    until: float  # when to stop ringing


@dataclass(eq=False)
class ProgressNotifier:
    """Reads tails like any reader, and rings instead of sending: the commits themselves cost nothing more."""

    _live: LiveResponses
    _bell: Bell
    _clock: Clock
    _subscriptions: dict[str, Subscription] = field(default_factory=dict)

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
            tail.wait().add_done_callback(partial(self._on_wake, subscription))

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
            tail.wait().add_done_callback(partial(self._on_wake, subscription))

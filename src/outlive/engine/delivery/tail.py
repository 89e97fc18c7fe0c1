"""The tail of a response: its newest durable events, on their way to readers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from outlive.core.errors import UpstreamFault
from outlive.core.events import is_last, split_frames
from outlive.ports.journal import Batch

# Readers that are further behind than this read the journal instead.
TAIL_BYTES = 4 * 1024
# A batch longer than this is not kept at all: every slow reader would hold a copy of the whole of it.
BATCH_BYTES = 256 * 1024

Follower = Callable[[], bool]


class Tail:
    """Holds the newest few KB of durable events and wakes the readers that wait for more (D3).

    The committer feeds the tail of a response that runs here, `Mirrors` that of one that runs on another node.
    """

    __slots__ = (
        "_batches",
        "_bytes",
        "_followers",
        "_loop",
        "_waiters",
        "cause",
        "committed",
        "ended",
        "final",
        "lost",
        "read_at",
        "readers",
        "response_id",
    )

    def __init__(self, response_id: str, committed: int, read_at: float = 0.0) -> None:
        self.response_id = response_id
        self.committed = committed  # number of the last durable event
        self.ended = False  # the terminal event is durable
        self.lost = False  # no more events come here: readers must look for the response elsewhere
        self.final: bytes | None = None  # the final Response object
        self.cause: UpstreamFault | None = None  # why the response failed
        self.readers = 0
        self.read_at = read_at  # time at which the last reader left
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._followers: list[Follower] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    # -- the writer's side

    def push(self, batch: Batch) -> None:
        """Add durable events and wake the readers."""
        self.committed = batch.last
        self.keep(batch)
        self.wake()

    def keep(self, batch: Batch) -> None:
        """Add events without waking anyone, dropping the oldest beyond TAIL_BYTES."""
        self._batches.append(batch)
        self._bytes += len(batch.frames)
        least = 0 if len(batch.frames) > BATCH_BYTES else 1
        while self._bytes > TAIL_BYTES and len(self._batches) > least:
            self._bytes -= len(self._batches.popleft().frames)

    def mirror(self, batch: Batch) -> None:
        """Add events read from the journal. An empty batch means that none will follow."""
        self.ended = not batch.frames or is_last(batch.frames)
        if batch.frames:
            self.push(batch)
        else:
            self.wake()

    def end(self, batch: Batch, final: bytes) -> None:
        """Add the last events: the terminal one is among them."""
        self.ended, self.final = True, final
        self.push(batch)

    def lose(self) -> None:
        """Send the readers elsewhere."""
        self.lost = True
        self.wake()

    def wake(self) -> None:
        """Call every follower and resolve every waiter: there are new events, an end, or a keep-alive is due."""
        if self._followers:
            self._followers = [follower for follower in self._followers if follower()]
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -- the readers' side

    def slice(self, after: int) -> Batch | None:
        """Return the durable events after that number, or None if the tail does not reach back that far."""
        batches = self._batches
        if not batches or batches[0].first > after + 1:
            return None
        last = batches[-1]
        if last.first == after + 1:
            return last
        parts: list[bytes] = []
        for batch in batches:
            if batch.first > after:
                parts.append(batch.frames)
            elif batch.last > after:
                parts += split_frames(batch.frames)[after + 1 - batch.first :]
        return Batch(after + 1, self.committed, b"".join(parts))

    def wait(self) -> asyncio.Future[None]:
        """Return a future that the next `wake` resolves."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # asked once, for it costs a system call
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def follow(self, follower: Follower) -> None:
        """Call the follower at each `wake`, until it returns False."""
        self._followers.append(follower)

    def unfollow(self, follower: Follower) -> None:
        """Stop calling the follower."""
        if follower in self._followers:
            self._followers.remove(follower)

"""The tail of a response: its newest durable events, on their way to readers."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import call

from outlive.core.errors import UpstreamFault
from outlive.core.events import is_last, split_frames
from outlive.ports.journal import Batch

# Readers that are further behind than this read the journal instead.
TAIL_BYTES = 4 * 1024
# A batch longer than this is not kept at all: every slow reader would hold a copy of the whole of it.
BATCH_BYTES = 256 * 1024

Follower = Callable[[], bool]


@dataclass(slots=True, eq=False)
class Tail:
    """Holds the newest few KB of durable events and wakes the readers that wait for more (D3).

    The committer feeds the tail of a response that runs here, `Mirrors` that of one that runs on another node.
    """

    response_id: str
    committed: int  # number of the last durable event
    read_at: float = 0.0  # time at which the last reader left
    readers: int = 0
    ended: bool = False  # the terminal event is durable
    lost: bool = False  # no more events come here: readers must look for the response elsewhere
    final: bytes | None = None  # the final Response object
    cause: UpstreamFault | None = None  # why the response failed
    on_read: Callable[[int], None] | None = None  # is called with the number up to which a reader has read
    _batches: deque[Batch] = field(default_factory=deque)
    _bytes: int = 0
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)
    _followers: list[Follower] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop | None = None

    # -- the writer's side

    def push(self, batch: Batch) -> None:
        """Add durable events, drop the oldest beyond TAIL_BYTES, and wake the readers."""
        self.committed = batch.last
        self._batches.append(batch)
        self._bytes += len(batch.frames)
        while self._bytes > TAIL_BYTES and (len(self._batches) > 1 or len(batch.frames) > BATCH_BYTES):
            self._bytes -= len(self._batches.popleft().frames)
        self.wake()

    def mirror(self, batch: Batch) -> None:
        """Add events read from the journal. An empty batch means that none will follow."""
        self.ended = not batch.frames or is_last(batch.frames)
        if batch.frames:
            self.push(batch)
        else:
            self.wake()

    def lose(self) -> None:
        """Send the readers elsewhere."""
        self.lost = True
        self.wake()

    def wake(self) -> None:
        """Call every follower and resolve every waiter: there are new events, an end, or a keep-alive is due."""
        if self._followers:
            self._followers = list(filter(call, self._followers))
        if self._waiters:
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

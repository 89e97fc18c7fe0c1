"""A response that runs in this process: its committed tail, its fold, and whoever waits for more of it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft, Draft, Json, split_frames
from outlive.core.fold import Fold
from outlive.core.numbering import number
from outlive.ports.journal import Batch
from outlive.ports.ledger import Entry, Lease

# Readers that are further behind than this read the journal instead.
TAIL_BYTES = 4 * 1024
# A batch longer than this is not kept for them at all: every slow reader would hold a copy of the whole of it.
BATCH_BYTES = 256 * 1024
# A run whose events cannot be committed this far stops reading its upstream until they can.
PENDING_BYTES = 1024 * 1024


class LiveResponse:
    """Written by its runner, advanced by the committer, read by cursors. Only what is durable shows (D3)."""

    __slots__ = (
        "_drafts",
        "_followers",
        "_frames",
        "_loop",
        "_numbered",
        "_pending_bytes",
        "_tail",
        "_tail_bytes",
        "_waiters",
        "cause",
        "committed",
        "dirty",
        "ended",
        "ending",
        "final",
        "fold",
        "held_up",
        "in_flight",
        "lease",
        "lost",
        "on_lost",
        "output",
        "read_at",
        "readers",
        "upstream",
    )

    def __init__(self, lease: Lease, fold: Fold, read_at: float = 0.0, frames: bytes = b"") -> None:
        self.lease = lease
        self.fold = fold
        # Finished items by output index, committed or not; what was finished before us is in the fold.
        self.output: dict[int, Json] = dict(enumerate(fold.output)) if fold.visible else {}
        self.committed = self._numbered = fold.last
        self.dirty = False  # has something for the next commit
        self.in_flight = False  # has something in the commit under way
        self.ending = False  # all is said: its end is being made and committed
        self.held_up = False  # its end could not be committed at once
        self.ended = False
        self.lost = False  # the lease went to another: whoever reads here must read on elsewhere
        self.on_lost: Callable[[], object] | None = None  # stops the run, which may be waiting for a silent upstream
        self.final: bytes | None = None
        self.cause: UpstreamFault | None = None  # why it failed
        self.upstream: str | None = None  # the upstream's own id of the run, where that goes on without us
        self.readers = 0
        self.read_at = read_at  # when somebody last read it
        self._frames: list[bytes] = []
        self._drafts: list[AnyDraft] = []
        self._pending_bytes = 0
        self._tail: deque[Batch] = deque()
        self._tail_bytes = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._followers: list[Callable[[], bool]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        if frames:
            # What it was accepted with, so that its first reader need not ask the journal.
            self._keep(Batch(0, fold.last, frames))

    # -- the runner's side

    def emit(self, drafts: list[AnyDraft]) -> None:
        """Number the drafts and put them up for the next commit."""
        frames = number(drafts, self._numbered)
        self._numbered += len(frames)
        self._frames += frames
        self._drafts += drafts
        self._pending_bytes += sum(map(len, frames))
        self.collect(drafts)

    def collect(self, drafts: list[AnyDraft]) -> None:
        """Remember the finished items: the final object is made of them."""
        for draft in drafts:
            if type(draft) is Draft and draft.type == "response.output_item.done":
                self.output[draft.fields["output_index"]] = draft.fields["item"]

    @property
    def crowded(self) -> bool:
        return self._pending_bytes > PENDING_BYTES

    @property
    def settled(self) -> bool:
        """Whether everything emitted is committed (or never will be)."""
        return self.committed == self._numbered or self.lost

    # -- the committer's side

    def take(self, at: float) -> tuple[Entry, list[AnyDraft]]:
        """What is to be committed next."""
        frames, drafts = self._frames, self._drafts
        self._frames, self._drafts, self._pending_bytes = [], [], 0
        first = self._numbered - len(frames) + 1
        return Entry(self.lease, first, len(frames), at, b"".join(frames)), drafts

    def put_back(self, entry: Entry, drafts: list[AnyDraft]) -> None:
        """It could not be committed: it goes first next time."""
        self._frames[:0] = split_frames(entry.frames)
        self._drafts[:0] = drafts
        self._pending_bytes += len(entry.frames)

    def advance(self, entry: Entry, drafts: list[AnyDraft]) -> None:
        """These events are durable now."""
        self.committed = entry.first + entry.count - 1
        self.fold.apply(drafts)
        self._keep(Batch(entry.first, self.committed, entry.frames))
        self.wake()

    def finish(self, entry: Entry, final: bytes) -> None:
        """The terminal event is durable, and nothing follows it."""
        self.committed = entry.first + entry.count - 1
        self.ended, self.final = True, final
        self._keep(Batch(entry.first, self.committed, entry.frames))
        self.wake()

    def lose(self) -> None:
        self.lost = True
        self.wake()
        if self.on_lost is not None:
            self.on_lost()

    def _keep(self, batch: Batch) -> None:
        self._tail.append(batch)
        self._tail_bytes += len(batch.frames)
        least = 0 if len(batch.frames) > BATCH_BYTES else 1
        while self._tail_bytes > TAIL_BYTES and len(self._tail) > least:
            self._tail_bytes -= len(self._tail.popleft().frames)

    # -- the readers' side

    def slice(self, after: int) -> Batch | None:
        """The committed frames after that number; None when the tail does not reach back that far."""
        tail = self._tail
        if not tail or tail[0].first > after + 1:
            return None
        last = tail[-1]
        if last.first == after + 1:
            return last
        parts: list[bytes] = []
        for batch in tail:
            if batch.first > after:
                parts.append(batch.frames)
            elif batch.last > after:
                parts += split_frames(batch.frames)[after + 1 - batch.first :]
        return Batch(after + 1, self.committed, b"".join(parts))

    def wait(self) -> asyncio.Future[None]:
        """Done when there is more, or an end, or a keep-alive is due."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # asked once, for it costs a system call
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def follow(self, follower: Callable[[], bool]) -> None:
        """Call it whenever there is more, or an end, or a keep-alive is due, until it says that this is enough."""
        self._followers.append(follower)

    def unfollow(self, follower: Callable[[], bool]) -> None:
        if follower in self._followers:
            self._followers.remove(follower)

    def wake(self) -> None:
        if self._followers:
            self._followers = [follower for follower in self._followers if follower()]
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class LiveResponses:
    """The responses that run in this process, and whoever waits for one to begin here."""

    def __init__(self) -> None:
        self._lives: dict[str, LiveResponse] = {}
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}

    def get(self, response_id: str) -> LiveResponse | None:
        return self._lives.get(response_id)

    def __iter__(self) -> Iterator[LiveResponse]:
        return iter(list(self._lives.values()))

    def enter(self, live: LiveResponse) -> None:
        response_id = live.lease.response_id
        before = self._lives.get(response_id)
        if before is not None and before.lease.fence > live.lease.fence:
            live.lose()  # it was taken over between being claimed and being begun here
            return
        self._lives[response_id] = live
        if before is not None:
            before.lose()
        self.ring(response_id)

    def leave(self, live: LiveResponse) -> None:
        response_id = live.lease.response_id
        if self._lives.get(response_id) is live:
            del self._lives[response_id]
            self.ring(response_id)  # whoever waits for it to go on may find its end in the journal

    def ring(self, response_id: str) -> None:
        for waiter in self._waiters.pop(response_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def wait(self, response_id: str) -> asyncio.Future[None]:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(response_id, []).append(waiter)
        return waiter

    def forget(self, response_id: str, waiter: asyncio.Future[None]) -> None:
        """Nobody waits there any more."""
        waiters = self._waiters.get(response_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[response_id]

    def wake_all(self) -> None:
        """Let every reader look around: a keep-alive may be due, or the server may be leaving."""
        for live in list(self._lives.values()):
            live.wake()
        for response_id in list(self._waiters):
            self.ring(response_id)

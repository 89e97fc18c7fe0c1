"""Pending events: what a run has emitted and the committer has not made durable yet."""

from __future__ import annotations

from outlive.core.events import AnyDraft, number, split_frames
from outlive.ports.ledger import Entry, Lease

# A run with more bytes pending than this stops reading its upstream until they are durable.
PENDING_BYTES = 1024 * 1024


class PendingEvents:
    """Numbers the events of one response and holds them until they are committed."""

    __slots__ = ("_bytes", "_drafts", "_frames", "in_flight", "last", "queued")

    def __init__(self, last: int) -> None:
        self.last = last  # number of the newest event, durable or not
        self.queued = False  # some events wait for the next commit
        self.in_flight = False  # some events are in the commit under way
        self._frames: list[bytes] = []
        self._drafts: list[AnyDraft] = []
        self._bytes = 0

    def add(self, drafts: list[AnyDraft]) -> None:
        """Number the drafts and render their frames, once and for all."""
        frames = number(drafts, self.last)
        self.last += len(frames)
        self._frames += frames
        self._drafts += drafts
        self._bytes += sum(map(len, frames))

    @property
    def is_full(self) -> bool:
        """True while the run should wait instead of adding more."""
        return self._bytes > PENDING_BYTES

    def take(self, lease: Lease, at: float) -> tuple[Entry, list[AnyDraft]]:
        """Remove and return everything that is pending, as one entry of a commit."""
        frames, drafts = self._frames, self._drafts
        self._frames, self._drafts, self._bytes = [], [], 0
        return Entry(lease, self.last - len(frames) + 1, len(frames), at, b"".join(frames)), drafts

    def put_back(self, entry: Entry, drafts: list[AnyDraft]) -> None:
        """Put an entry that could not be committed in front of what came since."""
        self._frames[:0] = split_frames(entry.frames)
        self._drafts[:0] = drafts
        self._bytes += len(entry.frames)

"""A response that runs in this process: its state, what is pending, and its durable tail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from enum import StrEnum

import msgspec

from outlive.core.context.window import BYTES_PER_TOKEN
from outlive.core.endings import Outcome
from outlive.core.errors import StaleFence
from outlive.core.events import AnyDraft, Draft, Json, number, rename, split_frames
from outlive.core.fold import Fold
from outlive.core.owners import split
from outlive.core.usage import add_usage, drop_resumed
from outlive.engine.delivery.tail import Tail
from outlive.ports.journal import Batch
from outlive.ports.ledger import Checkpoint, Claim, Entry, Lease, RunLedger

# A run with more bytes pending than this stops reading its upstream until they are durable.
PENDING_BYTES = 1024 * 1024


class State(StrEnum):
    """State of a live response."""

    OPEN = "open"
    ENDING = "ending"
    ENDED = "ended"
    LOST = "lost"


# By state and event; ARCHITECTURE.md says what each means. Any other event is a bug.
TRANSITIONS: dict[State, dict[str, State]] = {
    State.OPEN: {"emit": State.OPEN, "close": State.ENDING, "fence": State.LOST},
    State.ENDING: {"reopen": State.OPEN, "retry": State.ENDING, "commit": State.ENDED, "fence": State.LOST},
    State.LOST: {"fence": State.LOST, "commit": State.ENDED},
    State.ENDED: {},
}


class IllegalTransition(Exception):
    """An event that the state of a live response does not allow."""


@dataclass(slots=True, eq=False)
class PendingEvents:
    """Numbers the events of one response and holds them until they are committed."""

    last: int  # number of the newest event, durable or not
    queued: bool = False  # some events wait for the next commit
    in_flight: bool = False  # some events are in the commit under way
    most: int = PENDING_BYTES  # a run with a larger `size` pending waits instead of adding more
    _frames: list[bytes] = field(default_factory=list)
    _drafts: list[AnyDraft] = field(default_factory=list)
    size: int = 0  # bytes

    def add(self, drafts: list[AnyDraft]) -> None:
        """Number the drafts and render their frames, once and for all."""
        frames = number(drafts, self.last)
        self.last += len(frames)
        self._frames += frames
        self._drafts += drafts
        self.size += sum(map(len, frames))

    def append(self, frames: list[bytes]) -> None:
        """Add the last frames, numbered already."""
        self.last += len(frames)
        self._frames += frames

    def take(self, lease: Lease, at: float) -> tuple[Entry, list[AnyDraft]]:
        """Remove and return everything that is pending, as one entry of a commit."""
        frames, drafts = self._frames, self._drafts
        self._frames, self._drafts, self.size = [], [], 0
        return Entry(lease, self.last - len(frames) + 1, len(frames), at, b"".join(frames)), drafts

    def put_back(self, entry: Entry, drafts: list[AnyDraft]) -> None:
        """Put an entry that could not be committed in front of what came since."""
        self._frames[:0] = split_frames(entry.frames)
        self._drafts[:0] = drafts
        self.size += len(entry.frames)


class Attempt(msgspec.Struct, frozen=True):
    """One time that the model is asked."""

    usage: Callable[[], Json | None]  # as far as the upstream has reported it
    estimate: Callable[[], int]  # tokens of its input
    resumed: int  # deltas of the text that it continues, which its usage counts too
    size: int  # characters that were shown before it


@dataclass(slots=True, eq=False)
class LiveResponse:
    """One claim in this process. Written by its run, made durable by the committer, read through its tail (D3).

    It begins with the response as its journal has it. `frames` are those of its admission, if it was just admitted:
    they spare its first reader a look into the journal.
    """

    claim: Claim
    fold: Fold  # of the durable events only
    ledger: RunLedger  # the database's, or the one in memory for `store: false`
    read_at: InitVar[float] = 0.0
    frames: InitVar[bytes] = b""
    received_at: float | None = None  # time of its request; None: it was queued, or taken over
    lease: Lease = field(init=False)
    checkpoint: Checkpoint = field(init=False)  # as last saved
    state: State = State.OPEN
    pending: PendingEvents = field(init=False)
    tail: Tail = field(init=False)
    # Finished items by output index, durable or not; what was finished before this claim is in the fold.
    output: dict[int, Json] = field(init=False)
    on_lost: Callable[[], object] | None = None  # stops the run, which may wait for a silent upstream
    # Returns what the upstream has reported of the step under way, which the checkpoint does not count yet.
    step_usage: Callable[[], Json | None] | None = None
    attempt: Attempt | None = None  # the last one, until it is counted
    paid: Json | None = field(init=False)  # usage that upstreams have reported for the attempts before it
    estimated: tuple[int, int] = (0, 0)  # tokens of input and output of those that nothing was reported for
    asked_at: float | None = None  # time at which the model was first asked, until its first output is shown
    output_at: float | None = None  # time at which its first output was read, until that is shown
    first_token_at: float | None = None  # unix seconds at which its first output was shown here
    outcome: Outcome | None = None  # set when its end is sent
    failed_closings: int = 0  # tries to commit its end that failed, for the storage was down
    # For `store: false`: drops the events up to a number, and returns the bytes of the others.
    trim: Callable[[int], int] | None = None
    unread: int = 0  # bytes of events that its reader may not have read
    is_behind: bool = False  # lost because the journal lacks committed events that are gone here, too

    def __post_init__(self, read_at: float, frames: bytes) -> None:
        claim, fold = self.claim, self.fold
        self.lease, self.checkpoint, self.paid = claim.lease, claim.checkpoint, claim.checkpoint.paid
        self.pending = PendingEvents(fold.last)
        self.tail = Tail(claim.lease.response_id, fold.last, read_at)
        self.output = dict(enumerate(fold.output)) if fold.visible else {}
        if frames:
            self.tail.push(Batch(0, fold.last, frames))

    def transition(self, event: str) -> None:
        """Move to the next state. Raises StaleFence for a response that is lost, IllegalTransition for a bug."""
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            if self.state is State.LOST:
                raise StaleFence
            raise IllegalTransition(f"{self.lease.response_id}: {event} in state {self.state.value}")
        self.state = following

    @property
    def is_durable(self) -> bool:
        """True if everything emitted is durable, or never will be because the lease is lost."""
        return self.tail.committed == self.pending.last or self.state is State.LOST

    async def flush(self) -> None:
        """Wait until everything emitted is durable, or the lease is lost."""
        while not self.is_durable:
            await self.tail.wait()

    def known_usage(self) -> Json | None:
        """Return the usage so far: of compactions, of finished steps, and of the step under way as far as reported."""
        counted = add_usage(self.checkpoint.compaction, self.checkpoint.usage)
        return counted if self.step_usage is None else add_usage(counted, self.step_usage())

    def count_attempt(self, *, broken: bool = False, again: bool = False) -> None:
        """Count what the last attempt has used. Its tokens are estimated if nothing was reported, but not those of one
        that broke before it had shown anything, nor of one that the next one repeats (`again`)."""
        if (attempt := self.attempt) is None:
            return
        self.attempt = None
        shown = self.fold.size - attempt.size
        if (usage := attempt.usage()) is not None:
            self.paid = add_usage(self.paid, drop_resumed(usage, attempt.resumed))
        elif not again and (shown or not broken):
            given, written = self.estimated
            self.estimated = given + attempt.estimate(), written - (-shown // BYTES_PER_TOKEN)

    def continue_counting(self, before: LiveResponse) -> None:
        """Count on from the run of the same response that was stopped here: it knows the usage of its steps best."""
        before.count_attempt()
        self.checkpoint, self.step_usage = before.checkpoint, before.step_usage
        self.paid, self.estimated = before.paid, before.estimated

    def describe(self) -> Json:
        """Return the fields of a log line about it."""
        request, (owner, end_user) = self.claim.request, split(self.claim.owner)
        return {
            "request_id": request.origin.request_id,
            "response_id": self.lease.response_id,
            "conversation_id": request.conversation,
            "trace_id": request.origin.trace_id,
            "owner": owner,
            "end_user": end_user,
            "model": request.model,
        }

    # -- the run's side

    def emit(self, drafts: list[AnyDraft]) -> None:
        """Number the drafts and hold them for the next commit."""
        if self.state is not State.OPEN:
            self.transition("emit")  # raises
        if self.claim.request.event_names != "openai":
            drafts = rename(drafts)
        self.pending.add(drafts)
        if Draft in map(type, drafts):  # deltas, of which nearly all calls consist, finish no item
            self.collect(drafts)

    def collect(self, drafts: list[AnyDraft]) -> None:
        """Remember finished items: the final object is made of them."""
        for draft in drafts:
            if type(draft) is Draft and draft.type == "response.output_item.done":
                self.output[draft.fields["output_index"]] = draft.fields["item"]

    # -- the committer's side

    def advance(self, entry: Entry, drafts: list[AnyDraft]) -> None:
        """Take in events that are durable now, and show them to the readers."""
        self.fold.apply(drafts)
        self.tail.push(Batch(entry.first, entry.first + entry.count - 1, entry.frames))

    def finish(self, entry: Entry, final: bytes) -> None:
        """Take in the terminal event, which is durable now."""
        self.transition("commit")
        self.tail.ended, self.tail.final = True, final
        self.tail.push(Batch(entry.first, entry.first + entry.count - 1, entry.frames))

    def lose(self) -> None:
        """Stop the run and send the readers elsewhere: this worker may not write the response any more."""
        self.transition("fence")
        self.tail.lose()
        if self.on_lost is not None:
            self.on_lost()


class LiveResponses:
    """Registry of the responses that run in this process, with the readers that wait for one to begin here."""

    def __init__(self) -> None:
        self._live: dict[str, LiveResponse] = {}
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}

    def get(self, response_id: str) -> LiveResponse | None:
        """Return the live response, also if it is lost."""
        return self._live.get(response_id)

    def tail(self, response_id: str) -> Tail | None:
        """Return the tail to read from, or None if the response does not run here."""
        live = self._live.get(response_id)
        return None if live is None or live.tail.lost else live.tail

    def add(self, live: LiveResponse) -> None:
        """Register a live response. Of two with the same id, the one with the lower fence is lost."""
        response_id = live.lease.response_id
        before = self._live.get(response_id)
        if before is not None and before.lease.fence > live.lease.fence:
            live.lose()  # another worker took it over between the claim and this call
            return
        self._live[response_id] = live
        if before is not None and before.state is not State.ENDED:
            before.lose()
        self.notify(response_id)

    def remove(self, live: LiveResponse) -> None:
        """Unregister a live response. Readers that wait for it may find its end in the journal."""
        response_id = live.lease.response_id
        if self._live.get(response_id) is live:
            del self._live[response_id]
            self.notify(response_id)

    def notify(self, response_id: str) -> None:
        """Wake the readers that wait for this response to begin here."""
        for waiter in self._waiters.pop(response_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def wait(self, response_id: str) -> asyncio.Future[None]:
        """Return a future that `notify` resolves."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(response_id, []).append(waiter)
        return waiter

    def stop_waiting(self, response_id: str, waiter: asyncio.Future[None]) -> None:
        """Drop a future that `wait` returned."""
        waiters = self._waiters.get(response_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[response_id]

    def count_readers(self) -> int:
        """Count the readers of all live responses."""
        return sum(live.tail.readers for live in self._live.values())

    def wake_all(self) -> None:
        """Wake every reader: a keep-alive may be due, or the server may be shutting down."""
        for live in list(self._live.values()):
            live.tail.wake()
        for response_id in list(self._waiters):
            self.notify(response_id)

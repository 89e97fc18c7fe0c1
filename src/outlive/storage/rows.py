"""Conversions between stored rows and the ports' types that both databases share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from outlive.core.errors import NotFound
from outlive.core.events import Json, split_frames
from outlive.core.requests.create import unpack
from outlive.ports.catalog import Paging
from outlive.ports.journal import Batch
from outlive.ports.ledger import Checkpoint, Claim, Entry, Lease, Position
from outlive.storage.refusals import response_not_found

RUNNING = frozenset({"queued", "in_progress"})
ROW_BYTES = 64 * 1024

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode
_decode_checkpoint = msgspec.json.Decoder(Checkpoint).decode


# -- journals

JournalRow = tuple[int, int, bytes]  # first, count, frames


def split_entry(entry: Entry) -> Iterator[JournalRow]:
    """Split an entry into rows of about ROW_BYTES, for a reader, however slow, holds one row at a time."""
    if len(entry.frames) <= ROW_BYTES:
        yield entry.first, entry.count, entry.frames
        return
    first, size, frames = entry.first, 0, []
    for frame in split_frames(entry.frames):
        frames.append(frame)
        size += len(frame)
        if size >= ROW_BYTES:
            yield first, len(frames), b"".join(frames)
            first, size, frames = first + len(frames), 0, []
    if frames:
        yield first, len(frames), b"".join(frames)


def gather(response_id: str, rows: Iterable[JournalRow], ended: bool, after: int, max_bytes: int) -> Batch | None:
    """Join the rows of a journal from the one that holds number `after` + 1 on, as `Journal.read` returns them."""
    parts: list[bytes] = []
    last, size, reached = after, 0, -1
    for first, count, frames in rows:
        reached = first + count - 1
        if reached <= after:
            continue
        if first > last + 1:
            raise response_not_found(response_id)  # deleted, and being erased from its beginning on
        if first <= after:
            # The cursor stands within this row.
            frames = b"".join(split_frames(frames)[after + 1 - first :])
        parts.append(frames)
        last, size = reached, size + len(frames)
        if size >= max_bytes:
            break
    if reached < 0:
        raise response_not_found(response_id)  # erased a moment ago
    return Batch(after + 1, last, b"".join(parts)) if parts or ended else None


def read_each(after: dict[str, int], read: Callable[[str, int], Batch | None]) -> dict[str, Batch | None]:
    """Read several journals, as `Journal.read_many` returns them."""
    found: dict[str, Batch | None] = {}
    for response_id, number in after.items():
        try:
            if (batch := read(response_id, number)) is not None:
                found[response_id] = batch
        except NotFound:
            found[response_id] = None
    return found


# -- claims and conversations


def make_claim(row: Sequence[Any], items: list[Json], was_queued: bool) -> Claim:
    response_id, key, fence, owner, request, thread, first, _, attempts, checkpoint, background, sealed = row
    return Claim(
        lease=Lease(response_id, key, fence),
        owner=owner,
        request=unpack(request, items),
        position=Position(thread, first),
        attempts=attempts,
        checkpoint=_decode_checkpoint(checkpoint),
        background=bool(background),
        was_queued=was_queued,
        sealed=sealed,
    )


def make_conversation(conversation_id: str, metadata: bytes, created_at: float) -> Json:
    return {
        "id": conversation_id,
        "object": "conversation",
        "created_at": int(created_at),
        "metadata": decode(metadata),
    }


# -- lists


class ListQuery:
    """The SQL of one page of an owner's things, newest first or oldest first: keys grow with time.

    It asks for one row more than the page holds, which shows whether there are more. Parameters are numbered, after
    the database's own sign: `?1` or `$1`.
    """

    def __init__(self, sign: str, owner: str) -> None:
        self.owner = owner
        self.values: list[Any] = []
        self._sign = sign
        self._conditions = ["NOT t.hidden"]
        self.add("t.owner = {}", owner)

    def add(self, condition: str, *values: object) -> None:
        """Add a condition, with the parameters of these values in the place of its braces."""
        first = len(self.values) + 1
        self.values += values
        numbers = range(first, first + len(values))
        self._conditions.append(condition.format(", ".join(f"{self._sign}{number}" for number in numbers)))

    def make(self, select: str, paging: Paging, after: int | None) -> str:
        """Make the statement; `after` is the key of the row that the page begins after."""
        if after is not None:
            self.add(f"t.key {'<' if paging.order == 'desc' else '>'} {{}}", after)
        self.values.append(paging.limit + 1)
        where, limit = " AND ".join(self._conditions), f"{self._sign}{len(self.values)}"
        return f"{select} WHERE {where} ORDER BY t.key {paging.order} LIMIT {limit}"


def query_responses(sign: str, owner: str, statuses: list[str], conversation: str | None) -> ListQuery:
    query = ListQuery(sign, owner)
    if statuses and set(statuses) <= RUNNING:
        # Few run at a time: the leases name them, however many have ended.
        query.add("t.key IN (SELECT response FROM leases)")
    if statuses:
        query.add("t.status IN ({})", *statuses)
    if conversation is not None:
        query.add("t.conversation = {}", conversation)
    return query


def narrow(span: tuple[int, int], position: int, order: str) -> tuple[int, int]:
    """Return the part of a span of positions that comes after this one, in the order of the list."""
    first, end = span
    return (first, min(end, position)) if order == "desc" else (max(first, position + 1), end)

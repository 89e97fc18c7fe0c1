"""Conversions between stored rows and the ports' types that both databases share."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from outlive.core.errors import NotFound
from outlive.core.events import Json, split_frames
from outlive.core.requests.body import weigh_raw
from outlive.core.requests.create import unpack
from outlive.ports.journal import Batch
from outlive.ports.ledger import Checkpoint, Claim, Entry, Lease, Position
from outlive.ports.refusals import response_not_found
from outlive.storage.batching import cut
from outlive.storage.packing import MOST_SHORT, SHORT, Row, open_row, shorten

ROW_BYTES = 64 * 1024

_decode_checkpoint = msgspec.json.Decoder(Checkpoint).decode


JournalRow = tuple[int, int, bytes]  # first, count, frames


def to_rows(entry: Entry, least: int = 0) -> list[JournalRow]:
    """Convert an entry to stored rows, compressed if it has over `least` bytes, but not so many that it takes long."""
    size = len(entry.frames)
    rows = [(entry.first, entry.count, entry.frames)]
    if size > ROW_BYTES:  # a reader, however slow, holds one row at a time
        parts = list(cut(split_frames(entry.frames), len, ROW_BYTES))
        firsts = accumulate(map(len, parts[:-1]), initial=entry.first)
        rows = [(first, len(part), b"".join(part)) for first, part in zip(firsts, parts, strict=True)]
    if entry.lease.short and least < size <= MOST_SHORT:
        return [(first, count, shorten(frames)) for first, count, frames in rows]
    return rows


def gather(response_id: str, rows: Iterable[Row], ended: bool, after: int, max_bytes: int) -> Batch | None:
    """Join the rows of a journal from the one that holds number `after` + 1 on, as `Journal.read` returns them."""
    parts: list[bytes] = []
    times: list[tuple[int, float]] = []
    last, size, reached = after, 0, -1
    for first, count, frames, at in rows:
        reached = first + count - 1
        if reached <= after:
            continue
        if first > last + 1:
            raise response_not_found(response_id)  # deleted, and being erased from its beginning on
        frames, flushes = open_row(first, at, frames)
        if first <= after:
            # The cursor stands within this row.
            frames = b"".join(split_frames(frames)[after + 1 - first :])
        parts.append(frames)
        begun = sum(number <= after + 1 for number, _ in flushes)  # before the cursor, or with it
        times += [(max(number, after + 1), at) for number, at in flushes[max(begun - 1, 0) :]]
        last, size = reached, size + len(frames)
        if size >= max_bytes:
            break
    if reached < 0:
        raise response_not_found(response_id)  # erased a moment ago
    return Batch(after + 1, last, b"".join(parts), times) if parts or ended else None


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


def make_claim(row: Sequence[Any], items: list[Json], size: int, was_queued: bool) -> Claim:
    response_id, key, fence, owner, request, thread, first, _, attempts, checkpoint, background, sealed, journal = row
    return Claim(
        lease=Lease(response_id, key, fence, journal == SHORT),
        owner=owner,
        request=unpack(request, items),
        position=Position(thread, first),
        attempts=attempts,
        checkpoint=_decode_checkpoint(checkpoint),
        background=bool(background),
        size=len(request) + size,
        was_queued=was_queued,
        sealed=sealed,
    )


def weigh(body: bytes) -> int:
    """Return how many bytes an item takes when it is decoded, at most."""
    return len(body) if body.isascii() else weigh_raw(body)

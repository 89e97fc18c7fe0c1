"""The ledger on SQLite: each method is one piece of work for the writer thread, and so one transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from functools import partial

import msgspec

from outlive.core.errors import Conflict, NotFound, StaleFence
from outlive.core.events import split_frames
from outlive.core.requests.create import pack, unpack
from outlive.ports.ledger import (
    Admission,
    Admitted,
    AppendResult,
    AppendResults,
    Checkpoint,
    Claim,
    Closing,
    Entry,
    Lease,
    Position,
)
from outlive.storage.sqlite import staging, threads
from outlive.storage.sqlite.connection import Database
from outlive.storage.sqlite.staging import Stash
from outlive.storage.sqlite.threads import SQL, InsertionPoint, encode

ROW_BYTES = 64 * 1024

_decode_checkpoint = msgspec.json.Decoder(Checkpoint).decode


class SqliteLedger:
    def __init__(self, database: Database) -> None:
        self._database = database

    def admit(self, admission: Admission) -> asyncio.Future[Admitted]:
        if not admission.large:
            return self._database.write("admit", lambda db: _admit(admission, db))
        work = partial(_admit, admission)
        items = admission.request.input
        return asyncio.ensure_future(staging.write(self._database, "admit", work, admission.response_id, items))

    async def claim(self, worker: str, limit: int, busy_owners: frozenset[str]) -> list[Claim]:
        def work(db: sqlite3.Connection) -> list[Claim]:
            rows = db.execute(SQL["find_waiting"], (encode(sorted(busy_owners)).decode(), limit)).fetchall()
            return [_take(db, key, worker, attempts=1) for (key,) in rows]

        return await self._database.write("claim", work, heavy=True)

    async def take_over(self, response_id: str, worker: str) -> Claim | None:
        def work(db: sqlite3.Connection) -> Claim | None:
            row = db.execute(SQL["find_running"], (response_id,)).fetchone()
            return _take(db, row[0], worker, attempts=0, was_queued=bool(row[1])) if row else None

        return await self._database.write("take over", work, heavy=True)

    def append(self, entries: list[Entry]) -> asyncio.Future[AppendResults]:
        return self._database.write("append", lambda db: _append_all(db, entries))

    def close(self, closing: Closing) -> asyncio.Future[None]:
        return self._database.write("close", lambda db: _close(db, closing))

    async def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None:
        row = (encode(checkpoint).decode(), lease.key, lease.fence)
        await self._database.write("save checkpoint", lambda db: db.execute(SQL["mark_lease"], row))

    async def release_leases(self, leases: list[Lease]) -> None:
        rows = [(lease.key, lease.fence) for lease in leases]
        await self._database.write("release leases", lambda db: db.executemany(SQL["hand_back"], rows))

    async def mark_answered(self, response_id: str) -> None:
        await self._database.write("mark answered", lambda db: db.execute(SQL["drop_unanswered"], (response_id,)))

    async def confirm_leases(self, worker: str, leases: list[Lease]) -> list[bool]:
        rows = [(worker, lease.key, lease.fence) for lease in leases]
        return await self._database.write(
            "confirm", lambda db: [db.execute(SQL["confirm_lease"], row).rowcount == 1 for row in rows], heavy=True
        )

    async def free_dead_leases(self) -> int:
        """Take the leases of whoever ran on this file before; the file's lock says that nobody does now."""
        return await self._database.write("free dead leases", _free, heavy=True)

    async def count_queued(self) -> dict[str, int]:
        return await self._database.read("count", lambda db: dict(db.execute(SQL["count_waiting"]).fetchall()))

    async def delete(self, owner: str, response_id: str) -> None:
        await self._database.write("delete", lambda db: _hide(db, owner, response_id))


def _free(db: sqlite3.Connection) -> int:
    db.execute(SQL["drop_loose_pieces"])
    return db.execute(SQL["free_leases"]).rowcount


# -- admission


def _admit(admission: Admission, db: sqlite3.Connection, stashed: Stash | None = None) -> Admitted:
    if (attached := _find_by_key(db, admission)) is not None:
        return Admitted(attached=attached)
    request = admission.request
    spot = threads.locate(db, admission.owner, request.conversation, request.previous_response_id, locking=True)
    items = threads.without_repeats(db, request.input, spot.position) if request.given_ids else request.input
    if not items:
        spot = spot.aside()
    thread = _make_room(db, spot, len(items), admission.at)
    key = _add_response(db, admission, thread, spot.first, len(items))
    threads.add_items(db, Position(thread, spot.first), items, key, stashed)
    if spot.conversation is not None:
        db.execute(SQL["lock_conversation"], (key, admission.at, spot.conversation))
    return Admitted(Position(thread, spot.first), Lease(admission.response_id, key, 1) if admission.worker else None)


def _find_by_key(db: sqlite3.Connection, admission: Admission) -> str | None:
    if admission.idempotency is None:
        return None
    row = db.execute(SQL["find_key"], (admission.owner, "response", admission.idempotency.key)).fetchone()
    if row is None:
        return None
    status = db.execute(SQL["find_status"], (row[1], admission.owner)).fetchone()
    if status is None or status[0] == "failed":
        return None
    if row[0] != admission.idempotency.digest:
        raise Conflict(
            f"The same Idempotency-Key was used with another body, for response {row[1]}.", param="Idempotency-Key"
        )
    return str(row[1])


def _make_room(db: sqlite3.Connection, spot: InsertionPoint, count: int, at: float) -> int:
    """The thread with its head moved past the new items; a new one where the spot asks for it."""
    head = spot.first + count
    if spot.root is not None:
        db.execute(SQL["use_thread"], (at, spot.root))
    if spot.thread is None:
        return int(db.execute(SQL["add_thread"], (spot.root, spot.parent, spot.fork, head, at)).lastrowid or 0)
    db.execute(SQL["move_head"], (head, spot.thread))
    return spot.thread


def _add_response(db: sqlite3.Connection, admission: Admission, thread: int, first: int, count: int) -> int:
    owner, at, request = admission.owner, admission.at, admission.request
    end = first + count
    key = int(
        db.execute(
            SQL["add_response"],
            (
                *(admission.response_id, owner, admission.status, request.background, at, request.conversation),
                *(thread, first, end, end, pack(request)),
            ),
        ).lastrowid
        or 0
    )
    taken = int(admission.worker is not None)
    db.execute(SQL["add_lease"], (key, owner, request.background, admission.worker, taken, taken, admission.sealed))
    db.execute(SQL["add_events"], (key, admission.count, at, admission.frames))
    if admission.idempotency is not None:
        saved = admission.idempotency
        db.execute(SQL["save_key"], (owner, "response", saved.key, saved.digest, admission.response_id, at))
    if admission.retry_digest is not None:
        db.execute(SQL["add_unanswered"], (key, owner, admission.retry_digest, at))
    return key


# -- running


def _take(db: sqlite3.Connection, key: int, worker: str, attempts: int, was_queued: bool = False) -> Claim:
    db.execute(SQL["take_lease"], (worker, attempts, key))
    db.execute(SQL["start_response"], (key,))
    row = db.execute(SQL["find_claim"], (key,)).fetchone()
    response_id, _, fence, owner, request, thread, first, input_end, made, notes, background, sealed = row
    input_items = db.execute(SQL["read_input"], (thread, first, input_end))
    return Claim(
        lease=Lease(response_id, key, fence),
        owner=owner,
        request=unpack(request, staging.load_all(db, input_items)),
        position=Position(thread, first),
        attempts=made,
        checkpoint=_decode_checkpoint(notes),
        background=bool(background),
        was_queued=was_queued,
        sealed=sealed,
    )


def _append_all(db: sqlite3.Connection, entries: list[Entry]) -> AppendResults:
    """In one go where nothing is out of the ordinary; otherwise one by one, to tell who was stale."""
    if any(len(entry.frames) > ROW_BYTES for entry in entries):
        return [_result(_append(db, entry)) for entry in entries]
    rows = [(e.lease.key, e.first, e.count, e.at, e.frames, e.lease.fence) for e in entries]
    if db.executemany(SQL["append_events"], rows).rowcount == len(rows):
        return [AppendResult.WRITTEN] * len(rows)
    held = [db.execute(SQL["holds_lease"], (e.lease.key, e.lease.fence)).fetchone() for e in entries]
    return [_result(row is not None) for row in held]


def _result(written: bool) -> AppendResult:
    return AppendResult.WRITTEN if written else AppendResult.STALE


def _append(db: sqlite3.Connection, entry: Entry) -> bool:
    if len(entry.frames) > ROW_BYTES:
        return all(_append_row(db, entry, *part) for part in _cut(entry))
    return _append_row(db, entry, entry.first, entry.count, entry.frames)


def _append_row(db: sqlite3.Connection, entry: Entry, first: int, count: int, frames: bytes) -> bool:
    row = (entry.lease.key, first, count, entry.at, frames, entry.lease.fence)
    return db.execute(SQL["append_events"], row).rowcount == 1


def _cut(entry: Entry) -> Iterator[tuple[int, int, bytes]]:
    """A long entry in several rows: a reader, however slow, holds one row at a time."""
    first, size, frames = entry.first, 0, []
    for frame in split_frames(entry.frames):
        frames.append(frame)
        size += len(frame)
        if size >= ROW_BYTES:
            yield first, len(frames), b"".join(frames)
            first, size, frames = first + len(frames), 0, []
    if frames:
        yield first, len(frames), b"".join(frames)


# -- ending


def _close(db: sqlite3.Connection, closing: Closing) -> None:
    entry = closing.entry
    key = entry.lease.key
    row = db.execute(SQL["find_closing"], (key, entry.lease.fence)).fetchone()
    if row is None:
        raise StaleFence
    thread, first, input_end, conversation, conversation_gone = row
    _append(db, entry)
    turn = closing.turn if closing.keep_turn and not conversation_gone else []
    last = input_end + len(turn)
    threads.add_items(db, Position(thread, input_end), turn, key)
    if closing.keep_turn:
        db.execute(SQL["move_head"], (last, thread))
    db.execute(SQL["end_response"], (closing.status, closing.snapshot, entry.at, last, key))
    if not closing.keep_turn and (first > 0 or conversation is not None):
        _take_out(db, key, thread, first, input_end, entry.at)
    db.execute(SQL["drop_lease"], (key,))
    if conversation is not None:
        db.execute(SQL["unlock_conversation"], (entry.at, conversation, key))


def _take_out(db: sqlite3.Connection, key: int, thread: int, first: int, input_end: int, at: float) -> None:
    """A failed turn leaves its conversation or chain; its input stays with it, on a thread of its own (D6)."""
    own = db.execute(SQL["add_thread"], (None, None, None, input_end - first, at)).lastrowid
    db.execute(SQL["move_items"], (own, first, thread, first, input_end))
    db.execute(SQL["move_response"], (own, key))
    db.execute(SQL["move_head"], (first, thread))


def _hide(db: sqlite3.Connection, owner: str, response_id: str) -> None:
    row = db.execute(SQL["find_hideable"], (response_id, owner)).fetchone()
    if row is None:
        raise NotFound(f"Response with id '{response_id}' not found.")
    key, thread, first, running = row
    if running:
        raise StaleFence("The response is running again.")
    db.execute(SQL["hide_response"], (key,))
    db.execute(SQL["make_hole"], (first, thread))

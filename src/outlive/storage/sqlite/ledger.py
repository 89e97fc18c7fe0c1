"""The ledger on SQLite: each method is one job of the writer. Jobs that gather meanwhile share a transaction."""

import asyncio
import sqlite3
from functools import partial

from outlive.core.errors import StaleFence
from outlive.core.owners import name_of
from outlive.core.requests.create import pack
from outlive.core.webhooks import find_events
from outlive.ports.database import MANY_BYTES, Stored, encode
from outlive.ports.ledger import (
    CLAIM_BYTES,
    Admission,
    Admitted,
    AppendResult,
    AppendResults,
    Checkpoint,
    Claim,
    Closing,
    Entry,
    Idempotency,
    Lease,
    Ledger,
    Position,
)
from outlive.ports.refusals import refuse
from outlive.ports.storage import UNBOUNDED
from outlive.storage.packing import SHORT
from outlive.storage.rows import make_claim, to_rows
from outlive.storage.sqlite import SQL, staging, threads
from outlive.storage.sqlite.connection import SqliteDatabase
from outlive.storage.sqlite.staging import StagedItems

# More items than this are written in the thread.
MANY_ITEMS = 200
# Bytes up to which events, and the last events, are stored as they are: compressing would take longer than writing.
SHORT_ROW, SHORT_ENDING = 512, 8 * 1024
# Bytes that a request is filled up to, with spaces: the final object takes its place in the row. A row that grows moves
# others to another page, and a commit has to write each page that changes.
MIN_REQUEST = 1024


class SqliteLedger(Stored[SqliteDatabase], Ledger):
    def admit(self, admission: Admission) -> asyncio.Future[Admitted]:
        work, items = partial(_admit, admission), admission.request.input
        if not admission.size:
            return self._database.write("admit", work, heavy=len(items) > MANY_ITEMS)
        return asyncio.ensure_future(self._database.write_staged("admit", work, admission.response_id, items))

    async def claim(self, worker: str, limit: int, busy_owners: frozenset[str]) -> list[Claim]:
        def work(db: sqlite3.Connection) -> list[Claim]:
            rows = db.execute(SQL["find_queued"], (encode(sorted(busy_owners)).decode(), limit)).fetchall()
            claims: list[Claim] = []
            for (key,) in rows:
                claims.append(_take(db, key, worker, attempts=1))
                if sum(claim.size for claim in claims) > CLAIM_BYTES:
                    break
            return claims

        return await self._database.write("claim", work, heavy=True)

    async def take_over(self, response_id: str, worker: str) -> Claim | None:
        def work(db: sqlite3.Connection) -> Claim | None:
            row = db.execute(SQL["find_running"], (response_id,)).fetchone()
            return _take(db, row[0], worker, attempts=0, was_queued=bool(row[1])) if row else None

        return await self._database.write("take over", work, heavy=True)

    def append(self, entries: list[Entry]) -> asyncio.Future[AppendResults]:
        def work(db: sqlite3.Connection) -> AppendResults:
            rows = [(e.lease.key, e.lease.fence, e.at, *row) for e in entries for row in to_rows(e, SHORT_ROW)]
            if db.executemany(SQL["append_events"], rows).rowcount == len(rows):
                return [AppendResult.WRITTEN] * len(entries)
            # Not all were written: look which were stale.
            held = [db.execute(SQL["holds_lease"], (e.lease.key, e.lease.fence)).fetchone() for e in entries]
            return [AppendResult.STALE if row is None else AppendResult.WRITTEN for row in held]

        return self._database.write("append", work)

    def close(self, closing: Closing) -> asyncio.Future[None]:
        work = partial(_close, closing, self._database.has_webhooks)  # what is added later is written later
        return self._database.write("close", work, heavy=len(closing.snapshot) > MANY_BYTES)

    async def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None:
        row = (encode(checkpoint).decode(), lease.key, lease.fence)
        await self._database.write("save checkpoint", lambda db: db.execute(SQL["save_checkpoint"], row))

    async def release_leases(self, leases: list[Lease]) -> None:
        rows = [(lease.key, lease.fence) for lease in leases]
        await self._database.write("release leases", lambda db: db.executemany(SQL["release_lease"], rows))

    async def mark_answered(self, response_id: str) -> None:
        await self._database.write("mark answered", lambda db: db.execute(SQL["drop_unanswered"], (response_id,)))

    async def confirm_leases(self, worker: str, leases: list[Lease]) -> list[bool]:
        rows = [(worker, lease.key, lease.fence) for lease in leases]
        return await self._database.write(
            "confirm", lambda db: [db.execute(SQL["confirm_lease"], row).rowcount == 1 for row in rows], heavy=True
        )

    async def free_dead_leases(self) -> int:
        """Free all leases: the file's lock shows that the servers that held them are gone."""

        def work(db: sqlite3.Connection) -> int:
            db.execute(SQL["drop_all_unaccepted"])
            return db.execute(SQL["free_leases"]).rowcount

        return await self._database.write("free dead leases", work, heavy=True)

    async def count_queued(self) -> dict[str, int]:
        return await self._database.read("count", lambda db: dict(db.execute(SQL["count_queued"]).fetchall()))


# -- admission


def _admit(admission: Admission, db: sqlite3.Connection, staged: StagedItems | None = None) -> Admitted:
    saved = admission.idempotency
    if saved is not None and (attached := _find_by_key(db, admission.owner, saved)) is not None:
        return Admitted(attached=attached)
    request, cursor = admission.request, db.cursor()  # one for all: `db.execute` makes one each time
    point = threads.locate(db, admission.owner, request.conversation, request.previous_response_id, locking=True)
    items = threads.without_repeats(db, request.input, point.position) if request.given_ids else request.input
    if not items and point.thread is not None and point.conversation is None:
        # A fork, for no item would show that its position in the chain is taken.
        point = threads.InsertionPoint(None, 0, root=point.root, parent=point.thread, fork=point.first)
    thread, head = point.thread, point.first + len(items)
    if point.root is not None:
        cursor.execute(SQL["use_thread"], (admission.at, point.root))
    if thread is None:
        new = (point.root, point.parent, point.fork, head, admission.at)
        thread = int(cursor.execute(SQL["add_thread"], new).lastrowid or 0)
    else:
        cursor.execute(SQL["move_head"], (head, thread))
    position = Position(thread, point.first)
    key = _add_response(cursor, admission, position, head)
    threads.add_items(cursor, position, items, key, staged)
    if point.conversation is not None:
        cursor.execute(SQL["lock_conversation"], (key, admission.at, point.conversation))
    lease = Lease(admission.response_id, key, 1, short=True) if admission.worker else None
    return Admitted(position, lease, history=threads.read_near(cursor, point) if lease is not None else None)


def _find_by_key(db: sqlite3.Connection, owner: str, given: Idempotency) -> str | None:
    row = db.execute(SQL["find_key"], (owner, "response", given.key)).fetchone()
    if row is None:
        return None
    status = db.execute(SQL["find_status"], (row[1], owner)).fetchone()
    if status is None or status[0] == "failed":
        return None
    if row[0] != given.digest:
        raise refuse("conflict", row[1])
    return str(row[1])


def _add_response(cursor: sqlite3.Cursor, admission: Admission, position: Position, end: int) -> int:
    owner, at, request = admission.owner, admission.at, admission.request
    runs = encode([at, admission.worker, 1]).decode() if admission.worker is not None else None
    taken, background = int(admission.worker is not None), int(request.background)
    row = (
        *(admission.response_id, owner, admission.status, background, at, request.conversation),
        *(position.thread, position.first, end, end, pack(request).ljust(MIN_REQUEST), runs, SHORT),
        *(admission.about, admission.expires_at),
    )
    key = int(cursor.execute(SQL["add_response"], row).lastrowid or 0)
    lease = (key, name_of(owner), background, admission.worker, taken, taken)
    cursor.execute(SQL["add_lease"], (*lease, admission.sealed, request.deadline))
    cursor.execute(SQL["add_events"], (key, 0, admission.count, at, admission.frames))
    if (saved := admission.idempotency) is not None:
        cursor.execute(SQL["save_key"], (owner, "response", saved.key, saved.digest, admission.response_id, at))
    if admission.retry_digest is not None:
        cursor.execute(SQL["add_unanswered"], (key, owner, admission.retry_digest, at))
    return key


# -- running


def _take(db: sqlite3.Connection, key: int, worker: str, attempts: int, was_queued: bool = False) -> Claim:
    db.execute(SQL["take_lease"], (worker, attempts, key))
    db.execute(SQL["start_response"], (worker, attempts, key))
    row = db.execute(SQL["find_claim"], (key,)).fetchone()
    items, left = staging.load_some(db, db.execute(SQL["read_input"], row[5:8]), UNBOUNDED)
    return make_claim(row, items, UNBOUNDED - left, was_queued)


# -- ending


def _close(closing: Closing, has_webhooks: bool, db: sqlite3.Connection) -> None:
    entry, cursor = closing.entry, db.cursor()
    key = entry.lease.key
    if cursor.execute(SQL["drop_lease"], (key, entry.lease.fence)).rowcount != 1:
        raise StaleFence
    [(thread, first, input_end, conversation, goes_on)] = cursor.execute(SQL["find_turn"], (key,)).fetchall()
    turn = closing.turn if closing.keep_turn and goes_on else []
    last, events = input_end + len(turn), entry.first + entry.count
    for start, count, frames in to_rows(entry, SHORT_ENDING):
        cursor.execute(SQL["add_events"], (key, start, count, entry.at, frames))
    row = (closing.status, closing.snapshot, entry.at, events, last, cursor.lastrowid, key)
    cursor.execute(SQL["end_response"], row)
    if turn:
        threads.add_items(cursor, Position(thread, input_end), turn, key)
    if closing.keep_turn:
        cursor.execute(SQL["move_head"], (last, thread))
    elif first > 0 or conversation is not None:
        _move_out(db, key, Position(thread, first), input_end, entry.at)
    if closing.usage is not None:
        cursor.execute(SQL["add_usage"], closing.usage.to_row())
    if conversation is not None:
        cursor.execute(SQL["unlock_conversation"], (entry.at, conversation, key))
    for event in find_events(closing.status, closing.turn) if has_webhooks else ():
        cursor.execute(SQL["add_deliveries"], (key, event, entry.at))


def _move_out(db: sqlite3.Connection, key: int, position: Position, input_end: int, at: float) -> None:
    """Move a failed turn out of its conversation or chain, with its input, to a thread of its own (D6)."""
    thread, first = position.thread, position.first
    own = db.execute(SQL["add_thread"], (None, None, None, input_end - first, at)).lastrowid
    db.execute(SQL["move_items"], (own, first, thread, first, input_end))
    db.execute(SQL["move_response"], (own, key))
    db.execute(SQL["move_head"], (first, thread))

"""The ledger on Postgres: each method is one transaction, shared with calls of its kind that gather meanwhile."""

import asyncio
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import asyncpg

from outlive.core.errors import Behind, OutliveError, StaleFence, StorageUnavailable, TooMany
from outlive.core.owners import name_of
from outlive.core.requests.create import pack
from outlive.core.webhooks import find_events
from outlive.ports.database import Stored, decode_items, encode, lock_key
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
    Lease,
    Ledger,
    Position,
    Quota,
)
from outlive.ports.refusals import refuse
from outlive.storage.packing import SHORT, shorten
from outlive.storage.postgres.connection import Connection, InDoubt, PostgresDatabase, as_text, ids_of, stage
from outlive.storage.postgres.schema import SQL
from outlive.storage.postgres.writer import PostgresWriter
from outlive.storage.rows import make_claim, to_rows

LAST_SECONDS = 2.0
# A silent retry finds the response that it repeats in the database (D17). An admission that arrives there later than
# this, because its connection was slow or its node stood still, may have been repeated elsewhere by then. So it is
# refused, and a client that still waits may ask again.
LATE_SECONDS = 2.0
# A limit this high is not counted.
UNLIMITED = (1 << 31) - 1
NO_QUOTA = Quota(queued=UNLIMITED)

Outcome = Admitted | OutliveError
Asked = tuple[Admission, float]  # and the time of asking, on the monotonic clock
EventRow = tuple[int, int, int, int, float, bytes]  # response, fence, first, count, at, frames


class PostgresLedger(Stored[PostgresDatabase], Ledger):
    def __init__(self, database: PostgresDatabase, worker: str | None = None, quota: Quota | None = None) -> None:
        """`worker`: the node that writes; None for tests that write for several."""
        super().__init__(database)
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._quota = quota or NO_QUOTA
        # The responses whose journals were seen to be complete since a connection was last lost.
        self._generation = 0
        self._seen: set[int] = set()
        self._admitting: PostgresWriter[Asked, Admitted] = PostgresWriter(self._admit_all)
        self._closing: PostgresWriter[Closing, None] = PostgresWriter(self._close_all)
        self._answering: PostgresWriter[str, None] = PostgresWriter(self._mark_all_answered)

    async def finish(self) -> None:
        """Finish the writes under way. A write that is in doubt because the database is down stays so; the node that
        takes over its lease will see."""
        writers: tuple[PostgresWriter[Any, Any], ...] = (self._admitting, self._closing, self._answering)
        await asyncio.gather(*(writer.close(LAST_SECONDS) for writer in writers))

    # -- admission

    def admit(self, admission: Admission) -> asyncio.Future[Admitted]:
        asked = (admission, time.monotonic())
        if admission.size:
            return self._loop.create_task(self._admit_large(asked))
        return self._admitting.submit(asked)

    async def _admit_all(self, asked: list[Asked]) -> list[Outcome]:
        admissions = [admission for admission, _ in asked]
        arguments = self._to_arguments(asked)
        try:
            rows = await self._database.write("admit", lambda db: db.fetch(SQL["admit_all"], *arguments), hot=True)
        except InDoubt as doubt:
            return await self._resolve(admissions, doubt)
        if any(row[0] == "late" for row in rows):
            await self._database.read_clock()  # it may have been set to another time
        return [self._to_outcome(admission, row) for admission, row in zip(admissions, rows, strict=True)]

    async def _admit_large(self, asked: Asked) -> Admitted:
        admission, _ = asked
        arguments = self._to_arguments([asked])

        async def work(db: Connection) -> Outcome:
            await stage(db, admission.response_id, admission.request.input)
            outcome = self._to_outcome(admission, await db.fetchrow(SQL["admit_all"], *arguments))
            if isinstance(outcome, OutliveError) or outcome.attached is not None:
                raise _Undo(outcome)
            return outcome

        outcome: Outcome
        try:
            outcome = await self._database.transact("admit", work)
        except _Undo as undo:
            outcome = undo.outcome
        except InDoubt as doubt:
            (outcome,) = await self._resolve([admission], doubt)
        if isinstance(outcome, OutliveError):
            raise outcome
        return outcome

    def _to_arguments(self, asked: list[Asked]) -> tuple[Any, ...]:
        admissions, quota = [admission for admission, _ in asked], self._quota
        limited = quota.queued < UNLIMITED
        locks: set[int] = set()
        rows, clock = [], self._database.clock_offset
        for admission, at in asked:
            running, queued = quota.running_of(admission.owner), quota.queued_of(admission.owner)
            # The latest time for it, by the database's clock; none if it cannot be done twice.
            repeats = admission.retry_digest is not None and admission.idempotency is None
            latest = at + clock + LATE_SECONDS if repeats and clock is not None else None
            rows.append((*_to_admission_row(admission, latest), running, queued))
            if admission.idempotency is not None:
                locks.add(lock_key("response", admission.owner, admission.idempotency.key))
            if admission.worker is not None and running:
                locks.add(lock_key("running", name_of(admission.owner)))
            if admission.worker is None and (limited or queued):
                locks.add(lock_key("waiting"))
        return (
            rows,
            sorted(locks),
            [as_text(a.request.conversation) for a in admissions if a.request.conversation is not None],
            [as_text(a.request.previous_response_id) for a in admissions if a.request.previous_response_id is not None],
            quota.queued if limited else None,
        )

    def _to_outcome(self, admission: Admission, row: Any) -> Outcome:
        refusal, detail, *made = row
        if refusal is None:
            return _to_admitted(admission, *made)
        if refusal == "attached":
            return Admitted(attached=detail)
        if refusal == "late":
            return StorageUnavailable("admit", "it took too long to get there")
        if refusal == "too many":
            return TooMany.waiting(self._quota.queued)
        if refusal == "too many of owner":
            return TooMany.waiting_of_owner(self._quota.queued_of(admission.owner))
        request = admission.request
        return refuse(refusal, detail, conversation=request.conversation, parent=request.previous_response_id)

    async def _resolve(self, admissions: list[Admission], doubt: InDoubt) -> list[Outcome]:
        """Find what came of admissions whose connection was lost: one that was accepted holds a lease of this node."""
        ids = [admission.response_id for admission in admissions]
        rows = await self._database.resolve(doubt, lambda db: db.fetch(SQL["find_admitted"], ids))
        found = {row[0]: row for row in rows}
        return [
            _to_admitted(admission, *found[admission.response_id][1:5]) if admission.response_id in found else doubt
            for admission in admissions
        ]

    async def mark_answered(self, response_id: str) -> None:
        await self._answering.submit(response_id)

    async def _mark_all_answered(self, response_ids: list[str]) -> list[OutliveError | None]:
        await self._database.write("mark answered", lambda db: db.execute(SQL["drop_unanswered"], response_ids))
        return [None] * len(response_ids)

    # -- running

    def append(self, entries: list[Entry]) -> asyncio.Future[AppendResults]:
        return self._loop.create_task(self._append(entries))

    async def _append(self, entries: list[Entry]) -> AppendResults:
        behind = await self._find_behind(entries) if self._database.generation else {}
        written = [entry for entry in entries if entry.lease.key not in behind]
        rows = [(e.lease.key, e.lease.fence, *row[:2], e.at, row[2]) for e in written for row in to_rows(e)]
        stale = await self._write_rows(rows) if rows else set()
        return [
            behind.get(entry.lease.key)
            or (AppendResult.STALE if (entry.lease.key, entry.lease.fence) in stale else AppendResult.WRITTEN)
            for entry in entries
        ]

    async def _write_rows(self, rows: list[EventRow]) -> set[tuple[int, int]]:
        """Append rows in one statement. Returns the stale leases among theirs (key, fence)."""
        columns: list[Any] = [*map(list, zip(*rows, strict=True)), self._worker]
        sql = SQL["append_events"]
        try:
            numbers = await self._database.write("append", lambda db: db.fetchval(sql, *columns), hot=True)
        except asyncpg.UniqueViolationError:
            # An append that seemed to have failed was committed after all. These are the same events, and perhaps more:
            # they replace it.
            return await self._database.transact("append", lambda db: _replace(db, rows, self._worker))
        return {rows[number - 1][:2] for number in numbers or ()}

    async def _find_behind(self, entries: list[Entry]) -> dict[int, Behind]:
        """Find the journals that a failover has shortened: a promoted standby may lack the last commits."""
        generation = self._database.generation
        if generation != self._generation:
            self._generation = generation
            self._seen.clear()
        unseen = [entry for entry in entries if entry.lease.key not in self._seen]
        if not unseen:
            return {}
        keys, ids = [entry.lease.key for entry in unseen], [entry.lease.response_id for entry in unseen]
        rows = await self._database.write("append", lambda db: db.fetch(SQL["find_journal_ends"], keys, ids), hot=True)
        ends: dict[int, int] = {row[0]: row[1] for row in rows}
        behind = {}
        for entry in unseen:
            last = ends.get(entry.lease.key)
            if last is not None and last >= entry.first - 1:
                self._seen.add(entry.lease.key)
            else:
                behind[entry.lease.key] = Behind(last if last is not None else -1)
        return behind

    async def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None:
        notes = encode(checkpoint).decode()
        await self._database.change("save_checkpoint", notes, lease.key, lease.fence, self._worker)

    async def claim(self, worker: str, limit: int, busy_owners: frozenset[str]) -> list[Claim]:
        busy, found = set(busy_owners), set[str]()

        async def work(db: Connection) -> list[Claim]:
            rows = await db.fetch(SQL["find_queued"], sorted(busy), limit)
            found.update(row[1] for row in rows)
            sizes = accumulate(row[2] for row in rows)
            rows = rows[: 1 + sum(size <= CLAIM_BYTES for size in sizes)]
            limited = self._quota.running_per_owner or self._quota.policies
            keys = await self._within_quota(db, rows) if limited else [row[0] for row in rows]
            return await _take(db, keys, worker, attempts=1) if keys else []

        while not (claims := await self._take_once("claim", worker, work)) and not found <= busy:
            busy |= found  # other nodes run all that these owners may: the next in the queue are not theirs
        return claims

    async def _within_quota(self, db: Connection, rows: Sequence[Any]) -> list[int]:
        """Choose, of queued responses, those that their owners may still run on all nodes together."""
        owners = {row[1] for row in rows}
        for lock in sorted(lock_key("running", owner) for owner in owners):
            await db.execute(SQL["lock"], lock)
        running: dict[str, int] = dict(await db.fetch(SQL["count_running"], sorted(owners)))
        keys = []
        for key, owner, _ in rows:
            most, running[owner] = self._quota.running_of(owner), running.get(owner, 0) + 1
            if not most or running[owner] <= most:
                keys.append(key)
        return keys

    async def take_over(self, response_id: str, worker: str) -> Claim | None:
        async def work(db: Connection) -> list[Claim]:
            row = await db.fetchrow(SQL["find_running"], as_text(response_id))
            return await _take(db, [row[0]], worker, attempts=0, was_queued=row[1]) if row is not None else []

        claims = await self._take_once("take over", worker, work)
        return claims[0] if claims else None

    async def _take_once(self, name: str, worker: str, work: Any) -> list[Claim]:
        """Take leases. The worker that took one must run it, so a commit that is in doubt is looked up."""
        claims: list[Claim] = []

        async def remember(db: Connection) -> None:
            claims.clear()
            claims.extend(await work(db))

        try:
            await self._database.transact(name, remember)
        except InDoubt as doubt:
            taken = (worker, [c.lease.response_id for c in claims], [c.lease.fence for c in claims])
            if not claims or not await self._database.resolve(doubt, lambda db: db.fetchval(SQL["find_taken"], *taken)):
                raise
        return claims

    async def release_leases(self, leases: list[Lease]) -> None:
        rows = ([lease.key for lease in leases], [lease.fence for lease in leases])
        await self._database.change("release_leases", *rows, self._worker)

    async def confirm_leases(self, worker: str, leases: list[Lease]) -> list[bool]:
        rows = ([lease.key for lease in leases], [lease.fence for lease in leases])
        held = await self._database.write("confirm", lambda db: db.fetch(SQL["confirm_leases"], worker, *rows))
        keys = {row[0] for row in held}
        return [lease.key in keys for lease in leases]

    async def free_dead_leases(self) -> int:
        return len(await self._database.write("free dead leases", lambda db: db.fetch(SQL["free_leases"])))

    async def count_queued(self) -> dict[str, int]:
        return dict(await self._database.read("count", lambda db: db.fetch(SQL["count_queued"])))

    # -- ending

    def close(self, closing: Closing) -> asyncio.Future[None]:
        return self._closing.submit(closing)

    async def _close_all(self, closings: list[Closing]) -> list[OutliveError | None]:
        rows = [_to_closing_row(closing) for closing in closings]
        keys = [closing.entry.lease.key for closing in closings]
        results = await self._database.write(
            "close", lambda db: db.fetch(SQL["close_all"], rows, keys, self._worker), hot=True
        )
        self._seen.difference_update(keys)
        ends = [row[0] for row in results]
        return [None if end == "ended" else StaleFence() if end == "stale" else Behind(int(end)) for end in ends]


class _Undo(OutliveError):
    """Rolls the transaction back, and with it the staged items."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def _to_admission_row(admission: Admission, latest: float | None) -> tuple[Any, ...]:
    request, repeat = admission.request, admission.idempotency
    conversation, parent, frames = request.conversation, request.previous_response_id, admission.frames
    return (
        *(admission.response_id, admission.owner, admission.status, request.background, admission.at),
        *(as_text(conversation) if conversation is not None else None, as_text(parent) if parent is not None else None),
        *(pack(request), frames, None if (short := shorten(frames)) is frames else short, admission.count),
        *(admission.worker, admission.sealed),
        *((as_text(repeat.key), repeat.digest) if repeat is not None else (None, None)),
        *(admission.retry_digest, ids_of(request.input)),
        None if admission.size else [encode(item) for item in request.input],
        *(request.given_ids, admission.about, admission.expires_at, request.deadline, latest),
    )


def _to_admitted(admission: Admission, key: int, thread: int, first: int, journal: int) -> Admitted:
    lease = Lease(admission.response_id, key, 1, journal == SHORT) if admission.worker is not None else None
    return Admitted(Position(thread, first), lease)


async def _replace(db: Connection, rows: list[EventRow], worker: str | None) -> set[tuple[int, int]]:
    held = {tuple(row) for row in await db.fetch(SQL["hold_leases"], [row[0] for row in rows], worker)}
    good = [row for row in rows if row[:2] in held]
    if good:
        columns: list[list[Any]] = list(map(list, zip(*good, strict=True)))
        await db.execute(SQL["drop_events"], columns[0], columns[2])
        await db.execute(SQL["append_events"], *columns, worker)
    return {row[:2] for row in rows if row[:2] not in held}


async def _take(db: Connection, keys: list[int], worker: str, attempts: int, was_queued: bool = False) -> list[Claim]:
    claims = []
    for row in await db.fetch(SQL["take_leases"], worker, attempts, keys):
        bodies = await db.fetch(SQL["read_input"], row["thread"], row["first"], row["input_end"])
        size = sum(len(body) for (body,) in bodies)
        claims.append(make_claim(row, await decode_items(bodies), size, was_queued))
    return claims


def _to_closing_row(closing: Closing) -> tuple[Any, ...]:
    entry, turn = closing.entry, closing.turn
    rows = to_rows(entry)
    usage: tuple[Any, ...] = (None,) * 8
    if closing.usage is not None:
        _, owner, end_user, model, upstream, at, _, *tokens, attempts, tool_calls = closing.usage.to_row()
        usage = (owner, end_user, as_text(model), upstream, at, tokens, attempts, tool_calls)
    return (
        *(entry.lease.response_id, entry.lease.key, entry.lease.fence, entry.at),
        *([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]),
        *(closing.status, closing.snapshot, ids_of(turn), [encode(item) for item in turn], closing.keep_turn),
        find_events(closing.status, turn),
        *usage,
    )

"""The ledger on Postgres: each method is one transaction, shared with calls of its kind that gather meanwhile."""

import asyncio
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from outlive.core.errors import Behind, OutliveError, StaleFence
from outlive.core.webhooks import find_events
from outlive.ports.database import Stored, decode_items, lock_key
from outlive.ports.ledger import (
    CLAIM_BYTES,
    Admission,
    Admitted,
    AppendResults,
    Checkpoint,
    Claim,
    Closing,
    Entry,
    Lease,
    Ledger,
    Quota,
)
from outlive.storage.postgres import admissions, appends
from outlive.storage.postgres.connection import Connection, InDoubt, PostgresDatabase, as_text, ids_of
from outlive.storage.postgres.schema import SQL
from outlive.storage.postgres.writer import PostgresWriter
from outlive.storage.rows import encode, make_claim, to_rows

NO_QUOTA = Quota(queued=admissions.UNLIMITED)
LAST_SECONDS = 2.0


class PostgresLedger(Stored[PostgresDatabase], Ledger):
    def __init__(self, database: PostgresDatabase, worker: str | None = None, quota: Quota | None = None) -> None:
        """`worker`: the node that writes; None for tests that write for several."""
        super().__init__(database)
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._quota = quota or NO_QUOTA
        self._admissions = admissions.Admissions(database, self._quota)
        self._appends = appends.Appends(database, worker)
        self._admitting: PostgresWriter[admissions.Asked, Admitted] = PostgresWriter(self._admissions.write)
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
            return self._loop.create_task(self._admissions.write_large(asked))
        return self._admitting.submit(asked)

    async def mark_answered(self, response_id: str) -> None:
        await self._answering.submit(response_id)

    async def _mark_all_answered(self, response_ids: list[str]) -> list[OutliveError | None]:
        await self._database.write("mark answered", lambda db: db.execute(SQL["drop_unanswered"], response_ids))
        return [None] * len(response_ids)

    # -- running

    def append(self, entries: list[Entry]) -> asyncio.Future[AppendResults]:
        return self._loop.create_task(self._appends.write(entries))

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
            if not claims or not await self._holds(worker, claims, doubt):
                raise
        return claims

    async def _holds(self, worker: str, claims: list[Claim], doubt: InDoubt) -> bool:
        ids, fences = [c.lease.response_id for c in claims], [c.lease.fence for c in claims]
        return bool(await self._database.resolve(doubt, lambda db: db.fetchval(SQL["find_taken"], worker, ids, fences)))

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
        rows = await self._database.read("count", lambda db: db.fetch(SQL["count_queued"]))
        return {row[0]: row[1] for row in rows}

    # -- ending

    def close(self, closing: Closing) -> asyncio.Future[None]:
        return self._closing.submit(closing)

    async def _close_all(self, closings: list[Closing]) -> list[OutliveError | None]:
        rows = [_as_row(closing) for closing in closings]
        keys = [closing.entry.lease.key for closing in closings]
        results = await self._database.write(
            "close", lambda db: db.fetch(SQL["close_all"], rows, keys, self._worker), hot=True
        )
        for key in keys:
            self._appends.forget(key)
        return [_to_error(row[0]) for row in results]


async def _take(db: Connection, keys: list[int], worker: str, attempts: int, was_queued: bool = False) -> list[Claim]:
    claims = []
    for row in await db.fetch(SQL["take_leases"], worker, attempts, keys):
        bodies = await db.fetch(SQL["read_input"], row["thread"], row["first"], row["input_end"])
        size = sum(len(body) for (body,) in bodies)
        claims.append(make_claim(row, await decode_items(bodies), size, was_queued))
    return claims


def _to_error(result: str) -> OutliveError | None:
    if result == "ended":
        return None
    return StaleFence() if result == "stale" else Behind(int(result))


def _as_row(closing: Closing) -> tuple[Any, ...]:
    entry, turn = closing.entry, closing.turn
    rows = to_rows(entry)
    return (
        *(entry.lease.response_id, entry.lease.key, entry.lease.fence, entry.at),
        *([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]),
        *(closing.status, closing.snapshot, ids_of(turn), [encode(item) for item in turn], closing.keep_turn),
        find_events(closing.status, turn),
        *_usage_of(closing),
    )


def _usage_of(closing: Closing) -> tuple[Any, ...]:
    if closing.usage is None:
        return (None,) * 8
    _, owner, end_user, model, upstream, at, _, *tokens, attempts, tool_calls = closing.usage.to_row()
    return owner, end_user, as_text(model), upstream, at, tokens, attempts, tool_calls

"""Admission on Postgres: several responses in one transaction, with a certain outcome for each."""

from typing import Any

from outlive.core.errors import OutliveError, StorageUnavailable, TooMany
from outlive.core.owners import name_of
from outlive.core.requests.create import pack
from outlive.ports.database import lock_key
from outlive.ports.ledger import Admission, Admitted, Lease, Position, Quota
from outlive.ports.refusals import refuse
from outlive.storage.packing import SHORT, shorten
from outlive.storage.postgres import staging
from outlive.storage.postgres.connection import Connection, InDoubt, PostgresDatabase, as_text, ids_of
from outlive.storage.postgres.schema import SQL
from outlive.storage.rows import encode

# A silent retry finds the response that it repeats in the database (D17). An admission that arrives there later than
# this, because its connection was slow or its node stood still, may have been repeated elsewhere by then. So it is
# refused, and a client that still waits may ask again.
LATE_SECONDS = 2.0
# A limit this high is not counted.
UNLIMITED = (1 << 31) - 1

Outcome = Admitted | OutliveError
Asked = tuple[Admission, float]  # and the time of asking, on the monotonic clock


class Admissions:
    def __init__(self, database: PostgresDatabase, quota: Quota) -> None:
        self._database = database
        self._quota = quota

    async def write(self, asked: list[Asked]) -> list[Outcome]:
        admissions = [admission for admission, _ in asked]
        arguments = self._arguments(asked)
        try:
            rows = await self._database.write("admit", lambda db: db.fetch(SQL["admit_all"], *arguments), hot=True)
        except InDoubt as doubt:
            return await self._resolve(admissions, doubt)
        if any(row[0] == "late" for row in rows):
            await self._database.read_clock()  # it may have been set to another time
        return [_outcome(admission, row, self._quota) for admission, row in zip(admissions, rows, strict=True)]

    async def write_large(self, asked: Asked) -> Admitted:
        admission, _ = asked
        arguments = self._arguments([asked])

        async def work(db: Connection) -> Outcome:
            await staging.write(db, admission.response_id, admission.request.input)
            row = await db.fetchrow(SQL["admit_all"], *arguments)
            outcome = _outcome(admission, row, self._quota)
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

    def _arguments(self, asked: list[Asked]) -> tuple[Any, ...]:
        admissions, quota = [admission for admission, _ in asked], self._quota
        limited = quota.queued < UNLIMITED
        locks: set[int] = set()
        for admission in admissions:
            if admission.idempotency is not None:
                locks.add(lock_key("response", admission.owner, admission.idempotency.key))
            if admission.worker is not None and quota.running_of(admission.owner):
                locks.add(lock_key("running", name_of(admission.owner)))
            if admission.worker is None and (limited or quota.queued_of(admission.owner)):
                locks.add(lock_key("waiting"))
        return (
            [
                (
                    *_as_row(admission, self._until(admission, at)),
                    quota.running_of(admission.owner),
                    quota.queued_of(admission.owner),
                )
                for admission, at in asked
            ],
            sorted(locks),
            [as_text(a.request.conversation) for a in admissions if a.request.conversation is not None],
            [as_text(a.request.previous_response_id) for a in admissions if a.request.previous_response_id is not None],
            quota.queued if limited else None,
        )

    def _until(self, admission: Admission, at: float) -> float | None:
        """Return the latest time for an admission, by the database's clock; None if it cannot be done twice."""
        if admission.retry_digest is None or admission.idempotency is not None or self._database.clock_offset is None:
            return None
        return at + self._database.clock_offset + LATE_SECONDS

    async def _resolve(self, admissions: list[Admission], doubt: InDoubt) -> list[Outcome]:
        """Find what came of admissions whose connection was lost: one that was accepted holds a lease of this node."""
        ids = [admission.response_id for admission in admissions]
        rows = await self._database.resolve(doubt, lambda db: db.fetch(SQL["find_admitted"], ids))
        found = {row[0]: row for row in rows}
        return [
            _admitted(admission, *found[admission.response_id][1:5]) if admission.response_id in found else doubt
            for admission in admissions
        ]


class _Undo(Exception):
    """Rolls the transaction back, and with it the staged items."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def _as_row(admission: Admission, until: float | None) -> tuple[Any, ...]:
    request, repeat = admission.request, admission.idempotency
    conversation, parent = request.conversation, request.previous_response_id
    return (
        *(admission.response_id, admission.owner, admission.status, request.background, admission.at),
        *(as_text(conversation) if conversation is not None else None, as_text(parent) if parent is not None else None),
        *(
            pack(request),
            admission.frames,
            shorten(admission.frames),
            admission.count,
            admission.worker,
            admission.sealed,
        ),
        *((as_text(repeat.key), repeat.digest) if repeat is not None else (None, None)),
        admission.retry_digest,
        ids_of(request.input),
        None if admission.size else [encode(item) for item in request.input],
        request.given_ids,
        admission.about,
        admission.expires_at,
        request.deadline,
        until,
    )


def _outcome(admission: Admission, row: Any, quota: Quota) -> Outcome:
    refusal, detail, *made = row
    if refusal is None:
        return _admitted(admission, *made)
    if refusal == "attached":
        return Admitted(attached=detail)
    if refusal == "late":
        return StorageUnavailable("admit", "it took too long to get there")
    if refusal == "too many":
        return TooMany.waiting(quota.queued)
    if refusal == "too many of owner":
        return TooMany.waiting_of_owner(quota.queued_of(admission.owner))
    request = admission.request
    return refuse(refusal, detail, conversation=request.conversation, parent=request.previous_response_id)


def _admitted(admission: Admission, key: int, thread: int, first: int, journal: int) -> Admitted:
    lease = Lease(admission.response_id, key, 1, journal == SHORT) if admission.worker is not None else None
    return Admitted(Position(thread, first), lease)

"""Admission: a request becomes an accepted response, in one transaction, or nothing at all."""

from __future__ import annotations

import asyncio
from functools import partial
from hashlib import sha256

import msgspec

from outlive.core.errors import Conflict, InvalidRequest, TooMany
from outlive.core.events import AnyDraft, Draft
from outlive.core.fold import Fold
from outlive.core.ids import IdSource
from outlive.core.limits import Limits
from outlive.core.numbering import number
from outlive.core.requests import CreateResponse, canonical, header, parse_create
from outlive.engine.fleeting import Fleeting
from outlive.engine.live import Live
from outlive.engine.runner import Route
from outlive.engine.worker import Worker
from outlive.ports.catalog import Catalog
from outlive.ports.clock import Clock
from outlive.ports.history import History
from outlive.ports.ledger import Admission, Admitted, Claim, Idempotency, Ledger, Place

# D17: how old a response may be that a silent retry attaches to, and how long to wait for its connection to die.
RETRY_AGE_SECONDS = 900.0
RETRY_PATIENCE_SECONDS = 1.0
RETRY_STEP_SECONDS = 0.05

NOWHERE = Place(0, 0)


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A create as it came in: who asks, the decoded body, and what the headers say about repeats."""

    owner: str
    body: object
    idempotency_key: str | None = None
    large: bool = False  # too much to look through while streams wait
    retry_count: int | None = None  # the SDK's x-stainless-retry-count; None: not an SDK that retries silently


class Accepted(msgspec.Struct, frozen=True):
    """A response that will end, whatever happens to the connection."""

    response_id: str
    request: CreateResponse
    fold: Fold | None = None  # as admitted; None when this request attached to an earlier one's response


class Door:
    """Lets requests in."""

    def __init__(
        self,
        route: Route,
        ledger: Ledger,
        catalog: Catalog,
        history: History,
        worker: Worker,
        fleeting: Fleeting,
        clock: Clock,
        ids: IdSource,
        limits: Limits,
    ) -> None:
        self._route = route
        self._ledger = ledger
        self._catalog = catalog
        self._history = history
        self._worker = worker
        self._fleeting = fleeting
        self._clock = clock
        self._ids = ids
        self._limits = limits
        # Responses whose creating connection is still there, waiting for its answer.
        self.answering: set[str] = set()

    async def admit(self, arrival: Arrival) -> Accepted:
        examined = await asyncio.to_thread(self._examine, arrival) if arrival.large else self._examine(arrival)
        request, model, digest = examined
        if not request.store:
            return await self._admit_fleeting(arrival, request, model)
        if digest is not None and (earlier := await self._find_earlier(arrival, digest)) is not None:
            return Accepted(earlier, request)
        return await self._admit_stored(arrival, request, model, digest)

    def _examine(self, arrival: Arrival) -> tuple[CreateResponse, str, bytes | None]:
        """All that can be said of a request without asking anybody: what it wants, of which model, and its digest."""
        request = parse_create(arrival.body, self._ids, self._limits)
        backend, model = self._route(request.model)
        backend.check(request)
        may_repeat = request.store and (arrival.idempotency_key is not None or arrival.retry_count is not None)
        return request, model, sha256(canonical(arrival.body)).digest() if may_repeat else None

    # -- repeats

    async def _find_earlier(self, arrival: Arrival, digest: bytes) -> str | None:
        """The response that this request made before, if it is a repeat. Checked before lock and limits (D17)."""
        if arrival.idempotency_key is not None:
            return await self._find_by_key(arrival.owner, arrival.idempotency_key, digest)
        if arrival.retry_count:
            return await self._find_unanswered(arrival.owner, digest)
        return None

    async def _find_by_key(self, owner: str, key: str, digest: bytes) -> str | None:
        found = await self._catalog.idempotent(owner, "response", key)
        if found is None or await self._is_free(owner, found[1]):
            return None
        if found[0] != digest:
            # Named, so that whoever lost the answer to the first one can go on with it.
            message = f"The same Idempotency-Key was used with another body, for response {found[1]}."
            raise Conflict(message, param="Idempotency-Key")
        return found[1]

    async def _is_free(self, owner: str, response_id: str) -> bool:
        """A key whose response failed, or is gone, starts anew."""
        status = await self._catalog.status(owner, response_id)
        return status is None or status == "failed"

    async def _find_unanswered(self, owner: str, digest: bytes) -> str | None:
        """The SDK gave up on a connection and asks again: we may hear of the new one before the old one's end."""
        for _ in range(int(RETRY_PATIENCE_SECONDS / RETRY_STEP_SECONDS)):
            since = self._clock.now() - RETRY_AGE_SECONDS
            found = await self._catalog.unanswered(owner, digest, since)
            for response_id in found:
                if response_id not in self.answering:
                    return response_id
            if not found:
                return None
            await self._clock.sleep(RETRY_STEP_SECONDS)
        return None

    # -- acceptance

    async def _admit_stored(
        self, arrival: Arrival, request: CreateResponse, model: str, digest: bytes | None
    ) -> Accepted:
        owner = arrival.owner
        runs = self._worker.reserve(owner)
        try:
            now = self._clock.now()
            fold, frames = self._open(request, model, now, waits=not runs)
            key = arrival.idempotency_key
            admission = Admission(
                response_id=str(fold.header["id"]),
                owner=owner,
                at=now,
                request=request,
                status="in_progress" if runs else "queued",
                frames=frames,
                count=fold.last + 1,
                worker=self._worker.name if runs else None,
                large=arrival.large,
                idempotency=Idempotency(key, digest) if key is not None and digest is not None else None,
                retry_digest=digest if arrival.retry_count is not None else None,
            )
        except BaseException:
            self._worker.release(owner, runs)
            raise
        attached = await self._admit(admission, fold)
        return Accepted(admission.response_id, request, fold) if attached is None else Accepted(attached, request)

    async def _admit(self, admission: Admission, fold: Fold) -> str | None:
        """Admit and start; the id of the earlier response if there was one already."""
        admitting = self._ledger.admit(admission)
        # Once the transaction is on its way it counts, also if the connection is gone by the time it is over.
        admitting.add_done_callback(partial(self._admitted, admission, fold))
        return (await asyncio.shield(admitting)).attached

    def _admitted(self, admission: Admission, fold: Fold, admitting: asyncio.Future[Admitted]) -> None:
        """Owns the room that was reserved: a run gives that back when it ends, everything else gives it back here."""
        runs = admission.worker is not None
        if admitting.cancelled() or admitting.exception() is not None:
            self._worker.release(admission.owner, runs)
            return
        admitted = admitting.result()
        if admitted.attached is not None:
            self._worker.release(admission.owner, runs)
            return
        if admitted.lease is not None and admitted.place is not None:
            claim = Claim(
                admitted.lease, admission.owner, admission.request, admitted.place, 1, [], admission.request.background
            )
            live = Live(admitted.lease, fold, self._clock.monotonic(), admission.frames)
            self._worker.start(claim, live)
        else:
            self._worker.pump()  # room may have come free while the transaction was on its way

    async def _admit_fleeting(self, arrival: Arrival, request: CreateResponse, model: str) -> Accepted:
        if arrival.idempotency_key is not None:
            raise InvalidRequest(
                "An Idempotency-Key needs a stored response to come back to: leave out it or `store: false`.",
                param="Idempotency-Key",
                code="unsupported_parameter",
            )
        if not self._worker.reserve(arrival.owner):
            self._worker.release(arrival.owner, runs=False)
            raise TooMany("The server is busy, and a response that is not stored cannot wait in line.")
        try:
            place = await self._history.locate(
                arrival.owner, conversation=request.conversation, parent=request.previous_response_id
            )
            fold, frames = self._open(request, model, self._clock.now(), waits=False)
        except BaseException:
            self._worker.release(arrival.owner, runs=True)
            raise
        lease = self._fleeting.admit(str(fold.header["id"]), frames, fold.last + 1)
        claim = Claim(lease, arrival.owner, request, place or NOWHERE, 1, [], False)
        live = Live(lease, fold, frames=frames)
        self._fleeting.start(claim, live, lambda: self._worker.release(arrival.owner, runs=True))
        return Accepted(lease.response_id, request, fold)

    def _open(self, request: CreateResponse, model: str, now: float, waits: bool) -> tuple[Fold, bytes]:
        """The first events: created, and queued or in_progress. A foreground response that waits has created alone."""
        status = "queued" if request.background or waits else "in_progress"
        response = header(request, self._ids.new("resp"), int(now), model, status)
        fields = {"response": msgspec.Raw(msgspec.json.encode(response))}
        drafts: list[AnyDraft] = [Draft("response.created", fields)]
        if request.background:
            drafts.append(Draft("response.queued", fields))
        elif not waits:
            drafts.append(Draft("response.in_progress", fields))
        return Fold(response, len(drafts) - 1), b"".join(number(drafts, -1))

"""Admission: a request becomes an accepted response, in one transaction, or nothing at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from hashlib import sha256

import msgspec

from outlive.core.context.assemble import find_stray_output
from outlive.core.errors import Conflict, InvalidRequest, MustWait, NotFound, ShuttingDown, TooMany
from outlive.core.events import AnyDraft, Draft
from outlive.core.fold import Fold
from outlive.core.ids import IdSource
from outlive.core.naming import EventNames
from outlive.core.numbering import number
from outlive.core.requests.checks import refuse
from outlive.core.requests.create import CreateResponse, canonical, header, parse_create
from outlive.core.requests.limits import Limits
from outlive.core.requests.references import find_references, resolve
from outlive.core.requests.secrets import pack_secrets, purpose_of
from outlive.core.toolcalls.offer import without_server_tools
from outlive.engine.delivery.live import LiveResponse
from outlive.engine.ephemeral import EphemeralRuns
from outlive.engine.retries import PendingCreates
from outlive.engine.run.compactor import Compactor
from outlive.engine.run.runner import Route
from outlive.engine.worker import Worker
from outlive.ports.backend import Backend
from outlive.ports.catalog import Catalog
from outlive.ports.clock import Clock
from outlive.ports.history import History
from outlive.ports.ledger import NO_CHECKPOINT, Admission, Admitted, Claim, Idempotency, Ledger, Memory, Position
from outlive.ports.seal import Seal
from outlive.ports.toolbox import Toolbox

# D17: how old a response may be that a silent retry attaches to, and how long to wait for its connection to die.
RETRY_AGE_SECONDS = 900.0
RETRY_PATIENCE_SECONDS = 1.0
RETRY_STEP_SECONDS = 0.05

NOWHERE = Position(0, 0)

NO_SEAL = (
    "This server cannot keep the 'headers' or the 'authorization' of tools: it has no key to seal them with. Its "
    "operator can give it one with OUTLIVE_SEAL_KEY or --seal-key-file."
)


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A create as it came in: who asks, the decoded body, and what the headers say about repeats."""

    owner: str
    body: object
    idempotency_key: str | None = None
    large: bool = False  # too much to look through while streams wait
    retry_count: int | None = None  # the SDK's x-stainless-retry-count; None: not an SDK that retries silently
    memory: Memory | None = None  # what the connection remembers of the response to be continued
    confirm: Callable[[], None] = lambda: None  # raises when whoever asks does not wait for an answer any more


class Accepted(msgspec.Struct, frozen=True):
    """A response that will end, whatever happens to the connection."""

    response_id: str
    request: CreateResponse
    fold: Fold | None = None  # as admitted; None when this request attached to an earlier one's response


class Admitter:
    """Lets requests in."""

    def __init__(
        self,
        route: Route,
        ledger: Ledger,
        catalog: Catalog,
        history: History,
        worker: Worker,
        fleeting: EphemeralRuns,
        clock: Clock,
        ids: IdSource,
        limits: Limits,
        answering: PendingCreates,
        toolbox: Toolbox | None = None,
        seal: Seal | None = None,
        compactor: Compactor | None = None,
        event_names: EventNames = "openai",
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
        self.answering = answering
        # What is being admitted, and may be repeated meanwhile.
        self._coming: dict[tuple[str, bytes], asyncio.Future[Admitted]] = {}
        self._toolbox = toolbox
        self._seal = seal
        self._compactor = compactor
        self._event_names = event_names

    async def admit(self, arrival: Submission) -> Accepted:
        examined = await asyncio.to_thread(self._examine, arrival) if arrival.large else self._examine(arrival)
        request, model, digest = examined
        if not request.store:
            if request.refers:
                request = await self._resolve(arrival, request)
            return await self._admit_fleeting(arrival, request, model)
        if arrival.memory is not None:
            raise _not_found(request, " in storage: it has `store: false`, so that only one like it can continue it")
        if digest is not None and (earlier := await self._find_earlier(arrival, digest)) is not None:
            return Accepted(earlier, request)
        if request.refers:
            request = await self._resolve(arrival, request)
        return await self._admit_stored(arrival, request, model, digest)

    def _examine(self, arrival: Submission) -> tuple[CreateResponse, str, bytes | None]:
        """All that can be said of a request without asking anybody: what it wants, of which model, and its digest."""
        request = parse_create(arrival.body, self._ids, self._limits)
        if self._event_names != "openai":
            request = msgspec.structs.replace(request, event_names=self._event_names)
        backend, model = self._route(request.model)
        if not request.refers:
            self._check(backend, request)
        may_repeat = request.store and (arrival.idempotency_key is not None or arrival.retry_count is not None)
        return request, model, sha256(canonical(arrival.body)).digest() if may_repeat else None

    def _check(self, backend: Backend, request: CreateResponse) -> None:
        """Refuse what nobody can do: the server's own tools are its own affair, the rest is the upstream's."""
        if self._toolbox is not None and request.tools and not backend.stepwise:
            self._toolbox.check(request)
            if request.secrets and request.store and self._seal is None:
                refuse(NO_SEAL, "tools", "unsupported_parameter")
            request = without_server_tools(request)
        backend.check(request)

    def _close_secrets(self, request: CreateResponse, response_id: str) -> bytes | None:
        if not request.secrets or self._seal is None:
            return None
        return self._seal.close(pack_secrets(request.secrets), purpose_of(response_id))

    async def _resolve(self, arrival: Submission, request: CreateResponse) -> CreateResponse:
        """The request with the items that it refers to in it, and with compaction items that can be opened."""
        found = {item["id"]: item for item in arrival.memory.items if "id" in item} if arrival.memory else {}
        wanted = [item_id for item_id in find_references(request.input) if item_id not in found]
        if wanted:
            found |= await self._catalog.stored_items(arrival.owner, wanted)
        request = msgspec.structs.replace(request, input=resolve(request.input, found), refers=False)
        checked = request
        if self._compactor is not None:
            self._compactor.check(arrival.owner, request.input)
            checked = msgspec.structs.replace(request, input=self._compactor.stand_in(request.input))
        self._check(self._route(request.model)[0], checked)
        return request

    # -- repeats

    async def _find_earlier(self, arrival: Submission, digest: bytes) -> str | None:
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
        if (coming := self._coming.get((owner, digest))) is not None:
            await asyncio.wait([coming])
        for _ in range(int(RETRY_PATIENCE_SECONDS / RETRY_STEP_SECONDS)):
            since = self._clock.now() - RETRY_AGE_SECONDS
            found = await self._catalog.unanswered(owner, digest, since)
            for response_id in found:
                if await self.answering.holds(response_id):
                    continue
                # Its connection may have had its answer since we looked.
                if response_id in await self._catalog.unanswered(owner, digest, since):
                    return response_id
            if not found:
                return None
            await self._clock.sleep(RETRY_STEP_SECONDS)
        return None

    # -- acceptance

    async def _admit_stored(
        self, arrival: Submission, request: CreateResponse, model: str, digest: bytes | None
    ) -> Accepted:
        runs = self._worker.reserve(arrival.owner)
        try:
            return await self._admit_reserved(arrival, request, model, digest, runs=runs)
        except MustWait:
            self._worker.room.enqueue(arrival.owner)
            return await self._admit_reserved(arrival, request, model, digest, runs=False)

    async def _admit_reserved(
        self, arrival: Submission, request: CreateResponse, model: str, digest: bytes | None, *, runs: bool
    ) -> Accepted:
        owner, key = arrival.owner, arrival.idempotency_key
        try:
            if key is None:
                arrival.confirm()
            now = self._clock.now()
            fold, frames = self._open(request, model, now, waits=not runs)
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
                sealed=self._close_secrets(request, str(fold.header["id"])) if request.secrets else None,
            )
        except BaseException:
            self._worker.release(owner, runs)
            raise
        attached = await self._admit(admission, fold)
        return Accepted(admission.response_id, request, fold) if attached is None else Accepted(attached, request)

    async def _admit(self, admission: Admission, fold: Fold) -> str | None:
        """Admit and start; the id of the earlier response if there was one already."""
        admitting = self._ledger.admit(admission)
        if admission.retry_digest is not None:
            self._expect((admission.owner, admission.retry_digest), admitting)
        # A future of our own: once the transaction is on its way it counts, also if the connection is gone by then.
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        admitting.add_done_callback(partial(self._admitted, admission, fold, answer))
        return await answer

    def _expect(self, whose: tuple[str, bytes], admitting: asyncio.Future[Admitted]) -> None:
        self._coming[whose] = admitting  # of several, the last is written last
        admitting.add_done_callback(lambda _: self._coming.get(whose) is admitting and self._coming.pop(whose))

    def _admitted(
        self,
        admission: Admission,
        fold: Fold,
        answer: asyncio.Future[str | None],
        admitting: asyncio.Future[Admitted],
    ) -> None:
        """Owns the room that was reserved: a run gives that back when it ends, everything else gives it back here."""
        runs = admission.worker is not None
        error = ShuttingDown() if admitting.cancelled() else admitting.exception()
        if error is not None:
            self._worker.release(admission.owner, runs)
            if not answer.done():
                answer.set_exception(error)
            return
        admitted = admitting.result()
        if not answer.done():
            answer.set_result(admitted.attached)
        if admitted.attached is not None:
            self._worker.release(admission.owner, runs)
        elif admitted.lease is not None and admitted.position is not None:
            request, place = admission.request, admitted.position
            claim = Claim(admitted.lease, admission.owner, request, place, 1, NO_CHECKPOINT, request.background)
            live = LiveResponse(admitted.lease, fold, self._clock.monotonic(), admission.frames)
            self._worker.start(claim, live)
        else:
            self._worker.offer()  # room may have come free while the transaction was on its way

    async def _admit_fleeting(self, arrival: Submission, request: CreateResponse, model: str) -> Accepted:
        if arrival.idempotency_key is not None:
            raise InvalidRequest(
                "An Idempotency-Key needs a stored response to come back to: leave out it or `store: false`.",
                param="Idempotency-Key",
                code="unsupported_parameter",
            )
        if not self._worker.reserve(arrival.owner, stored=False):
            self._worker.release(arrival.owner, runs=False)
            raise TooMany("The server is busy, and a response that is not stored cannot wait in line.")
        try:
            place = await self._locate(arrival, request)
            fold, frames = self._open(request, model, self._clock.now(), waits=False)
        except BaseException:
            self._worker.release(arrival.owner, runs=True)
            raise
        lease = self._fleeting.admit(str(fold.header["id"]), frames, fold.last + 1)
        claim = Claim(lease, arrival.owner, request, place or NOWHERE, 1, NO_CHECKPOINT, False, memory=arrival.memory)
        live = LiveResponse(lease, fold, frames=frames)
        self._fleeting.start(claim, live, lambda: self._worker.release(arrival.owner, runs=True))
        return Accepted(lease.response_id, request, fold)

    async def _locate(self, arrival: Submission, request: CreateResponse) -> Position | None:
        """Where the stored history of a response ends that will not be stored itself."""
        memory = arrival.memory
        if memory is None:
            return await self._history.locate(
                arrival.owner, conversation=request.conversation, parent=request.previous_response_id
            )
        if memory.position is None:
            if (stray := find_stray_output(memory.items, request.input)) is not None:
                call_id = request.input[stray].get("call_id")
                refuse(f"No tool call was made with call_id {call_id!r}.", f"input[{stray}].call_id")
            return None
        try:
            # What was remembered stands behind it, so it must still be there (D22).
            await self._history.locate(arrival.owner, conversation=memory.conversation, parent=memory.parent)
        except (NotFound, InvalidRequest):
            raise _not_found(request, " any more: what came before it was deleted or has expired") from None
        return memory.position

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


def _not_found(request: CreateResponse, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"Previous response with id '{request.previous_response_id}' not found{why}.",
        param="previous_response_id",
        code="previous_response_not_found",
    )

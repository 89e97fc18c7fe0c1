"""Admission: a request becomes an accepted response, in one transaction, or nothing at all."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import msgspec

from outlive.core.context.assemble import find_stray_output
from outlive.core.errors import ClientDisconnected, InvalidRequest, MustWait, NotFound, ShuttingDown
from outlive.core.events import AnyDraft, Draft, EventNames, Json, number
from outlive.core.fold import Fold
from outlive.core.ids import IdSource
from outlive.core.origin import Origin
from outlive.core.owners import RateState
from outlive.core.requests.body import canonical
from outlive.core.requests.checks import Limits, refuse
from outlive.core.requests.create import CreateResponse, header, parse_create
from outlive.core.requests.items import find_references, resolve
from outlive.core.requests.tools import pack_secrets, purpose_of
from outlive.core.toolcalls import without_server_tools
from outlive.engine.delivery.live import LiveResponse
from outlive.engine.ephemeral import EphemeralRuns
from outlive.engine.policies import Policies
from outlive.engine.retries import Retries
from outlive.engine.run.run import RunServices
from outlive.engine.worker import Worker
from outlive.ports.backend import Backend
from outlive.ports.ledger import NO_CHECKPOINT, Admission, Admitted, Claim, Idempotency, Memory, Position
from outlive.ports.storage import Storage

NO_SEAL = (
    "This server cannot keep the 'headers' or the 'authorization' of tools: it has no key to seal them with. Its "
    "operator can give it one with OUTLIVE_SEAL_KEY or --seal-key-file."
)


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A create as it came in: the owner, the decoded body, and what the headers say about repeats."""

    owner: str
    body: object
    idempotency_key: str | None = None
    size: int = 0  # bytes of a body that is too large to be checked on the event loop
    retry_count: int | None = None  # the SDK's x-stainless-retry-count; None: not an SDK that retries silently
    memory: Memory | None = None  # what the connection remembers of the response to be continued
    origin: Origin = Origin()
    is_abandoned: Callable[[], bool] = lambda: False  # the client is gone already


class Accepted(msgspec.Struct, frozen=True):
    """A response that will end, whatever happens to the connection."""

    response_id: str
    request: CreateResponse
    fold: Fold | None = None  # as admitted; None if the request attached to an earlier one's response
    rate: RateState | None = None  # what is left of the owner's limits, if it has any


class Examined(msgspec.Struct, frozen=True):
    """A request that was parsed and checked."""

    request: CreateResponse
    model: str
    digest: bytes | None  # of the body, if the request may be repeated
    received_at: float  # on the monotonic clock


@dataclass(frozen=True, eq=False)
class Admitter:
    """Admits requests."""

    _storage: Storage
    _services: RunServices
    _worker: Worker
    _policies: Policies
    _ephemeral: EphemeralRuns
    _retries: Retries
    _ids: IdSource
    _limits: Limits
    _event_names: EventNames

    async def admit(self, submission: Submission) -> Accepted:
        """Accept a request, or attach it to the response that an earlier try of it made."""
        examine = self._examine
        examined = await asyncio.to_thread(examine, submission) if submission.size else examine(submission)
        request = examined.request
        if request.store:
            if submission.memory is not None:
                why = " in storage: it has `store: false`, so that only one like it can continue it"
                raise _not_found(request, why)
            # Before lock and limits (D17).
            earlier, key, digest = None, submission.idempotency_key, examined.digest
            if digest is not None and key is not None:
                earlier = await self._retries.find_by_key(submission.owner, key, digest)
            elif digest is not None and submission.retry_count:
                earlier = await self._retries.find_unanswered(submission.owner, digest)
            if earlier is not None:
                self._services.counts.retries_attached += 1
                return Accepted(earlier, request)
        rate = await self._policies.admit(submission.owner) if self._policies.active else None
        if request.refers:
            examined = msgspec.structs.replace(examined, request=await self._resolve(submission, request))
        admit = self._admit_stored if request.store else self._admit_ephemeral
        accepted = await admit(submission, examined)
        return accepted if rate is None else msgspec.structs.replace(accepted, rate=rate)

    # -- checking

    def _examine(self, submission: Submission) -> Examined:
        """Check everything that needs no database."""
        received_at = self._services.clock.monotonic()
        body, origin = submission.body, submission.origin
        request = parse_create(body, self._ids, self._limits, event_names=self._event_names, origin=origin)
        if self._policies.active:
            self._policies.check_model(submission.owner, request.model)
            if not self._policies.stores(submission.owner, request):
                request = msgspec.structs.replace(request, store=False)
        backend, model = self._services.route(request.model)
        if not request.refers:
            self._check(backend, request)
            if not (request.conversation or request.previous_response_id or submission.memory):
                _refuse_stray_output([], request)
        may_repeat = request.store and (submission.idempotency_key is not None or submission.retry_count is not None)
        digest = sha256(canonical(body)).digest() if may_repeat else None
        return Examined(request, model, digest, received_at)

    def _check(self, backend: Backend, request: CreateResponse) -> None:
        """Refuse tools that this server does not have, and what the upstream cannot be sent."""
        if self._services.tools is not None and request.tools and not backend.stepwise:
            self._services.tools.toolbox.check(request)
            if request.secrets and request.store and self._services.tools.seal is None:
                refuse(NO_SEAL, "tools", "unsupported_parameter")
            request = without_server_tools(request)
        backend.check(request)

    async def _resolve(self, submission: Submission, request: CreateResponse) -> CreateResponse:
        """Put the items that the request refers to into it, and check that its compaction items can be opened."""
        found = {item["id"]: item for item in submission.memory.items if "id" in item} if submission.memory else {}
        wanted = [item_id for item_id in find_references(request.input) if item_id not in found]
        if wanted:
            found |= await self._storage.catalog.stored_items(submission.owner, wanted)
        request = msgspec.structs.replace(request, input=resolve(request.input, found), refers=False)
        compactor = self._services.compactor
        await compactor.check(submission.owner, request.input)
        checked = msgspec.structs.replace(request, input=compactor.replace_ours(request.input))
        backend, _ = self._services.route(request.model)
        if submission.size:
            await asyncio.to_thread(self._check, backend, checked)
        else:
            self._check(backend, checked)
        return request

    # -- stored responses

    async def _admit_stored(self, submission: Submission, examined: Examined) -> Accepted:
        runs = self._worker.reserve(submission.owner, submission.size)
        try:
            return await self._admit_reserved(submission, examined, runs)
        except MustWait:
            self._worker.slots.enqueue(submission.owner)
            return await self._admit_reserved(submission, examined, runs=False)

    async def _admit_reserved(self, submission: Submission, examined: Examined, runs: bool) -> Accepted:
        made = None
        try:
            if submission.idempotency_key is None and submission.is_abandoned():
                # Its client may have asked another node by now, and been answered.
                raise ClientDisconnected
            make, about = self._make_admission, (submission, examined, runs)
            made = admission, fold = await asyncio.to_thread(make, *about) if submission.size else make(*about)
        finally:
            if made is None:
                self._worker.release_slot(submission.owner, runs)  # otherwise `_on_admitted` owns the slot
        admitting = self._storage.ledger.admit(admission)
        self._retries.register(admission, admitting)
        # A future of its own: a transaction that was sent counts, also if the connection is gone by then.
        answer: asyncio.Future[str | None] = admitting.get_loop().create_future()
        admitting.add_done_callback(partial(self._on_admitted, admission, fold, examined.received_at, answer))
        if (attached := await answer) is not None:
            return Accepted(attached, examined.request)
        return Accepted(admission.response_id, examined.request, fold)

    def _make_admission(self, submission: Submission, examined: Examined, runs: bool) -> tuple[Admission, Fold]:
        key, digest = submission.idempotency_key, examined.digest
        now, response_id = self._services.clock.now(), self._ids.new("resp")
        request, fold, frames = self._open(examined, response_id, now, queued=not runs)
        seal = self._services.tools.seal if self._services.tools is not None and request.secrets else None
        admission = Admission(
            response_id=response_id,
            owner=submission.owner,
            at=now,
            request=request,
            status="in_progress" if runs else "queued",
            frames=frames,
            count=fold.last + 1,
            worker=self._worker.name if runs else None,
            size=submission.size,
            idempotency=Idempotency(key, digest) if key is not None and digest is not None else None,
            retry_digest=digest if submission.retry_count is not None else None,
            sealed=None if seal is None else seal.close(pack_secrets(request.secrets), purpose_of(response_id)),
        )
        return admission, fold

    def _on_admitted(
        self,
        admission: Admission,
        fold: Fold,
        received_at: float,
        answer: asyncio.Future[str | None],
        admitting: asyncio.Future[Admitted],
    ) -> None:
        """Start or queue the response. Owns the reserved slot: a run gives it back when it ends, all else gives it back
        here."""
        runs = admission.worker is not None
        error = ShuttingDown() if admitting.cancelled() else admitting.exception()
        if error is not None:
            self._worker.release_slot(admission.owner, runs)
            if not answer.done():
                answer.set_exception(error)
            return
        admitted = admitting.result()
        if not answer.done():
            answer.set_result(admitted.attached)
        counts = self._services.counts
        if admitted.attached is not None:
            counts.retries_attached += 1
            self._worker.release_slot(admission.owner, runs)
            return
        counts.responses_admitted[counts.name_model(admission.request.model)] += 1
        if admitted.lease is not None and admitted.position is not None:
            lease, position, request = admitted.lease, admitted.position, admission.request
            owner, size, history = admission.owner, admission.size, admitted.history
            claim = Claim(lease, owner, request, position, 1, NO_CHECKPOINT, request.background, size, history=history)
            read_at = self._services.clock.monotonic()
            self._worker.start(LiveResponse(claim, fold, self._storage.ledger, read_at, admission.frames, received_at))
        else:
            self._worker.announce_queued()  # a slot may have come free while the transaction was under way

    # -- responses that are not stored

    async def _admit_ephemeral(self, submission: Submission, examined: Examined) -> Accepted:
        owner, request = submission.owner, examined.request
        if submission.idempotency_key is not None:
            raise InvalidRequest(
                "An Idempotency-Key needs a stored response to come back to: leave out the key, or `store: false`.",
                param="Idempotency-Key",
                code="unsupported_parameter",
            )
        await self._worker.reserve_unstored(owner, "a response that is not stored", submission.size)
        opened = None
        try:
            position = await self._locate(submission, request)
            response_id = self._ids.new("resp")
            opened = request, fold, frames = self._open(examined, response_id, self._services.clock.now(), queued=False)
        finally:
            if opened is None:
                self._worker.release_unstored(owner)
        ledger = self._ephemeral.ledger
        lease = ledger.admit(response_id, frames, fold.last + 1)
        about = (1, NO_CHECKPOINT, False, submission.size)
        claim = Claim(lease, owner, request, position or Position(0, 0), *about, memory=submission.memory)
        self._services.counts.responses_admitted[self._services.counts.name_model(request.model)] += 1
        live = LiveResponse(claim, fold, ledger, frames=frames, received_at=examined.received_at)
        self._worker.slots.hold_input(owner, submission.size)
        task = self._ephemeral.start(live)
        task.add_done_callback(lambda _: self._worker.slots.release_input(owner, claim.size))
        task.add_done_callback(lambda _: self._worker.release_unstored(owner))
        return Accepted(lease.response_id, request, fold)

    async def _locate(self, submission: Submission, request: CreateResponse) -> Position | None:
        """Find the end of the stored history that a response which is not stored continues."""
        memory = submission.memory
        if memory is None:
            return await self._storage.history.locate(
                submission.owner, conversation=request.conversation, parent=request.previous_response_id
            )
        if memory.position is None:
            _refuse_stray_output(memory.items, request)
            return None
        try:
            # The remembered items continue it, so it must still be there (D22).
            await self._storage.history.locate(submission.owner, conversation=memory.conversation, parent=memory.parent)
        except (NotFound, InvalidRequest):
            raise _not_found(request, " any more: what came before it was deleted or has expired") from None
        return memory.position

    def _open(
        self, examined: Examined, response_id: str, now: float, *, queued: bool
    ) -> tuple[CreateResponse, Fold, bytes]:
        """Set the deadline, begin the trace, and render the first events: created, then queued or in_progress. A queued
        foreground response has one event."""
        request = examined.request
        if (seconds := request.outlive.get("deadline_seconds")) is not None:
            request = msgspec.structs.replace(request, deadline=now + seconds)
        origin = self._services.tracer.begin(request.origin, response_id)
        if origin is not request.origin:
            request = msgspec.structs.replace(request, origin=origin)
        status = "queued" if request.background or queued else "in_progress"
        response = header(request, response_id, int(now), examined.model, status)
        details: Json = {}
        if left_out := self._services.route(request.model)[0].find_left_out(request):
            details["left_out_tools"] = left_out
        if self._services.tracer.is_tracing:
            details["trace_id"] = request.origin.trace_id
        if details:
            response["outlive"] = details
        fields = {"response": msgspec.Raw(msgspec.json.encode(response))}
        drafts: list[AnyDraft] = [Draft("response.created", fields)]
        if request.background:
            drafts.append(Draft("response.queued", fields))
        elif not queued:
            drafts.append(Draft("response.in_progress", fields))
        return request, Fold(response, len(drafts) - 1), b"".join(number(drafts, -1))


def _refuse_stray_output(history: list[Json], request: CreateResponse) -> None:
    """Refuse an output of a call that was never made: it would be left out, and its caller would not know (D25)."""
    if (stray := find_stray_output(history, request.input)) is not None:
        call_id = request.input[stray].get("call_id")
        refuse(f"No tool call was made with call_id {call_id!r}.", f"input[{stray}].call_id")


def _not_found(request: CreateResponse, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"Previous response with id '{request.previous_response_id}' not found{why}.",
        param="previous_response_id",
        code="previous_response_not_found",
    )

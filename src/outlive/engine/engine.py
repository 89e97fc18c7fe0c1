"""The engine as HTTP, WebSocket and the command line use it: verbs, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from secrets import token_hex
from typing import Self

import msgspec

from outlive.core.errors import ClientDisconnected, NotFound, OutliveError, StorageUnavailable, UpstreamFault
from outlive.core.events import EventNames, Json, payloads
from outlive.core.ids import IdSource
from outlive.core.origin import Origin
from outlive.core.requests.checks import Limits
from outlive.core.requests.create import CreateResponse
from outlive.core.timeline import Milestones, make_timeline, read_details
from outlive.engine.admission import Accepted, Admitter, Submission
from outlive.engine.budget import Reservation
from outlive.engine.cluster.node import Node
from outlive.engine.context_queries import ContextQueries
from outlive.engine.delivery.reader import FOLD_BYTES, Cursor, Reader, StreamInterrupted
from outlive.engine.ephemeral import EphemeralRuns
from outlive.engine.packer import Packer
from outlive.engine.retries import PendingCreates
from outlive.engine.run.fitting import Count
from outlive.engine.run.run import RunServices
from outlive.engine.slots import Capacity
from outlive.engine.sweeper import RetentionPolicy, Sweeper
from outlive.engine.tickets import Tickets
from outlive.engine.worker import Worker
from outlive.ports.backend import Backends, PassedAnswer
from outlive.ports.catalog import Page, Paging, Record, RunRecord
from outlive.ports.ledger import Idempotency, Memory
from outlive.ports.storage import Storage
from outlive.ports.tracing import Span, Tracer

log = logging.getLogger(__name__)

RESTART_SECONDS = 1.0
# Fields that lists leave out of a response: the parts that may be long.
LONG_FIELDS = ("output", "tools", "instructions")


class View(msgspec.Struct, frozen=True):
    """A response as it stands."""

    body: bytes
    poll_after: float | None = None  # seconds after which to look again; None: it has ended


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an engine."""

    name: str  # of this worker; no other may ever have the same
    capacity: Capacity
    retention: RetentionPolicy = RetentionPolicy()
    pack_after: float | None = None  # seconds after its end until a journal is packed
    limits: Limits = Limits()
    event_names: EventNames = "openai"
    claims: bool = True  # False: this node runs no stored responses
    commit_seconds: float = 0.005  # longest wait for more events to commit
    keep_alive_seconds: float = 15.0
    run_seconds: float | None = None  # limit of a run's duration
    abandon_after: float | None = None  # seconds after which a foreground run without a reader is cancelled
    tracer: Tracer = msgspec.field(default_factory=Tracer)
    ticket_seconds: float = 3600.0  # after which a ticket expires that names no other time


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an engine, wired by `build`. For the engine itself, and for tests that drive one of them alone."""

    storage: Storage
    backends: Backends
    services: RunServices
    worker: Worker
    admitter: Admitter
    ephemeral: EphemeralRuns
    reader: Reader
    creates: PendingCreates
    contexts: ContextQueries
    sweeper: Sweeper
    packer: Packer | None
    node: Node | None  # None on a single server


class Engine:
    """Everything that a client may ask for."""

    def __init__(self, parts: Parts, options: EngineOptions, ids: IdSource) -> None:
        self.parts = parts
        self.ids = ids
        self.limits = options.limits
        self.is_leaving = False  # True: not ready, but still taking work, until it drains
        self._abandon_after = options.abandon_after
        self._tick_seconds = _tick_seconds(options)
        self._storage = parts.storage
        self._catalog = parts.storage.catalog
        self._conversations = parts.storage.conversations
        self._backends = parts.backends
        self._worker = parts.worker
        self._reader = parts.reader
        self._sweeper = parts.sweeper
        self._shutdown = parts.reader.shutdown
        self._node = parts.node
        self._clock = parts.services.clock
        self.tickets = Tickets(parts.storage.tickets, self._clock, ids, options.ticket_seconds)

    # -- the server's life

    async def start(self) -> int:
        """Join the cluster and recover what dead workers left. Returns how many responses were recovered."""
        if self._node is not None:
            await self._node.start()
        return await self._worker.recover()

    async def run(self) -> None:
        """Do the regular work until cancelled: sweep, pack journals, wake idle readers, poll the cluster."""
        jobs = [self._sweeper.run, self._tick, self.tickets.run]
        jobs += [part.run for part in (self.parts.packer, self._node) if part is not None]
        await asyncio.gather(*map(_keep_running, jobs))

    async def drain(self, grace: float) -> None:
        """Take no new work, release or end what runs, then interrupt every stream."""
        self._shutdown.draining = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._worker.drain(grace))
                group.create_task(self.parts.ephemeral.drain(grace))
        finally:
            self._shutdown.interrupting = True
            self._reader.live.wake_all()

    async def stop(self) -> None:
        """Leave the cluster and close the backends."""
        if self._node is not None:
            await self._node.stop()
        backends = self._backends.by_name.values()
        await asyncio.gather(*(backend.close() for backend in backends), return_exceptions=True)
        await self.parts.services.tracer.close()

    @property
    def is_draining(self) -> bool:
        """True from the moment the server takes no new work."""
        return self._shutdown.draining

    async def find_problem(self) -> str | None:
        """Return why this server should not be sent requests, or None if it should."""
        if self._shutdown.draining or self.is_leaving:
            return "shutting down"
        return None if await self._storage.probe() else "the database is unavailable"

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_seconds)
            await self.tick_once()

    async def tick_once(self) -> None:
        """Let idle readers send their keep-alive, and cancel runs that have had no reader for long."""
        self._reader.live.wake_all()
        if self._abandon_after is not None:
            with contextlib.suppress(StorageUnavailable, NotFound):  # the next tick tries again, or it was deleted
                await self._worker.cancel_abandoned(self._abandon_after)

    def now(self) -> float:
        """Return the time in unix seconds."""
        return self._clock.now()

    def new_id(self, prefix: str) -> str:
        return self.ids.new(prefix)

    # -- responses

    async def create(self, submission: Submission) -> Created:
        """Create a response and hold it for the connection that answers: `with await engine.create(...) as created`.

        What happens to the connection never ends a stored response; one with `store: false` ends with the block."""
        accepted = await self.admit(submission)
        if accepted.request.store:
            self.parts.creates.add(accepted.response_id)
        return Created(self, submission.owner, accepted)

    async def admit(self, submission: Submission) -> Accepted:
        """Admit a submission. Use `create`, which also cleans up."""
        try:
            return await self.parts.admitter.admit(submission)
        except (OutliveError, ClientDisconnected):
            if submission.large:
                # Parts of it may have been staged; nothing of a refused request may stay in a file.
                self._sweeper.wake()
            raise

    async def follow(self, owner: str, response_id: str, after: int = -1) -> Cursor:
        """Return a cursor behind an event of a stored response. Raises NotFound."""
        await self._check_exists(owner, response_id)
        self.parts.services.counts.resumes += 1
        return self._reader.follow(response_id, after, owner)

    async def trace_resume(self, origin: Origin, response_id: str) -> Span:
        """Start the span of a stream that follows a response."""
        tracer, trace_id = self.parts.services.tracer, None
        if tracer.is_tracing and (batch := await self._storage.journal.read(response_id, -1, 1)) is not None:
            created = msgspec.json.decode(payloads(batch.frames)[0])
            trace_id = (created["response"].get("outlive") or {}).get("trace_id")
        return tracer.start_resume(origin, response_id, trace_id)

    async def has_ended_by(self, owner: str, response_id: str, after: int) -> bool:
        """Return True if a response has ended with that event or before it. Raises NotFound."""
        await self._check_exists(owner, response_id)
        batch = await self._storage.journal.read(response_id, after, 1)
        return batch is not None and not batch.frames

    async def _check_exists(self, owner: str, response_id: str) -> None:
        if await self._catalog.status(owner, response_id) is None:
            raise NotFound(f"Response with id '{response_id}' not found.")

    async def create_ticket(self, owner: str, target: str, of_response: bool, seconds: float | None) -> Json:
        """Create a ticket for a response or a conversation. Raises NotFound."""
        await (self._check_exists(owner, target) if of_response else self.get_conversation(owner, target))
        return await self.tickets.create(owner, target, seconds)

    def make_reservation(self, owner: str) -> Reservation:
        """Return a reservation for an answer in the owner's budget."""
        return Reservation(self._reader.answers, owner)

    async def wait_end(self, owner: str, response_id: str, seconds: float) -> None:
        """Wait for the end of a response, that long at most. Raises NotFound."""
        if await self._catalog.status(owner, response_id) in ("queued", "in_progress"):
            with contextlib.suppress(StreamInterrupted):  # shutting down: it is shown as far as it is
                await self._reader.wait_end(response_id, seconds)

    async def show(self, owner: str, response_id: str) -> View:
        """Return a response as it stands."""
        return await self._view(await self._catalog.response(owner, response_id))

    async def cancel(self, owner: str, response_id: str) -> View:
        """Cancel a response, wherever it runs, and return its end (D8)."""
        record = await self._catalog.response(owner, response_id)
        if record.snapshot is None:
            await self._worker.cancel(response_id)
            record = await self._catalog.response(owner, response_id)
        return await self._view(record)

    async def delete(self, owner: str, response_id: str) -> None:
        """Delete a response; one that runs is cancelled first (D18)."""
        record = await self._catalog.response(owner, response_id)
        if record.snapshot is None:
            await self._worker.cancel(response_id)
        await self._storage.ledger.delete(owner, response_id)
        self._sweeper.wake()

    async def list_responses(
        self, owner: str, paging: Paging, *, statuses: list[str], conversation: str | None, details: bool = False
    ) -> Page:
        """List an owner's responses, without their long fields; with `details` about where and how far each ran."""
        records, more = await self._catalog.responses(owner, paging, statuses=statuses, conversation=conversation)
        headers = await self._reader.headers([record.response_id for record in records if _is_running(record)])
        queue = await self._find_queue_positions(records)
        data: list[Json] = []
        for record in records:
            if record.snapshot is None and record.response_id not in headers:
                # The final object is long: one at a time, and decoded in a thread.
                with contextlib.suppress(NotFound):  # deleted since
                    whole = await self._catalog.response(owner, record.response_id)
                    data.append(await asyncio.to_thread(_summarise, whole, None, None))
            else:
                data.append(_summarise(record, headers.get(record.response_id), queue.get(record.response_id)))
        return Page(await self._add_runs(data) if details else data, more)

    async def _add_runs(self, summaries: list[Json]) -> list[Json]:
        runs = await self._catalog.runs([each["id"] for each in summaries])
        found = (each for each in summaries if each["id"] in runs)
        return [_add_details(each, self._describe_run(each, runs[each["id"]])) for each in found]

    def _describe_run(self, summary: Json, run: RunRecord) -> Json:
        live = self._reader.live.get(summary["id"])
        attempts = (summary.get("outlive") or {}).get("attempts", run.attempts or 1)
        node = run.node if run.ended_at is None else run.taken[-1][1] if run.taken else None
        events = live.fold.last + 1 if live is not None and run.events is None else run.events
        return {"attempts": attempts, "node": node, "events": events, "ended_at": run.ended_at}

    async def show_timeline(self, owner: str, response_id: str) -> Json:
        """Return the milestones of a response with their times and nodes, read from its journal."""
        record = await self._catalog.response(owner, response_id)
        run = (await self._catalog.runs([response_id]))[response_id]
        details = read_details(record.snapshot)
        milestones = Milestones(details.get("resumed_at") or run.resumed_at)
        journal = self._storage.journal
        while (page := await journal.read(response_id, milestones.last, FOLD_BYTES)) is not None and page.frames:
            await asyncio.to_thread(milestones.add, page.last, page.frames, page.times)
        return {
            "object": "response.timeline",
            "response_id": response_id,
            "status": record.status,
            "attempts": max(details.get("attempts", 1), run.attempts or 1, len(run.resumed_at) + 1),
            **make_timeline(milestones, run.taken, run.created_at, run.ended_at),
        }

    async def list_input_items(self, owner: str, response_id: str, paging: Paging) -> Page:
        return await self._catalog.input_items(owner, response_id, paging)

    async def find_model_of(self, owner: str, response_id: str) -> str | None:
        """Return the model that gave an answer; None while it is running."""
        record = await self._catalog.response(owner, response_id)
        return None if record.snapshot is None else str(msgspec.json.decode(record.snapshot)["model"])

    async def _view(self, record: Record) -> View:
        if record.snapshot is not None:
            return View(record.snapshot)
        fold = await self._reader.fold(record.response_id)
        if fold.ended:
            return View(fold.snapshot())
        # A young run may end soon; one that has been going for minutes will hardly end in the next second.
        poll_after = min(max((self._clock.now() - record.created_at) / 10, 0.25), 5.0)
        if fold.status == "queued" and (queue := (await self._find_queue_positions([record])).get(record.response_id)):
            return View(msgspec.json.encode(_add_details(fold.response(), queue)), poll_after)
        return View(fold.snapshot(), poll_after)

    async def _find_queue_positions(self, records: list[Record]) -> dict[str, Json]:
        """Return the extra object of each queued response: its position (1 is the next) and how long it is queued."""
        queued = {record.response_id: record for record in records if record.status == "queued"}
        if not queued:
            return {}
        now = self._clock.now()
        positions = await self._catalog.queue(list(queued))
        return {
            response_id: {"queue": {"place": position, "seconds": max(0, int(now - queued[response_id].created_at))}}
            for response_id, position in positions.items()
        }

    # -- conversations

    async def create_conversation(
        self, owner: str, metadata: dict[str, str], items: list[Json], idempotency: Idempotency | None, large: bool
    ) -> Json:
        """Create a conversation, or return the one that was created under the same key."""
        self._backends.check_items(self.parts.services.compactor.replace_ours(items))
        now = self._clock.now()
        conversation: Json = {
            "id": self.ids.new("conv"),
            "object": "conversation",
            "created_at": int(now),
            "metadata": metadata,
        }
        made = await self._conversations.create(owner, conversation, items, now, idempotency, large)
        return conversation if made == conversation["id"] else await self._catalog.conversation(owner, made)

    async def get_conversation(self, owner: str, conversation_id: str) -> Json:
        return await self._catalog.conversation(owner, conversation_id)

    async def update_conversation(self, owner: str, conversation_id: str, metadata: dict[str, str]) -> Json:
        return await self._conversations.update(owner, conversation_id, metadata)

    async def delete_conversation(self, owner: str, conversation_id: str) -> None:
        await self._conversations.delete(owner, conversation_id)
        self._sweeper.wake()

    async def list_conversations(self, owner: str, paging: Paging) -> Page:
        return await self._catalog.conversations(owner, paging)

    async def add_items(
        self, owner: str, conversation_id: str, items: list[Json], idempotency: Idempotency | None, large: bool
    ) -> Page:
        """Add items to a conversation, and return them."""
        self._backends.check_items(self.parts.services.compactor.replace_ours(items))
        now = self._clock.now()
        added = await self._conversations.add_items(owner, conversation_id, items, now, idempotency, large)
        return Page(added, False)

    async def list_items(self, owner: str, conversation_id: str, paging: Paging) -> Page:
        return await self._catalog.items(owner, conversation_id, paging)

    async def get_item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        return await self._catalog.item(owner, conversation_id, item_id)

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        """Delete an item, and return its conversation."""
        conversation = await self._conversations.delete_item(owner, conversation_id, item_id)
        self._sweeper.wake()
        return conversation

    # -- contexts and models

    async def count_tokens(self, owner: str, request: CreateResponse, model_given: bool) -> Count:
        """Count the tokens that a response to this request would begin with."""
        return await self.parts.contexts.count(owner, request, model_given)

    async def compact(self, owner: str, request: CreateResponse) -> tuple[list[Json], Json | None]:
        """Compact a context. Returns its items, and the usage of making them."""
        return await self.parts.contexts.compact(owner, request)

    async def list_models(self) -> list[Json]:
        """List the models of all upstreams: as `NAME/model` where there are several, but for agents."""
        backends = list(self._backends.by_name.values())
        lists = await asyncio.gather(*(backend.models() for backend in backends))
        several = sum(not backend.stepwise for backend in backends) > 1
        return [
            {**model, "id": f"{backend.name}/{model['id']}"} if several and not backend.stepwise else model
            for backend, models in zip(backends, lists, strict=True)
            for model in models
        ]

    def hold_chat_slot(self, owner: str) -> contextlib.AbstractContextManager[None]:
        """Hold a slot for a Chat Completions request, which counts like a response. Raises TooMany."""
        return self._worker.hold_slot(owner, "a chat completion")

    async def pass_through(self, body: Json, origin: Origin) -> PassedAnswer:
        """Send a Chat Completions request to its upstream as it is."""
        backend, model = self._backends.route(body["model"])
        counts = self.parts.services.counts
        try:
            answer = await backend.pass_through({**body, "model": model}, origin.headers(token_hex(4)))
        except UpstreamFault as fault:
            counts.count_request(backend.name, fault)
            raise
        counts.count_request(backend.name, status=answer.status)
        return answer


@dataclass(slots=True, eq=False)
class Created:
    """A response in the hands of the connection that created it."""

    engine: Engine
    owner: str
    accepted: Accepted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        parts = self.engine.parts
        (parts.creates if self.request.store else parts.ephemeral).discard(self.id)

    @property
    def id(self) -> str:
        return self.accepted.response_id

    @property
    def request(self) -> CreateResponse:
        return self.accepted.request

    def follow(self) -> Cursor:
        """Return a cursor before the first event."""
        return self.engine.parts.reader.follow(self.id, owner=self.owner)

    def follow_end(self) -> Cursor:
        """Return a cursor behind the events of the admission, for a caller that waits for the end."""
        fold = self.accepted.fold
        return self.engine.parts.reader.follow(self.id, fold.last if fold is not None else -1)

    async def show(self) -> View:
        """Return the response as admitted, or as it stands if this request attached to an earlier one's."""
        if self.accepted.fold is not None:
            return View(self.accepted.fold.snapshot(), 0.5)
        return await self.engine.show(self.owner, self.id)

    async def mark_answered(self) -> None:
        """Record that the client has its whole answer: a silent retry must not find this response (D17)."""
        if self.request.store:
            await self.engine.parts.storage.ledger.mark_answered(self.id)

    def remember(self) -> Memory | None:
        """Return what it takes to continue a response that is not stored; None if it failed or is stored."""
        return None if self.request.store else self.engine.parts.ephemeral.remember(self.id)


def _is_running(record: Record) -> bool:
    return record.status in ("queued", "in_progress")


def _summarise(record: Record, header: Json | None, queue: Json | None) -> Json:
    body: Json = msgspec.json.decode(record.snapshot or b"{}") if header is None else header
    summary = {name: value for name, value in body.items() if name not in LONG_FIELDS}
    if summary.get("status") == "queued":
        summary["status"] = record.status  # it may have begun since the event that this header is from
    return summary if queue is None else _add_details(summary, queue)


def _add_details(response: Json, details: Json) -> Json:
    return {**response, "outlive": {**(response.get("outlive") or {}), **details}}


async def _keep_running(job: Callable[[], Awaitable[None]]) -> None:
    """Run a job that has no end, and start it again after a bug: the others and the server must go on."""
    while True:
        try:
            await job()
        except Exception:  # a bug of any kind
            log.exception("background job failed, restarting")
            await asyncio.sleep(RESTART_SECONDS)


def _tick_seconds(options: EngineOptions) -> float:
    """Tick often enough for the shorter of the two times that each tick looks after."""
    return max(min(options.keep_alive_seconds / 3, (options.abandon_after or 60.0) / 4, 5.0), 0.05)

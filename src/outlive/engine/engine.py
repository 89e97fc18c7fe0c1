"""The engine as HTTP, WebSocket and the command line use it: verbs, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Self

import msgspec

from outlive.core.counts import Counts
from outlive.core.endings import add_details
from outlive.core.errors import ClientDisconnected, NotFound, OutliveError, StorageUnavailable
from outlive.core.events import EventNames, Json, payloads
from outlive.core.ids import IdSource
from outlive.core.origin import Origin
from outlive.core.owners import add_owner
from outlive.core.requests.checks import Limits
from outlive.core.requests.create import CreateResponse
from outlive.core.timeline import Milestones, make_timeline, read_details
from outlive.core.usage import PriceTable
from outlive.engine.admission import Accepted, Admitter, Submission
from outlive.engine.budget import Reservation
from outlive.engine.cluster.mirrors import Mirrors, ProgressNotifier
from outlive.engine.cluster.node import Node
from outlive.engine.context_queries import ContextQueries
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponses
from outlive.engine.delivery.reader import FOLD_BYTES, Cursor, Reader, Shutdown, StreamInterrupted
from outlive.engine.ephemeral import EphemeralRuns, MemoryJournal, MemoryLedger
from outlive.engine.keys import Keys, Tickets
from outlive.engine.policies import Policies
from outlive.engine.retries import PendingCreates, Retries
from outlive.engine.run.closer import Closer
from outlive.engine.run.compactor import Compactor
from outlive.engine.run.run import RunServices
from outlive.engine.slots import Capacity
from outlive.engine.sweeper import Packer, Sweeper
from outlive.engine.usage import UsageMeter
from outlive.engine.waiting import repeat
from outlive.engine.webhooks import Webhooks
from outlive.engine.worker import Worker
from outlive.ports.backend import Backends
from outlive.ports.catalog import RUNNING, Filters, Page, Paging, Record
from outlive.ports.clock import Clock
from outlive.ports.ledger import Idempotency, Memory
from outlive.ports.seal import Seal
from outlive.ports.storage import Storage
from outlive.ports.toolbox import Tools
from outlive.ports.tracing import Span, Tracer
from outlive.ports.webhooks import Sender

log = logging.getLogger(__name__)

RESTART_SECONDS = 1.0
# Seconds between two looks into the database: a key or a policy holds on every node within a second.
REFRESH_SECONDS = 0.5
# A look that takes longer hangs in a connection that is dead without knowing it; the next takes another one.
MAX_REFRESH_SECONDS = 5.0
# Seconds between two checks of the tickets of open streams: a revoked one, on whichever node, cuts its streams by then.
TICKET_SECONDS = 1.0
OVERDUE_SECONDS = 1.0
USAGE_SECONDS = 60.0
LONG_FIELDS = ("output", "tools", "instructions")  # lists leave them out of a response


class View(msgspec.Struct, frozen=True):
    """A response as it stands."""

    body: bytes
    poll_after: float | None = None  # seconds after which to look again; None: it has ended


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # of this worker; no other may ever have the same
    sender: Sender  # reaches the receivers of webhooks
    capacity: Capacity
    response_days: float | None = 30.0  # for which responses are kept after their last use; None: for ever
    conversation_days: float | None = None
    sweep_seconds: float = 60.0
    pack_after: float | None = None  # seconds after its end until a journal is packed
    limits: Limits = Limits()
    event_names: EventNames = "openai"
    claims: bool = True  # False: this node runs no stored responses
    commit_seconds: float = 0.005  # longest wait for more events to commit
    keep_alive_seconds: float = 15.0
    run_seconds: float | None = None  # limit of a run's duration
    abandon_after: float | None = None  # seconds after which a foreground run without a reader is cancelled
    tracer: Tracer = msgspec.field(default_factory=Tracer)
    prices: PriceTable = PriceTable()
    ticket_seconds: float = 3600.0  # after which a ticket expires that names no other time


class Engine:
    """Everything that a client may ask for. Its parts are public: metrics read them, and tests drive one alone."""

    is_leaving = False  # True: not ready, but still taking work, until it drains

    def __init__(
        self,
        storage: Storage,
        backends: Backends,
        options: EngineOptions,
        *,
        clock: Clock,
        ids: IdSource,
        seal: Seal,
        tools: Tools | None = None,
    ) -> None:
        """Build an engine on a database. `seal` closes compaction items."""
        self.storage, self.backends, self.ids, self.limits = storage, backends, ids, options.limits
        self._options, self._shutdown, live, capacity = options, Shutdown(), LiveResponses(), options.capacity
        mirrors = Mirrors(storage.journal, live, storage.bell) if storage.shared else None
        counts, tracer, journal = Counts(backends.models), options.tracer, MemoryJournal(storage.journal)
        self.reader = Reader(live, journal, clock, self._shutdown, options.keep_alive_seconds, mirrors)
        self.usage = UsageMeter(storage.database, options.prices)
        self.policies = Policies(capacity.policies, storage.database, self.usage, clock, storage.shared)
        committer = Committer(storage.ledger, clock, options.commit_seconds, counts, tracer, self.usage.count)
        self.services = RunServices(
            route=backends.route,
            history=storage.history,
            clock=clock,
            committer=committer,
            closer=Closer(committer, backends.route, clock),
            run_seconds=options.run_seconds,
            tools=tools,
            counts=counts,
            tracer=tracer,
            compactor=Compactor(seal, ids, clock, counts, tracer),
        )
        self.worker = Worker(options.name, storage, self.services, live, capacity, self._shutdown, options.claims)
        self.ephemeral = EphemeralRuns(MemoryLedger(journal), self.services, live, self.usage)
        self.creates = PendingCreates(storage.bell, alone=not storage.shared)
        catalog, retries = storage.catalog, Retries(storage.catalog, clock, self.creates)
        days, after = (options.response_days, options.conversation_days), options.pack_after
        parts = (storage, self.services, self.worker, self.policies)
        self.admitter = Admitter(*parts, self.ephemeral, retries, ids, options.limits, options.event_names)
        self.contexts = contexts = ContextQueries(*parts, backends, self.usage)
        self.sweeper = Sweeper(storage.retention, clock, *days, options.sweep_seconds, self.policies.active)
        self.packer = Packer(storage.packing, clock, counts, after, self.worker.slots) if after is not None else None
        self.webhooks = Webhooks(
            storage.database, options.sender, tools.seal if tools is not None else None, clock, ids, options.name
        )
        committer.on_end = self.webhooks.wake
        self.tickets = Tickets(storage.database, clock, ids, options.ticket_seconds)
        self.keys = Keys(storage.database, clock, ids)
        self.node: Node | None = None  # None on a single server
        if mirrors is not None and self.reader.remote_folds is not None:
            folds, notifier = self.reader.remote_folds, ProgressNotifier(live, storage.bell, clock)
            self.node = Node(storage, self.worker, mirrors, folds, notifier, self.creates)
        # Verbs that one part alone answers.
        self.now, self.new_id, self.find_owner = clock.now, ids.new, catalog.find_owner
        self.get_conversation, self.list_conversations = catalog.conversation, catalog.conversations
        self.get_item, self.list_items, self.list_input_items = catalog.item, catalog.items, catalog.input_items
        self.count_tokens, self.compact, self.pass_through = contexts.count, contexts.compact, contexts.pass_through
        self.list_models, self.find_model = contexts.list_models, contexts.find_model
        self.count_chat, self.hold_slot = contexts.count_usage, self.worker.hold_slot

    # -- the server's life

    async def start(self) -> int:
        """Join the cluster and recover what dead workers left. Returns how many responses were recovered."""
        await self.keys.refresh()
        await self.policies.refresh()
        if self.node is not None:
            await self.node.start()
        return await self.worker.recover()

    async def run(self) -> None:
        """Do the regular work until cancelled: sweep, pack, wake idle readers, send webhooks, poll the cluster."""
        options = self._options
        # Often enough for the shorter of the two times that each tick looks after.
        tick_seconds = max(min(options.keep_alive_seconds / 3, (options.abandon_after or 60.0) / 4, 5.0), 0.05)
        jobs: list[Callable[[], Awaitable[None]]] = [
            partial(repeat, self.tick_once, tick_seconds),
            partial(repeat, self.keys.refresh, REFRESH_SECONDS, MAX_REFRESH_SECONDS),
            partial(repeat, self.policies.refresh, REFRESH_SECONDS),
            partial(repeat, self.tickets.check_once, TICKET_SECONDS),
            partial(repeat, self.worker.end_overdue, OVERDUE_SECONDS),
            partial(repeat, self.usage.write_sums, USAGE_SECONDS),
            *(part.run for part in (self.sweeper, self.webhooks, self.packer, self.node) if part is not None),
        ]
        await asyncio.gather(*map(_keep_running, jobs))

    async def drain(self, grace: float) -> None:
        """Take no new work, release or end what runs, then interrupt every stream."""
        self._shutdown.draining = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.worker.drain(grace))
                group.create_task(self.ephemeral.drain(grace))
        finally:
            self._shutdown.interrupting = True
            self.reader.live.wake_all()

    async def stop(self) -> None:
        """Write the last sums of usage, leave the cluster and close the backends."""
        await self.usage.write_sums()
        if self.node is not None:
            await self.node.stop()
        await asyncio.gather(*(each.close() for each in self.backends.by_name.values()), return_exceptions=True)
        await self.services.tracer.close()

    @property
    def is_draining(self) -> bool:
        """True from the moment the server takes no new work."""
        return self._shutdown.draining

    async def find_problem(self) -> str | None:
        """Return why this server should not be sent requests, or None if it should."""
        if self._shutdown.draining or self.is_leaving:
            return "shutting down"
        return None if await self.storage.probe() else "the database is unavailable"

    async def tick_once(self) -> None:
        """Let idle readers send their keep-alive, and cancel runs that were deleted or have had no reader for long."""
        self.reader.live.wake_all()
        with contextlib.suppress(StorageUnavailable, NotFound):  # the next tick tries again, or it was erased
            for response_id in await self.storage.ledger.find_deleted(self.worker.name):  # by a command
                await self.worker.cancel(response_id)
            if self._options.abandon_after is not None:
                await self.worker.cancel_abandoned(self._options.abandon_after)

    # -- responses

    async def create(self, submission: Submission) -> Created:
        """Create a response and hold it for the connection that answers: `with await engine.create(...) as created`.
        What happens to the connection never ends a stored response; one with `store: false` ends with the block."""
        try:
            accepted = await self.admitter.admit(submission)
        except (OutliveError, ClientDisconnected):
            if submission.size:
                # Parts of it may have been staged; nothing of a refused request may stay in a file.
                self.sweeper.wake()
            raise
        if accepted.request.store:
            self.creates.here.add(accepted.response_id)
        return Created(self, submission.owner, accepted, accepted.response_id, accepted.request)

    async def follow(self, owner: str, response_id: str, after: int = -1) -> Cursor:
        """Return a cursor behind an event of a stored response. Raises NotFound."""
        await self._check_exists(owner, response_id)
        self.services.counts.resumes += 1
        return self.reader.follow(response_id, after, owner)

    async def trace_resume(self, origin: Origin, response_id: str) -> Span:
        """Start the span of a stream that follows a response."""
        tracer, trace_id = self.services.tracer, None
        if tracer.is_tracing and (batch := await self.storage.journal.read(response_id, -1, 1)) is not None:
            created = msgspec.json.decode(payloads(batch.frames)[0])
            trace_id = (created["response"].get("outlive") or {}).get("trace_id")
        return tracer.start_resume(origin, response_id, trace_id)

    async def has_ended_by(self, owner: str, response_id: str, after: int) -> bool:
        """Return True if a response has ended with that event or before it. Raises NotFound."""
        await self._check_exists(owner, response_id)
        batch = await self.storage.journal.read(response_id, after, 1)
        return batch is not None and not batch.frames

    async def _check_exists(self, owner: str, response_id: str) -> None:
        if await self.storage.catalog.status(owner, response_id) is None:
            raise NotFound(f"Response with id '{response_id}' not found.")

    async def create_ticket(self, owner: str, target: str, of_response: bool, seconds: float | None) -> Json:
        """Create a ticket for a response or a conversation. Raises NotFound."""
        await (self._check_exists(owner, target) if of_response else self.get_conversation(owner, target))
        return await self.tickets.create(owner, target, seconds)

    def make_reservation(self, owner: str) -> Reservation:
        return Reservation(self.reader.answers, owner)

    async def wait_end(self, owner: str, response_id: str, seconds: float) -> None:
        """Wait for the end of a response, that long at most. Raises NotFound."""
        if await self.storage.catalog.status(owner, response_id) in RUNNING:
            with contextlib.suppress(StreamInterrupted):  # shutting down: it is shown as far as it is
                await self.reader.wait_end(response_id, seconds)

    async def show(self, owner: str, response_id: str) -> View:
        return await self._view(await self.storage.catalog.response(owner, response_id))

    async def cancel(self, owner: str, response_id: str) -> View:
        """Cancel a response, wherever it runs, and return its end (D8)."""
        record = await self.storage.catalog.response(owner, response_id)
        if record.snapshot is None:
            await self.worker.cancel(response_id)
            record = await self.storage.catalog.response(owner, response_id)
        return await self._view(record)

    async def delete(self, owner: str, response_id: str) -> None:
        """Delete a response; one that runs is cancelled first (D18)."""
        if (await self.storage.catalog.response(owner, response_id)).snapshot is None:
            await self.worker.cancel(response_id)
        await self.storage.ledger.delete(owner, response_id)
        self.sweeper.wake()

    async def list_responses(self, owner: str, paging: Paging, filters: Filters, details: bool = False) -> Page:
        """List an owner's responses, without their long fields; with `details` about where and how far each ran."""
        records, more = await self.storage.catalog.responses(owner, paging, filters)
        headers = await self.reader.headers([each.response_id for each in records if each.status in RUNNING])
        queue = await self._find_queue_positions(records)
        data: list[Json] = []
        for record in records:
            if record.snapshot is None and record.response_id not in headers:
                # The final object is long: one at a time, and decoded in a thread.
                with contextlib.suppress(NotFound):  # deleted since
                    whole = await self.storage.catalog.response(record.owner, record.response_id)
                    data.append(await asyncio.to_thread(_summarise, whole, None, None))
            else:
                data.append(_summarise(record, headers.get(record.response_id), queue.get(record.response_id)))
        if paging.wide:
            owners = {record.response_id: record.owner for record in records}
            data = [add_owner(each, owners[each["id"]]) for each in data]
        return Page(await self._add_runs(data) if details else data, more)

    async def _add_runs(self, summaries: list[Json]) -> list[Json]:
        runs = await self.storage.catalog.runs([each["id"] for each in summaries])
        detailed = []
        for summary in summaries:
            if (run := runs.get(summary["id"])) is not None:
                live = self.reader.live.get(summary["id"])
                attempts = (summary.get("outlive") or {}).get("attempts", run.attempts or 1)
                node = run.node if run.ended_at is None else run.taken[-1][1] if run.taken else None
                events = live.fold.last + 1 if live is not None and run.events is None else run.events
                about = {"attempts": attempts, "node": node, "events": events, "ended_at": run.ended_at}
                detailed.append(add_details(summary, about))
        return detailed

    async def show_timeline(self, owner: str, response_id: str) -> Json:
        """Return the milestones of a response with their times and nodes, read from its journal."""
        record = await self.storage.catalog.response(owner, response_id)
        run = (await self.storage.catalog.runs([response_id]))[response_id]
        details = read_details(record.snapshot)
        milestones = Milestones(details.get("resumed_at") or run.resumed_at)
        journal = self.storage.journal
        while (page := await journal.read(response_id, milestones.last, FOLD_BYTES)) is not None and page.frames:
            await asyncio.to_thread(milestones.add, page.last, page.frames, page.times)
        attempts = max(details.get("attempts", 1), run.attempts or 1, len(run.resumed_at) + 1)
        about = {"object": "response.timeline", "response_id": response_id, "status": record.status}
        timeline = make_timeline(milestones, run.taken, run.created_at, run.ended_at)
        return about | {"attempts": attempts} | timeline

    async def find_model_of(self, owner: str, response_id: str) -> str | None:
        """Return the model that gave an answer; None while it is running."""
        record = await self.storage.catalog.response(owner, response_id)
        return None if record.snapshot is None else str(msgspec.json.decode(record.snapshot)["model"])

    async def _view(self, record: Record) -> View:
        if record.snapshot is not None:
            return View(record.snapshot)
        fold = await self.reader.fold(record.response_id)
        if fold.ended:
            return View(fold.snapshot())
        # A young run may end soon; one that has been going for minutes will hardly end in the next second.
        poll_after = min(max((self.services.clock.now() - record.created_at) / 10, 0.25), 5.0)
        if fold.status == "queued" and (queue := (await self._find_queue_positions([record])).get(record.response_id)):
            return View(msgspec.json.encode(add_details(fold.response(), queue)), poll_after)
        return View(fold.snapshot(), poll_after)

    async def _find_queue_positions(self, records: list[Record]) -> dict[str, Json]:
        """Return the extra object of each queued response: its position (1 is the next) and how long it is queued."""
        queued = {record.response_id: record.created_at for record in records if record.status == "queued"}
        positions = await self.storage.catalog.queue(list(queued)) if queued else {}
        now = self.services.clock.now()
        return {
            response_id: {"queue": {"place": position, "seconds": max(0, int(now - queued[response_id]))}}
            for response_id, position in positions.items()
        }

    # -- conversations

    async def create_conversation(
        self, owner: str, metadata: dict[str, str], items: list[Json], idempotency: Idempotency | None, large: bool
    ) -> Json:
        """Create a conversation, or return the one that was created under the same key."""
        self._check_items(owner, items)
        now = self.services.clock.now()
        conversation: Json = {"id": self.ids.new("conv"), "object": "conversation"}
        conversation |= {"created_at": int(now), "metadata": metadata}
        made = await self.storage.conversations.create(owner, conversation, items, now, idempotency, large)
        return conversation if made == conversation["id"] else await self.storage.catalog.conversation(owner, made)

    async def update_conversation(self, owner: str, conversation_id: str, metadata: dict[str, str]) -> Json:
        self.policies.check_conversation(owner)
        return await self.storage.conversations.update(owner, conversation_id, metadata)

    async def delete_conversation(self, owner: str, conversation_id: str) -> None:
        await self.storage.conversations.delete(owner, conversation_id)
        self.sweeper.wake()

    async def add_items(
        self, owner: str, conversation_id: str, items: list[Json], idempotency: Idempotency | None, large: bool
    ) -> Page:
        self._check_items(owner, items)
        now, conversations = self.services.clock.now(), self.storage.conversations
        return Page(await conversations.add_items(owner, conversation_id, items, now, idempotency, large), False)

    def _check_items(self, owner: str, items: list[Json]) -> None:
        self.policies.check_conversation(owner)
        self.backends.check_items(self.services.compactor.replace_ours(items))

    async def delete_item(self, owner: str, conversation_id: str, item_id: str) -> Json:
        """Delete an item, and return its conversation."""
        conversation = await self.storage.conversations.delete_item(owner, conversation_id, item_id)
        self.sweeper.wake()
        return conversation


class Created(msgspec.Struct, frozen=True, eq=False):
    """A response in the hands of the connection that created it."""

    engine: Engine
    owner: str
    accepted: Accepted
    id: str
    request: CreateResponse

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        (self.engine.creates.here if self.request.store else self.engine.ephemeral).discard(self.id)

    def follow(self) -> Cursor:
        return self.engine.reader.follow(self.id, owner=self.owner)

    def follow_end(self) -> Cursor:
        """Return a cursor behind the events of the admission, for a caller that waits for the end."""
        fold = self.accepted.fold
        return self.engine.reader.follow(self.id, fold.last if fold is not None else -1)

    async def show(self) -> View:
        """Return the response as admitted, or as it stands if this request attached to an earlier one's."""
        if self.accepted.fold is not None:
            return View(self.accepted.fold.snapshot(), 0.5)
        return await self.engine.show(self.owner, self.id)

    async def mark_answered(self) -> None:
        """Record that the client has its whole answer: a silent retry must not find this response (D17)."""
        if self.request.store:
            await self.engine.storage.ledger.mark_answered(self.id)

    async def abandon(self) -> None:
        """Cancel a run that has not ended, if its request asked for that: its connection is gone."""
        asked = self.request.store and self.request.outlive.get("on_disconnect") == "cancel"
        if asked and self.accepted.fold is not None:  # otherwise another connection has created it
            await self.engine.worker.abandon(self.owner, self.id)

    def remember(self) -> Memory | None:
        """Return what it takes to continue a response that is not stored; None if it failed or is stored."""
        return None if self.request.store else self.engine.ephemeral.remember(self.id)


def _summarise(record: Record, header: Json | None, queue: Json | None) -> Json:
    body: Json = msgspec.json.decode(record.snapshot or b"{}") if header is None else header
    summary = {name: value for name, value in body.items() if name not in LONG_FIELDS}
    if summary.get("status") == "queued":
        summary["status"] = record.status  # it may have begun since the event that this header is from
    return summary if queue is None else add_details(summary, queue)


async def _keep_running(job: Callable[[], Awaitable[None]]) -> None:
    """Run a job that has no end, and start it again after a bug: the others and the server must go on."""
    while True:
        try:
            await job()
        except Exception:  # a bug of any kind
            log.exception("background job failed, restarting")
            await asyncio.sleep(RESTART_SECONDS)

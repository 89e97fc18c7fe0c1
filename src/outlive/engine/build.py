"""Building an engine: for the server and for tests alike."""

from __future__ import annotations

from outlive.core.counts import Counts
from outlive.core.ids import IdSource
from outlive.engine.admission import Admitter
from outlive.engine.cluster.mirrors import Mirrors, ProgressNotifier
from outlive.engine.cluster.node import Node
from outlive.engine.context_queries import ContextQueries
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponses
from outlive.engine.delivery.reader import Reader, Shutdown
from outlive.engine.engine import Engine, EngineOptions, Parts
from outlive.engine.ephemeral import EphemeralRuns, EphemeralStorage, Journals
from outlive.engine.packer import Packer
from outlive.engine.retries import PendingCreates, Retries
from outlive.engine.run.closer import Closer
from outlive.engine.run.compactor import Compactor
from outlive.engine.run.run import RunServices
from outlive.engine.slots import Slots
from outlive.engine.sweeper import Sweeper
from outlive.engine.worker import Worker
from outlive.ports.backend import Backends
from outlive.ports.clock import Clock
from outlive.ports.seal import Seal
from outlive.ports.storage import Storage
from outlive.ports.toolbox import Tools


def build(
    storage: Storage,
    memory: EphemeralStorage,
    backends: Backends,
    options: EngineOptions,
    *,
    clock: Clock,
    ids: IdSource,
    seal: Seal,
    tools: Tools | None = None,
) -> Engine:
    """Build an engine on a database. `seal` closes compaction items."""
    shutdown, live = Shutdown(), LiveResponses()
    journal = Journals(memory, storage.journal)
    mirrors = Mirrors(storage.journal, live, storage.bell) if storage.shared else None
    reader = Reader(live, journal, clock, shutdown, options.keep_alive_seconds, mirrors)
    counts, tracer = Counts(backends.models), options.tracer
    committer = Committer(storage.ledger, clock, options.commit_seconds, counts, tracer)
    services = RunServices(
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
    slots = Slots(options.capacity, shared=storage.shared)
    worker = Worker(options.name, storage, services, live, slots, shutdown, options.claims)
    ephemeral = EphemeralRuns(memory.ledger, services, live)
    creates = PendingCreates(storage.bell, alone=not storage.shared)
    retries = Retries(storage.catalog, clock, creates)
    admitter = Admitter(storage, services, worker, ephemeral, retries, ids, options.limits, options.event_names)
    contexts = ContextQueries(storage, services, worker)
    sweeper = Sweeper(storage.retention, clock, options.retention)
    after = options.pack_after
    packer = Packer(storage.packing, clock, counts, after) if after is not None else None
    node = None
    if mirrors is not None and reader.remote_folds is not None:
        notifier = ProgressNotifier(live, storage.bell, clock)
        node = Node(storage, worker, mirrors, reader.remote_folds, notifier, creates)
    parts = Parts(
        storage=storage,
        backends=backends,
        services=services,
        worker=worker,
        admitter=admitter,
        ephemeral=ephemeral,
        reader=reader,
        creates=creates,
        contexts=contexts,
        sweeper=sweeper,
        packer=packer,
        node=node,
    )
    return Engine(parts, options, ids)

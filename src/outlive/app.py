"""Settings become a running server, and a signal ends it. Adapters are picked here, and in `home` for the storage."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Mapping

import uvloop

from outlive import logs
from outlive.clock import RandomIds, SystemClock
from outlive.config.settings import Settings
from outlive.core import routing
from outlive.core.errors import InvalidRequest
from outlive.dialects.build import make_backend
from outlive.dialects.embedded.backend import MODEL, LocalModel
from outlive.dialects.transport.http1 import Pool
from outlive.engine.admission import Admitter
from outlive.engine.cluster.mirrors import Mirrors
from outlive.engine.cluster.node import Node
from outlive.engine.cluster.notifier import ProgressNotifier
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponses
from outlive.engine.delivery.reader import Reader
from outlive.engine.engine import Engine
from outlive.engine.ephemeral import EphemeralRuns
from outlive.engine.retries import PendingCreates
from outlive.engine.run.compactor import Compactor
from outlive.engine.run.context_queries import ContextQueries
from outlive.engine.run.runner import Route, Runner
from outlive.engine.slots import Capacity, Slots
from outlive.engine.sweeper import RetentionPolicy, Sweeper
from outlive.engine.worker import Worker
from outlive.ports.backend import Backend, Upstream
from outlive.ports.ledger import Quota
from outlive.served_agents.backend import load_agents
from outlive.server import leave_behind, listen, run_until_signal
from outlive.storage.memory import MemoryJournal, MemoryLedger
from outlive.storage.seal import SecretSeal, make_seal
from outlive.storage.storage import Storage, open_storage
from outlive.tooling.build import build_tools

log = logging.getLogger("outlive")

# Threads that commit and read must get a turn soon even while the loop is busy.
SWITCH_SECONDS = 0.0005


def serve(settings: Settings) -> None:
    """Serve until a signal says stop. Raises SettingsError when that cannot begin."""
    logs.start(settings.log_level)
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    asyncio.get_running_loop().set_exception_handler(logs.log_stray)
    async with contextlib.AsyncExitStack() as stack:
        listening = stack.enter_context(listen(settings))
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"  # of this process, and of no other ever
        home = await stack.enter_async_context(
            open_storage(settings.database, name, settings.lease_seconds, _quota(settings))
        )
        upstreams = settings.upstreams
        if not upstreams and not settings.agents:
            upstreams = [await stack.enter_async_context(_embedded())]
        pool = Pool()
        stack.callback(pool.close)
        engine, lives = build(settings, home, name, upstreams, pool)
        stack.push_async_callback(_close_backends, engine)
        if engine.node is not None:
            await engine.node.start()
            stack.push_async_callback(engine.node.stop)
        waiting = await engine.worker.recover()
        if waiting:
            log.info("taking up %d responses that were cut off", waiting)
        await run_until_signal(settings, engine, lives, listening)
    await leave_behind()


async def _close_backends(engine: Engine) -> None:
    await asyncio.gather(*(backend.close() for backend in engine.backends.values()), return_exceptions=True)


def build(
    settings: Settings, home: Storage, name: str, upstreams: list[Upstream], pool: Pool
) -> tuple[Engine, tuple[LiveResponses, LiveResponses]]:
    """The engine on a database, with a second, fleeting home for what is not stored."""
    clock, ids = SystemClock(), RandomIds()
    tool_seal = make_seal(settings.database, settings.seal_keys)
    tools = build_tools(settings, ids, tool_seal)
    backends: dict[str, Backend] = {upstream.name: make_backend(upstream, pool, ids) for upstream in upstreams}
    agents = load_agents(settings, ids)
    backends |= agents
    route = _make_route(upstreams, backends, agents)
    lives, fleeting_lives = LiveResponses(), LiveResponses()
    gate = Gate()
    echoes = Mirrors(home.journal, lives, home.bell) if home.shared else None
    reader = Reader(lives, home.journal, clock, gate, settings.keep_alive_seconds, echoes)
    committer = Committer(home.ledger, clock, settings.commit_ms / 1000)
    compactor = Compactor(SecretSeal([home.secret]), ids, clock)
    runner = Runner(
        route,
        home.history,
        clock,
        home.ledger,
        committer,
        run_seconds=settings.run_seconds,
        tools=tools,
        compactor=compactor,
    )
    room = Slots(_capacity(settings), shared=home.shared)
    takes = settings.role != "api"
    worker = Worker(name, home.ledger, runner, reader, lives, clock, room, home.bell, home.heartbeat, takes=takes)
    answering = PendingCreates(home.bell, alone=not home.shared)
    gate.worker = worker

    memory_journal = MemoryJournal()
    memory = MemoryLedger(memory_journal)
    memory_runner = Runner(
        route,
        home.history,
        clock,
        memory,
        Committer(memory, clock, 0.0),
        run_seconds=settings.run_seconds,
        tools=tools,
        compactor=compactor,
    )
    fleeting = EphemeralRuns(memory, memory_runner, fleeting_lives)
    retention = RetentionPolicy(
        response_days=settings.response_days,
        conversation_days=settings.conversation_days,
        every_seconds=settings.sweep_seconds,
    )
    engine = Engine(
        backends=backends,
        route=route,
        door=Admitter(
            route,
            home.ledger,
            home.catalog,
            home.history,
            worker,
            fleeting,
            clock,
            ids,
            settings.limits,
            answering,
            tools.toolbox,
            tool_seal,
            compactor,
            settings.event_names,
        ),
        contexts=ContextQueries(route, home.catalog, home.history, compactor, worker),
        worker=worker,
        fleeting=fleeting,
        reader=reader,
        fleeting_reader=Reader(fleeting_lives, memory_journal, clock, fleeting, settings.keep_alive_seconds),
        ledger=home.ledger,
        catalog=home.catalog,
        conversations=home.conversations,
        sweeper=Sweeper(home.retention, clock, retention),
        clock=clock,
        ids=ids,
        limits=settings.limits,
        is_healthy=home.probe,
        node=_make_node(home, worker, reader, lives, answering, clock),
        abandon_after=settings.abandon_after,
    )
    return engine, (lives, fleeting_lives)


def _quota(settings: Settings) -> Quota:
    return Quota(
        queued=settings.max_waiting,
        running_per_owner=settings.max_running_per_owner,
        queued_per_owner=settings.max_waiting_per_owner,
    )


def _make_node(
    home: Storage, worker: Worker, reader: Reader, lives: LiveResponses, answering: PendingCreates, clock: SystemClock
) -> Node | None:
    """What it takes to be one among several; None where nobody else can be."""
    if not home.shared:
        return None
    crier = ProgressNotifier(lives, home.bell, clock)
    return Node(worker, reader, crier, answering, home.ledger, home.bell, home.heartbeat)


class Gate:
    """Whether the server is going away, as readers need to know."""

    worker: Worker

    @property
    def draining(self) -> bool:
        return self.worker.draining

    @property
    def leaving(self) -> bool:
        return self.worker.leaving


def _make_route(upstreams: list[Upstream], backends: dict[str, Backend], agents: Mapping[str, Backend]) -> Route:
    def route(model: str) -> tuple[Backend, str]:
        if model in agents:
            return agents[model], model
        if not upstreams:
            known = f"There is no model {model!r} here, only {', '.join(agents)}."
            raise InvalidRequest(known, param="model", code="model_not_found")
        name, upstream_model = routing.route(model, upstreams)
        answers_all = any(upstream.name == name and upstream.any_model for upstream in upstreams)
        return backends[name], MODEL if answers_all else upstream_model

    return route


def _capacity(settings: Settings) -> Capacity:
    return Capacity(
        running=settings.max_running,
        waiting=settings.max_waiting,
        running_per_owner=settings.max_running_per_owner,
        waiting_per_owner=settings.max_waiting_per_owner,
    )


@contextlib.asynccontextmanager
async def _embedded() -> AsyncIterator[Upstream]:
    local = LocalModel(log.info)
    try:
        yield await local.start()
    finally:
        await local.stop()

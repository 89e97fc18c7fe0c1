"""The only place that picks adapters: settings become a running server, and a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator

import uvicorn
import uvloop

from outlive import logs
from outlive.adapters.backends.http1 import Pool
from outlive.adapters.backends.local import MODEL, LocalModel
from outlive.adapters.backends.openai_chat import ChatBackend
from outlive.adapters.memory.journal import MemoryJournal
from outlive.adapters.memory.ledger import MemoryLedger
from outlive.adapters.sqlite.catalog import SqliteCatalog
from outlive.adapters.sqlite.connection import Database
from outlive.adapters.sqlite.conversations import SqliteConversations
from outlive.adapters.sqlite.history import SqliteHistory
from outlive.adapters.sqlite.journal import SqliteJournal
from outlive.adapters.sqlite.keeper import SqliteKeeper
from outlive.adapters.sqlite.ledger import SqliteLedger
from outlive.config import Settings
from outlive.core import routing
from outlive.core.errors import SettingsError
from outlive.engine.admission import Door
from outlive.engine.committer import Committer
from outlive.engine.engine import Engine
from outlive.engine.fleeting import Fleeting
from outlive.engine.live import Lives
from outlive.engine.reader import Reader
from outlive.engine.runner import Route, Runner
from outlive.engine.sweeper import Retention, Sweeper
from outlive.engine.worker import Capacity, Worker
from outlive.http.app import Access, Application
from outlive.ports.backend import Backend, Upstream
from outlive.system import RandomIds, SystemClock

log = logging.getLogger("outlive")

# Threads that commit and read must get a turn soon even while the loop is busy.
SWITCH_SECONDS = 0.0005
# How often young garbage is collected, and after how many times all of it.
COLLECT_SECONDS = 5.0
FULL_EVERY = 60


def serve(settings: Settings) -> None:
    """Serve until a signal says stop. Raises SettingsError when that cannot begin."""
    logs.start(settings.log_level)
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    asyncio.get_running_loop().set_exception_handler(logs.log_stray)
    listening = _listen(settings)
    async with contextlib.AsyncExitStack() as stack:
        database = Database(str(settings.database_path))
        stack.push_async_callback(database.close)
        upstreams = settings.upstreams or [await stack.enter_async_context(_embedded())]
        pool = Pool()
        stack.callback(pool.close)
        engine, lives = build(settings, database, upstreams, pool)
        waiting = await engine.worker.recover()
        if waiting:
            log.info("taking up %d responses that were cut off", waiting)
        await _run_until_signal(settings, engine, lives, listening)


def build(
    settings: Settings, database: Database, upstreams: list[Upstream], pool: Pool
) -> tuple[Engine, tuple[Lives, Lives]]:
    """The engine on SQLite, with a second, fleeting home for what is not stored."""
    clock, ids = SystemClock(), RandomIds()
    backends: dict[str, Backend] = {upstream.name: ChatBackend(upstream, pool, ids) for upstream in upstreams}
    route = _make_route(upstreams, backends)
    ledger, history, catalog = SqliteLedger(database), SqliteHistory(database), SqliteCatalog(database)
    lives, fleeting_lives = Lives(), Lives()
    gate = Gate()

    def make_reader(lives: Lives, journal: SqliteJournal | MemoryJournal, gate: Gate | Fleeting) -> Reader:
        return Reader(lives, journal, clock, gate, settings.keep_alive_seconds)

    reader = make_reader(lives, SqliteJournal(database), gate)
    committer = Committer(ledger, clock, settings.commit_ms / 1000)
    runner = Runner(route, history, clock, ledger, committer, run_seconds=settings.run_seconds)
    worker = Worker(f"{socket.gethostname()}-{os.getpid()}", ledger, runner, reader, lives, clock, _capacity(settings))
    gate.worker = worker

    memory_journal = MemoryJournal()
    memory = MemoryLedger(memory_journal)
    memory_runner = Runner(
        route, history, clock, memory, Committer(memory, clock, 0.0), run_seconds=settings.run_seconds
    )
    fleeting = Fleeting(memory, memory_runner, fleeting_lives)
    retention = Retention(
        response_days=settings.response_days,
        conversation_days=settings.conversation_days,
        every_seconds=settings.sweep_seconds,
    )
    engine = Engine(
        backends=backends,
        route=route,
        door=Door(route, ledger, catalog, history, worker, fleeting, clock, ids, settings.limits),
        worker=worker,
        fleeting=fleeting,
        reader=reader,
        fleeting_reader=make_reader(fleeting_lives, memory_journal, fleeting),
        ledger=ledger,
        catalog=catalog,
        conversations=SqliteConversations(database),
        sweeper=Sweeper(SqliteKeeper(database), clock, retention),
        clock=clock,
        ids=ids,
        limits=settings.limits,
        is_healthy=database.probe,
        abandon_after=settings.abandon_after,
    )
    return engine, (lives, fleeting_lives)


class Gate:
    """Whether the server is going away, as readers need to know."""

    worker: Worker

    @property
    def draining(self) -> bool:
        return self.worker.draining

    @property
    def leaving(self) -> bool:
        return self.worker.leaving


def _make_route(upstreams: list[Upstream], backends: dict[str, Backend]) -> Route:
    def route(model: str) -> tuple[Backend, str]:
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


# -- serving


class Server(uvicorn.Server):
    """uvicorn, without its own ideas about signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _run_until_signal(
    settings: Settings, engine: Engine, lives: tuple[Lives, Lives], listening: socket.socket
) -> None:
    access = Access(
        keys=settings.keys,
        origins=settings.cors_origins,
        max_body_bytes=settings.max_body_bytes,
        lenient_chat=settings.lenient_chat,
    )
    config = uvicorn.Config(
        Application(engine, access),
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="critical",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
    )
    server = Server(config)
    chores = [
        asyncio.create_task(engine.sweeper.run()),
        asyncio.create_task(engine.tick(lives, _tick_seconds(settings))),
        asyncio.create_task(_collect_garbage()),
    ]
    stopping = _stop_on_signal(server, engine, settings.grace_seconds)
    # What was built by now lives as long as the process: no collection need look at it.
    gc.freeze()
    gc.disable()
    log.info("listening on http://%s:%d", *listening.getsockname()[:2])
    await server.serve(sockets=[listening])
    for task in chores:
        task.cancel()
    await asyncio.gather(*chores, *stopping, return_exceptions=True)


async def _collect_garbage() -> None:
    """By the clock, not by the number of objects made: else many requests at once also pay for many collections."""
    while True:
        for _ in range(FULL_EVERY):
            await asyncio.sleep(COLLECT_SECONDS)
            gc.collect(1)
        gc.collect()


def _tick_seconds(settings: Settings) -> float:
    """Often enough for the shorter of the two patiences that are looked after at each tick."""
    abandon = settings.abandon_after if settings.abandon_after is not None else 60.0
    return max(min(settings.keep_alive_seconds / 3, abandon / 4, 5.0), 0.05)


def _stop_on_signal(server: Server, engine: Engine, grace: float) -> list[asyncio.Task[None]]:
    """The first signal drains, the second leaves at once: everything is on disk anyway."""
    stopping: list[asyncio.Task[None]] = []

    async def stop() -> None:
        log.info("stopping: no new responses, at most %g s for those that run", grace)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(engine.worker.drain(grace))
                group.create_task(engine.fleeting.drain(grace))
        finally:
            server.should_exit = True  # whatever went wrong: everything is on disk, and the next start takes it up

    def on_signal() -> None:
        if stopping:
            server.should_exit = server.force_exit = True
            stopping[0].cancel()
        else:
            stopping.append(asyncio.create_task(stop()))

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stopping


def _listen(settings: Settings) -> socket.socket:
    """Bind before anything else is opened, so that a port in use is the first thing one hears of."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise SettingsError(f"Cannot listen on {settings.host}:{settings.port}: {error.strerror}.") from error
    return listening

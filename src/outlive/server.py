"""Serve an engine on a socket, with its background tasks, until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import msgspec
import uvicorn

from outlive.config.settings import Settings
from outlive.config.sources import CHILD_VARIABLE
from outlive.core.errors import SettingsError
from outlive.engine.engine import Engine
from outlive.http.app import Access, Application
from outlive.http.compatibility import LOST, choose_protocols, find_fault
from outlive.http.connections import ConnectionLimits
from outlive.http.metrics import MetricsApplication, Scrape, fetch_metrics
from outlive.telemetry.metrics import Metrics
from outlive.watchdog import Watchdog

log = logging.getLogger("outlive")

# Seconds between two collections of young garbage; after this many of them, one of all garbage.
COLLECT_SECONDS = 5.0
FULL_EVERY = 60
# Seconds that a WebSocket client may leave a ping unanswered: a slow reader is not disconnected.
PONG_SECONDS = 120.0
# Seconds that cancelled tasks may take to stop when the server exits.
STUBBORN_SECONDS = 1.0
# Files that the process may have open: for each connection, with the upstream that answers it, and for all the rest.
_FILES_PER_CONNECTION = 2
_OTHER_FILES = 200
# Parameters of glibc's mallopt, and bytes of a block that goes back to the system when it is freed.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE_BLOCK = 1024 * 1024


class Inherited(NamedTuple):
    """Sockets that a supervisor gave to this process."""

    listening: socket.socket
    metrics: socket.socket  # for the metrics of this process alone
    control: socket.socket  # a byte to the supervisor: ready; from it: be not ready; its end: the supervisor is dead
    port: int  # of the supervisor's metrics of all processes


def inherit() -> Inherited | None:
    """Take what a supervisor gave. None without one."""
    *descriptors, port = map(int, os.environ.pop(CHILD_VARIABLE, "-1").split())
    listening, metrics, control = (socket.socket(fileno=each) for each in descriptors) if descriptors else [None] * 3
    return Inherited(listening, metrics, control, port) if listening and metrics and control else None


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: `_stop_on_signal` installs those of Outlive."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class EngineServer(Server):
    """Serves an engine over HTTP."""

    shares_port = False  # with other processes

    def __init__(self, settings: Settings, engine: Engine, scrape: Scrape | None = None, *, own: bool = True) -> None:
        """Use Outlive's `own` protocols, or else those of uvicorn."""
        self._engine = engine
        self.servers = []  # uvicorn sets it at its start
        self._application = Application(engine, msgspec.convert(settings, Access, from_attributes=True), scrape)
        limits = _fit_limits(msgspec.convert(settings, ConnectionLimits, from_attributes=True))
        config = uvicorn.Config(
            self._application,
            **choose_protocols(limits, self._application.security, own=own),
            # Neither compressed, which would cost more than it saves on small frames, nor larger than a body may be.
            ws_max_size=settings.max_body_bytes,
            ws_per_message_deflate=False,
            ws_ping_interval=settings.keep_alive_seconds,
            ws_ping_timeout=PONG_SECONDS,
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
        super().__init__(config)

    async def stop(self, grace: float) -> None:
        """Drain the engine, then let `serve` return."""
        try:
            self._application.drain()
            for server in self.servers if self.shares_port else ():
                server.close()  # other processes accept
            await self._engine.drain(grace)
        finally:
            self._application.security.flush()
            self.should_exit = True  # whatever went wrong: everything is durable, and the next start recovers it


async def run_until_signal(
    settings: Settings, engine: Engine, listening: socket.socket, inherited: Inherited | None = None
) -> None:
    """Serve until a signal has drained the engine."""
    return_large_blocks()
    metrics = Metrics(engine, lease_seconds=settings.lease_seconds, owners=settings.metrics_owners)
    if (fault := await find_fault()) is not None:
        log.warning("this version of uvicorn is not known here (%s): %s", fault, LOST)
    scrape = partial(fetch_metrics, inherited.port) if inherited else metrics.render
    server = EngineServer(settings, engine, scrape, own=fault is None)
    server.shares_port = inherited is not None
    background = [asyncio.create_task(job) for job in (engine.run(), metrics.run(), _collect_garbage())]
    if inherited or settings.metrics_port:
        own = inherited.metrics if inherited else listen(settings.host, settings.metrics_port)
        background.append(asyncio.create_task(serve_metrics(metrics.render, own)))
    stopping = _stop_on_signal(server, engine, settings.grace_seconds, inherited and inherited.control)
    watchdog = Watchdog(settings.slow_step_ms / 1000)
    if settings.slow_step_ms:
        watchdog.start()
    # What was built by now lives as long as the process: no collection need look at it.
    gc.freeze()
    gc.disable()
    log.info("listening on http://%s:%d", *listening.getsockname()[:2])
    await server.serve(sockets=[listening])
    watchdog.stop()
    for task in background:
        task.cancel()
    await asyncio.gather(*background, *stopping, return_exceptions=True)


async def serve_metrics(scrape: Scrape, listening: socket.socket) -> None:
    """Serve /metrics on a port of its own until cancelled, also while the engine drains."""
    config = uvicorn.Config(
        MetricsApplication(scrape),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="critical",
    )
    with listening:
        await Server(config).serve(sockets=[listening])


async def end_stubborn_tasks() -> None:
    """Exit the process over tasks that will not end: code of users' agents and tools that cannot be cancelled.
    Everything is durable, and has no reader any more."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    stubborn = (await asyncio.wait(left, timeout=STUBBORN_SECONDS))[1] if left else set()
    if stubborn:
        log.warning("tasks of agents or tools did not stop: exiting anyway", extra={"count": len(stubborn)})
        logging.shutdown()
        os._exit(0)


async def _collect_garbage() -> None:
    """Collect garbage by the clock, not by the number of objects: a burst of requests must not pay for it."""
    while True:
        for _ in range(FULL_EVERY):
            await asyncio.sleep(COLLECT_SECONDS)
            gc.collect(1)
        gc.collect()


def _stop_on_signal(
    server: EngineServer, engine: Engine, grace: float, control: socket.socket | None
) -> list[asyncio.Task[None]]:
    """The first signal drains, the second leaves at once: everything is on disk anyway."""
    stopping: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stopping:
            server.should_exit = server.force_exit = True
            stopping[0].cancel()
        else:
            log.info("stopping: no new responses, at most %g s for those that run", grace)
            stopping.append(asyncio.create_task(server.stop(grace)))

    def on_control(control: socket.socket) -> None:
        if control.recv(1):
            engine.is_leaving = True
        else:
            loop.remove_reader(control)
            on_signal()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` starts programs that ignore SIGHUP
            loop.add_signal_handler(number, on_signal)
    if control is not None:
        loop.add_reader(control, on_control, control)
        control.send(b"+")
    return stopping


def raise_descriptor_limit(settings: Settings) -> None:
    """Let the process open the files that its connections need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OTHER_FILES + _FILES_PER_CONNECTION * settings.max_connections
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft not in (resource.RLIM_INFINITY, wanted) and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def return_large_blocks() -> None:
    """Have the C library return large blocks to the system when they are freed. By itself, glibc soon keeps blocks of
    up to 32 MB in the heaps of its threads, and the process stays several times as large as what it holds."""
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE_BLOCK)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGE_BLOCK)


def _fit_limits(limits: ConnectionLimits) -> ConnectionLimits:
    """Lower the number of connections to what the limit of open files allows."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = max(1, (files - _OTHER_FILES) // _FILES_PER_CONNECTION)
    if files == resource.RLIM_INFINITY or limits.max_connections <= most:
        return limits
    if most < limits.max_connections // 2:
        log.warning("max_connections is %d, because the process may open %d files only", most, files)
    return msgspec.structs.replace(limits, max_connections=most)


def listen(host: str, port: int, shared: bool = False) -> socket.socket:
    """Bind the socket. Called before anything else is opened, so that a port in use is the first error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise SettingsError(f"Cannot listen on {host}:{port}: {error.strerror}.") from error
    return listening

"""Serve an engine on a socket, with its background tasks, until a signal stops it, or supervise processes that do."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import msgspec
import uvicorn

from outlive.config.settings import Settings
from outlive.config.sources import CHILD_VARIABLE
from outlive.core.errors import SettingsError
from outlive.engine.engine import Engine
from outlive.http.access import Access
from outlive.http.app import Application
from outlive.http.compatibility import LOST, choose_protocols, find_fault
from outlive.http.connections import ConnectionLimits
from outlive.http.metrics import MetricsApplication, Scrape, fetch_metrics, merge_metrics
from outlive.telemetry.metrics import Metrics
from outlive.watchdog import Watchdog

log = logging.getLogger("outlive")

# Seconds between two collections of young garbage; after this many of them, one of all garbage.
COLLECT_SECONDS, FULL_EVERY = 5.0, 60
MANY_BLOCKS = 500_000  # of Python's allocator: some 20 ms of a collection
MOST_SKIPPED = 6
LOOK_SECONDS, REST_EVERY_SECONDS, REST_SECONDS = 0.05, 0.01, 0.00005
MAX_MESSAGE_BYTES = 16 * 1024 * 1024  # of a WebSocket
# Seconds that a WebSocket client may leave a ping unanswered: a slow reader is not disconnected.
PONG_SECONDS = 120.0
# Seconds that cancelled tasks may take to stop when the server exits.
STUBBORN_SECONDS = 1.0
# Seconds that a process must live to be restarted at once; below, the pauses between restarts grow up to the longest.
STEADY_SECONDS = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
# Files that the process may have open: for each connection, with the upstream that answers it, and for all the rest.
_FILES_PER_CONNECTION = 2
_OTHER_FILES = 200
# Parameters of glibc's mallopt, and bytes of a block that goes back to the system when it is freed.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGE_BLOCK = 1024 * 1024
# Options of uvicorn: it logs nothing, and there is nothing to start before it serves.
_QUIET: dict[str, Any] = {"lifespan": "off", "access_log": False, "log_config": None, "log_level": "critical"}


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
        limits = msgspec.convert(settings, ConnectionLimits, from_attributes=True)
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = max(1, (files - _OTHER_FILES) // _FILES_PER_CONNECTION)
        if files != resource.RLIM_INFINITY and most < limits.max_connections:
            if most < limits.max_connections // 2:
                log.warning("max_connections is %d, because the process may open %d files only", most, files)
            limits = msgspec.structs.replace(limits, max_connections=most)
        config = uvicorn.Config(
            self._application,
            **choose_protocols(limits, self._application.security, own=own),
            # Neither compressed, which would cost more than it saves on small frames, nor larger than a body may be.
            ws_max_size=min(settings.max_body_bytes, MAX_MESSAGE_BYTES),
            ws_per_message_deflate=False,
            ws_ping_interval=settings.keep_alive_seconds,
            ws_ping_timeout=PONG_SECONDS,
            **_QUIET,
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
    settings: Settings,
    engine: Engine,
    listening: socket.socket,
    announce: Callable[[], None],
    inherited: Inherited | None,
) -> None:
    """Serve until a signal has drained the engine. Without a supervisor, `announce` that."""
    return_large_blocks()
    metrics = Metrics(engine, lease_seconds=settings.lease_seconds, owners=settings.metrics_owners)
    if (fault := await find_fault()) is not None:
        log.warning("this version of uvicorn is not known here (%s): %s", fault, LOST)
    scrape = partial(fetch_metrics, inherited.port) if inherited else metrics.render
    server = EngineServer(settings, engine, scrape, own=fault is None)
    server.shares_port = inherited is not None
    background = [asyncio.create_task(job) for job in (engine.run(), metrics.run(), _collect_garbage(), _rest_often())]
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
    if inherited is None:
        announce()
    await server.serve(sockets=[listening])
    watchdog.stop()
    for task in background:
        task.cancel()
    await asyncio.gather(*background, *stopping, return_exceptions=True)


async def serve_metrics(scrape: Scrape, listening: socket.socket) -> None:
    """Serve /metrics on a port of its own until cancelled, also while the engine drains."""
    with listening:
        await Server(uvicorn.Config(MetricsApplication(scrape), ws="none", **_QUIET)).serve(sockets=[listening])


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


async def _rest_often() -> None:
    """Rest for a moment now and then while the event loop is busy. It releases the interpreter's lock again and again,
    but takes it back before a thread that waits for it has woken up: commits would wait for a second, and longer."""
    is_busy = False
    while True:
        used, pause = time.thread_time(), REST_EVERY_SECONDS if is_busy else LOOK_SECONDS
        await asyncio.sleep(pause)
        if is_busy := time.thread_time() - used > pause / 2:
            time.sleep(REST_SECONDS)  # noqa: ASYNC251 - as it says


async def _collect_garbage() -> None:
    """Collect garbage by the clock, not by the number of objects: a burst of requests must not pay for it. Wait for the
    end of a burst, MOST_SKIPPED turns at most, for to look at so many objects would hold up the event loop."""
    kept, skipped = sys.getallocatedblocks(), 0
    for turn in count(1):
        await asyncio.sleep(COLLECT_SECONDS)
        if sys.getallocatedblocks() > kept + MANY_BLOCKS and skipped < MOST_SKIPPED:
            skipped += 1
        else:
            gc.collect(2 if turn % FULL_EVERY == 0 else 1)
            kept, skipped = sys.getallocatedblocks(), 0


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


# -- several processes that serve one port: restart what dies, drain and replace one after the other


@dataclass(eq=False)
class Child:
    """A process, and the supervisor's ends of what it was given."""

    process: asyncio.subprocess.Process
    listening: socket.socket
    control: socket.socket
    metrics_port: int
    ready: asyncio.Task[bytes]  # returns nothing if the process ends before
    number: int  # in its metrics: the lowest that no other process has

    def was_ready(self) -> bool:
        return self.ready.done() and self.ready.result() != b""

    async def drain(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()


@dataclass
class Supervisor:
    """Runs the processes of one server.

    Each has a listening socket of its own (SO_REUSEPORT), over which the kernel spreads connections evenly. The
    supervisor holds them too: what waits for a process that dies or is replaced is accepted by the next one.
    """

    _settings: Settings
    _announce: Callable[[], None]  # that the server listens
    _slots: dict[int, Child] = field(default_factory=dict)  # the processes that there should be
    _children: list[Child] = field(default_factory=list)  # those that start or drain, too
    _listening: dict[int, socket.socket] = field(default_factory=dict)  # by slot
    _metrics: socket.socket = field(default_factory=lambda: listen("127.0.0.1", 0))  # of all processes
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _port: int = 0
    _code: int = 0

    async def run(self) -> int:
        """Supervise until a signal. Returns the exit code."""
        with listen(self._settings.host, self._settings.port) as probe:  # a port in use is not to be shared
            self._port = probe.getsockname()[1]
        jobs = [serve_metrics(self._scrape, self._metrics)]
        if self._settings.metrics_port:
            jobs.append(serve_metrics(self._scrape, listen(self._settings.host, self._settings.metrics_port)))
        wanted, loop = asyncio.Event(), asyncio.get_running_loop()
        background = [asyncio.create_task(job) for job in (self._reload(wanted), *jobs)]
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, wanted.set)
        self._announce()
        keepers = [asyncio.create_task(self._keep(slot)) for slot in range(self._settings.processes)]
        await self._stopping.wait()
        background[0].cancel()
        log.info("stopping: draining %d processes one after the other", len(self._alive()))
        for child in self._alive():
            with contextlib.suppress(OSError):
                child.control.send(b"-")  # not ready from now on, all together
        for child in self._alive():  # one after the other, so that the others take over what each leaves
            child.listening.close()
            await child.drain()
        for task in background:
            task.cancel()
        await asyncio.gather(*keepers, *background, return_exceptions=True)
        return self._code

    def _on_stop(self) -> None:
        """The first signal drains, the second kills: everything is on disk anyway."""
        for child in self._alive() if self._stopping.is_set() else ():
            child.process.kill()
        self._stopping.set()

    async def _keep(self, slot: int) -> None:
        """Restart the process of a slot whenever it dies."""
        pause = 0.0
        while not self._stopping.is_set():
            if slot not in self._slots or self._slots[slot] not in self._alive():
                self._slots[slot] = await self._start(slot)
            child, began = self._slots[slot], time.monotonic()
            code = await child.process.wait()
            if child is not self._slots[slot] or self._stopping.is_set():
                continue  # it was replaced or drained
            if not any(each.was_ready() for each in self._children):
                self._code = code if code > 0 else 1  # the settings are wrong, or the database is down
                self._stopping.set()
                return
            steady = time.monotonic() - began >= STEADY_SECONDS
            pause = 0.0 if steady else min(LONGEST_PAUSE, pause * 2 or FIRST_PAUSE)
            log.error("process died number=%d pid=%d code=%d next_in=%g", child.number, child.process.pid, code, pause)
            if pause > FIRST_PAUSE:
                self._listening.pop(slot).close()  # the kernel gives its connections to the others
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    async def _reload(self, wanted: asyncio.Event) -> None:
        """Replace one process after the other, whenever wanted, by one that reads the settings anew."""
        while await wanted.wait():
            wanted.clear()
            log.info("reloading: replacing %d processes one after the other", len(self._slots))
            for slot in self._slots:
                if self._slots[slot] not in self._alive():
                    continue  # its next start reads them too
                new = await self._start(slot)
                if not await new.ready:
                    log.error("reload stopped: the new process ended with code %d", await new.process.wait())
                    break
                old, self._slots[slot] = self._slots[slot], new
                await old.drain()
            else:
                log.info("reloaded")

    async def _start(self, slot: int) -> Child:
        if slot not in self._listening:
            self._listening[slot] = listen(self._settings.host, self._port, shared=True)
        control, given = socket.socketpair()
        control.setblocking(False)
        with given, listen("127.0.0.1", 0) as metrics:
            sockets = [each.fileno() for each in (self._listening[slot], metrics, given)]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "outlive", *sys.argv[1:]),
                env=os.environ | {CHILD_VARIABLE: " ".join(map(str, (*sockets, self._metrics.getsockname()[1])))},
                pass_fds=sockets,
                start_new_session=True,  # Ctrl-C is for the supervisor
            )
            port = metrics.getsockname()[1]
        ready = asyncio.create_task(asyncio.get_running_loop().sock_recv(control, 1))
        self._children = self._alive()
        number = next(each for each in count(1) if each not in [child.number for child in self._children])
        child = Child(process, self._listening[slot], control, port, ready, number)
        self._children.append(child)
        log.info("process started number=%d pid=%d", number, process.pid)
        return child

    def _alive(self) -> list[Child]:
        return [child for child in self._children if child.process.returncode is None]

    async def _scrape(self) -> bytes:
        children = [child for child in self._alive() if child.was_ready()]
        texts = await asyncio.gather(*(fetch_metrics(child.metrics_port) for child in children))
        return merge_metrics({str(child.number): text for child, text in zip(children, texts, strict=True)})

"""Serve an engine on a socket, with its background tasks, until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from collections.abc import Iterator

import uvicorn

from outlive.config.settings import Settings
from outlive.core.errors import SettingsError
from outlive.engine.engine import Engine
from outlive.http.app import Access, Application
from outlive.http.protocol import Protocol

log = logging.getLogger("outlive")

# Seconds between two collections of young garbage; after this many of them, one of all garbage.
COLLECT_SECONDS = 5.0
FULL_EVERY = 60
# Seconds that a WebSocket client may leave a ping unanswered: a slow reader is not disconnected.
PONG_SECONDS = 120.0
# Seconds that cancelled tasks may take to stop when the server exits.
STUBBORN_SECONDS = 1.0


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: `_stop_on_signal` installs those of Outlive."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class EngineServer(Server):
    """Serves an engine over HTTP."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        access = Access(
            keys=settings.keys,
            origins=settings.cors_origins,
            max_body_bytes=settings.max_body_bytes,
            lenient_chat=settings.lenient_chat,
            websocket_seconds=settings.websocket_seconds,
            only_health=settings.role == "worker",
        )
        self._engine = engine
        self._application = Application(engine, access)
        config = uvicorn.Config(
            self._application,
            http=Protocol,
            # Neither compressed, which would cost more than it saves on small frames, nor larger than a body may be.
            ws="websockets-sansio",
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
            self._application.sockets.drain()
            await self._engine.drain(grace)
        finally:
            self.should_exit = True  # whatever went wrong: everything is durable, and the next start recovers it


async def run_until_signal(settings: Settings, engine: Engine, listening: socket.socket) -> None:
    """Serve until a signal has drained the engine."""
    server = EngineServer(settings, engine)
    background = [asyncio.create_task(engine.run()), asyncio.create_task(_collect_garbage())]
    stopping = _stop_on_signal(server, settings.grace_seconds)
    # What was built by now lives as long as the process: no collection need look at it.
    gc.freeze()
    gc.disable()
    log.info("listening on http://%s:%d", *listening.getsockname()[:2])
    await server.serve(sockets=[listening])
    for task in background:
        task.cancel()
    await asyncio.gather(*background, *stopping, return_exceptions=True)


async def end_stubborn_tasks() -> None:
    """Exit the process over tasks that will not end: code of users' agents and tools that cannot be cancelled.
    Everything is durable, and has no reader any more."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    stubborn = (await asyncio.wait(left, timeout=STUBBORN_SECONDS))[1] if left else set()
    if stubborn:
        log.warning("leaving, though %d tasks of agents or tools would not stop", len(stubborn))
        logging.shutdown()
        os._exit(0)


async def _collect_garbage() -> None:
    """Collect garbage by the clock, not by the number of objects: a burst of requests must not pay for it."""
    while True:
        for _ in range(FULL_EVERY):
            await asyncio.sleep(COLLECT_SECONDS)
            gc.collect(1)
        gc.collect()


def _stop_on_signal(server: EngineServer, grace: float) -> list[asyncio.Task[None]]:
    """The first signal drains, the second leaves at once: everything is on disk anyway."""
    stopping: list[asyncio.Task[None]] = []

    def on_signal() -> None:
        if stopping:
            server.should_exit = server.force_exit = True
            stopping[0].cancel()
        else:
            log.info("stopping: no new responses, at most %g s for those that run", grace)
            stopping.append(asyncio.create_task(server.stop(grace)))

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    return stopping


def listen(settings: Settings) -> socket.socket:
    """Bind the socket. Called before anything else is opened, so that a port in use is the first error."""
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

"""Supervise several processes that serve one port: restart what dies, drain and replace one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from itertools import count

from outlive.config.settings import Settings
from outlive.config.sources import CHILD_VARIABLE
from outlive.http.metrics import fetch_metrics, merge_metrics
from outlive.server import listen, serve_metrics

log = logging.getLogger("outlive")

# Seconds that a process must live to be restarted at once; below, the pauses between restarts grow up to the longest.
STEADY_SECONDS = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0


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
        keepers = [asyncio.create_task(self._keep(slot)) for slot in range(self._settings.processes)]
        await self._stopping.wait()
        background[0].cancel()
        await self._drain()
        for task in background:
            task.cancel()
        await asyncio.gather(*keepers, *background, return_exceptions=True)
        return self._code

    def _on_stop(self) -> None:
        """The first signal drains, the second kills: everything is on disk anyway."""
        for child in self._alive() if self._stopping.is_set() else ():
            child.process.kill()
        self._stopping.set()

    async def _drain(self) -> None:
        """Drain one process after the other, so that the others take over what each leaves."""
        log.info("stopping: draining %d processes one after the other", len(self._alive()))
        for child in self._alive():
            with contextlib.suppress(OSError):
                child.control.send(b"-")  # not ready from now on, all together
        for child in self._alive():
            child.listening.close()
            await child.drain()

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

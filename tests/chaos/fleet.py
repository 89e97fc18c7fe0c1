"""Servers, each with a line of its own to one durable Postgres, and everything that can be done to them."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import asyncpg

from tests.support.line import Line
from tests.support.postgres import Cluster
from tests.support.server import OutliveServer

LEASE = 2.0
CONFIG = """
[upstreams.can]
url = "{url}"
continuation = "prefill"
default = true

[upstreams.cannot]
url = "{url}"
"""


class Node:
    """One server. `doing` says what is being done to it."""

    def __init__(self, server: OutliveServer, line: Line | None, name: str) -> None:
        self.server = server
        self.line = line
        self.name = name
        self.doing = "starts"
        self.pids: list[int] = []  # of all its lives

    @property
    def url(self) -> str:
        return self.server.base_url

    @property
    def runs(self) -> bool:
        return self.server.process is not None and self.server.process.poll() is None

    async def start(self) -> None:
        """Again and again, as whoever looks after servers does: without a database it cannot start."""
        while True:
            self.doing = "starts"
            self.server.launch()
            self.pids.append(self.server.pid)
            try:
                await asyncio.to_thread(self.server.wait_ready)
            except AssertionError:
                if self.runs:
                    raise
                await asyncio.sleep(0.3)
                continue
            self.doing = ""
            return

    async def kill(self) -> None:
        self.doing = "killed"
        await asyncio.to_thread(self.server.kill)

    async def terminate(self) -> None:
        self.doing = "ends"
        await asyncio.to_thread(self.server.terminate)

    def send(self, number: signal.Signals) -> None:
        if self.runs:
            assert self.server.process is not None
            self.server.process.send_signal(number)


class Fleet:
    """Nodes, lines and Postgres; `async with` it."""

    def __init__(self, folder: Path, upstream: str, *, count: int = 3, lease: float = LEASE) -> None:
        self.folder = folder
        self.nodes: list[Node] = []
        self.deeds: Counter[str] = Counter()
        self.lease = lease
        self._cluster = Cluster(durable=True)
        self._count = count
        self._upstream = upstream
        self._lines: list[Line] = []
        self._sql: asyncpg.Connection | None = None

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        await self._build(self._flags())
        await asyncio.gather(*(node.start() for node in self.nodes))
        return self

    def _flags(self) -> list[str]:
        config = self.folder / "outlive.toml"
        config.write_text(CONFIG.format(url=self._upstream))
        return ["--config", str(config), "--keep-alive-seconds", "1", "--grace-seconds", "1"]

    async def _build(self, flags: list[str]) -> None:
        await asyncio.to_thread(self._cluster.create)
        flags = [*flags, "--lease-seconds", f"{self.lease:g}"]
        for number in range(self._count):
            line = await Line(self._cluster.port).__aenter__()
            self._lines.append(line)
            url = f"postgresql://outlive@127.0.0.1:{line.port}/postgres"
            server = OutliveServer(self.folder / f"node-{number}", None, *flags, database_url=url)
            self.nodes.append(Node(server, line, f"node {number}"))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for node in self.nodes:
            if node.runs:
                await node.kill()
        for line in self._lines:
            await line.__aexit__(None, None, None)
        if self._sql is not None:
            self._sql.terminate()
        log = self._cluster.folder / "log"
        (self.folder / "postgres.log").write_bytes(log.read_bytes() if log.exists() else b"")
        await asyncio.to_thread(self._cluster.remove)

    async def sql(self, statement: str, *arguments: Any) -> list[Any]:
        """Ask the database itself, past the lines."""
        if self._sql is None or self._sql.is_closed():
            self._sql = await asyncpg.connect(self._cluster.url())
        return list(await self._sql.fetch(statement, *arguments))

    async def restart_postgres(self, how: signal.Signals) -> None:
        self.deeds["restart of Postgres" if how == signal.SIGINT else "crash of Postgres"] += 1
        await asyncio.to_thread(self._cluster.restart, how)

    async def mend(self) -> None:
        """Undo whatever was done: every node runs, on a line that is whole."""
        for node in self.nodes:
            if node.line is not None:
                node.line.come_up()
                node.line.thaw()
            node.send(signal.SIGCONT)
            if not node.runs:
                await node.start()
        for node in self.nodes:
            await asyncio.to_thread(node.server.wait_ready)
            node.doing = ""

    @property
    def tracebacks(self) -> list[str]:
        """The ends of logs that hold one."""
        logs = [(node.name, node.server.log) for node in self.nodes]
        return [f"{name}: ...{log[log.index('Traceback') :][:3000]}" for name, log in logs if "Traceback" in log]


class Alone(Fleet):
    """One server on a file."""

    async def _build(self, flags: list[str]) -> None:
        self.nodes.append(Node(OutliveServer(self.folder / "node", None, *flags), None, "the node"))

    async def sql(self, statement: str, *arguments: Any) -> list[Any]:
        file = sqlite3.connect(f"file:{self.nodes[0].server.database}?mode=ro", uri=True)
        try:
            file.row_factory = sqlite3.Row
            return file.execute(statement.replace("outlive.", "").replace("$", "?"), arguments).fetchall()
        finally:
            file.close()

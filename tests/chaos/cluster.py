"""The servers that the chaos tests inject faults into: three nodes on a durable Postgres, or one on SQLite."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import asyncpg

from tests.support.cluster import LEASE, Cluster
from tests.support.postgres import PostgresServer
from tests.support.proxy import Proxy
from tests.support.server import OutliveServer

CONFIG = """
[upstreams.can]
url = "{url}"
continuation = "prefill"
default = true

[upstreams.cannot]
url = "{url}"
"""
FLAGS = ("--keep-alive-seconds", "1", "--grace-seconds", "1")
NODES = 3


def write_config(folder: Path, upstream: str) -> str:
    """Write settings with one upstream that can continue an answer and one that cannot."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "outlive.toml"
    config.write_text(CONFIG.format(url=upstream))
    return str(config)


class ChaosNode:
    """One server. `state` is what a fault does to it at the moment; empty while it serves."""

    def __init__(self, name: str, server: OutliveServer, proxy: Proxy | None) -> None:
        self.name = name
        self.server = server
        self.state = "starting"
        self.pids: list[int] = []  # of all its starts
        self._proxy = proxy

    @property
    def url(self) -> str:
        return self.server.base_url

    @property
    def proxy(self) -> Proxy:
        assert self._proxy is not None, "there is no network in front of SQLite"
        return self._proxy

    def start(self) -> None:
        """Start it until it stays up, as a supervisor does: without its database it cannot start."""
        while True:
            self.state = "starting"
            self.server.launch()
            self.pids.append(self.server.pid)
            try:
                self.server.wait_ready()
            except AssertionError:
                if self.server.is_running:
                    raise
                time.sleep(0.3)
                continue
            self.state = ""
            return

    def recover(self) -> None:
        """Undo every fault, and start it if it is not running."""
        if self._proxy is not None:
            self._proxy.unblock()
            self._proxy.thaw()
        if self.server.is_running:
            self.server.send_signal(signal.SIGCONT)
        else:
            self.start()


class ChaosCluster:
    """Three nodes on a Postgres of their own, each behind a proxy; `async with` it. `injected` counts the faults."""

    def __init__(self, folder: Path, upstream: str) -> None:
        self.folder = folder
        self.lease = LEASE
        self.nodes: list[ChaosNode] = []
        self.injected: Counter[str] = Counter()
        self._config = write_config(folder, upstream)
        self._cluster: Cluster | None = None
        self._sql: asyncpg.Connection | None = None

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._build)
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in self.nodes))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sql is not None:
            self._sql.terminate()
        await asyncio.to_thread(self._stop)

    @property
    def _postgres(self) -> PostgresServer:
        assert self._cluster is not None
        return self._cluster.postgres

    def _build(self) -> None:
        postgres = PostgresServer(durable=True).create()
        self._cluster = Cluster(self.folder, None, "--config", self._config, *FLAGS, postgres=postgres)
        for number in range(NODES):
            node = self._cluster.add(proxied=True)
            self.nodes.append(ChaosNode(f"node {number}", node, node.proxy))

    def _stop(self) -> None:
        assert self._cluster is not None
        self._cluster.stop()
        log = self._postgres.folder / "log"
        (self.folder / "postgres.log").write_bytes(log.read_bytes() if log.exists() else b"")
        self._postgres.remove()

    async def sql(self, statement: str, *arguments: Any) -> list[Any]:
        """Run a statement in the database, past the proxies."""
        if self._sql is None or self._sql.is_closed():
            self._sql = await asyncpg.connect(self._postgres.url())
        return list(await self._sql.fetch(statement, *arguments))

    async def restart_postgres(self, how: signal.Signals) -> None:
        self.injected["restart of Postgres" if how == signal.SIGINT else "crash of Postgres"] += 1
        await asyncio.to_thread(self._postgres.restart, how)

    async def recover(self) -> None:
        """Undo every fault, and wait until every node is ready."""
        for node in self.nodes:
            await asyncio.to_thread(node.recover)
        for node in self.nodes:
            await asyncio.to_thread(node.server.wait_ready)
            node.state = ""

    @property
    def tracebacks(self) -> list[str]:
        """The ends of the logs with a traceback, from it on."""
        logs = [(node.name, node.server.log) for node in self.nodes]
        return [f"{name}: ...{log[log.index('Traceback') :][:3000]}" for name, log in logs if "Traceback" in log]


class SingleServer(ChaosCluster):
    """One server on SQLite."""

    def _build(self) -> None:
        server = OutliveServer(self.folder / "node", None, "--config", self._config, *FLAGS)
        self.nodes = [ChaosNode("the node", server, None)]

    def _stop(self) -> None:
        self.nodes[0].server.kill()

    async def sql(self, statement: str, *arguments: Any) -> list[Any]:
        file = sqlite3.connect(f"file:{self.nodes[0].server.database}?mode=ro", uri=True)
        try:
            file.row_factory = sqlite3.Row
            return file.execute(statement.replace("outlive.", "").replace("$", "?"), arguments).fetchall()
        finally:
            file.close()

"""Several real servers on one real Postgres."""

from __future__ import annotations

import time
from pathlib import Path

from tests.crash.client import Client, wait_until
from tests.nodes.line import Line
from tests.support.postgres import SHELF
from tests.support.server import OutliveServer

# How long a node may be silent until it is taken for dead, where a test waits for that.
LEASE = 2.0


class Node(OutliveServer):
    """One of them."""

    @property
    def client(self) -> Client:
        return Client(self.port)


class Crew:
    """Nodes by number. All have the same database, upstream and flags, but for what `add` is given."""

    def __init__(
        self, folder: Path, upstream: str | None, *flags: str, continuation: str | None = None, lease: float = LEASE
    ) -> None:
        self.database = SHELF.lasting()
        self.nodes: list[Node] = []
        self.line: Line | None = None  # of the one whose connections to the database can be cut
        self._folder = folder
        self._flags = [*flags, "--lease-seconds", f"{lease:g}"]
        self._upstream = upstream
        if continuation is not None:
            config = folder / "outlive.toml"
            config.write_text(f'[upstreams.scripted]\nurl = "{upstream}"\ncontinuation = "{continuation}"\n')
            self._flags, self._upstream = [*self._flags, "--config", str(config)], None

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def add(self, *flags: str, database: str | None = None) -> Node:
        """Another node, which does not run yet."""
        folder = self._folder / f"node-{len(self.nodes)}"
        node = Node(folder, self._upstream, *self._flags, *flags, database_url=database or self.database)
        self.nodes.append(node)
        return node

    def start(self) -> None:
        """Start those that do not run, all at once."""
        for node in self.nodes:
            if node.process is None:
                node.launch()
        for node in self.nodes:
            node.wait_ready()

    def stop(self) -> None:
        for node in self.nodes:
            if node.process is not None and node.process.poll() is None:
                node.kill()
        for node in self.nodes:
            assert "Traceback" not in node.log, node.log

    def sql(self, statement: str) -> str:
        """Ask the database itself."""
        return SHELF.cluster.sql(statement, self.database.rpartition("/")[2])

    def holder(self, response_id: str) -> str:
        """The process id of the node that holds a response's lease; empty when nobody does."""
        name = self.sql(
            "SELECT l.worker FROM outlive.leases l JOIN outlive.responses r ON r.key = l.response "
            f"WHERE r.id = '{response_id}'"
        )
        return name.split("-")[-2] if name else ""

    def check(self) -> None:
        """Nothing is left of any run, and none is without an end."""
        wait_until(lambda: self.sql("SELECT count(*) FROM outlive.leases") == "0", "all leases are gone")
        assert self.sql("SELECT count(*) FROM outlive.conversations WHERE running IS NOT NULL") == "0"
        statuses = self.sql("SELECT DISTINCT status FROM outlive.responses").split()
        assert set(statuses) <= {"completed", "incomplete", "failed", "cancelled"}


class Watch:
    """Seconds since something happened."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

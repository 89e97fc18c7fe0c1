"""Several real servers on one real Postgres, and a client that reads a response from any of them."""

from __future__ import annotations

import random
import threading
import time
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.http_client import ENDED, EventStream
from tests.support.postgres import DATABASES, PostgresServer
from tests.support.proxy import Proxy
from tests.support.server import OutliveServer
from tests.support.waiting import TIMEOUT_SECONDS, wait_until

# The time in which a reader must reach the end of its response, restarts of all nodes included.
READ_SECONDS = 90.0
# The age of the last heartbeat at which a node counts as dead, for tests that wait for a takeover.
LEASE = 2.0


class Node(OutliveServer):
    """A server of a cluster. `proxy` is between it and the database, where it has one."""

    proxy: Proxy | None = None


class Cluster:
    """Nodes by number, with the same database, upstream and flags, except for the flags that `add` is given."""

    def __init__(
        self,
        folder: Path,
        upstream: str | None,
        *flags: str,
        continuation: str | None = None,
        lease: float = LEASE,
        postgres: PostgresServer | None = None,
    ) -> None:
        self.folder = folder
        self.lease = lease
        self.postgres = postgres or DATABASES.server
        self.database = postgres.url() if postgres is not None else DATABASES.create()
        self.nodes: list[Node] = []
        self._proxies = ExitStack()
        self._flags = [*flags, "--lease-seconds", f"{lease:g}"]
        self._upstream = upstream
        if continuation is not None:
            config = folder / "outlive.toml"
            config.write_text(f'[upstreams.scripted]\nurl = "{upstream}"\ncontinuation = "{continuation}"\n')
            self._flags, self._upstream = [*self._flags, "--config", str(config)], None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if kind is None:
            for node in self.nodes:
                assert "Traceback" not in node.log, node.log

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    def add(self, *flags: str, proxied: bool = False) -> Node:
        """Add a node that is not running yet."""
        proxy = self._proxies.enter_context(Proxy(self.postgres.port)) if proxied else None
        url = self.database if proxy is None else proxy.redirect(self.database)
        folder = self.folder / f"node-{len(self.nodes)}"
        node = Node(folder, self._upstream, *self._flags, *flags, database_url=url)
        node.proxy = proxy
        self.nodes.append(node)
        return node

    def start(self, count: int = 0) -> Self:
        """Add so many nodes, and start all that were not started yet, at the same time."""
        for _ in range(count):
            self.add()
        for node in self.nodes:
            if node.process is None:
                node.launch()
        for node in self.nodes:
            node.wait_ready()
        return self

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
        self._proxies.close()

    def sql(self, statement: str) -> str:
        """Run a statement in the nodes' database."""
        return self.postgres.sql(statement, self.database.rpartition("/")[2])

    def find_owner(self, response_id: str) -> str:
        """Return the process id of the node that holds a response's lease; empty where none does."""
        name = self.sql(
            "SELECT l.worker FROM outlive.leases l JOIN outlive.responses r ON r.key = l.response "
            f"WHERE r.id = '{response_id}'"
        )
        return name.split("-")[-2] if name else ""

    def check(self) -> None:
        """Check that no lease and no lock is left, and that every response has ended."""
        wait_until(lambda: self.sql("SELECT count(*) FROM outlive.leases") == "0", "no lease is left")
        assert self.sql("SELECT count(*) FROM outlive.conversations WHERE running IS NOT NULL") == "0"
        statuses = self.sql("SELECT DISTINCT status FROM outlive.responses").split()
        assert set(statuses) <= set(ENDED)


class ResumingReader(threading.Thread):
    """Reads a response to its end from any node that answers, and resumes when its connection is cut.

    `frames` holds every frame it has read, `resumed` counts the resumptions.
    """

    def __init__(self, cluster: Cluster, response_id: str, stream: EventStream | None = None, seed: int = 0) -> None:
        super().__init__(daemon=True)
        self.id = response_id
        self.frames: list[bytes] = list(stream.frames) if stream is not None else []
        self.resumed = 0
        self.complete = False
        self._cluster = cluster
        self._stream = stream
        self._reading: tuple[EventStream, int] | None = None  # and how many of its frames are counted already
        self._random = random.Random(seed)
        self.start()

    def run(self) -> None:
        deadline = time.monotonic() + READ_SECONDS
        while not self.complete and time.monotonic() < deadline:
            try:
                stream = self._stream or self._open()
            except (OSError, HTTPException):
                time.sleep(0.05)
                continue
            self._stream = None
            if stream.status == 200:
                seen = len(stream.frames)
                self._reading = stream, seen
                stream.read_all()
                self._reading = None
                self.frames += stream.frames[seen:]
                self.complete = stream.complete
            stream.close()
            self.resumed += not self.complete

    @property
    def count(self) -> int:
        """The number of frames it has read, which may be one connection's too low at a resumption."""
        reading = self._reading
        return len(self.frames) + (len(reading[0].frames) - reading[1] if reading is not None else 0)

    def wait_count(self, count: int) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.count < count:
            assert time.monotonic() < deadline and not self.complete, f"{self.id}: {self.frames[-1:]}"
            time.sleep(0.01)

    def wait(self) -> None:
        self.join(READ_SECONDS)
        assert self.complete, f"{self.id} did not end: {self.frames[-1:]}"

    def _open(self) -> EventStream:
        node = self._random.choice(self._cluster.nodes)
        return node.client.follow(self.id, after=len(self.frames) - 1 if self.frames else None)

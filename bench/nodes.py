"""The lines of the table about Postgres and several nodes: what one carries, what two carry, and how far behind a
reader on another node is."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path

import machine
import servers
import writers
from client import REPLAY, Client, Tally
from figures import Figure, write
from load import Plan, Window, percentile
from servers import Server
from sitting import Pick, Sitting, Windows, median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for the private Postgres that the tests use

from tests.support.postgres import PostgresServer

# The latency within which all of it must be held: from the upstream's write to the client's read.
BOUND_MS = 50.0

cpu_per_1000: Pick = attrgetter("cpu_per_1000")
database_per_1000: Pick = attrgetter("database_per_1000")
cpu_per_request: Pick = attrgetter("cpu_per_request")
kept_per_request: Pick = attrgetter("database_per_request")


def late(window: Window) -> float:
    return window.latency_ms(0.99)


class Crew:
    """A durable Postgres and the nodes on it."""

    def __init__(self, sitting: Sitting, cluster: PostgresServer) -> None:
        self._sitting = sitting
        self.cluster = cluster
        self.nodes: list[Server] = []
        self._empty = 0  # bytes of the log before there is anything in it

    async def add(self, name: str, cores: set[int], others: list[Server] | None = None) -> Server:
        directory, upstream = self._sitting.outlive.log.parent, self._sitting.upstream.base
        server = servers.node(name, directory, cores, upstream, self.cluster.url(), self.cluster_processes)
        server.command += ["--pack-after", "never"]  # it would come in the middle of some lines
        server.others = others or []
        self.nodes.append(server)
        await asyncio.to_thread(server.start)
        self._empty = self._empty or self.log_size()
        return server

    def cluster_processes(self) -> list[int]:
        return machine.family(self.cluster.pid)

    def log_size(self) -> int:
        """Bytes of write-ahead log since the database was made."""
        return int(self.cluster.sql("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))

    def written_per_1000(self) -> float:
        """KB of write-ahead log, by all the events there are; admissions and ends are counted in, packing is not."""
        events = int(self.cluster.sql("SELECT sum(count) FROM outlive.events"))
        return (self.log_size() - self._empty) / events


@asynccontextmanager
async def crew_of(sitting: Sitting, cores: set[int]) -> AsyncIterator[Crew]:
    """Postgres on these cores."""
    sitting.say("starting Postgres")
    crew = Crew(sitting, PostgresServer(durable=True))
    try:
        with machine.pinned(cores):  # here, not in a thread: what is started inherits it
            crew.cluster.create()
        yield crew
    finally:
        for node in crew.nodes:
            await asyncio.to_thread(node.stop)
        crew.cluster.remove()


def _both(windows: Windows, pick: Pick) -> dict[str, str]:
    """The two values beside each other, as in the lines about growth."""
    return {"outlive": " / ".join(write(median(of, pick), "ms") for of in windows.values())}


async def one_node(sitting: Sitting) -> list[Figure]:
    """Events per second that one core can serve, by the CPU that they cost, at the same latency."""
    load = "one node, 200 streams x 50/s"
    plan = Plan(mode="stream", model="fake-n300-d20-t1", clients=200, seconds=6)
    async with crew_of(sitting, sitting.upstream.cores) as crew:
        node = await crew.add("postgres", sitting.outlive.cores)
        # Its first streams meet empty caches and a log without segments; the one on SQLite has served already.
        await sitting.rounds(
            [sitting.outlive, node], Plan(mode="stream", model="fake-n100-d20-t1", clients=200, seconds=2)
        )
        windows = await sitting.rounds([sitting.outlive, node], plan)
        written = crew.written_per_1000()
        plain = await sitting.rounds([node], Plan(mode="plain", model="fake-n1-d0", seconds=2 if sitting.quick else 4))
    slow = median(windows["postgres"], late)
    alone, node_cpu = median(windows["outlive"], cpu_per_1000), median(windows["postgres"], cpu_per_1000)
    kept, apart = median(windows["postgres"], database_per_1000), _both(windows, cpu_per_1000)
    ratio = alone / node_cpu
    return [
        Figure(load, "event latency p99 on Postgres", "ms", slow, BOUND_MS, 25, apart=_both(windows, late)),
        Figure(load, "events/s per core, Postgres against SQLite", "x", ratio, 0.9, 1.0, at_least=True, apart=apart),
        Figure(load, "the same, including Postgres' own CPU", "x", alone / (node_cpu + kept)),
        Figure(load, "Postgres' own CPU per 1,000 tokens", "ms", kept),
        Figure(load, "Postgres' log (WAL) per 1,000 events", "KB", written, 300, 150),
        Figure("stored plain request on Postgres", "CPU", "ms", median(plain["postgres"], cpu_per_request)),
        Figure("stored plain request on Postgres", "Postgres' own", "ms", median(plain["postgres"], kept_per_request)),
    ]


async def two_nodes(sitting: Sitting) -> list[Figure]:
    """100 streams on one, then 200 on both: what each costs must not grow with the other."""
    load = "two nodes, 100 streams x 25/s each"
    plan = Plan(mode="stream", model="fake-n150-d40-t1", clients=100, seconds=6)
    everywhere = sitting.upstream.cores | sitting.outlive.cores
    async with crew_of(sitting, everywhere) as crew:
        first = await crew.add("node", sitting.outlive.cores)
        windows = await sitting.rounds([first], plan)
        pair = await crew.add("two nodes", sitting.upstream.cores, [first])
        plan.clients = 200
        windows |= await sitting.rounds([pair], plan)
    slow = median(windows["two nodes"], late)
    ratio = 2 * median(windows["node"], cpu_per_1000) / median(windows["two nodes"], cpu_per_1000)
    kept, apart = median(windows["two nodes"], database_per_1000), _both(windows, cpu_per_1000)
    return [
        Figure(load, "event latency p99", "ms", slow, BOUND_MS, 25, apart=_both(windows, late)),
        Figure(load, "events/s on two cores against one", "x", ratio, 1.6, 1.9, at_least=True, apart=apart),
        Figure(load, "Postgres' own CPU per 1,000 tokens", "ms", kept),
    ]


async def lag(sitting: Sitting) -> list[Figure]:
    """Each stream is read twice at once: from the node that runs it, and from the other."""
    near, far = Tally(), Tally()
    async with crew_of(sitting, sitting.upstream.cores | sitting.outlive.cores) as crew:
        runs = await crew.add("node", sitting.outlive.cores)
        other = await crew.add("another", sitting.upstream.cores)
        near.open = far.open = True
        rounds = 1 if sitting.quick else sitting.runs
        for _ in range(rounds):
            sitting.say("20 streams, each read from two nodes")
            await asyncio.gather(*(_read_twice(runs, other, near, far, n * 0.05) for n in range(20)))
    load = "20 streams x 50/s, read from another node"
    figures = []
    for quantile, must, aim in ((0.5, 15.0, 5.0), (0.99, None, None)):
        times = [percentile(tally.latency, quantile) / 1e3 for tally in (near, far)]
        apart = {"outlive": " / ".join(write(each, "ms") for each in times)}
        name = f"behind the node that runs it, p{quantile * 100:.0f}"
        figures.append(Figure(load, name, "ms", times[1] - times[0], must, aim, apart=apart))
    dropped = near.dropped + far.dropped
    return [Figure(load, "dropped", "", dropped, 0, 0), *figures]


async def _read_twice(runs: Server, other: Server, near: Tally, far: Tally, delay: float) -> None:
    model = "fake-n150-d20-f200-t1"  # silent at first, so that both are there before the first token
    clients = [Client(server.base, model, tally, REPLAY) for server, tally in ((runs, near), (other, far))]
    await asyncio.sleep(delay)
    answer = await clients[0].create(background=True)
    path = f"/responses/{answer.json()['id']}?stream=true"
    await asyncio.gather(*(client.counted(client.call("GET", path), 150) for client in clients))
    for client in clients:
        client.close()


async def bell(sitting: Sitting) -> list[Figure]:
    """Eight nodes that write, with and without a bell that each rings after every commit."""
    load = "8 writers x 100 commits/s"
    everywhere = sitting.upstream.cores | sitting.outlive.cores
    async with crew_of(sitting, everywhere) as crew:
        sitting.say(load)
        with machine.pinned(everywhere):  # on one core alone, eight writers would wait for each other
            silent, rung = await writers.compare(crew.cluster.url(), max(5, sitting.runs))
    apart = {"outlive": f"{write(silent, 'ms')} / {write(rung, 'ms')}"}
    return [Figure(load, "commit p50, with NOTIFY against without", "x", rung / silent, 1.15, 1.0, apart=apart)]

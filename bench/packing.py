"""The lines of the table about packed journals: what is kept, what packing costs, and how soon one is replayed."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import nodes
import servers
from client import Client, Tally
from figures import Figure, write
from load import Plan
from servers import Server
from sitting import Pick, Sitting, each, median

from outlive.clock import SystemClock
from outlive.core.counts import Counts
from outlive.engine.slots import Capacity, Slots
from outlive.engine.sweeper import Packer
from outlive.ports.ledger import Quota
from outlive.storage.storage import open_storage

TOKENS = 1000  # of each answer
LONG = 10_000
CLIENTS = 4
TICK = 0.001

cpu_per_1000: Pick = attrgetter("cpu_per_1000")
# What is in use, with all indexes; free pages are used again.
_SQLITE = (
    "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
)
_POSTGRES = "SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables WHERE schemaname = 'outlive'"


def server_of(sitting: Sitting, name: str, pack_after: str) -> Server:
    """An Outlive with a new SQLite file."""
    directory = sitting.outlive.log.parent / name
    directory.mkdir(exist_ok=True)
    server = servers.outlive(directory, sitting.outlive.cores, sitting.upstream.base)
    return replace(server, name=name, command=[*server.command, "--pack-after", pack_after])


async def cost(sitting: Sitting) -> list[Figure]:
    """The same streams on two servers, one of which packs them a second later."""
    packs, keeps = server_of(sitting, "packs", "1"), server_of(sitting, "keeps", "never")
    plan = Plan(mode="stream", model="fake-n100-d20", clients=100, seconds=6, warmup=6)
    try:
        for server in (packs, keeps):
            await asyncio.to_thread(server.start)
        windows = await sitting.rounds([packs, keeps], plan)
    finally:
        for server in (packs, keeps):
            server.stop()
    ratio = median(windows["packs"], cpu_per_1000) / median(windows["keeps"], cpu_per_1000)
    apart = {"outlive": " / ".join(each(windows, cpu_per_1000, "ms").values())}
    return [Figure("packing", "CPU per 1,000 tokens, on against off", "x", ratio, 1.08, 1.03, apart=apart)]


async def kept(sitting: Sitting) -> list[Figure]:
    """Answers of 1,000 tokens on both databases, packed by this process, whose loop has nothing else to do."""
    server = server_of(sitting, "kept", "never")
    assert server.database is not None
    figures = await _kept(sitting, server, f"sqlite:///{server.database}", "SQLite", server.database)
    async with nodes.crew_of(sitting, sitting.upstream.cores) as crew:
        node = servers.node(
            "kept-node",
            server.log.parent,
            server.cores,
            sitting.upstream.base,
            crew.cluster.url(),
            crew.cluster_processes,
        )
        node.command += ["--pack-after", "never"]
        return figures + await _kept(sitting, node, crew.cluster.url(), "Postgres", crew)


async def _kept(sitting: Sitting, server: Server, url: str, kind: str, where: Path | nodes.Crew) -> list[Figure]:
    answers = 16 if sitting.quick else 100
    load = f"answers of {TOKENS:,} tokens, packed, {kind}"
    try:
        await asyncio.to_thread(server.start)
        empty = _size(where)
        sitting.say(f"{load}: writing")
        await asyncio.gather(*(_write(server, answers // CLIENTS) for _ in range(CLIENTS)))
        long = await _answer(server, LONG)
        server.stop()
        sitting.say(f"{load}: packing")
        before = _log(where)
        (idle, _), (pause, computing) = await _pack(url)
        tokens = answers // CLIENTS * CLIENTS * TOKENS + LONG
        logged = (_log(where) - before) / tokens
        per_token = (_size(where) - empty) / tokens
        await asyncio.to_thread(server.start)
        plan = Plan(mode="replay", model=f"fake-n{LONG}-d0", clients=1, seconds=3, response_id=long, after=(LONG // 2,))
        windows = await sitting.rounds([server], plan)
    finally:
        server.stop()
    first = median(windows[server.name], lambda window: window.first_ms(0.99))
    figures = [
        Figure(load, "bytes kept per token", "", per_token, 40, 20),
        Figure(
            load,
            "longest pause of the loop while packing",
            "ms",
            pause,
            5,
            2,
            apart={"outlive": f"idle {write(idle, 'ms')}, computing {write(computing, 'ms')}"},
        ),
        Figure(load, f"first event replayed from the middle of {LONG:,}, p99", "ms", first, 10, 3),
    ]
    return (
        figures if kind == "SQLite" else [*figures, Figure(load, "log (WAL) of packing per 1,000 tokens", "KB", logged)]
    )


async def _write(server: Server, answers: int) -> None:
    for _ in range(answers):
        await _answer(server, TOKENS)


async def _answer(server: Server, tokens: int) -> str:
    client = Client(server.base, f"fake-n{tokens}-d1", Tally())
    answer = await client.counted(client.create())
    client.close()
    return str(answer.json()["id"])


async def _pack(url: str) -> list[tuple[float, float]]:
    """Pack everything. Returns the longest delays of the loop for a second before it, and meanwhile."""
    async with open_storage(url, "bench", 10.0, Quota(queued=1)) as storage:
        idle = await _watch(asyncio.create_task(asyncio.sleep(1)))
        packer = Packer(storage.packing, SystemClock(), Counts(), 0, Slots(Capacity(queued=1, running=1)))
        return [idle, await _watch(asyncio.create_task(packer.pack(time.time())))]


async def _watch(task: asyncio.Task[None]) -> tuple[float, float]:
    """Wait for a task. Returns the longest delay of the loop in ms, and the most that it computed in one step."""
    longest = computing = 0.0
    while not task.done():
        began, computed = time.perf_counter(), time.thread_time()
        await asyncio.sleep(TICK)
        longest = max(longest, time.perf_counter() - began - TICK)
        computing = max(computing, time.thread_time() - computed)
    await task
    return longest * 1e3, computing * 1e3


def _size(where: Path | nodes.Crew) -> int:
    if isinstance(where, nodes.Crew):
        where.cluster.sql("VACUUM FULL")
        return int(where.cluster.sql(_POSTGRES))
    with closing(sqlite3.connect(f"file:{where}?mode=ro", uri=True)) as db:
        return int(db.execute(_SQLITE).fetchone()[0])


def _log(where: Path | nodes.Crew) -> int:
    return where.log_size() if isinstance(where, nodes.Crew) else 0

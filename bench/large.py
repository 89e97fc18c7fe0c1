"""The lines of the table about a large database: the same requests with a million stored responses and with a few.

A server makes one conversation with one answer; SQL multiplies it, with its packed journal. Both servers run at the
same time and are asked in turns, one request at a time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import sqlite3
import statistics
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import machine
from client import REPLAY, RESPONSES, Answer, Client, Tally, now
from figures import Figure, write
from servers import Server
from sitting import Sitting, settle

from outlive.clock import SystemClock
from outlive.engine.sweeper import Sweeper
from outlive.ports.ledger import Quota
from outlive.storage.storage import open_storage

TURNS = 10  # responses of a conversation
SPREAD = 50  # conversations that get turns
LEAVING = 50  # conversations of an owner whose data is deleted
SMALL, LARGE = 1_000, 1_000_000
OWNERS = {"local": "sk-bench", "leaver": "sk-leaver-of-the-bench"}

# Conversations of ten responses each, from the only conversation and its only response. Keys and ids are computed from
# numbers, so that a measurement can name any of them: `n` counts conversations, `k` all responses, `j` those of one.
MULTIPLY = """
CREATE TEMP TABLE n AS WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < :conversations)
  SELECT n, printf('conv_%032x', n) AS id, iif(n <= :leaving, 'leaver', 'local') AS owner FROM s;
CREATE TEMP TABLE k AS WITH RECURSIVE s(j) AS (SELECT 0 UNION ALL SELECT j + 1 FROM s WHERE j < :turns - 1)
  SELECT n.*, j, (n - 1) * :turns + j + 1 AS k, printf('resp_%032x', (n - 1) * :turns + j + 1) AS response
    FROM n, s ORDER BY n, j;
CREATE TEMP TABLE r AS SELECT * FROM responses LIMIT 1;
CREATE TEMP TABLE c AS SELECT * FROM conversations LIMIT 1;
CREATE TEMP TABLE i AS SELECT * FROM items;
CREATE TEMP TABLE p AS SELECT * FROM packs;
DELETE FROM responses;
DELETE FROM conversations;
DELETE FROM items;
DELETE FROM packs;
DELETE FROM threads;
INSERT INTO threads (key, head, used_at) SELECT n, 2 * :turns, :now FROM n;
INSERT INTO conversations (key, id, owner, created_at, used_at, thread, metadata)
SELECT n, n.id, n.owner, c.created_at, :now, n, c.metadata FROM n, c;
INSERT INTO responses (key, id, owner, status, background, created_at, ended_at, conversation, thread, first, input_end,
                       last, era, last_era, snapshot, runs, events, format)
SELECT k, k.response, k.owner, r.status, r.background, r.created_at, r.ended_at, k.id, n, 2 * j, 2 * j + 1,
       2 * j + 2, r.era, r.last_era, CAST(replace(CAST(r.snapshot AS TEXT), r.id, k.response) AS BLOB),
       r.runs, r.events, r.format
  FROM k, r;
INSERT INTO items (thread, position, id, response, body)
SELECT n, 2 * j + i.position, printf('msg_%032x', 2 * k + i.position), k, i.body FROM k, i;
INSERT INTO packs (response, first, count, at, block) SELECT k, p.first, p.count, p.at, p.block FROM k, p;
"""


@dataclass
class Filled:
    """A server on a database of so many responses."""

    responses: int
    server: Server
    took: dict[str, list[float]] = field(default_factory=dict)  # milliseconds of each kind of request


async def large(sitting: Sitting) -> list[Figure]:
    """Compare a database of a million responses with a small one."""
    most = 20_000 if sitting.quick else LARGE
    both = [await _fill(sitting, SMALL), await _fill(sitting, most)]
    times = 100 if sitting.quick else 400
    try:
        starts = [await asyncio.to_thread(_time_start, each.server) for each in both]
        await _ask_in_turns(sitting, both, times)
        recovered = [await _recover(sitting, each) for each in both]
    finally:
        for each in both:
            each.server.stop()
    load = f"{most:,} responses against {SMALL:,}"
    figures = [
        _compare(load, kind, [statistics.median(each.took[kind]) for each in both], 1.25, 1.1) for kind in both[0].took
    ]
    figures.append(_compare(load, "recovery of 100 runs after kill -9", recovered))
    for what, erase in (("sweeping, nothing expired", False), ("deleting and erasing an owner's 500 responses", True)):
        figures.append(_compare(load, what, [await _time_sweep(each, erase) for each in both]))
    apart = {"outlive": " / ".join(write(value * 1e3, "ms") for value in starts)}
    figures.append(Figure(load, "start-up until ready", "ms", starts[1] * 1e3, 3000, 1000, apart=apart))
    return figures


def _compare(load: str, what: str, values: list[float], must: float | None = None, aim: float | None = None) -> Figure:
    apart = {"outlive": " / ".join(write(value, "ms") for value in values)}
    return Figure(load, what, "x", values[1] / values[0], must, aim, apart=apart)


# -- making the databases


async def _fill(sitting: Sitting, responses: int) -> Filled:
    sitting.say(f"making a database of {responses:,} responses")
    server = _server(sitting, responses)
    await asyncio.to_thread(server.start)
    client = Client(server.base, "fake-n100-d0", Tally())
    conversation = (await client.call("POST", "/conversations", {})).json()["id"]
    await client.counted(client.create(conversation=conversation))
    client.close()
    await asyncio.to_thread(_wait_packed, server.database)
    server.stop()
    await asyncio.to_thread(_multiply, server.database, responses)
    return Filled(responses, server)


def _server(sitting: Sitting, responses: int) -> Server:
    like, port = sitting.outlive, machine.free_port()
    directory = like.log.parent
    database = directory / f"large-{responses}.db"
    command = [sys.executable, "-m", "outlive", "serve", "--port", str(port), "--database", f"sqlite:///{database}"]
    command += ["--upstream", sitting.upstream.base, "--pack-after", "0.1"]
    for name, key in OWNERS.items():
        command += ["--api-key", f"{name}={key}"]
    return Server(
        f"large-{responses}", command, port, like.cores, directory / f"large-{responses}.log", database=database
    )


def _wait_packed(database: Path | None) -> None:
    db = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        while db.execute("SELECT (SELECT count(*) FROM packs) = 0 OR EXISTS (SELECT 1 FROM events)").fetchone()[0]:
            time.sleep(0.1)
    finally:
        db.close()


def _multiply(database: Path | None, responses: int) -> None:
    assert database is not None
    names = {"conversations": responses // TURNS, "turns": TURNS, "leaving": LEAVING, "now": time.time()}
    script = MULTIPLY
    for name, value in names.items():
        script = script.replace(f":{name}", str(value))
    db = sqlite3.connect(database, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = OFF")
        db.executescript(f"BEGIN; {script} COMMIT;")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        db.close()


# -- asking the servers


def _time_start(server: Server) -> float:
    """Start a server and return the seconds until it is ready."""
    started = time.monotonic()
    server.start()
    url = f"http://127.0.0.1:{server.port}/readyz"
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return time.monotonic() - started
        except OSError:
            time.sleep(0.005)


async def _ask_in_turns(sitting: Sitting, both: list[Filled], times: int) -> None:
    chosen = random.Random(7)
    for kind, ask in KINDS.items():
        sitting.say(f"large databases: {kind}")
        clients = [
            Client(each.server.base, "fake-n1-d0", Tally(), REPLAY if kind == "resume" else RESPONSES) for each in both
        ]
        for number in range(times + 20):
            for each, client in zip(both, clients, strict=True):
                if kind == "turn":  # so that the conversations of both grow alike, and lie all over the file
                    step = (each.responses // TURNS - LEAVING) // SPREAD
                    response = (LEAVING + number % SPREAD * step) * TURNS + 1
                else:
                    response = chosen.randrange(LEAVING * TURNS + 1, each.responses + 1)
                started = now()
                answer = await ask(client, response)
                if number >= 20:  # warmed up
                    each.took.setdefault(kind, []).append((now() - started) * 1e3)
                assert answer.status in (200, 201, 202), answer.body
        for client, each in zip(clients, both, strict=True):
            client.close()
            await settle(each.server)


def _admit(client: Client, _: int) -> Awaitable[Answer]:
    return client.create(background=True)


def _turn(client: Client, response: int) -> Awaitable[Answer]:
    return client.create(conversation=f"conv_{(response - 1) // TURNS + 1:032x}")


def _get(client: Client, response: int) -> Awaitable[Answer]:
    return client.call("GET", f"/responses/resp_{response:032x}")


def _list(client: Client, response: int) -> Awaitable[Answer]:
    return client.call("GET", f"/responses?limit=20&after=resp_{response:032x}")


def _resume(client: Client, response: int) -> Awaitable[Answer]:
    return client.call("GET", f"/responses/resp_{response:032x}?stream=true&starting_after=50")


KINDS: dict[str, Callable[[Client, int], Awaitable[Answer]]] = {
    "admission": _admit,
    "turn": _turn,
    "GET": _get,
    "list": _list,
    "resume": _resume,
}


# -- crashes, retention and deletion


async def _recover(sitting: Sitting, filled: Filled) -> float:
    """Kill a server with 100 runs, start it again, and return the milliseconds from its start until all have ended."""
    sitting.say(f"large databases: recovery among {filled.responses:,}")
    server, client = filled.server, Client(filled.server.base, "fake-n200-d100-t1", Tally())
    ids = [(await client.create(background=True)).json()["id"] for _ in range(100)]
    await asyncio.sleep(1)
    client.close()
    server.stop(signal.SIGKILL)
    started = now()
    await asyncio.to_thread(_time_start, server)
    client = Client(server.base, "fake-n1-d0", Tally())
    for response_id in itertools.chain(ids, ids[:1]):
        path = f"/responses/{response_id}?wait=20"
        while (await client.call("GET", path)).json()["status"] in ("queued", "in_progress"):
            pass
    took = (now() - started) * 1e3
    client.close()
    return took


async def _time_sweep(filled: Filled, erase: bool) -> float:
    """Return the milliseconds of a round of the sweeper that finds nothing to do, or that erases all that the leaving
    owner had (the time for deleting it included)."""
    async with open_storage(f"sqlite:///{filled.server.database}", "bench", 10.0, Quota(queued=1)) as storage:
        sweeper = Sweeper(storage.retention, SystemClock(), 30, 30, 60.0, {})
        await sweeper.sweep()
        started = now()
        if erase:
            for number in range(1, LEAVING * TURNS + 1):
                await storage.ledger.delete("leaver", f"resp_{number:032x}")
            for number in range(1, LEAVING + 1):
                await storage.conversations.delete("leaver", f"conv_{number:032x}")
            sweeper.wake()
        await sweeper.sweep()
        return (now() - started) * 1e3

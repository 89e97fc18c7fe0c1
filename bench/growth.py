"""The lines of the table that ask whether cost grows with what is already there."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import machine
from client import Client, Tally, now
from figures import Figure, write
from load import RUNNING
from servers import Server
from sitting import Sitting, settle

STREAMS = 10
SPAN = 1000  # tokens of each stream over which CPU is counted
EARLY = 200


async def events(sitting: Sitting) -> list[Figure]:
    """A few very long streams in step, so that all of them are at about the same event at any time."""
    late = 4000 if sitting.quick else 20_000
    costs = []
    for run in range(2 * sitting.runs):  # twice as many as elsewhere: differences of a few per cent must show
        sitting.say(f"{STREAMS} streams of {late:,} events: run {run + 1}")
        costs.append(await _cost_along(sitting.outlive, (EARLY, late)))
        await settle(sitting.outlive)
    here, there = (statistics.median(column) for column in zip(*costs, strict=True))
    apart = {"outlive": f"{write(here, 'ms')} / {write(there, 'ms')}"}
    return [Figure("growth", f"CPU at event {late:,} against {EARLY}", "x", there / here, 1.15, 1.0, apart=apart)]


async def _cost_along(server: Server, places: tuple[int, int]) -> list[float]:
    """CPU ms per 1,000 tokens around each place."""
    tally, count = Tally(), places[-1] + SPAN
    tally.open = True
    clients = [Client(server.base, f"fake-n{count}-d1", tally) for _ in range(STREAMS)]
    streams = [asyncio.create_task(client.counted(client.create(stream=True), count)) for client in clients]
    costs = []
    for place in places:
        await _reach(tally, place - EARLY // 2, streams)
        processes, tokens = server.family(), tally.tokens
        cpu = machine.cpu_seconds(processes)
        await _reach(tally, place - EARLY // 2 + SPAN, streams)
        costs.append((machine.cpu_seconds(processes) - cpu) * 1e6 / (tally.tokens - tokens))
    await asyncio.gather(*streams)
    for client in clients:
        client.close()
    return costs


async def _reach(tally: Tally, place: int, streams: list[asyncio.Task[Any]]) -> None:
    while tally.tokens < place * STREAMS:
        if all(stream.done() for stream in streams):
            raise ConnectionError(f"the streams ended before event {place}")
        await asyncio.sleep(0.002)


async def conversation(sitting: Sitting) -> list[Figure]:
    async def start(client: Client) -> dict[str, Any]:
        return {"conversation": (await client.call("POST", "/conversations", {})).json()["id"]}

    return await _admission(sitting, "conversation", start, lambda fields, _: fields)


async def chain(sitting: Sitting) -> list[Figure]:
    async def start(client: Client) -> dict[str, Any]:
        return {}

    return await _admission(sitting, "chain", start, lambda _, response: {"previous_response_id": response["id"]})


async def _admission(
    sitting: Sitting,
    what: str,
    start: Callable[[Client], Awaitable[dict[str, Any]]],
    follow: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]],
) -> list[Figure]:
    """Time the acceptance of a turn: a background create answers then, before any model is asked."""
    client = Client(sitting.outlive.base, "fake-n1-d0", Tally())
    early, late, times = 10, 200 if sitting.quick else 1000, 20
    took: dict[int, list[float]] = {early: [], late: []}
    fields, response = await start(client), {"id": ""}
    for number in range(1, late + times):
        place = early if number < early + times else late
        if number % 100 == 0:
            sitting.say(f"{what}: turn {number}")
        if number >= place:
            started = now()
            response = (await client.counted(client.create(background=True, **fields))).json()
            took[place].append((now() - started) * 1e3)
            await _ended(client, response["id"])
        else:
            response = (await client.counted(client.create(**fields))).json()
        fields = follow(fields, response)
    client.close()
    here, there = (statistics.median(took[place]) for place in (early, late))
    load, apart = f"admission, {what}", {"outlive": f"{write(here, 'ms')} / {write(there, 'ms')}"}
    ranges = _ranges(sitting.outlive.database, response["id"])
    return [
        Figure(load, f"time at turn {late:,} against {early}", "x", there / here, apart=apart),
        Figure(load, "indexed ranges read for its history", "", ranges, 1, 1),
    ]


async def _ended(client: Client, response_id: str) -> None:
    status = RUNNING[0]
    while status in RUNNING:
        await asyncio.sleep(0.002)
        status = (await client.counted(client.call("GET", f"/responses/{response_id}"))).json()["status"]


def _ranges(database: Path | None, response_id: str) -> float:
    """Count the segments that hold the history of a response; each must be found by an index, none by a scan."""
    ancestors = """WITH RECURSIVE line(key, parent) AS (
        SELECT t.key, t.parent FROM threads t JOIN responses r ON r.thread = t.key WHERE r.id = ?
        UNION ALL SELECT t.key, t.parent FROM threads t JOIN line ON t.key = line.parent)
        SELECT count(*) FROM line"""
    read = "EXPLAIN QUERY PLAN SELECT body FROM items WHERE thread = ? AND position < ? ORDER BY position"
    try:
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        try:
            (segments,) = connection.execute(ancestors, (response_id,)).fetchone()
            plan = [step[3] for step in connection.execute(read, (1, 1))]
        finally:
            connection.close()
    except sqlite3.Error:  # the schema has changed: it cannot be asked
        return float("nan")
    indexed = len(plan) == 1 and plan[0].startswith("SEARCH items USING")
    return float(segments) if indexed else float("inf")

"""The two loads on procrastinate: jobs through its queue, and events through its own connections.

It has no event streams, so each event is a row of a table beside its queue, committed before the next is made.
"""

from __future__ import annotations

import asyncio
import sys
import time

import procrastinate
from loads import EVENTS, RUNS, STREAMS, Load, call_all, report, stamp

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=sys.argv[1], min_size=8, max_size=8))
started: list[float] = []
done = asyncio.Event()
ended = 0


@app.task(name="run")
async def run(accepted: float) -> None:
    started.append(time.time() - accepted)
    _count(RUNS)


@app.task(name="stream")
async def stream(number: int) -> None:
    for event in range(EVENTS):
        query = "INSERT INTO events (run, number, frame) VALUES (%(run)s, %(number)s, %(frame)s)"
        await app.connector.execute_query_async(query, run=number, number=event, frame=stamp(event))
    _count(STREAMS)


def _count(most: int) -> None:
    global ended
    ended += 1
    if ended == most:
        done.set()


async def _measure(load: Load, defer: object) -> Load:
    global ended
    ended = 0
    done.clear()
    with load:
        await defer()  # type: ignore[operator]
        await done.wait()
    return load


async def main() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await app.connector.execute_query_async("CREATE TABLE events (run int, number int, frame bytea)")
        await app.connector.execute_query_async("CREATE UNIQUE INDEX ON events (run, number)")
        worker = asyncio.create_task(app.run_worker_async(concurrency=STREAMS, install_signal_handlers=False))

        async def defer_runs() -> None:
            await call_all(lambda: run.defer_async(accepted=time.time()))

        async def defer_streams() -> None:
            await asyncio.gather(*(stream.defer_async(number=number) for number in range(STREAMS)))

        runs = await _measure(Load(), defer_runs)
        streams = await _measure(Load(), defer_streams)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    report(f"procrastinate {procrastinate.__version__}", runs, started, streams)


asyncio.run(main())

"""The two loads on DBOS: workflows through its queue, and events through its durable streams."""

from __future__ import annotations

import asyncio
import sys
import time
from importlib.metadata import version

from dbos import DBOS, DBOSConfig
from loads import EVENTS, STREAMS, Load, call_all, report, stamp

started: list[float] = []

DBOS(config=DBOSConfig(name="bench", system_database_url=sys.argv[1], log_level="ERROR", sys_db_pool_size=8))


@DBOS.workflow()
async def run(accepted: float) -> None:
    started.append(time.time() - accepted)


@DBOS.workflow()
async def stream() -> None:
    for event in range(EVENTS):
        await DBOS.write_stream_async("events", stamp(event).decode())


async def main() -> None:
    DBOS.launch()
    queue = await DBOS.register_queue_async("runs", worker_concurrency=STREAMS, polling_interval_sec=0.01)
    with Load() as runs:
        taken = await call_all(lambda: queue.enqueue_async(run, time.time()))
        for each in taken:
            await each.get_result()  # type: ignore[attr-defined]
    with Load() as streams:
        for each in [await queue.enqueue_async(stream) for _ in range(STREAMS)]:
            await each.get_result()
    report(f"DBOS {version('dbos')}", runs, started, streams)
    DBOS.destroy()


asyncio.run(main())

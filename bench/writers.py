"""Eight writers on one Postgres, each a node of its own, that commit at a steady pace, with a bell or without."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import uvloop

from outlive.clock import RandomIds
from outlive.core.requests.checks import Limits
from outlive.core.requests.create import parse_create
from outlive.ports.bell import Ring
from outlive.ports.ledger import Admission, AppendResult, Entry, Lease
from outlive.storage.postgres.bell import PostgresBell
from outlive.storage.postgres.connection import PostgresDatabase
from outlive.storage.postgres.ledger import PostgresLedger

WRITERS = 8
COMMITS = 200
PACE = 0.01  # seconds between two commits of a writer
FRAME = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":" word"}\n\n'

ids = RandomIds()
request = parse_create({"model": "m", "input": "Hi"}, ids, Limits())


@dataclass
class Writer:
    database: PostgresDatabase
    ledger: PostgresLedger
    bell: PostgresBell
    lease: Lease
    heard: int = 0
    last: int = 0

    async def write(self, ring: bool, took: list[float]) -> None:
        """So many commits, each at its time, however long the last one took."""
        began = time.perf_counter()
        for number in range(COMMITS):
            await asyncio.sleep(max(0.0, began + number * PACE - time.perf_counter()))
            self.last += 1
            started = time.perf_counter()
            (stands,) = await self.ledger.append([Entry(self.lease, self.last, 1, time.time(), FRAME)])
            took.append(time.perf_counter() - started)
            assert stands is AppendResult.WRITTEN
            if ring:
                self.bell.ring(Ring("advanced", self.lease.response_id, self.last))

    def on_chunks(self, ring: Ring) -> None:
        self.heard += ring.kind == "advanced"


async def hire(url: str) -> Writer:
    name = ids.new("writer")
    database, bell = await PostgresDatabase.open(url), PostgresBell(url)
    ledger = PostgresLedger(database, name)
    await bell.start()
    response_id = ids.new("resp")
    admission = Admission(
        response_id=response_id, owner="local", at=time.time(), request=request, status="in_progress",
        frames=FRAME, count=1, worker=name,
    )  # fmt: skip
    admitted = await ledger.admit(admission)
    assert admitted.lease is not None
    writer = Writer(database, ledger, bell, admitted.lease)
    bell.listen(writer.on_chunks)
    return writer


async def work(url: str, start: float, runs: int) -> None:
    """Phases without ringing and with it, in turns."""
    writer = await hire(url)
    for phase in range(2 * (runs + 1)):  # the first two are to warm up
        took: list[float] = []
        await asyncio.sleep(max(0.0, start + phase * (COMMITS * PACE + 0.5) - time.time()))
        await writer.write(phase % 2 == 1, took)
        if phase >= 2:
            print(json.dumps(took), flush=True)
    await asyncio.sleep(0.5)
    await writer.bell.close()
    await writer.ledger.finish()
    await writer.database.close()
    if not writer.heard:
        raise SystemExit("no process received the notification")


async def compare(url: str, runs: int) -> tuple[float, float]:
    """Milliseconds that a commit takes in the middle, without ringing and with it."""
    # Nodes know nothing of each other's pace, so each begins a little after the last: in step, all of them would commit
    # in the moment in which the first rings.
    starts = [time.time() + 6 + n * PACE / WRITERS for n in range(WRITERS)]
    commands = [[sys.executable, __file__, url, str(start), str(runs)] for start in starts]
    processes = [await asyncio.create_subprocess_exec(*each, stdout=subprocess.PIPE) for each in commands]
    outputs = await asyncio.gather(*(process.communicate() for process in processes))
    if any(process.returncode for process in processes):
        raise RuntimeError("a writer failed")
    phases = [[json.loads(line) for line in out.splitlines()] for out, _ in outputs]
    middles = [
        statistics.median(seconds for writer in phases for seconds in writer[phase]) * 1e3 for phase in range(2 * runs)
    ]
    return statistics.median(middles[::2]), statistics.median(middles[1::2])


if __name__ == "__main__":
    uvloop.run(work(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))

"""The two loads on Outlive's own ledger: responses through its queue, and events through its committer."""

from __future__ import annotations

import asyncio
import sys
import time

from loads import EVENTS, RUNS, STREAMS, Load, call_all, report, stamp

from outlive import __version__
from outlive.clock import RandomIds, SystemClock
from outlive.core.events import AnyDraft, Draft, number
from outlive.core.fold import Fold
from outlive.core.requests.checks import Limits
from outlive.core.requests.create import header, parse_create
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponse
from outlive.ports.ledger import Admission, Claim, Closing, Entry
from outlive.storage.postgres.connection import PostgresDatabase
from outlive.storage.postgres.ledger import PostgresLedger

WORKER = "bench"

ids, clock = RandomIds(), SystemClock()
accepted: dict[str, float] = {}  # when each was asked for
request = parse_create({"model": "m", "input": "Hi", "background": True}, ids, Limits())


async def accept(ledger: PostgresLedger) -> None:
    """One more response that waits for a worker."""
    now = time.time()
    response_id = ids.new("resp")
    accepted[response_id] = now
    created: list[AnyDraft] = [
        Draft("response.created", {"response": header(request, response_id, int(now), "m", "queued")})
    ]
    await ledger.admit(
        Admission(
            response_id=response_id,
            owner="local",
            at=now,
            request=request,
            status="queued",
            frames=b"".join(number(created, -1)),
            count=1,
            worker=None,
        )
    )


async def end(ledger: PostgresLedger, claim: Claim, number: int) -> None:
    entry = Entry(claim.lease, number, 1, time.time(), b"event: end\ndata: {}\n\n")
    await ledger.close(Closing(entry, "completed", b"{}", [], keep_turn=True))


async def measure_runs(ledger: PostgresLedger) -> tuple[Load, list[float]]:
    """Taken and ended while more are accepted."""
    ended = 0
    started: list[float] = []

    async def work() -> None:
        nonlocal ended
        while ended < RUNS:
            claims = await ledger.claim(WORKER, 50, frozenset())
            now = time.time()
            started.extend(now - accepted[claim.lease.response_id] for claim in claims)
            await asyncio.gather(*(end(ledger, claim, 1) for claim in claims))
            ended += len(claims)
            if not claims:
                await asyncio.sleep(0.002)  # the bell's part is played by a clock here

    with Load() as load:
        worker = asyncio.create_task(work())
        await call_all(lambda: accept(ledger))
        await worker
    return load, started


async def measure_streams(ledger: PostgresLedger) -> Load:
    committer = Committer(ledger, clock, 0.0)  # each event waits for the one before, so a longer wait gains nothing

    async def run(claim: Claim) -> None:
        live = LiveResponse(claim, Fold({"id": claim.lease.response_id}, 0), ledger)
        for event in range(EVENTS):
            committer.submit(live, [Draft("outlive:bench", {"delta": stamp(event).decode()})])
            await live.flush()
        await end(ledger, claim, EVENTS + 1)

    with Load() as load:
        await asyncio.gather(*(accept(ledger) for _ in range(STREAMS)))
        claims = await ledger.claim(WORKER, STREAMS, frozenset())
        await asyncio.gather(*map(run, claims))
    return load


async def main() -> None:
    database = await PostgresDatabase.open(sys.argv[1])
    ledger = PostgresLedger(database, WORKER)
    runs, started = await measure_runs(ledger)
    streams = await measure_streams(ledger)
    report(f"Outlive {__version__}", runs, started, streams)
    await ledger.finish()
    await database.close()


asyncio.run(main())

"""A Postgres that restarts, crashes, or fails over: nothing that was acknowledged is lost or doubled."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator

import pytest

from outlive.core.errors import StorageUnavailable
from outlive.core.events import split_frames
from outlive.ports.ledger import Lease
from tests.conformance.harness import WRITTEN, StorageHarness, entry, frames
from tests.conformance.storages import open_postgres
from tests.support.postgres import PostgresServer

RESPONSES = 8
EVENTS = 120


@pytest.fixture
def clusters() -> Iterator[list[PostgresServer]]:
    """Remove the clusters of a test at its end."""
    made: list[PostgresServer] = []
    yield made
    for cluster in made:
        cluster.remove()


async def write_on(harness: StorageHarness, lease: Lease, reached: list[int]) -> None:
    """Append one number after the other, each until it is acknowledged; then close."""
    for number in range(2, EVENTS):
        while True:
            try:
                (kept,) = await harness.ledger.append([entry(lease, number)])
                assert kept is WRITTEN
                break
            except StorageUnavailable:
                await asyncio.sleep(0.05)
        reached[0] += 1


async def survive(url: str, break_it: Callable[[], None]) -> None:
    """Write during an outage; then check that every journal is complete."""
    async with open_postgres(url) as storage:
        harness = StorageHarness(storage)
        started = [await harness.start() for _ in range(RESPONSES)]
        reached = [0]
        writing = [asyncio.create_task(write_on(harness, lease, reached)) for _, lease in started]
        while reached[0] < RESPONSES * 20:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(break_it)
        await asyncio.gather(*writing)
        for response_id, lease in started:
            events = split_frames(await harness.events(response_id))
            assert b"".join(events[2:]) == frames(2, EVENTS - 2)
            await harness.close(lease, first=EVENTS)
        await harness.answer("after")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_restart_loses_nothing(clusters: list[PostgresServer], how: signal.Signals) -> None:
    clusters.append(PostgresServer(settings={"synchronous_commit": "on"}).create())
    asyncio.run(survive(clusters[0].url(), lambda: clusters[0].restart(how)))


def test_a_promoted_synchronous_standby_has_everything(clusters: list[PostgresServer]) -> None:
    clusters.append(PostgresServer(settings={"synchronous_commit": "on"}).create())
    primary = clusters[0]
    clusters.append(primary.make_standby(name="second"))
    standby = clusters[1]

    def fail_over() -> None:
        primary.stop(signal.SIGQUIT)
        standby.promote()

    both = f"postgresql://outlive@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
    asyncio.run(survive(both, fail_over))

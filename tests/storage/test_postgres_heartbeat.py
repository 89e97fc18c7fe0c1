"""The heartbeat on Postgres: a worker whose beats stop loses its leases, and no other worker does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from outlive.storage.postgres import heartbeat as heartbeats
from outlive.storage.postgres.heartbeat import PostgresHeartbeat
from tests.conformance.harness import StorageHarness
from tests.conformance.storages import Storage, open_postgres
from tests.support.postgres import DATABASES
from tests.support.proxy import Proxy

TIMEOUT = 15.0


def heartbeat_test(test: Callable[[Storage, str], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def go() -> None:
            url = DATABASES.borrow(test.__name__)
            async with asyncio.timeout(30), open_postgres(url) as storage:
                await test(storage, url)

        asyncio.run(go())

    run.__name__ = test.__name__
    return run


async def wait_until_freed(storage: Storage) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not await storage.ledger.free_dead_leases():
            await asyncio.sleep(0.05)


@heartbeat_test
async def test_leases_of_a_live_worker_are_not_freed(storage: Storage, url: str) -> None:
    heartbeat = PostgresHeartbeat(url, "alive", 1.0)
    await heartbeat.start()
    harness = StorageHarness(storage)
    await harness.start(worker="alive")
    await harness.start(worker="never began")
    assert await storage.ledger.free_dead_leases() == 1
    await asyncio.sleep(1.5)  # longer than one beat is valid
    assert await storage.ledger.free_dead_leases() == 0
    await heartbeat.stop()
    assert await storage.ledger.free_dead_leases() == 1  # at once, before its last beat expires


@heartbeat_test
async def test_a_cut_off_worker_counts_as_dead_once_its_last_beat_expires(storage: Storage, url: str) -> None:
    with Proxy(DATABASES.server.port) as proxy:
        heartbeat = PostgresHeartbeat(url.replace(f":{DATABASES.server.port}/", f":{proxy.port}/"), "cut off", 1.0)
        await heartbeat.start()
        _, lease = await StorageHarness(storage).start(worker="cut off")
        proxy.block()
        assert await storage.ledger.free_dead_leases() == 0
        await wait_until_freed(storage)
        proxy.unblock()
        async with asyncio.timeout(TIMEOUT):
            while not await storage.catalog.status("ann", lease.response_id):
                pass
            # It beats again, and gets back the leases that were not claimed meanwhile.
            assert await storage.ledger.confirm_leases("cut off", [lease]) == [True]
            while await storage.ledger.free_dead_leases():
                await storage.ledger.confirm_leases("cut off", [lease])
                await asyncio.sleep(0.1)
        await heartbeat.stop()


@heartbeat_test
async def test_a_hung_loop_loses_its_leases_though_its_heartbeat_thread_runs(storage: Storage, url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heartbeats, "HUNG_SECONDS", 1.0)
        heartbeat = PostgresHeartbeat(url, "hung", 1.0)
        await heartbeat.start()
        await StorageHarness(storage).start(worker="hung")
        for _ in range(15):
            heartbeat.tick()
            await asyncio.sleep(0.1)
        assert await storage.ledger.free_dead_leases() == 0
        await wait_until_freed(storage)
        heartbeat.tick()
        await StorageHarness(storage).storage.ledger.claim("hung", 1, frozenset())
        async with asyncio.timeout(TIMEOUT):
            while await storage.ledger.free_dead_leases():
                heartbeat.tick()
                await storage.ledger.claim("hung", 1, frozenset())
                await asyncio.sleep(0.1)
        await heartbeat.stop()


@heartbeat_test
async def test_starting_a_heartbeat_waits_for_the_first_beat(storage: Storage, url: str) -> None:
    with Proxy(DATABASES.server.port) as proxy:
        proxy.block()
        heartbeat = PostgresHeartbeat(url.replace(f":{DATABASES.server.port}/", f":{proxy.port}/"), "late", 1.0)
        starting = asyncio.create_task(heartbeat.start())
        done, _ = await asyncio.wait([starting], timeout=0.3)
        assert not done
        proxy.unblock()
        await starting
        await heartbeat.stop()

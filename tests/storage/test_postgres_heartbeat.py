"""The heart on Postgres: whose beats stop loses its leases, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from outlive.storage.postgres import heartbeat as hearts
from outlive.storage.postgres.heartbeat import PostgresHeartbeat
from tests.conformance.scenes import Book
from tests.conformance.storages import Storage, open_postgres
from tests.support.postgres import DATABASES
from tests.support.proxy import Proxy

PATIENCE = 15.0


def play(test: Callable[[Storage, str], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def go() -> None:
            url = DATABASES.borrow(test.__name__)
            async with asyncio.timeout(30), open_postgres(url) as home:
                await test(home, url)

        asyncio.run(go())

    run.__name__ = test.__name__
    return run


async def wait_until_freed(home: Storage) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await home.ledger.free_dead_leases():
            await asyncio.sleep(0.05)


@play
async def test_leases_of_a_worker_that_lives_are_not_freed(home: Storage, url: str) -> None:
    heart = PostgresHeartbeat(url, "alive", 1.0)
    await heart.start()
    book = Book(home)
    await book.start(worker="alive")
    await book.start(worker="never began")
    assert await home.ledger.free_dead_leases() == 1
    await asyncio.sleep(1.5)  # longer than one beat holds
    assert await home.ledger.free_dead_leases() == 0
    await heart.stop()
    assert await home.ledger.free_dead_leases() == 1  # at once, without waiting for its last beat to run out


@play
async def test_a_worker_that_is_cut_off_is_dead_once_its_last_beat_has_run_out(home: Storage, url: str) -> None:
    with Proxy(DATABASES.server.port) as proxy:
        heart = PostgresHeartbeat(proxy.redirect(url), "cut off", 1.0)
        await heart.start()
        _, lease = await Book(home).start(worker="cut off")
        proxy.block()
        assert await home.ledger.free_dead_leases() == 0
        await wait_until_freed(home)
        proxy.unblock()
        async with asyncio.timeout(PATIENCE):
            while not await home.catalog.status("ann", lease.response_id):
                pass
            # It beats again; what nobody has claimed meanwhile can be its own again.
            assert await home.ledger.confirm_leases("cut off", [lease]) == [True]
            while await home.ledger.free_dead_leases():
                await home.ledger.confirm_leases("cut off", [lease])
                await asyncio.sleep(0.1)
        await heart.stop()


@play
async def test_a_loop_that_hangs_loses_its_leases_though_the_heart_could_beat(home: Storage, url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hearts, "HUNG_SECONDS", 1.0)
        heart = PostgresHeartbeat(url, "hung", 1.0)
        await heart.start()
        await Book(home).start(worker="hung")
        for _ in range(15):
            heart.tick()
            await asyncio.sleep(0.1)
        assert await home.ledger.free_dead_leases() == 0
        await wait_until_freed(home)
        heart.tick()
        await Book(home).home.ledger.claim("hung", 1, frozenset())
        async with asyncio.timeout(PATIENCE):
            while await home.ledger.free_dead_leases():
                heart.tick()
                await home.ledger.claim("hung", 1, frozenset())
                await asyncio.sleep(0.1)
        await heart.stop()


@play
async def test_a_worker_begins_once_its_heart_has_beaten(home: Storage, url: str) -> None:
    with Proxy(DATABASES.server.port) as proxy:
        proxy.block()
        heart = PostgresHeartbeat(proxy.redirect(url), "late", 1.0)
        starting = asyncio.create_task(heart.start())
        done, _ = await asyncio.wait([starting], timeout=0.3)
        assert not done
        proxy.unblock()
        await starting
        await heart.stop()

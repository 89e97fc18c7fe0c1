"""The bell on Postgres: every node gets the rings of the others, and learns when it may have missed some."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from outlive.ports.bell import Ring
from outlive.storage.postgres.bell import PAYLOAD_BYTES, PostgresBell
from tests.support.postgres import DATABASES
from tests.support.proxy import Proxy

TIMEOUT = 10.0


class Ear:
    def __init__(self, bell: PostgresBell) -> None:
        self.heard: list[Ring] = []
        self._news = asyncio.Event()
        bell.listen(self._hear)

    def _hear(self, ring: Ring) -> None:
        self.heard.append(ring)
        self._news.set()

    async def wait_for(self, ring: Ring) -> None:
        async with asyncio.timeout(TIMEOUT):
            while ring not in self.heard:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def ringing(url: str) -> AsyncIterator[tuple[PostgresBell, Ear]]:
    bell = PostgresBell(url)
    ear = Ear(bell)
    await bell.start()
    try:
        yield bell, ear
    finally:
        await bell.close()


def postgres_test(test: Callable[[str], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test(DATABASES.borrow(test.__name__)))  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


@postgres_test
async def test_every_node_but_the_ringing_one_gets_a_ring(url: str) -> None:
    async with ringing(url) as (one, ear_one), ringing(url) as (_, ear_two), ringing(url) as (_, ear_three):
        one.ring(Ring("advanced", "resp_1", 7))
        for ear in (ear_two, ear_three):
            await ear.wait_for(Ring("advanced", "resp_1", 7))
        assert ear_one.heard == []


@postgres_test
async def test_rings_that_differ_in_number_only_arrive_once_with_the_highest(url: str) -> None:
    async with ringing(url) as (one, _), ringing(url) as (_, ear):
        for number in (3, 9, 5):
            one.ring(Ring("advanced", "resp_1", number))
        one.ring(Ring("waits"))
        await ear.wait_for(Ring("waits"))
        assert [ring for ring in ear.heard if ring.kind == "advanced"] == [Ring("advanced", "resp_1", 9)]


@postgres_test
async def test_more_rings_than_one_notification_holds_all_arrive(url: str) -> None:
    rings = [Ring("advanced", f"resp_{n:060}", n) for n in range(3 * PAYLOAD_BYTES // 60)]
    async with ringing(url) as (one, _), ringing(url) as (_, ear):
        for ring in rings:
            one.ring(ring)
        for ring in rings:
            await ear.wait_for(ring)


@postgres_test
async def test_listeners_get_missed_after_a_lost_connection(url: str) -> None:
    with Proxy(DATABASES.server.port) as proxy:
        proxied = url.replace(f":{DATABASES.server.port}/", f":{proxy.port}/")
        async with ringing(url) as (one, _), ringing(proxied) as (two, ear):
            proxy.cut()
            await ear.wait_for(Ring("missed"))
            two.ring(Ring("waits"))
            one.ring(Ring("taken", "resp_1", 2))
            await ear.wait_for(Ring("taken", "resp_1", 2))


@postgres_test
async def test_ringing_without_a_connection_does_not_fail(url: str) -> None:
    with Proxy(DATABASES.server.port) as proxy:
        proxied = url.replace(f":{DATABASES.server.port}/", f":{proxy.port}/")
        proxy.block()
        async with ringing(proxied) as (one, ear), ringing(url) as (two, _):
            one.ring(Ring("waits"))
            proxy.unblock()
            async with asyncio.timeout(TIMEOUT):
                while not ear.heard:
                    two.ring(Ring("waits"))
                    await asyncio.sleep(0.05)

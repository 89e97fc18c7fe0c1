"""Counts of runs that are not stored: they survive cancelled requests, and a database that has lost them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from outlive.clock import SystemClock
from outlive.core.owners import Policy, join
from outlive.engine.slots import UnstoredRuns
from outlive.ports.database import lock_key
from outlive.ports.ledger import Quota
from tests.conformance.storages import Storage, open_postgres
from tests.support.postgres import DATABASES


class Node:
    """The runs of one node on a database, and how often it was called to claim what is queued."""

    locking: asyncio.Task[None]

    def __init__(self, storage: Storage, **quota: Any) -> None:
        self.storage, self.called = storage, 0
        self.quota = Quota(queued=9, **quota)
        self.runs = UnstoredRuns(storage.database, "node", self.quota, SystemClock(), True, self._call)

    def _call(self) -> None:
        self.called += 1

    async def sql(self, statement: str, *values: Any) -> list[Any]:
        return await self.storage.database.change(statement, *values)

    async def find_written(self, worker: str) -> dict[str, int]:
        return dict(await self.storage.database.fetch("find_running_unstored", worker))

    async def wait_written(self, **expected: int) -> None:
        async with asyncio.timeout(20):
            while await self.find_written("node") != expected:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def open_node(name: str, **quota: Any) -> AsyncIterator[Node]:
    async with open_postgres(DATABASES.borrow(name)) as storage:
        await storage.inspector.set_alive("node", True)
        node = Node(storage, **quota)
        yield node
        await node.runs.stop()


def test_requests_at_once_share_a_write_and_each_gets_its_own_answer() -> None:
    async def body() -> None:
        async with open_node("unstored-many", running_per_owner=20) as node:
            taken = await asyncio.gather(*(node.runs.take(join("ann", f"user-{n}")) for n in range(50)))
            assert sum(taken) == 20
            assert await node.find_written("node") == {"ann": 20}
            for _ in range(20):
                node.runs.release("ann")
            assert await node.runs.take("ann")  # before the database knows that nothing runs
            await node.wait_written(ann=1)
            node.runs.release("ann")
            await node.wait_written()
            assert node.runs._runs == {} and node.called == 0

    asyncio.run(body())


def test_a_request_that_is_cancelled_while_it_asks_holds_no_slot() -> None:
    async def body() -> None:
        async with open_node("unstored-cancelled", running_per_owner=1) as node:
            locking = await _hold_lock(node)
            tasks = [asyncio.create_task(node.runs.take("ann")) for _ in range(3)]
            await asyncio.sleep(0.2)
            for task in tasks[:2]:
                task.cancel()
            locking.set()
            assert await tasks[2]
            await node.wait_written(ann=1)
            node.runs.release("ann")
            await node.wait_written()

    asyncio.run(body())


def test_a_count_that_gets_no_answer_is_made_here_alone_and_written_later(monkeypatch: Any) -> None:
    async def body() -> None:
        monkeypatch.setattr("outlive.engine.slots.ANSWER_SECONDS", 0.3)
        async with open_node("unstored-locked", running_per_owner=2) as node:
            locking = await _hold_lock(node)
            assert await asyncio.gather(*(node.runs.take("ann") for _ in range(3))) == [True] * 3
            locking.set()
            await node.wait_written(ann=3)
            while node.runs._runs["ann"].task is not None:
                await asyncio.sleep(0.01)
            assert not await node.runs.take("ann")

    asyncio.run(body())


def test_a_node_writes_again_what_the_database_has_lost_and_removes_what_it_should_not_have() -> None:
    async def body() -> None:
        async with open_node("unstored-lost", running_per_owner=5) as node:
            assert [await node.runs.take("ann") for _ in range(2)] == [True, True]
            await node.sql("TRUNCATE unstored_runs")  # as a crash of the database does
            await node.sql("INSERT INTO unstored_runs VALUES ('node', 'bob', 3), ('other', 'bob', 1)")
            await node.runs.check()
            await node.wait_written(ann=2)
            assert await node.find_written("other") == {"bob": 1}

    asyncio.run(body())


def test_runs_that_began_before_their_owner_had_a_limit_count_once_it_has_one() -> None:
    async def body() -> None:
        policies: dict[str, Policy] = {}
        async with open_node("unstored-policy", policies=policies) as node:
            for _ in range(2):
                await node.runs.take("ann")
            await node.runs.check()
            assert await node.find_written("node") == {}
            policies["ann"] = Policy(max_running=2)
            await node.runs.check()
            await node.wait_written(ann=2)
            assert not await node.runs.take("ann")
            policies.clear()  # and what was counted is given back when it has none
            for _ in range(2):
                node.runs.release("ann")
            await node.wait_written()

    asyncio.run(body())


def test_queued_responses_of_an_owner_are_claimed_once_its_slot_is_free() -> None:
    async def body() -> None:
        async with open_node("unstored-queued", running_per_owner=1) as node:
            assert await node.runs.take("ann")
            queue = "INSERT INTO leases (response, owner, background, fence, attempts, request) "
            await node.sql(queue + "VALUES (1, 'ann', true, 0, 0, '')")
            assert not await node.runs.take("ann")
            assert node.called == 0
            node.runs.release("ann")
            await node.wait_written()
            while not node.called:
                await asyncio.sleep(0.01)
            assert node.called == 1

    asyncio.run(body())


async def _hold_lock(node: Node) -> asyncio.Event:
    """Hold the lock of ann's runs, as another node may, until the event is set."""
    held, release = asyncio.Event(), asyncio.Event()

    async def work(db: Any) -> None:
        await db.execute("SELECT pg_advisory_lock($1)", lock_key("running", "ann"))
        held.set()
        await release.wait()
        await db.execute("SELECT pg_advisory_unlock($1)", lock_key("running", "ann"))

    database: Any = node.storage.database
    node.locking = asyncio.create_task(database.read("hold", work))
    await held.wait()
    return release

"""The notifier rings for responses that other nodes subscribe to, while they renew that, and for no others."""

from __future__ import annotations

import asyncio

import pytest

from outlive.engine.cluster.mirrors import SUBSCRIPTION_SECONDS
from tests.engine.live_responses import ADDED, deltas, read_to_end
from tests.engine.mirror_harness import TwoNodes
from tests.engine.virtual_clock import in_virtual_time, pass_time, turn


@in_virtual_time
async def test_a_response_that_only_its_own_node_reads_rings_nothing() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    reading = asyncio.create_task(read_to_end(nodes.running.follow()))
    await response.commit(ADDED, *deltas(3))
    await turn()
    await response.finish()
    assert await reading == response.bytes
    assert nodes.bus.rung == []


@in_virtual_time
async def test_a_subscription_without_readers_ends_on_both_nodes() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    tail = response.live.tail
    cursor = nodes.reading.follow()
    await cursor.read()
    reading = asyncio.create_task(cursor.read())
    await turn(20)
    assert (len(nodes.reading.mirrors._tails), len(nodes.running.notifier._subscriptions), tail.readers) == (1, 1, 1)
    cursor.stop()
    await reading
    cursor.close()
    nodes.reading.mirrors.poll_all()
    assert len(nodes.reading.mirrors._tails) == 0
    await pass_time(SUBSCRIPTION_SECONDS + 1)
    nodes.running.live.wake_all()
    await turn()
    assert (len(nodes.running.notifier._subscriptions), tail.readers) == (0, 0)
    assert tail.read_at == pytest.approx(nodes.running.clock.monotonic())
    rung = len(nodes.bus.rung)
    await response.commit(ADDED)
    await turn()
    assert len(nodes.bus.rung) == rung


@in_virtual_time
async def test_a_renewed_subscription_lasts() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    cursor = nodes.reading.follow()
    await cursor.read()
    reading = asyncio.create_task(cursor.read())
    for _ in range(10):
        await pass_time(SUBSCRIPTION_SECONDS / 3)
        nodes.reading.mirrors.subscribe_all()
        nodes.running.live.wake_all()
    await response.commit(ADDED)
    await turn(10)
    assert reading.done()


@in_virtual_time
async def test_a_subscription_ends_with_its_response() -> None:
    nodes = TwoNodes()
    response = nodes.start()
    reading = asyncio.create_task(read_to_end(nodes.reading.follow()))
    await turn(20)
    await response.finish()
    await reading
    assert (len(nodes.running.notifier._subscriptions), response.live.tail.readers) == (0, 0)

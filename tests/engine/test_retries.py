"""Answering: whether the connection that created a response is still there, on this node or on another (D17)."""

from __future__ import annotations

import asyncio

from outlive.engine.retries import PATIENCE_SECONDS, PendingCreates
from outlive.ports.bell import Ring
from tests.engine.bus import Bus
from tests.engine.virtual import run_virtually


def connect(bus: Bus) -> PendingCreates:
    bell = bus.bell()
    answering = PendingCreates(bell, alone=False)

    def on_chunks(ring: Ring) -> None:
        if ring.kind == "asking":
            answering.asked(ring.response_id)
        elif ring.kind == "answering":
            answering.told(ring.response_id)

    bell.listen(on_chunks)
    return answering


def test_a_connection_on_this_node_is_known_without_asking() -> None:
    async def scene() -> None:
        bus = Bus()
        here = connect(bus)
        here.add("resp_1")
        assert await here.holds("resp_1")
        here.discard("resp_1")
        assert bus.rung == []

    run_virtually(scene())


def test_a_connection_on_another_node_answers_at_once() -> None:
    async def scene() -> None:
        bus = Bus()
        here, there = connect(bus), connect(bus)
        there.add("resp_1")
        assert all(await asyncio.gather(here.holds("resp_1"), here.holds("resp_1")))
        assert asyncio.get_running_loop().time() == 0.0
        assert bus.count("asking") == 1
        there.discard("resp_1")
        assert not await here.holds("resp_1")
        assert asyncio.get_running_loop().time() == PATIENCE_SECONDS

    run_virtually(scene())


def test_a_node_that_is_alone_asks_nobody() -> None:
    async def scene() -> None:
        bus = Bus()
        assert not await PendingCreates(bus.bell()).holds("resp_1")
        assert bus.rung == []

    run_virtually(scene())


def test_with_the_bell_dead_a_connection_elsewhere_counts_as_gone() -> None:
    async def scene() -> None:
        bus = Bus()
        here, there = connect(bus), connect(bus)
        there.add("resp_1")
        bus.cut = True
        assert not await here.holds("resp_1")

    run_virtually(scene())

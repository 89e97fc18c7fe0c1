"""Pending creates: the connections that wait for their answer, on this node or on another (D17)."""

from __future__ import annotations

import asyncio

from outlive.engine.retries import ASK_SECONDS, PendingCreates
from outlive.ports.bell import Ring
from tests.engine.bus import Bus
from tests.engine.virtual_clock import run_virtually


def connect(bus: Bus) -> PendingCreates:
    bell = bus.bell()
    creates = PendingCreates(bell, alone=False)

    def on_ring(ring: Ring) -> None:
        if ring.kind == "asking":
            creates.on_asked(ring.response_id)
        elif ring.kind == "answering":
            creates.on_answer(ring.response_id)

    bell.listen(on_ring)
    return creates


def test_a_connection_on_this_node_is_known_without_asking() -> None:
    async def body() -> None:
        bus = Bus()
        here = connect(bus)
        here.here.add("resp_1")
        assert await here.holds("resp_1")
        here.here.discard("resp_1")
        assert bus.rung == []

    run_virtually(body())


def test_a_connection_on_another_node_answers_at_once() -> None:
    async def body() -> None:
        bus = Bus()
        here, there = connect(bus), connect(bus)
        there.here.add("resp_1")
        assert all(await asyncio.gather(here.holds("resp_1"), here.holds("resp_1")))
        assert asyncio.get_running_loop().time() == 0.0
        assert bus.count("asking") == 1
        there.here.discard("resp_1")
        assert not await here.holds("resp_1")
        assert asyncio.get_running_loop().time() == ASK_SECONDS

    run_virtually(body())


def test_a_single_node_asks_no_other() -> None:
    async def body() -> None:
        bus = Bus()
        assert not await PendingCreates(bus.bell()).holds("resp_1")
        assert bus.rung == []

    run_virtually(body())


def test_with_the_bell_dead_a_connection_elsewhere_counts_as_gone() -> None:
    async def body() -> None:
        bus = Bus()
        here, there = connect(bus), connect(bus)
        there.here.add("resp_1")
        bus.cut = True
        assert not await here.holds("resp_1")

    run_virtually(body())

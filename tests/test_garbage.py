"""Garbage is collected by the clock, and not in the middle of a burst of requests."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from outlive import server

TURN = 0.01
BURST = 100_000  # lists, each a block


class Node:
    """Garbage, once nothing else refers to it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(server, "COLLECT_SECONDS", TURN)
    monkeypatch.setattr(server, "MANY_BLOCKS", BURST // 2)
    gc.collect()
    gc.disable()  # as a server does
    yield
    gc.enable()


async def wait_until_dead(node: weakref.ref[Node]) -> None:
    async with asyncio.timeout(30):
        while node() is not None:
            await asyncio.sleep(TURN)


@pytest.mark.parametrize(("most_skipped", "is_collected"), [(1_000_000, False), (3, True)])
def test_garbage_waits_for_the_end_of_a_burst_for_some_turns(
    monkeypatch: pytest.MonkeyPatch, most_skipped: int, is_collected: bool
) -> None:
    monkeypatch.setattr(server, "MOST_SKIPPED", most_skipped)

    async def go() -> None:
        collecting = asyncio.create_task(server._collect_garbage())
        await asyncio.sleep(0)
        burst, node = [[number] for number in range(BURST)], weakref.ref(Node())
        if is_collected:
            await wait_until_dead(node)
        else:
            await asyncio.sleep(TURN * 20)
            assert node() is not None
        del burst
        await wait_until_dead(node)
        collecting.cancel()

    asyncio.run(go())

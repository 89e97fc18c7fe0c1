"""Trouble: what is done to the nodes while users are at it, one thing after the other."""

from __future__ import annotations

import asyncio
import random
import signal

from tests.chaos.fleet import Fleet, Node
from tests.support.line import Line

DECK = ("kill", "stop", "cut", "kill", "go_down", "terminate", "freeze")
# For a server that is alone with its file.
DECK_ALONE = ("kill", "kill", "terminate")


class Trouble:
    """What is done to one node, one thing after the other: the whole deck, then the deck in another order."""

    def __init__(self, fleet: Fleet, node: Node, choose: random.Random, deck: tuple[str, ...] = DECK) -> None:
        self._fleet = fleet
        self._node = node
        self._choose = choose
        self._deck = deck
        self.story: list[tuple[float, str]] = []  # when, and what

    async def make(self, seconds: float, pause: tuple[float, float] = (0.5, 3.0)) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            for deed in self._deck:
                await asyncio.sleep(self._choose.uniform(*pause))
                if loop.time() - began > seconds:
                    return
                self.story.append((round(loop.time() - began, 2), f"{self._node.name}: {deed}"))
                await getattr(self, deed)()
                self._node.doing = ""
            self._deck = tuple(self._choose.sample(self._deck, len(self._deck)))

    async def kill(self) -> None:
        self._fleet.deeds["kill -9"] += 1
        await self._node.kill()
        await asyncio.sleep(self._choose.uniform(0, 2))
        await self._node.start()

    async def terminate(self) -> None:
        self._fleet.deeds["SIGTERM"] += 1
        await self._node.terminate()
        await self._node.start()

    async def stop(self) -> None:
        """Past its lease, so that the others take what it runs."""
        self._fleet.deeds["SIGSTOP past the lease"] += 1
        self._node.doing = "stopped"
        self._node.send(signal.SIGSTOP)
        await asyncio.sleep(self._fleet.lease + self._choose.uniform(0.5, 2.5))
        self._node.send(signal.SIGCONT)

    @property
    def _line(self) -> Line:
        assert self._node.line is not None
        return self._node.line

    async def cut(self) -> None:
        """All connections at once; it may connect again right away."""
        self._fleet.deeds["connections cut"] += 1
        self._line.cut()

    async def go_down(self) -> None:
        self._fleet.deeds["network down"] += 1
        self._node.doing = "cut off"
        self._line.go_down()
        await asyncio.sleep(self._choose.uniform(0.3, self._fleet.lease + 2))
        self._line.come_up()

    async def freeze(self) -> None:
        """Nothing comes through and nobody hears of it, as when packets are dropped."""
        self._fleet.deeds["network frozen"] += 1
        self._node.doing = "frozen"
        self._line.freeze()
        await asyncio.sleep(self._choose.uniform(0.3, self._fleet.lease + 2))
        if self._choose.random() < 0.5:
            self._line.cut()
        self._line.thaw()

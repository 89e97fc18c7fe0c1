"""Faults of one node: it is killed, stopped or terminated, or its connections to the database fail."""

from __future__ import annotations

import asyncio
import random
import signal

from tests.chaos.cluster import ChaosCluster, ChaosNode

ALL_FAULTS = ("kill", "stop", "cut", "kill", "block", "terminate", "freeze")
# Faults for a server on SQLite, which has no connection to cut.
PROCESS_FAULTS = ("kill", "kill", "terminate")


class FaultInjector:
    """Injects the faults into one node, one after the other: all of them once, then again in another order."""

    def __init__(
        self, cluster: ChaosCluster, node: ChaosNode, choose: random.Random, faults: tuple[str, ...] = ALL_FAULTS
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._choose = choose
        self._faults = faults
        self.log: list[tuple[float, str]] = []  # seconds since the start, and the fault

    async def run(self, seconds: float, at_least: int, pause: tuple[float, float] = (0.5, 3.0)) -> None:
        """Inject for so many seconds, and go on until there were at least so many faults."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            for fault in self._faults:
                await asyncio.sleep(self._choose.uniform(*pause))
                if loop.time() - started > seconds and len(self.log) >= at_least:
                    return
                self.log.append((round(loop.time() - started, 2), f"{self._node.name}: {fault}"))
                await self.inject(fault)
            self._faults = tuple(self._choose.sample(self._faults, len(self._faults)))

    async def inject(self, fault: str) -> None:
        await getattr(self, f"_{fault}")()
        self._node.state = ""

    async def _kill(self) -> None:
        self._cluster.injected["kill -9"] += 1
        self._node.state = "killed"
        await asyncio.to_thread(self._node.server.kill)
        await asyncio.sleep(self._choose.uniform(0, 2))
        await asyncio.to_thread(self._node.start)

    async def _terminate(self) -> None:
        self._cluster.injected["SIGTERM"] += 1
        self._node.state = "draining"
        await asyncio.to_thread(self._node.server.terminate)
        await asyncio.to_thread(self._node.start)

    async def _stop(self) -> None:
        """Stop it past its lease, so that the others take its runs over."""
        self._cluster.injected["SIGSTOP past the lease"] += 1
        self._node.state = "stopped"
        self._node.server.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self._cluster.lease + self._choose.uniform(0.5, 2.5))
        self._node.server.send_signal(signal.SIGCONT)

    async def _cut(self) -> None:
        """Reset all connections at once; it may connect again right away."""
        self._cluster.injected["connections cut"] += 1
        self._node.proxy.cut()

    async def _block(self) -> None:
        self._cluster.injected["network down"] += 1
        self._node.state = "cut off"
        self._node.proxy.block()
        await asyncio.sleep(self._choose.uniform(0.3, self._cluster.lease + 2))
        self._node.proxy.unblock()

    async def _freeze(self) -> None:
        """Let no byte pass and keep the connections open, as when packets are lost."""
        self._cluster.injected["network frozen"] += 1
        self._node.state = "frozen"
        self._node.proxy.freeze()
        await asyncio.sleep(self._choose.uniform(0.3, self._cluster.lease + 2))
        if self._choose.random() < 0.5:
            self._node.proxy.cut()
        self._node.proxy.thaw()

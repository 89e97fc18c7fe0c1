"""One sitting: the servers side by side on one core, measured in turn, and what is made of their windows."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import machine
from figures import write
from load import Plan, Window, measure
from servers import Server

BUSY = 0.3  # cores that other programs keep busy

Pick = Callable[[Window], float]
Windows = dict[str, list[Window]]  # by server


@dataclass
class Sitting:
    upstream: Server
    relay: Server
    outlive: Server
    peers: list[Server] = field(default_factory=list)
    runs: int = 3
    quick: bool = False
    say: Callable[[str], None] = print
    notes: list[str] = field(default_factory=list)  # what a reader should know who wonders about a figure
    remembered: dict[str, Windows] = field(default_factory=dict)

    @property
    def all(self) -> list[Server]:
        return [self.relay, self.outlive, *self.peers]

    async def rounds(self, servers: list[Server], plan: Plan, *, fresh: bool = False) -> Windows:
        """Windows of each server in turn, so that a slow minute of the machine meets all of them."""
        windows: Windows = {server.name: [] for server in servers}
        for run in range(self.runs):
            for server in servers:
                self.say(f"{plan.clients} clients, {plan.mode} {plan.model}: {server.name}, run {run + 1}")
                if fresh:
                    await self._refresh(server)
                windows[server.name].append(await self._window(server, plan))
        return windows

    async def _window(self, server: Server, plan: Plan) -> Window:
        """One window. If the machine had much else to do it is measured again, twice at most, but a fault is kept."""
        mode = "chat" if server is self.upstream else plan.mode  # it speaks nothing else
        plan = replace(plan, base=server.base, mode=mode, model=server.prefix + plan.model, processes=server.family)
        plan.others, plan.database = [each.base for each in server.others], server.database_processes
        if server is not self.upstream:
            plan.upstream = self.upstream.family
        window = await measure(plan)
        for _ in range(0 if self.quick or plan.watch_memory else 2):  # memory is counted from a fresh server only
            if window.elsewhere < BUSY or window.tally.dropped or window.tally.errors:
                break
            await settle(server)
            window = await measure(plan)
        await settle(server)
        self._note(server, plan, window)
        return window

    async def _refresh(self, server: Server) -> None:
        """Memory is counted from a server that has served a little, but never much."""
        await asyncio.to_thread(server.restart)
        await self._window(server, Plan(mode="stream", model="fake-n100-d0", clients=4, seconds=0.5))

    def _note(self, server: Server, plan: Plan, window: Window) -> None:
        at = f"{plan.clients} x {plan.mode} {plan.model}: {server.name}"
        self.notes += [f"{at}: {times} times {error}" for error, times in window.tally.errors.items()]
        if window.own_cpu > 0.7 * window.seconds:
            self.notes.append(f"{at}: the load generator was short of CPU, so times are too long")
        if window.elsewhere >= BUSY:
            self.notes.append(f"{at}: {window.elsewhere:.1f} cores were busy with something else")


async def settle(server: Server, longest: float = 15) -> None:
    """Wait until a server has nothing left to do, so that its leftovers do not burden the next."""
    processes = server.family()
    for _ in range(int(longest / 0.25)):
        before = machine.cpu_seconds(processes)
        await asyncio.sleep(0.25)
        if machine.cpu_seconds(processes) - before < 0.01:
            return


def median(windows: list[Window], pick: Pick) -> float:
    return statistics.median(pick(window) for window in windows)


def each(windows: Windows, pick: Pick, unit: str) -> dict[str, str]:
    """Every server's own value, as it is shown beside what was made of them."""
    return {name: write(median(of, pick), unit) for name, of in windows.items()}


def against(windows: Windows, pick: Pick, to: str = "relay") -> float:
    yardstick = median(windows[to], pick)
    return median(windows["outlive"], pick) / yardstick if yardstick else float("nan")


def added(windows: Windows, pick: Pick, to: str = "relay") -> float:
    return median(windows["outlive"], pick) - median(windows[to], pick)

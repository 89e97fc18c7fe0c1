"""`make cluster`: three nodes on one Postgres, a small load, a node killed every few seconds, and a live table."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import asyncpg
import uvloop
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tests.chaos.cluster import ChaosCluster, ChaosNode
from tests.chaos.counts import VIOLATIONS
from tests.chaos.rounds import Outcome, Plan, Round
from tests.chaos.scripts import add_models
from tests.support.upstream import FakeUpstream

REFRESH_SECONDS = 0.25
LINE_SECONDS = 2.0  # between two lines where there is no terminal
LEASES = "SELECT response, worker, attempts FROM outlive.leases"


class Dashboard:
    """The state of a round while it runs."""

    def __init__(self, cluster: ChaosCluster, round_: Round) -> None:
        self._cluster = cluster
        self._round = round_
        self._started = time.monotonic()
        self._attempts: dict[int, int] = {}  # of running responses
        self.leases: Counter[str] = Counter()  # by node
        self.taken: Counter[str] = Counter()  # runs that each node has taken over

    async def refresh(self) -> None:
        """Read from Postgres which node runs which response; a worker's name contains its process id."""
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            rows = await self._cluster.sql(LEASES)
            nodes = {pid: node.name for node in self._cluster.nodes for pid in node.pids}
            names = {row["response"]: nodes.get(_pid(row["worker"]), "none") for row in rows}
            for row in rows:
                before, name = self._attempts.get(row["response"], 1), names[row["response"]]
                if row["attempts"] > before and name != "none":
                    self.taken[name] += 1
                    self._attempts[row["response"]] = row["attempts"]
            self._attempts = {key: self._attempts.get(key, 1) for key in names}
            self.leases = Counter(names.values())

    @property
    def summary(self) -> str:
        turns = [turn for user in self._round.users for turn in user.turns]
        client, injected = self._round.client, self._cluster.injected
        if client is None:
            return self._round.phase
        return (
            f"{time.monotonic() - self._started:5.1f} s  {self._round.phase}: {injected['kill -9']} kills, "
            f"{sum(self.leases.values())} leases ({self.leases['none']} waiting), "
            f"{sum(self.taken.values())} takeovers, "
            f"{sum(turn.ended for turn in turns)} of {len(turns)} answers complete, {client.seen:,} events seen over "
            f"{client.resumed} resumptions, {client.losses} losses"
        )

    def table(self) -> Group:
        shown = Table(title="Outlive: three nodes, one Postgres", title_justify="left")
        for head in ("node", "state", "process"):
            shown.add_column(head)
        for head in ("leases", "taken over", "starts"):
            shown.add_column(head, justify="right")
        for node in self._cluster.nodes:
            shown.add_row(node.name, _state(node), str(node.pids[-1]), *self._numbers(node))
        return Group(shown, Text(self.summary))

    def _numbers(self, node: ChaosNode) -> list[str]:
        return [str(self.leases[node.name]), str(self.taken[node.name]), str(len(node.pids))]


def _pid(worker: str | None) -> int:
    return int(worker.split("-")[-2]) if worker else 0


def _state(node: ChaosNode) -> Text:
    return Text("serving", "green") if not node.state else Text(node.state, "bold red")


async def show(dashboard: Dashboard, console: Console, stop: asyncio.Event) -> None:
    """Show a live table on a terminal, or a line now and then elsewhere, until `stop` is set."""
    if console.is_terminal:
        with Live(dashboard.table(), console=console, auto_refresh=False) as live:
            while not stop.is_set():
                await dashboard.refresh()
                live.update(dashboard.table(), refresh=True)
                await asyncio.sleep(REFRESH_SECONDS)
        return
    printed = 0.0
    while not stop.is_set():
        await dashboard.refresh()
        if time.monotonic() - printed >= LINE_SECONDS:
            printed = time.monotonic()
            console.print(dashboard.summary, highlight=False, soft_wrap=True)
        await asyncio.sleep(REFRESH_SECONDS)


async def run(upstream: FakeUpstream, given: argparse.Namespace, console: Console, folder: Path) -> Outcome:
    console.print("Starting Postgres and three nodes ...")
    plan = Plan(str(given.seed), given.users, given.seconds, ("kill",), postgres=False, one_by_one=(1.0, 3.0))
    async with ChaosCluster(folder, upstream.url) as cluster:
        round_ = Round(cluster, add_models(upstream), plan, folder, upstream)
        stop, dashboard = asyncio.Event(), Dashboard(cluster, round_)
        showing = asyncio.create_task(show(dashboard, console, stop))
        try:
            return await round_.run()
        finally:
            stop.set()
            await showing


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--users", type=int, default=30, help="number of concurrent users")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given, console = parser.parse_args(), Console()
    with tempfile.TemporaryDirectory() as folder, FakeUpstream() as upstream:
        outcome = uvloop.run(run(upstream, given, console, Path(folder)))
    counts = outcome.counts
    console.print(
        f"{counts.responses:,} responses and {counts.events:,} events read again from any node; "
        f"{counts.injected['kill -9']} kills, {counts.reattempted:,} taken over or restarted.",
        highlight=False,
    )
    console.print(
        ", ".join(f"{counts.violations[name]} {meaning}" for name, meaning in VIOLATIONS.items()), highlight=False
    )
    for finding in [*outcome.log, *outcome.findings] if outcome.findings else []:
        console.print(finding, highlight=False, markup=False, soft_wrap=True)
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())

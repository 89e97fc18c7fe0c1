"""`make cluster`: three nodes on one Postgres, a small load, a node killed every few seconds, and a table to watch."""

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

from tests.chaos.fleet import Fleet, Node
from tests.chaos.record import FAULTS
from tests.chaos.rounds import Outcome, Plan, Round
from tests.chaos.tales import tell_tales
from tests.support.upstream import FakeUpstream

LOOK_SECONDS = 0.25
LINE_SECONDS = 2.0  # between two lines where there is no terminal
LEASES = "SELECT response, worker, attempts FROM outlive.leases"


class Watch:
    """What is to be seen of a round while it runs."""

    def __init__(self, fleet: Fleet, round_: Round) -> None:
        self._fleet = fleet
        self._round = round_
        self._began = time.monotonic()
        self._attempts: dict[int, int] = {}  # of responses that run
        self.leases: Counter[str] = Counter()  # by node
        self.taken: Counter[str] = Counter()  # what each node has taken over

    async def look(self) -> None:
        """Postgres says who runs what; a worker's name holds its process id."""
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            rows = await self._fleet.sql(LEASES)
            nodes = {pid: node.name for node in self._fleet.nodes for pid in node.pids}
            names = {row["response"]: nodes.get(_pid(row["worker"]), "nobody") for row in rows}
            for row in rows:
                before, name = self._attempts.get(row["response"], 1), names[row["response"]]
                if row["attempts"] > before and name != "nobody":
                    self.taken[name] += 1
                    self._attempts[row["response"]] = row["attempts"]
            self._attempts = {key: self._attempts.get(key, 1) for key in names}
            self.leases = Counter(names.values())

    @property
    def summary(self) -> str:
        turns = [turn for user in self._round.users for turn in user.turns]
        wire, deeds = self._round.wire, self._fleet.deeds
        if wire is None:
            return self._round.phase
        return (
            f"{time.monotonic() - self._began:5.1f} s  {self._round.phase}: {deeds['kill -9']} kills, "
            f"{sum(self.leases.values())} leases ({self.leases['nobody']} waiting), "
            f"{sum(self.taken.values())} takeovers, "
            f"{sum(turn.over for turn in turns)} of {len(turns)} answers whole, {wire.seen:,} events seen over "
            f"{wire.resumed} resumptions, {wire.losses} losses"
        )

    def table(self) -> Group:
        shown = Table(title="Outlive: three nodes, one Postgres", title_justify="left")
        for head in ("node", "state", "process"):
            shown.add_column(head)
        for head in ("leases", "taken over", "starts"):
            shown.add_column(head, justify="right")
        for node in self._fleet.nodes:
            shown.add_row(node.name, _state(node), str(node.pids[-1]), *self._numbers(node))
        return Group(shown, Text(self.summary))

    def _numbers(self, node: Node) -> list[str]:
        return [str(self.leases[node.name]), str(self.taken[node.name]), str(len(node.pids))]


def _pid(worker: str | None) -> int:
    return int(worker.split("-")[-2]) if worker else 0


def _state(node: Node) -> Text:
    return Text("serves", "green") if not node.doing else Text(node.doing, "bold red")


async def show(watch: Watch, console: Console, stop: asyncio.Event) -> None:
    """Until told to stop: a table that changes, or a line now and then."""
    if console.is_terminal:
        with Live(watch.table(), console=console, auto_refresh=False) as live:
            while not stop.is_set():
                await watch.look()
                live.update(watch.table(), refresh=True)
                await asyncio.sleep(LOOK_SECONDS)
        return
    said = 0.0
    while not stop.is_set():
        await watch.look()
        if time.monotonic() - said >= LINE_SECONDS:
            said = time.monotonic()
            console.print(watch.summary, highlight=False, soft_wrap=True)
        await asyncio.sleep(LOOK_SECONDS)


async def run(upstream: FakeUpstream, given: argparse.Namespace, console: Console, folder: Path) -> Outcome:
    console.print("Starting Postgres and three nodes ...")
    plan = Plan(str(given.seed), given.users, given.seconds, ("kill",), postgres=False, one_by_one=(1.0, 3.0))
    async with Fleet(folder, upstream.url) as fleet:
        round_ = Round(fleet, tell_tales(upstream), plan, folder)
        stop, watch = asyncio.Event(), Watch(fleet, round_)
        showing = asyncio.create_task(show(watch, console, stop))
        try:
            return await round_.run()
        finally:
            stop.set()
            await showing


def main() -> int:
    parser = argparse.ArgumentParser(prog="make cluster", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--users", type=int, default=30, help="how many ask at once")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    given, console = parser.parse_args(), Console()
    with tempfile.TemporaryDirectory() as folder, FakeUpstream() as upstream:
        outcome = uvloop.run(run(upstream, given, console, Path(folder)))
    counts = outcome.counts
    console.print(
        f"{counts.responses:,} responses and {counts.events:,} events read again from any node; "
        f"{counts.deeds['kill -9']} kills, {counts.several:,} taken over or restarted.",
        highlight=False,
    )
    console.print(", ".join(f"{counts.faults[name]} {what}" for name, what in FAULTS.items()), highlight=False)
    for finding in [*outcome.story, *outcome.findings] if outcome.findings else []:
        console.print(finding, highlight=False, markup=False, soft_wrap=True)
    return 1 if outcome.findings else 0


if __name__ == "__main__":
    sys.exit(main())

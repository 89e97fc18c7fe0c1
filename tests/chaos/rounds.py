"""One round: users ask, faults are injected and undone, and then every response is audited."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.audit import Audit
from tests.chaos.client import ClusterClient
from tests.chaos.cluster import ChaosCluster
from tests.chaos.counts import Counts
from tests.chaos.faults import ALL_FAULTS, FaultInjector
from tests.chaos.scripts import Expected
from tests.chaos.user import User
from tests.support.upstream import FakeUpstream

# The time in which everything under way must end once no more faults are injected; most of it is for a busy machine.
END_SECONDS = 90.0

Log = list[tuple[float, str]]


@dataclass
class Plan:
    """The parameters of a round."""

    seed: str
    users: int = 200
    seconds: float = 30.0
    faults: tuple[str, ...] = ALL_FAULTS
    postgres: bool = True  # it is restarted once, in the middle
    one_by_one: tuple[float, float] | None = None  # the pause between two faults; by default all nodes at once


@dataclass
class Outcome:
    counts: Counts = field(default_factory=Counts)
    findings: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)  # of the injected faults


@dataclass
class Round:
    """`client` and `users` may be read while it runs."""

    cluster: ChaosCluster
    answers: dict[str, Expected]
    plan: Plan
    folder: Path
    upstream: FakeUpstream | None = None  # whose reports of usage are audited
    users: list[User] = field(default_factory=list)
    client: ClusterClient | None = None
    phase: str = "starting"

    async def run(self) -> Outcome:
        started, self.cluster.injected = time.monotonic(), type(self.cluster.injected)()
        (newest,) = await self.cluster.sql("SELECT coalesce(max(key), 0) AS key FROM outlive.responses")
        async with ClusterClient(self.cluster, random.Random(f"{self.plan.seed}-client")) as self.client:
            self.users = await self._make_users(self.client)
            log, errors = await self._run_users()
            self.phase = "audit"
            turns = [turn for user in self.users for turn in user.turns]
            calls = self.upstream.calls() if self.upstream is not None else []
            audit = Audit(self.cluster, self.client, self.answers, turns, self.folder, calls)
            await audit.run(newest["key"])
            counts = audit.counts
            counts.rounds, counts.seconds, counts.resumed = 1, time.monotonic() - started, self.client.resumed
            counts.injected, counts.wrong = self.cluster.injected, counts.wrong + len(errors)
            return Outcome(counts, errors + audit.findings, log)

    async def _make_users(self, client: ClusterClient) -> list[User]:
        """Make users: most with a conversation of their own, some that share one, and some without any."""
        users: list[User] = []
        conversation: str | None = None
        for number in range(self.plan.users):
            if number % 10 == 9:
                conversation = None
            elif number % 10 != 8:  # this one shares the conversation of the one before
                conversation = (await client.request("POST", "/conversations", {})).body["id"]
            name = f"{self.plan.seed}-{number}"
            users.append(User(name, client, self.answers, conversation, name))
        return users

    async def _run_users(self) -> tuple[list[str], list[str]]:
        """Return the log of the injected faults, and the errors of users."""
        stop = asyncio.Event()
        self.phase = "faults"
        asking = [asyncio.create_task(user.ask_until(stop)) for user in self.users]
        log = await self._inject_faults()
        stop.set()
        self.phase = "recovery"
        await self.cluster.recover()
        self.phase = "last answers"
        _, late = await asyncio.wait(asking, timeout=END_SECONDS)
        for task in late:
            task.cancel()
        ends = await asyncio.gather(*asking, return_exceptions=True)
        errors = [f"wrong: {type(end).__name__}: {end}" for end in ends if isinstance(end, Exception)]
        return log, errors

    async def _inject_faults(self) -> list[str]:
        pause = self.plan.one_by_one
        log = await (self._inject_everywhere() if pause is None else self._inject_one_by_one(pause))
        return [f"{at:6.2f} s  {fault}" for at, fault in sorted(log)]

    async def _inject_everywhere(self) -> Log:
        """Inject into all nodes at once; each starts at another fault, so that even a short round has all of them."""
        plan = self.plan
        log: Log = []
        faults = random.Random(plan.seed).sample(plan.faults, len(plan.faults))
        share = -(-len(faults) // len(self.cluster.nodes))
        injectors = [
            FaultInjector(
                self.cluster, node, random.Random(f"{plan.seed}-{node.name}"), (*faults[first:], *faults[:first])
            )
            for first, node in zip(range(0, len(faults), share), self.cluster.nodes, strict=False)
        ]
        async with asyncio.TaskGroup() as group:
            for injector in injectors:
                group.create_task(injector.run(plan.seconds, share))
            if plan.postgres:
                group.create_task(self._restart_postgres(log))
        return log + [entry for injector in injectors for entry in injector.log]

    async def _inject_one_by_one(self, pause: tuple[float, float]) -> Log:
        choose, loop = random.Random(f"{self.plan.seed}-faults"), asyncio.get_running_loop()
        started = loop.time()
        log: Log = []
        while loop.time() - started < self.plan.seconds:
            await asyncio.sleep(choose.uniform(*pause))
            node = choose.choice(self.cluster.nodes)
            fault = choose.choice(self.plan.faults)
            log.append((round(loop.time() - started, 2), f"{node.name}: {fault}"))
            await FaultInjector(self.cluster, node, choose).inject(fault)
        return log

    async def _restart_postgres(self, log: Log) -> None:
        choose = random.Random(f"{self.plan.seed}-postgres")
        at = self.plan.seconds * choose.uniform(0.3, 0.7)
        await asyncio.sleep(at)
        how = choose.choice((signal.SIGINT, signal.SIGQUIT))
        log.append((round(at, 2), f"Postgres: {how.name} and start"))
        await self.cluster.restart_postgres(how)

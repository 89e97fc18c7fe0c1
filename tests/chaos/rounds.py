"""One round: users ask, nodes are troubled, everything is mended, and every response is audited."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.audit import Audit
from tests.chaos.fleet import Fleet
from tests.chaos.record import Counts
from tests.chaos.tales import Tale
from tests.chaos.trouble import DECK, Trouble
from tests.chaos.user import User
from tests.chaos.wire import Wire

# How long what is under way may take to end when nothing troubles it any more.
PATIENCE = 40.0


@dataclass
class Plan:
    """What a round is made of."""

    seed: str
    users: int = 200
    seconds: float = 30.0
    deck: tuple[str, ...] = DECK
    postgres: bool = True  # it is restarted once, in the middle
    one_by_one: tuple[float, float] | None = None  # one node at a time, with pauses between these; else all at once


@dataclass
class Outcome:
    counts: Counts = field(default_factory=Counts)
    findings: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)  # what was done, and when


@dataclass
class Round:
    """`wire` and `users` may be looked at while it runs."""

    fleet: Fleet
    tales: dict[str, Tale]
    plan: Plan
    folder: Path
    users: list[User] = field(default_factory=list)
    wire: Wire | None = None
    phase: str = "starts"

    async def run(self) -> Outcome:
        began, self.fleet.deeds = time.monotonic(), type(self.fleet.deeds)()
        (newest,) = await self.fleet.sql("SELECT coalesce(max(key), 0) AS key FROM outlive.responses")
        async with Wire(self.fleet, random.Random(f"{self.plan.seed}-wire")) as self.wire:
            self.users = await self._invite(self.wire)
            story, errors = await self._live()
            self.phase = "audit"
            turns = [turn for user in self.users for turn in user.turns]
            audit = Audit(self.fleet, self.wire, self.tales, turns, self.folder)
            await audit.make(newest["key"])
            counts = audit.counts
            counts.rounds, counts.seconds, counts.resumed = 1, time.monotonic() - began, self.wire.resumed
            counts.deeds, counts.wrong = self.fleet.deeds, counts.wrong + len(errors)
            return Outcome(counts, errors + audit.findings, story)

    async def _invite(self, wire: Wire) -> list[User]:
        """Most have a conversation of their own, some share one with another, and some have none."""
        users: list[User] = []
        conversation: str | None = None
        for number in range(self.plan.users):
            if number % 10 == 9:
                conversation = None
            elif number % 10 != 8:  # who shares that of the one before
                conversation = (await wire.ask("POST", "/conversations", {})).body["id"]
            name = f"{self.plan.seed}-{number}"
            users.append(User(name, wire, self.tales, conversation, name))
        return users

    async def _live(self) -> tuple[list[str], list[str]]:
        """What was done to the nodes, and what went wrong for users."""
        stop = asyncio.Event()
        self.phase = "trouble"
        asking = [asyncio.create_task(user.ask_until(stop)) for user in self.users]
        story = await self._make_trouble()
        stop.set()
        self.phase = "mending"
        await self.fleet.mend()
        self.phase = "last answers"
        _, late = await asyncio.wait(asking, timeout=PATIENCE)
        for task in late:
            task.cancel()
        ends = await asyncio.gather(*asking, return_exceptions=True)
        errors = [f"wrong: {type(end).__name__}: {end}" for end in ends if isinstance(end, Exception)]
        return story, errors

    async def _make_trouble(self) -> list[str]:
        pause = self.plan.one_by_one
        told = await (self._trouble_all() if pause is None else self._trouble_one_by_one(pause))
        return [f"{at:6.2f} s  {what}" for at, what in sorted(told)]

    async def _trouble_all(self) -> list[tuple[float, str]]:
        """One deck, which each node begins elsewhere, so that even a short round has everything in it."""
        plan = self.plan
        told: list[tuple[float, str]] = []
        deck = random.Random(plan.seed).sample(plan.deck, len(plan.deck))
        share = -(-len(deck) // len(self.fleet.nodes))
        troubles = [
            Trouble(self.fleet, node, random.Random(f"{plan.seed}-{node.name}"), (*deck[begin:], *deck[:begin]))
            for begin, node in zip(range(0, len(deck), share), self.fleet.nodes, strict=False)
        ]
        async with asyncio.TaskGroup() as group:
            for trouble in troubles:
                group.create_task(trouble.make(plan.seconds))
            if plan.postgres:
                group.create_task(self._restart_postgres(told))
        return told + [deed for trouble in troubles for deed in trouble.story]

    async def _trouble_one_by_one(self, pause: tuple[float, float]) -> list[tuple[float, str]]:
        choose, loop = random.Random(f"{self.plan.seed}-deeds"), asyncio.get_running_loop()
        began = loop.time()
        told: list[tuple[float, str]] = []
        while loop.time() - began < self.plan.seconds:
            await asyncio.sleep(choose.uniform(*pause))
            node = choose.choice(self.fleet.nodes)
            deed = choose.choice(self.plan.deck)
            told.append((round(loop.time() - began, 2), f"{node.name}: {deed}"))
            await getattr(Trouble(self.fleet, node, choose), deed)()
        return told

    async def _restart_postgres(self, told: list[tuple[float, str]]) -> None:
        choose = random.Random(f"{self.plan.seed}-postgres")
        at = self.plan.seconds * choose.uniform(0.3, 0.7)
        await asyncio.sleep(at)
        how = choose.choice((signal.SIGINT, signal.SIGQUIT))
        told.append((round(at, 2), f"Postgres: {how.name} and start"))
        await self.fleet.restart_postgres(how)

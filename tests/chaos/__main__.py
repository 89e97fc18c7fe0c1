"""`make soak`: round after round of faults on the same nodes and the same database, until the time is over."""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import uvloop

from tests.chaos.cluster import ChaosCluster, SingleServer
from tests.chaos.counts import Counts, describe
from tests.chaos.faults import ALL_FAULTS, PROCESS_FAULTS
from tests.chaos.page import write_page, write_takeovers
from tests.chaos.rounds import Plan, Round
from tests.chaos.scripts import add_models
from tests.chaos.takeover import LEASES, measure
from tests.support.upstream import FakeUpstream

FOLDER = Path("build") / "soak"
MANY, ALONE = "three nodes on Postgres", "one server on SQLite"


def main() -> int:
    given = _read_arguments()
    seed = given.seed if given.seed is not None else random.randrange(1 << 32)
    print(f"seed {seed}; logs and findings in {FOLDER / str(seed)}", flush=True)
    runs: dict[str, Counts] = {}
    for name, minutes in ((MANY, given.minutes), (ALONE, given.alone)):
        if minutes > 0:
            print(name, flush=True)
            runs[name], findings = soak(name, minutes, given, seed)
            print("\n".join(f"  {what:42} {value}" for what, value in describe(runs[name])), flush=True)
            if findings:
                print("\n".join(findings))
                return 1
    if given.write and len(runs) == 2:
        write_page(runs, seed)
    if given.kills:
        print(f"takeovers, {given.kills} kills at each lease time", flush=True)
        takeovers = {lease: measure(given.kills, lease) for lease in LEASES}
        for row in write_takeovers(takeovers, given.write):
            print(row, flush=True)
    return 0


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help=f"for {MANY}")
    parser.add_argument("--alone", type=float, default=2.0, help=f"minutes for {ALONE}")
    parser.add_argument(
        "--kills", type=int, default=100, help="nodes to kill for the times of takeovers, per lease time"
    )
    parser.add_argument("--users", type=int, default=200, help="number of concurrent users")
    parser.add_argument("--round", type=float, default=45.0, help="seconds of faults in each round")
    parser.add_argument("--seed", type=int, default=None, help="the seed that an earlier run printed")
    parser.add_argument("--write", action=argparse.BooleanOptionalAction, default=True, help="docs/reliability.md")
    return parser.parse_args()


def soak(name: str, minutes: float, given: argparse.Namespace, seed: int) -> tuple[Counts, list[str]]:
    """Run rounds until the time is over, or until a round has findings."""

    async def run(upstream: FakeUpstream) -> tuple[Counts, list[str]]:
        total, until = Counts(), time.monotonic() + minutes * 60
        folder = (FOLDER / str(seed) / ("alone" if name == ALONE else "many")).absolute()
        alone = name == ALONE
        async with (SingleServer if alone else ChaosCluster)(folder, upstream.url) as cluster:
            answers = add_models(upstream)
            while total.rounds == 0 or time.monotonic() < until:
                plan = Plan(f"{seed}.{total.rounds}", given.users, given.round)
                plan.faults, plan.postgres = PROCESS_FAULTS if alone else ALL_FAULTS, not alone
                outcome = await Round(cluster, answers, plan, folder, upstream).run()
                upstream.forget()
                total.add(outcome.counts)
                print(f"  round {total.rounds}: {total.responses:,} responses, {outcome.counts.violations}", flush=True)
                if outcome.findings:
                    return total, [*outcome.log, *outcome.findings]
        return total, []

    with FakeUpstream() as upstream:
        return uvloop.run(run(upstream))


if __name__ == "__main__":
    sys.exit(main())

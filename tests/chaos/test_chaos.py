"""All faults at once for about a minute; `make soak` does the same for longer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.audit import Audit
from tests.chaos.cluster import ChaosCluster
from tests.chaos.counts import Turn, describe
from tests.chaos.rounds import Outcome, Plan, Round
from tests.chaos.scripts import Expected, add_models
from tests.support.http_client import event_of
from tests.support.upstream import FakeUpstream

SECONDS = 25.0
FAULTS = {"kill -9", "SIGSTOP past the lease", "SIGTERM", "connections cut", "network down", "network frozen"}


@pytest.mark.timeout(300)
def test_faults_of_nodes_and_database_lose_double_and_block_nothing(tmp_path: Path, capsys: Any) -> None:
    seed = time.time_ns() % 1_000_000_000
    with FakeUpstream() as upstream:
        answers = add_models(upstream)
        outcome, turns = asyncio.run(_run(tmp_path, upstream, answers, seed))
    counts = outcome.counts
    with capsys.disabled():
        print(f"\nchaos, seed {seed}")
        for name, value in describe(counts):
            print(f"  {name:42} {value}")
    assert outcome.findings == [], "\n".join([f"make soak ARGS='--seed {seed}'", *outcome.log, *outcome.findings])
    # Of the 200 users, at least every fourth was interrupted; a fast machine has many more of all of these.
    assert counts.responses > 200 and counts.reattempted > 20 and counts.resumed > 50, "too little happened"
    assert set(counts.injected) >= FAULTS and any("Postgres" in fault for fault in counts.injected)
    _check_the_audit(answers, turns, tmp_path)


async def _run(
    folder: Path, upstream: FakeUpstream, answers: dict[str, Expected], seed: int
) -> tuple[Outcome, list[Turn]]:
    async with ChaosCluster(folder / "nodes", upstream.url) as cluster:
        round_ = Round(cluster, answers, Plan(f"{seed}.0", seconds=SECONDS), folder, upstream)
        outcome = await round_.run()
        return outcome, [turn for user in round_.users for turn in user.turns]


def _check_the_audit(answers: dict[str, Expected], turns: list[Turn], folder: Path) -> None:
    """Check that the audit finds violations that are made on purpose."""
    turn = next(turn for turn in turns if turn.frames and event_of(turn.frames[-1])["type"] == "response.completed")
    frames, other = turn.frames, frames_of_another(turns, turn)
    violated: dict[str, tuple[list[bytes], list[bytes]]] = {  # violation -> the journal, and the frames that were seen
        "": (frames, frames),
        "gaps": (frames[:4] + frames[5:], frames[:4]),
        "repeats": (frames[:6] + frames[5:], frames[:4]),
        "lost": (frames, frames[:4] + other[4:5]),
        "changed": (frames, frames[:4] + other[4:5]),
        "ends": (frames[:-1], frames[:4]),
        "wrong": (frames[:5] + other[5:6] + frames[6:], frames[:4]),
    }
    for violation, (journal, seen) in violated.items():
        audit = _audit(answers, replace(turn, frames=seen), folder)
        audit.check(str(turn.response_id), event_of(frames[-1])["response"], journal)
        assert bool(audit.findings) == bool(violation)
        assert not violation or audit.counts.violations[violation], (violation, audit.findings)
    body = event_of(frames[-1])["response"]
    question = {"role": "user", "content": [{"text": f"question {turn.name}"}]}
    output = list(body["output"])
    for items, found in (([question, *output], []), ([question, question, *output], ["doubled"]), (output, ["wrong"])):
        audit = _audit(answers, turn, folder)
        audit.check_items("conv_1", items, [body])
        assert [name for name, times in audit.counts.violations.items() if times] == found

    for used, many in (([(5, 2)], 0), ([(5, 1)], 1), ([(5, 2), (5, 2)], 1)):
        audit = _audit(answers, turn, folder)
        audit.check_usage(turn.name, used, [(5, 2)], whole=True)
        assert len(audit.findings) == many


def frames_of_another(turns: list[Turn], turn: Turn) -> list[bytes]:
    return next(each.frames for each in turns if len(each.frames) > 10 and each.model != turn.model)


def _audit(answers: dict[str, Expected], turn: Turn, folder: Path) -> Audit:
    unused: Any = None  # no request is sent
    return Audit(unused, unused, answers, [turn], folder / "violations")

"""About a minute of everything at once; `make soak` is the same for longer."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.audit import Audit, event_of
from tests.chaos.fleet import Fleet
from tests.chaos.record import Turn, describe
from tests.chaos.rounds import Outcome, Plan, Round
from tests.chaos.tales import Tale, tell_tales
from tests.support.upstream import FakeUpstream

SECONDS = 25.0
DEEDS = {"kill -9", "SIGSTOP past the lease", "SIGTERM", "connections cut", "network down", "network frozen"}


@pytest.mark.timeout(240)
def test_whatever_happens_to_nodes_and_database_nothing_is_lost_doubled_or_stuck(tmp_path: Path, capsys: Any) -> None:
    seed = time.time_ns() % 1_000_000_000
    with FakeUpstream() as upstream:
        tales = tell_tales(upstream)
        outcome, turns = asyncio.run(_play(tmp_path, upstream, tales, seed))
    counts = outcome.counts
    with capsys.disabled():
        print(f"\nchaos, seed {seed}")
        for name, value in describe(counts):
            print(f"  {name:42} {value}")
    assert outcome.findings == [], "\n".join([f"make soak ARGS='--seed {seed}'", *outcome.story, *outcome.findings])
    assert counts.responses > 300 and counts.several > 30 and counts.resumed > 100, "too little happened"
    assert set(counts.deeds) >= DEEDS and any("Postgres" in deed for deed in counts.deeds)
    _check_the_audit(tales, turns, tmp_path)


async def _play(folder: Path, upstream: FakeUpstream, tales: dict[str, Tale], seed: int) -> tuple[Outcome, list[Turn]]:
    async with Fleet(folder / "nodes", upstream.url) as fleet:
        turmoil = Round(fleet, tales, Plan(f"{seed}.0", seconds=SECONDS), folder)
        outcome = await turmoil.run()
        return outcome, [turn for user in turmoil.users for turn in user.turns]


def _check_the_audit(tales: dict[str, Tale], turns: list[Turn], folder: Path) -> None:
    """The audit is not blind: what is spoilt on purpose it finds."""
    turn = next(turn for turn in turns if turn.frames and event_of(turn.frames[-1])["type"] == "response.completed")
    frames, other = turn.frames, frames_of_another(turns, turn)
    spoilt: dict[str, tuple[list[bytes], list[bytes]]] = {  # what it finds -> the journal, and what was seen
        "": (frames, frames),
        "gaps": (frames[:4] + frames[5:], frames[:4]),
        "repeats": (frames[:6] + frames[5:], frames[:4]),
        "lost": (frames, frames[:4] + other[4:5]),
        "changed": (frames, frames[:4] + other[4:5]),
        "ends": (frames[:-1], frames[:4]),
        "wrong": (frames[:5] + other[5:6] + frames[6:], frames[:4]),
    }
    for fault, (journal, seen) in spoilt.items():
        audit = _audit(tales, replace(turn, frames=seen), folder)
        audit.check(str(turn.response_id), event_of(frames[-1])["response"], journal)
        assert bool(audit.findings) == bool(fault)
        assert not fault or audit.counts.faults[fault], (fault, audit.findings)
    body = event_of(frames[-1])["response"]
    question = {"role": "user", "content": [{"text": f"question {turn.name}"}]}
    answers = list(body["output"])
    for items, fault in (([question, *answers], ""), ([question, question, *answers], "doubled"), (answers, "wrong")):
        audit = _audit(tales, turn, folder)
        audit.check_items("conv_1", items, [body])
        assert [name for name, times in audit.counts.faults.items() if times] == ([fault] if fault else [])


def frames_of_another(turns: list[Turn], turn: Turn) -> list[bytes]:
    return next(each.frames for each in turns if len(each.frames) > 10 and each.model != turn.model)


def _audit(tales: dict[str, Tale], turn: Turn, folder: Path) -> Audit:
    nowhere: Any = None  # nothing is asked
    return Audit(nowhere, nowhere, tales, [turn], folder / "spoilt")

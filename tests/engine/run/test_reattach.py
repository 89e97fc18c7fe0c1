"""Runs that go on at their upstream, and are taken up again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from outlive.core.errors import LostRun, UpstreamFault
from outlive.core.events import Json
from outlive.core.recovery import MAX_ATTEMPTS
from outlive.dialects.derived_ids import DerivedIds
from outlive.dialects.responses.translator import ResponsesTranslator
from outlive.ports.backend import ModelCall
from tests.engine.harness import Body, Harness, answer_of, run_with_harness
from tests.support.responses_events import Item, answer, call, message, reasoning
from tests.support.scripting import Gate

BROKEN = UpstreamFault("The connection broke.")
Step = Json | Gate | UpstreamFault


class Runs:
    """An upstream's background, in memory: every run is told from its beginning to whoever asks; faults come once."""

    def __init__(self, *scripts: list[Step]) -> None:
        self._scripts = list(scripts)
        self._runs: dict[str, list[Step]] = {}
        self.submitted: list[ModelCall] = []
        self.followed: list[str] = []
        self.dismissed: list[tuple[str, bool]] = []

    def submit(self, call: ModelCall) -> AsyncGenerator[list[bytes], None]:
        self.submitted.append(call)
        run_id = f"run_{len(self.submitted)}"
        self._runs[run_id] = list(self._scripts[min(len(self.submitted), len(self._scripts)) - 1])
        return self._tell(run_id)

    def follow(self, run_id: str) -> AsyncGenerator[list[bytes], None]:
        self.followed.append(run_id)
        return self._tell(run_id)

    def read_id(self, chunks: list[bytes]) -> str | None:
        found = [json.loads(chunk).get("response", {}).get("id") for chunk in chunks]
        return next(filter(None, found), None)

    def dismiss(self, run_id: str, *, running: bool) -> None:
        self.dismissed.append((run_id, running))

    def lose(self) -> None:
        self._runs.clear()

    async def _tell(self, run_id: str) -> AsyncGenerator[list[bytes], None]:
        if run_id not in self._runs:
            raise LostRun
        script = self._runs[run_id]
        for step in list(script):
            if isinstance(step, UpstreamFault):
                if step in script:
                    script.remove(step)
                    raise step
            elif isinstance(step, Gate):
                await step.wait()
            else:
                named = {**step, "response": {**step["response"], "id": run_id}} if "response" in step else step
                yield [json.dumps(named).encode()]


def told_to_model(*items: Item, **at: Step) -> list[Step]:
    """A whole answer; `at_N` stands before its event N."""
    steps: list[Step] = list(answer(*items))
    for name, step in sorted(at.items(), key=lambda pair: -int(pair[0][3:])):
        steps.insert(int(name[3:]), step)
    return steps


HELLO = (reasoning("Hm."), message("Hel", "lo", "!"), call("{}"))
# Events of HELLO: 0, 1 about the response; 2 to 7 the thought; 8 item, 9 part, 10 to 12 the pieces ...
MIDDLE = 12


def last(harness: Harness, runs: Runs) -> None:
    """Have the rig's upstream be one whose runs last."""
    harness.backend.background_runs = runs
    harness.backend.translator = lambda call: ResponsesTranslator(call, DerivedIds(call.response_id))  # type: ignore[assignment,method-assign,return-value]


def run(path: Path, runs: Runs, body: Body) -> None:
    async def lasting(harness: Harness) -> None:
        last(harness, runs)
        await body(harness)

    run_with_harness(path, lasting)


def assert_whole(final: Json) -> None:
    assert (final["status"], answer_of(final)) == ("completed", "Hello!")
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call"]


def test_a_run_is_submitted_once_and_its_copy_is_let_go(tmp_path: Path) -> None:
    runs = Runs(told_to_model(*HELLO))

    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert_whole(final)
        assert "outlive" not in final
        assert (len(runs.submitted), runs.followed, runs.dismissed) == (1, [], [("run_1", False)])
        assert runs.submitted[0].response_id == final["id"]

    run(tmp_path, runs, body)


def test_nothing_is_shown_before_the_runs_id_is_noted(tmp_path: Path) -> None:
    runs = Runs(told_to_model(*HELLO))

    async def body(harness: Harness) -> None:
        reached = harness.ledger.hold("save_checkpoint")
        accepted = await harness.create()
        await reached.wait()
        await asyncio.sleep(0.02)
        assert await harness.types(accepted.response_id) == ["created", "in_progress"]
        harness.ledger.let_pass("save_checkpoint")
        assert_whole(await harness.end(accepted.response_id))

    run(tmp_path, runs, body)


@pytest.mark.parametrize("place", range(2, 20))
def test_a_run_is_taken_up_wherever_the_connection_broke(tmp_path: Path, place: int) -> None:
    whole = len(told_to_model(*HELLO))
    runs = Runs(told_to_model(*HELLO, **{f"at_{min(place, whole - 1)}": BROKEN}))

    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert_whole(final)
        assert (len(runs.submitted), runs.followed, runs.dismissed) == (1, ["run_1"], [("run_1", False)])

    run(tmp_path, runs, body)


@pytest.mark.parametrize("place", range(2, 20))
def test_a_run_is_taken_up_by_the_next_worker(tmp_path: Path, place: int) -> None:
    """Killed at any event: the next one goes on with the same run, and its journal is the one that would have been."""
    whole = len(told_to_model(*HELLO))
    gate = Gate()
    runs = Runs(told_to_model(*HELLO, **{f"at_{min(place, whole - 1)}": gate}))
    seen: list[str] = []

    async def first(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        await asyncio.sleep(0.01)
        seen.append(accepted.response_id)
        for running in list(harness.worker._running.values()):
            running.task.cancel()  # as a kill would; nobody ends it
            await asyncio.gather(running.task, return_exceptions=True)
        seen.extend(await harness.types(accepted.response_id))

    async def second(harness: Harness) -> None:
        gate.open()
        await harness.worker.recover()
        final = await harness.end(seen[0])
        assert_whole(final)
        types = await harness.types(seen[0])
        assert types[: len(seen) - 1] == seen[1:]
        assert final["outlive"]["attempts"] == 2
        assert (len(runs.submitted), runs.followed, runs.dismissed) == (1, ["run_1"], [("run_1", False)])

    run(tmp_path, runs, first)
    run(tmp_path, runs, second)


def test_a_run_that_failed_there_is_submitted_anew(tmp_path: Path) -> None:
    failed: Json = {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "Oh"}}}
    runs = Runs([*told_to_model(*HELLO)[:2], failed], told_to_model(*HELLO))

    async def body(harness: Harness) -> None:
        assert_whole(await harness.answer())
        assert (len(runs.submitted), runs.followed) == (2, [])
        assert runs.dismissed == [("run_1", False), ("run_2", False)]

    run(tmp_path, runs, body)


def test_a_run_that_failed_after_something_was_shown_ends_as_incomplete(tmp_path: Path) -> None:
    failed: Json = {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "Oh"}}}
    runs = Runs([*told_to_model(*HELLO)[:MIDDLE], failed])

    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("incomplete", "Hello")
        assert "Oh" in final["incomplete_details"]["message"]
        assert (len(runs.submitted), runs.followed, runs.dismissed) == (1, [], [("run_1", False)])

    run(tmp_path, runs, body)


@pytest.mark.parametrize("shown", [False, True])
def test_a_run_that_the_upstream_has_lost(tmp_path: Path, shown: bool) -> None:
    runs = Runs(told_to_model(*HELLO, **{f"at_{MIDDLE if shown else 2}": BROKEN}), told_to_model(*HELLO))
    follow = runs.follow

    def lose(run_id: str) -> AsyncGenerator[list[bytes], None]:
        runs.lose()
        return follow(run_id)

    runs.follow = lose  # type: ignore[method-assign]

    async def body(harness: Harness) -> None:
        final = await harness.answer()
        if shown:
            assert (final["status"], answer_of(final)) == ("incomplete", "Hello")
            assert len(runs.submitted) == 1
        else:
            assert_whole(final)
            assert len(runs.submitted) == 2

    run(tmp_path, runs, body)


def test_an_upstream_that_tells_another_story_is_not_believed(tmp_path: Path) -> None:
    runs = Runs(told_to_model(*HELLO, **{f"at_{MIDDLE}": BROKEN}))
    follow = runs.follow

    def lie(run_id: str) -> AsyncGenerator[list[bytes], None]:
        runs._runs[run_id] = told_to_model(reasoning("Hm."), message("Good", "bye"), call("{}"))
        return follow(run_id)

    runs.follow = lie  # type: ignore[method-assign]

    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("incomplete", "Hello")
        assert "same" in final["incomplete_details"]["message"]

    run(tmp_path, runs, body)


def test_taking_up_that_brings_nothing_comes_to_an_end(tmp_path: Path) -> None:
    runs = Runs(told_to_model(*HELLO))
    runs._scripts = [[*told_to_model(*HELLO)[:MIDDLE], *(UpstreamFault("Cut.") for _ in range(9))]]

    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("incomplete", "Hello")
        assert len(runs.followed) == MAX_ATTEMPTS
        assert runs.dismissed == [("run_1", True)]

    run(tmp_path, runs, body)


def test_a_cancel_is_told_to_the_upstream(tmp_path: Path) -> None:
    gate = Gate()
    runs = Runs(told_to_model(*HELLO, **{f"at_{MIDDLE}": gate}))

    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        await harness.worker.cancel(accepted.response_id)
        assert (await harness.end(accepted.response_id))["status"] == "cancelled"
        assert runs.dismissed == [("run_1", True)]

    run(tmp_path, runs, body)


@pytest.mark.parametrize("place", [2, MIDDLE], ids=["nothing shown", "something shown"])
def test_a_server_that_leaves_lets_the_run_go_on_and_finds_it_again(tmp_path: Path, place: int) -> None:
    gate = Gate()
    runs = Runs(told_to_model(*HELLO, **{f"at_{place}": gate}))
    seen: list[str] = []

    async def first(harness: Harness) -> None:
        accepted = await harness.create()
        seen.append(accepted.response_id)
        await gate.reached.wait()
        harness.draining = True
        await harness.worker.drain(60.0)
        assert runs.dismissed == []

    async def second(harness: Harness) -> None:
        gate.open()
        await harness.worker.recover()
        assert_whole(await harness.end(seen[0]))
        assert (len(runs.submitted), runs.followed, runs.dismissed) == (1, ["run_1"], [("run_1", False)])

    run(tmp_path, runs, first)
    run(tmp_path, runs, second)


@pytest.mark.parametrize(
    "fields",
    [{"store": False}, {"context_management": [{"type": "compaction", "compact_threshold": 100_000}]}],
    ids=["not stored", "compacted on the way"],
)
def test_what_cannot_be_taken_up_is_not_left_there(tmp_path: Path, fields: dict[str, Any]) -> None:
    runs = Runs(told_to_model(*HELLO))

    async def body(harness: Harness) -> None:
        harness.backend.scripts = [[[json.dumps(event).encode() for event in answer(*HELLO)]]]
        accepted = await harness.create(**fields)
        reader = harness.reader if fields.get("store", True) else harness.reader
        await reader.wait_end(accepted.response_id)
        assert runs.submitted == []
        assert len(harness.backend.calls) == 1

    run(tmp_path, runs, body)


def test_an_upstream_that_tells_no_id_is_read_like_any_other(tmp_path: Path) -> None:
    nameless = [{key: value for key, value in event.items() if key != "response"} for event in answer(*HELLO)[2:-1]]
    runs = Runs([*nameless, answer(*HELLO)[-1]])

    async def body(harness: Harness) -> None:
        assert_whole(await harness.answer())

    run(tmp_path, runs, body)

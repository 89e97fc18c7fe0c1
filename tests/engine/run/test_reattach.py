"""Reattaching: a run goes on in its upstream's background without this server, and is continued from there."""

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
from outlive.dialects.responses.backend import DerivedIds
from outlive.dialects.responses.translator import ResponsesTranslator
from outlive.ports.backend import ModelCall
from tests.engine.harness import Body, Harness, answer_of, run_with_harness
from tests.support.responses_events import Item, answer, call, message, reasoning
from tests.support.scripting import Gate

BROKEN = UpstreamFault("The connection broke.")
Step = Json | Gate | UpstreamFault


class StubBackgroundRuns:
    """An upstream's background in memory. Each stream begins with the run's first event; a fault is raised once."""

    def __init__(self, *scripts: list[Step]) -> None:
        self.scripts = list(scripts)
        self.runs: dict[str, list[Step]] = {}
        self.submitted: list[ModelCall] = []
        self.followed: list[str] = []
        self.dismissed: list[tuple[str, bool]] = []

    def submit(self, call: ModelCall) -> AsyncGenerator[list[bytes], None]:
        self.submitted.append(call)
        run_id = f"run_{len(self.submitted)}"
        self.runs[run_id] = list(self.scripts[min(len(self.submitted), len(self.scripts)) - 1])
        return self._stream(run_id)

    def follow(self, run_id: str) -> AsyncGenerator[list[bytes], None]:
        self.followed.append(run_id)
        return self._stream(run_id)

    def read_id(self, chunks: list[bytes]) -> str | None:
        found = [json.loads(chunk).get("response", {}).get("id") for chunk in chunks]
        return next(filter(None, found), None)

    def dismiss(self, run_id: str, *, running: bool) -> None:
        self.dismissed.append((run_id, running))

    def lose(self) -> None:
        self.runs.clear()

    async def _stream(self, run_id: str) -> AsyncGenerator[list[bytes], None]:
        if run_id not in self.runs:
            raise LostRun
        script = self.runs[run_id]
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


def script(*items: Item, **at: Step) -> list[Step]:
    """Return the events of a whole answer, with the step `at_N` inserted before event N."""
    steps: list[Step] = list(answer(*items))
    for name, step in sorted(at.items(), key=lambda pair: -int(pair[0][3:])):
        steps.insert(int(name[3:]), step)
    return steps


HELLO = (reasoning("Hm."), message("Hel", "lo", "!"), call("{}"))
# Events of HELLO: 0 and 1 about the response, 2 to 7 the reasoning, 8 the item, 9 the part, 10 to 12 the deltas ...
MIDDLE = 12


def use_background(harness: Harness, runs: StubBackgroundRuns) -> None:
    """Give the harness an upstream with background runs."""
    harness.backend.background_runs = runs
    harness.backend.translator = lambda call: ResponsesTranslator(call, DerivedIds(call.response_id))  # type: ignore[assignment,method-assign,return-value]


def run(path: Path, runs: StubBackgroundRuns, body: Body) -> None:
    async def with_background(harness: Harness) -> None:
        use_background(harness, runs)
        await body(harness)

    run_with_harness(path, with_background)


def assert_whole(final: Json) -> None:
    assert (final["status"], answer_of(final)) == ("completed", "Hello!")
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call"]


def test_a_run_is_submitted_once_and_dismissed_at_its_end(tmp_path: Path) -> None:
    runs = StubBackgroundRuns(script(*HELLO))

    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert_whole(final)
        assert "outlive" not in final
        assert (len(runs.submitted), runs.followed, runs.dismissed) == (1, [], [("run_1", False)])
        assert runs.submitted[0].response_id == final["id"]

    run(tmp_path, runs, body)


def test_nothing_is_shown_before_the_runs_id_is_saved(tmp_path: Path) -> None:
    runs = StubBackgroundRuns(script(*HELLO))

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
def test_a_run_is_reattached_to_at_whatever_event_the_connection_broke(tmp_path: Path, place: int) -> None:
    whole = len(script(*HELLO))
    runs = StubBackgroundRuns(script(*HELLO, **{f"at_{min(place, whole - 1)}": BROKEN}))

    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert_whole(final)
        assert (len(runs.submitted), runs.followed, runs.dismissed) == (1, ["run_1"], [("run_1", False)])

    run(tmp_path, runs, body)


@pytest.mark.parametrize("place", range(2, 20))
def test_a_run_is_reattached_to_by_the_next_worker(tmp_path: Path, place: int) -> None:
    """Kill the first worker at any event: the second continues the same run, and the events before it stay."""
    whole = len(script(*HELLO))
    gate = Gate()
    runs = StubBackgroundRuns(script(*HELLO, **{f"at_{min(place, whole - 1)}": gate}))
    seen: list[str] = []

    async def first(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        await asyncio.sleep(0.01)
        seen.append(accepted.response_id)
        for running in list(harness.worker._running.values()):
            running.task.cancel()  # as if killed: nothing ends the response
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


def test_a_run_that_failed_at_the_upstream_is_submitted_again(tmp_path: Path) -> None:
    failed: Json = {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "Oh"}}}
    runs = StubBackgroundRuns([*script(*HELLO)[:2], failed], script(*HELLO))

    async def body(harness: Harness) -> None:
        assert_whole(await harness.answer())
        assert (len(runs.submitted), runs.followed) == (2, [])
        assert runs.dismissed == [("run_1", False), ("run_2", False)]

    run(tmp_path, runs, body)


def test_a_run_that_failed_after_something_was_shown_ends_as_incomplete(tmp_path: Path) -> None:
    failed: Json = {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "Oh"}}}
    runs = StubBackgroundRuns([*script(*HELLO)[:MIDDLE], failed])

    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("incomplete", "Hello")
        assert "Oh" in final["incomplete_details"]["message"]
        assert (len(runs.submitted), runs.followed, runs.dismissed) == (1, [], [("run_1", False)])

    run(tmp_path, runs, body)


@pytest.mark.parametrize("shown", [False, True])
def test_a_run_that_the_upstream_has_lost_is_submitted_again_or_cut_off(tmp_path: Path, shown: bool) -> None:
    runs = StubBackgroundRuns(script(*HELLO, **{f"at_{MIDDLE if shown else 2}": BROKEN}), script(*HELLO))
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


def test_a_run_that_replays_other_events_is_cut_off(tmp_path: Path) -> None:
    runs = StubBackgroundRuns(script(*HELLO, **{f"at_{MIDDLE}": BROKEN}))
    follow = runs.follow

    def change(run_id: str) -> AsyncGenerator[list[bytes], None]:
        runs.runs[run_id] = script(reasoning("Hm."), message("Good", "bye"), call("{}"))
        return follow(run_id)

    runs.follow = change  # type: ignore[method-assign]

    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("incomplete", "Hello")
        assert "same" in final["incomplete_details"]["message"]

    run(tmp_path, runs, body)


def test_reattaching_that_brings_nothing_new_ends_the_response(tmp_path: Path) -> None:
    runs = StubBackgroundRuns(script(*HELLO))
    runs.scripts = [[*script(*HELLO)[:MIDDLE], *(UpstreamFault("Cut.") for _ in range(9))]]

    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("incomplete", "Hello")
        assert len(runs.followed) == MAX_ATTEMPTS
        assert runs.dismissed == [("run_1", True)]

    run(tmp_path, runs, body)


def test_a_cancelled_response_has_its_run_stopped_at_the_upstream(tmp_path: Path) -> None:
    gate = Gate()
    runs = StubBackgroundRuns(script(*HELLO, **{f"at_{MIDDLE}": gate}))

    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        await harness.worker.cancel(accepted.response_id)
        assert (await harness.end(accepted.response_id))["status"] == "cancelled"
        assert runs.dismissed == [("run_1", True)]

    run(tmp_path, runs, body)


@pytest.mark.parametrize("place", [2, MIDDLE], ids=["nothing shown", "something shown"])
def test_a_server_that_shuts_down_leaves_the_run_for_the_next_worker(tmp_path: Path, place: int) -> None:
    gate = Gate()
    runs = StubBackgroundRuns(script(*HELLO, **{f"at_{place}": gate}))
    seen: list[str] = []

    async def first(harness: Harness) -> None:
        accepted = await harness.create()
        seen.append(accepted.response_id)
        await gate.reached.wait()
        harness.shutdown.draining = True
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
    ids=["not stored", "may be compacted"],
)
def test_a_response_that_cannot_be_reattached_to_runs_in_the_foreground(tmp_path: Path, fields: dict[str, Any]) -> None:
    runs = StubBackgroundRuns(script(*HELLO))

    async def body(harness: Harness) -> None:
        harness.backend.scripts = [[[json.dumps(event).encode() for event in answer(*HELLO)]]]
        accepted = await harness.create(**fields)
        await harness.reader.wait_end(accepted.response_id)
        assert runs.submitted == []
        assert len(harness.backend.calls) == 1

    run(tmp_path, runs, body)


def test_a_run_without_an_id_is_read_like_any_other_answer(tmp_path: Path) -> None:
    without_id = [{key: value for key, value in event.items() if key != "response"} for event in answer(*HELLO)[2:-1]]
    runs = StubBackgroundRuns([*without_id, answer(*HELLO)[-1]])

    async def body(harness: Harness) -> None:
        assert_whole(await harness.answer())

    run(tmp_path, runs, body)

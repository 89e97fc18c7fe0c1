"""Calls of tools: each ends in time with an outcome of bounded size in the journal, whatever its tool does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlive.core.events import Json
from outlive.core.toolcalls import ToolOutcome, fail
from outlive.engine.run.tool_loop import (
    BROKEN,
    ERROR_TOO_LONG,
    MAX_MESSAGE,
    MAX_PARALLEL,
    NOT_JSON,
    REPORTS,
    REPORTS_PER_SECOND,
    STOP_SECONDS,
)
from outlive.ports.toolbox import Invocation, ToolProgress
from tests.engine.tool_harness import Act, StubTool, StubToolbox, ToolHarness, model_step, outline
from tests.engine.virtual_clock import run_virtually


def make(
    act: Act | str, arguments: str = "{}", times: int = 1, seconds: float = 30.0, **options: Any
) -> tuple[list[Json], ToolHarness, StubTool]:
    """Run one step with calls of a tool that acts so. Returns the items that the calls become."""

    async def body() -> tuple[list[Json], ToolHarness, StubTool]:
        tool = StubTool("act", act, seconds=seconds)
        step = model_step(*[("act", arguments)] * times)
        harness = ToolHarness(StubToolbox(tool), [step], [model_step(text="Done.")], **options)
        final = await harness.run()
        assert final["status"] == "completed"
        return final["output"][:times], harness, tool

    return run_virtually(body())


def error_of(item: Json) -> str:
    assert item["status"] == "failed"
    assert item["output"] is None
    return str(item["error"]["content"][0]["text"])


def reports(harness: ToolHarness) -> list[Json]:
    return [event for event in harness.events() if event["type"] == "outlive:tool.progress"]


def test_a_call_has_the_output_that_its_tool_returns() -> None:
    (item,), _, _ = make("fine")
    assert (item["status"], item["output"], item["error"]) == ("completed", "fine", None)


def test_a_tool_without_output_has_the_empty_output() -> None:
    async def act(invocation: Invocation) -> ToolOutcome:
        return ToolOutcome()

    (item,), harness, _ = make(act)
    assert (item["status"], item["output"]) == ("completed", "")
    assert outline(harness.backend.calls[-1].items[:2]) == ["Hi", "act"]


def test_a_failure_is_reported_to_the_model() -> None:
    async def act(invocation: Invocation) -> ToolOutcome:
        return fail("No such city.")

    (item,), harness, _ = make(act)
    assert error_of(item) == "No such city."
    assert outline(harness.backend.calls[-1].items)[-1] == "The call failed. No such city."


def test_a_tool_that_raises_fails_and_its_error_shows_in_no_event(caplog: pytest.LogCaptureFixture) -> None:
    async def act(invocation: Invocation) -> ToolOutcome:
        raise RuntimeError("secret inside")

    (item,), harness, _ = make(act)
    assert error_of(item) == BROKEN
    assert "secret" not in str(harness.events())
    assert [(each.msg, vars(each)["tool"]) for each in caplog.records] == [("tool failed", "outlive/act")]


def test_a_tool_that_cancels_itself_fails() -> None:
    async def act(invocation: Invocation) -> ToolOutcome:
        raise asyncio.CancelledError

    (item,), _, _ = make(act)
    assert error_of(item) == BROKEN


def test_a_call_that_takes_too_long_fails() -> None:
    async def act(invocation: Invocation) -> ToolOutcome:
        await asyncio.sleep(3600)
        raise AssertionError

    (item,), harness, _ = make(act, seconds=2.5)
    assert error_of(item).startswith("The call took longer than 2.5 s")
    assert "may or may not" in outline(harness.backend.calls[-1].items)[-1]


def test_a_call_that_cannot_be_stopped_is_left_alone() -> None:
    async def act(invocation: Invocation) -> ToolOutcome:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if may_stop.is_set():
                    raise

    may_stop = asyncio.Event()

    async def body() -> None:
        harness = ToolHarness(
            StubToolbox(StubTool("act", act, seconds=2.0)), [model_step(("act", "{}"))], [model_step(text="Done.")]
        )
        began = asyncio.get_running_loop().time()
        final = await harness.run()
        assert (final["status"], final["output"][0]["status"]) == ("completed", "failed")
        assert asyncio.get_running_loop().time() - began == pytest.approx(2.0 + STOP_SECONDS, abs=0.1)
        may_stop.set()

    run_virtually(body())


def test_a_timeout_error_of_the_tool_itself_is_not_the_calls_limit() -> None:
    async def act(invocation: Invocation) -> ToolOutcome:
        raise TimeoutError

    (item,), _, _ = make(act)
    assert error_of(item) == BROKEN


@pytest.mark.parametrize("arguments", ["[1]", '"x"', "{oops"])
def test_a_call_whose_arguments_are_no_object_is_not_made(arguments: str) -> None:
    (item,), _, tool = make("fine", arguments)
    assert error_of(item) == NOT_JSON
    assert tool.invocations == []


def test_an_output_that_is_too_long_is_cut_with_a_note() -> None:
    (item,), _, _ = make("x" * 500, max_output=100)
    assert item["output"].startswith("x" * 100 + "\n")
    assert "first 100 of 500" in item["output"]


def test_an_error_that_is_too_long_is_replaced() -> None:
    async def act(invocation: Invocation) -> ToolOutcome:
        return fail("x" * 500)

    (item,), _, _ = make(act, max_output=100)
    assert error_of(item) == ERROR_TOO_LONG


def test_at_most_max_parallel_calls_are_made_at_a_time() -> None:
    running, most = 0, 0

    async def act(invocation: Invocation) -> ToolOutcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return ToolOutcome("fine")

    items, _, _ = make(act, times=MAX_PARALLEL + 5)
    assert most == MAX_PARALLEL
    assert {item["output"] for item in items} == {"fine"}


def test_one_call_that_fails_does_not_stop_the_others() -> None:
    begun = 0

    async def act(invocation: Invocation) -> ToolOutcome:
        nonlocal begun
        begun += 1
        if begun == 2:
            raise RuntimeError
        await asyncio.sleep(1)
        return ToolOutcome("fine")

    items, _, _ = make(act, times=3)
    assert [item["status"] for item in items] == ["completed", "failed", "completed"]


def test_progress_reports_become_events() -> None:
    async def act(invocation: Invocation) -> ToolOutcome:
        invocation.report(ToolProgress(1, 3, "one"))
        await asyncio.sleep(1)
        invocation.report(ToolProgress(message="x" * 10_000))
        return ToolOutcome("fine")

    (item,), harness, _ = make(act)
    one, two = reports(harness)
    assert (one["progress"], one["total"], one["message"], one["item_id"]) == (1, 3, "one", item["id"])
    assert one["output_index"] == 0
    assert len(two["message"]) == MAX_MESSAGE


def test_progress_reports_are_limited_in_rate() -> None:
    async def act(invocation: Invocation) -> ToolOutcome:
        for n in range(10_000):
            invocation.report(ToolProgress(n))
            await asyncio.sleep(0.001)
        return ToolOutcome("fine")

    _, harness, _ = make(act)
    assert len(reports(harness)) == pytest.approx(REPORTS + 10 * REPORTS_PER_SECOND, abs=2)


def test_a_progress_report_after_the_call_has_ended_is_dropped() -> None:
    late: list[Invocation] = []

    async def act(invocation: Invocation) -> ToolOutcome:
        late.append(invocation)
        return ToolOutcome("fine")

    async def body() -> None:
        harness = ToolHarness(
            StubToolbox(StubTool("act", act)), [model_step(("act", "{}"))], [model_step(text="Done.")]
        )
        await harness.run()
        late[0].report(ToolProgress(1))
        harness.check()
        assert reports(harness) == []

    run_virtually(body())


@pytest.mark.parametrize("parallel", [True, False])
def test_a_response_lost_during_its_calls_emits_no_outcome_and_begins_no_further_call(
    parallel: bool, caplog: pytest.LogCaptureFixture
) -> None:
    harness: ToolHarness

    async def act(invocation: Invocation) -> ToolOutcome:
        harness.live.lose()
        invocation.report(ToolProgress(1))
        return ToolOutcome("fine")

    async def body() -> None:
        nonlocal harness
        step = model_step(("act", "{}"), ("act", "{}"))
        harness = ToolHarness(StubToolbox(tool), [step], [model_step(text="Done.")], parallel_tool_calls=parallel)
        await harness.start()
        assert harness.event_types()[-1] == "response.mcp_call.in_progress"
        assert harness.toolbox.sessions[0].closed

    tool = StubTool("act", act)
    run_virtually(body())
    assert len(tool.invocations) == (2 if parallel else 1)
    assert "tool failed" not in caplog.text  # a tool's report is dropped, and does not raise

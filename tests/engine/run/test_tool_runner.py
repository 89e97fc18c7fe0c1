"""Making calls: whatever a tool does, its call has an outcome, in time, of bounded size, and in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from outlive.core.events import Json
from outlive.core.toolcalls.calls import ToolOutcome, fail
from outlive.engine.run.tool_runner import (
    BROKEN,
    ERROR_TOO_LONG,
    MAX_MESSAGE,
    NOT_JSON,
    REPORTS,
    REPORTS_PER_SECOND,
    STOP_SECONDS,
    WIDTH,
)
from outlive.ports.toolbox import Invocation, ToolProgress
from tests.engine.tool_harness import StubTool, StubToolbox, ToolHarness, told_to_model, wants
from tests.engine.virtual_clock import run_virtually

Act = Callable[[Invocation], Awaitable[ToolOutcome]]


def make(
    act: Act | str, arguments: str = "{}", times: int = 1, **options: Any
) -> tuple[list[Json], ToolHarness, StubTool]:
    """One step with calls of a tool that acts so; the items they become."""

    async def go() -> tuple[list[Json], ToolHarness, StubTool]:
        marks = {name: options.pop(name) for name in ("seconds",) if name in options}
        tool = StubTool("act", act, **marks)
        harness = ToolHarness(
            StubToolbox(tool), [wants(*[("act", arguments)] * times)], [wants(text="Done.")], **options
        )
        final = await harness.run()
        assert final["status"] == "completed"
        return final["output"][:times], harness, tool

    return run_virtually(go())


def error_of(item: Json) -> str:
    assert item["status"] == "failed"
    assert item["output"] is None
    return str(item["error"]["content"][0]["text"])


def reports(harness: ToolHarness) -> list[Json]:
    return [event for event in harness.events() if event["type"] == "outlive:tool.progress"]


def test_an_outcome_is_what_the_tool_says() -> None:
    (item,), _, _ = make("fine")
    assert (item["status"], item["output"], item["error"]) == ("completed", "fine", None)


def test_an_output_of_nothing_is_an_output() -> None:
    async def act(calling: Invocation) -> ToolOutcome:
        return ToolOutcome()

    (item,), harness, _ = make(act)
    assert (item["status"], item["output"]) == ("completed", "")
    assert told_to_model(harness.backend.calls[-1].items[:2]) == ["Hi", "act"]


def test_a_tool_may_fail_and_the_model_is_told() -> None:
    async def act(calling: Invocation) -> ToolOutcome:
        return fail("No such city.")

    (item,), harness, _ = make(act)
    assert error_of(item) == "No such city."
    assert told_to_model(harness.backend.calls[-1].items)[-1] == "The call failed. No such city."


def test_a_tool_that_raises_has_failed_and_says_nothing_of_its_insides(caplog: pytest.LogCaptureFixture) -> None:
    async def act(calling: Invocation) -> ToolOutcome:
        raise RuntimeError("secret inside")

    (item,), harness, _ = make(act)
    assert error_of(item) == BROKEN
    assert "secret" not in str(harness.events())


def test_a_tool_that_cancels_itself_has_failed() -> None:
    async def act(calling: Invocation) -> ToolOutcome:
        raise asyncio.CancelledError

    (item,), _, _ = make(act)
    assert error_of(item) == BROKEN


def test_a_call_has_its_deadline() -> None:
    async def act(calling: Invocation) -> ToolOutcome:
        await asyncio.sleep(3600)
        raise AssertionError

    (item,), harness, _ = make(act, seconds=2.5)
    assert error_of(item).startswith("The call took longer than 2.5 s")
    assert "may or may not" in told_to_model(harness.backend.calls[-1].items)[-1]


def test_a_call_that_will_not_be_stopped_is_left_alone() -> None:
    async def act(calling: Invocation) -> ToolOutcome:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if leaving.is_set():
                    raise

    leaving = asyncio.Event()

    async def go() -> None:
        harness = ToolHarness(
            StubToolbox(StubTool("act", act, seconds=2.0)), [wants(("act", "{}"))], [wants(text="Done.")]
        )
        began = asyncio.get_running_loop().time()
        final = await harness.run()
        assert (final["status"], final["output"][0]["status"]) == ("completed", "failed")
        assert asyncio.get_running_loop().time() - began == pytest.approx(2.0 + STOP_SECONDS, abs=0.1)
        leaving.set()

    run_virtually(go())


def test_a_timeout_of_the_tools_own_is_not_the_deadline() -> None:
    async def act(calling: Invocation) -> ToolOutcome:
        raise TimeoutError

    (item,), _, _ = make(act)
    assert error_of(item) == BROKEN


@pytest.mark.parametrize("arguments", ["[1]", '"x"', "{oops"])
def test_arguments_that_are_no_object_are_not_tried(arguments: str) -> None:
    (item,), _, tool = make("fine", arguments)
    assert error_of(item) == NOT_JSON
    assert tool.calls == []


def test_an_output_that_is_too_long_is_cut_and_says_so() -> None:
    (item,), _, _ = make("x" * 500, max_output=100)
    assert item["output"].startswith("x" * 100 + "\n")
    assert "first 100 of 500" in item["output"]


def test_an_error_that_is_too_long_is_not_told() -> None:
    async def act(calling: Invocation) -> ToolOutcome:
        return fail("x" * 500)

    (item,), _, _ = make(act, max_output=100)
    assert error_of(item) == ERROR_TOO_LONG


def test_many_calls_are_made_so_many_at_a_time() -> None:
    running, most = 0, 0

    async def act(calling: Invocation) -> ToolOutcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return ToolOutcome("fine")

    items, _, _ = make(act, times=WIDTH + 5)
    assert most == WIDTH
    assert {item["output"] for item in items} == {"fine"}


def test_one_call_that_fails_does_not_stop_the_others() -> None:
    begun = 0

    async def act(calling: Invocation) -> ToolOutcome:
        nonlocal begun
        begun += 1
        if begun == 2:
            raise RuntimeError
        await asyncio.sleep(1)
        return ToolOutcome("fine")

    items, _, _ = make(act, times=3)
    assert [item["status"] for item in items] == ["completed", "failed", "completed"]


def test_progress_shows_in_the_stream() -> None:
    async def act(calling: Invocation) -> ToolOutcome:
        calling.report(ToolProgress(1, 3, "one"))
        await asyncio.sleep(1)
        calling.report(ToolProgress(message="x" * 10_000))
        return ToolOutcome("fine")

    (item,), harness, _ = make(act)
    one, two = reports(harness)
    assert (one["progress"], one["total"], one["message"], one["item_id"]) == (1, 3, "one", item["id"])
    assert one["output_index"] == 0
    assert len(two["message"]) == MAX_MESSAGE


def test_a_tool_that_reports_all_the_time_is_heard_now_and_then() -> None:
    async def act(calling: Invocation) -> ToolOutcome:
        for n in range(10_000):
            calling.report(ToolProgress(n))
            await asyncio.sleep(0.001)
        return ToolOutcome("fine")

    _, harness, _ = make(act)
    assert len(reports(harness)) == pytest.approx(REPORTS + 10 * REPORTS_PER_SECOND, abs=2)


def test_nothing_is_reported_of_a_call_that_is_over() -> None:
    late: list[Invocation] = []

    async def act(calling: Invocation) -> ToolOutcome:
        late.append(calling)
        return ToolOutcome("fine")

    async def go() -> None:
        harness = ToolHarness(StubToolbox(StubTool("act", act)), [wants(("act", "{}"))], [wants(text="Done.")])
        await harness.run()
        late[0].report(ToolProgress(1))
        harness.check()
        assert reports(harness) == []

    run_virtually(go())

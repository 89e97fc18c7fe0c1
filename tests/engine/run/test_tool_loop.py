"""The durable tool loop: many steps in one response, and no call made twice, at whatever point its worker dies."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.requests.tools import pack_secrets, purpose_of
from outlive.core.toolcalls import INTERRUPTED, ToolOutcome
from outlive.engine.delivery.live import State
from outlive.engine.run.plans import MAX_REPEATS, OVER_LIMIT
from outlive.engine.run.tool_loop import NO_TOOL, OTHER_SEAL
from outlive.ports.toolbox import Invocation, SessionRequest, ToolSession
from outlive.storage.seal import SecretSeal
from outlive.testing import Script, call_chunk, finish_chunk, text_chunk, usage_chunk
from tests.engine.tool_harness import (
    SERVER_TOOLS,
    StubTool,
    StubToolbox,
    ToolHarness,
    item_types,
    model_step,
    outline,
    texts,
)
from tests.engine.virtual_clock import run_virtually, turn
from tests.support.scripting import Gate

PARIS = ("weather", '{"city":"Paris"}')
ROME = ("weather", '{"city":"Rome"}')
ANSWER: Script = [model_step(text="It is 18.")]
TWO_STEPS: list[Script] = [[model_step(PARIS, text="Let me see.")], [model_step(ROME)], ANSWER]
SHELL: Json = {"type": "function", "name": "shell", "parameters": {"type": "object"}}
BOTH_SIDES: list[Json] = [SERVER_TOOLS, SHELL]
LIST: Json = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "docs", "tools": [], "error": None}


def weather(**marks: Any) -> StubTool:
    async def act(invocation: Invocation) -> ToolOutcome:
        return ToolOutcome(f"18 in {invocation.arguments['city']}")

    return StubTool("weather", act, **marks)


def cities(tool: StubTool) -> list[str]:
    return [invocation.arguments["city"] for invocation in tool.invocations]


def error_of(item: Json) -> str:
    return str(item["error"]["content"][0]["text"])


async def kill(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


# -- one run, undisturbed


def test_a_run_asks_the_model_until_it_calls_no_more_tools() -> None:
    async def body() -> None:
        tool = weather()
        harness = ToolHarness(StubToolbox(tool), *TWO_STEPS)
        final = await harness.run()
        assert final["status"] == "completed"
        assert item_types(final) == ["message", "mcp_call", "mcp_call", "message"]
        assert [item["output"] for item in final["output"] if item["type"] == "mcp_call"] == [
            "18 in Paris",
            "18 in Rome",
        ]
        assert cities(tool) == ["Paris", "Rome"]
        assert harness.toolbox.sessions[0].closed

    run_virtually(body())


def test_each_step_gets_the_texts_and_outputs_of_the_steps_before() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(weather()), *TWO_STEPS)
        await harness.run()
        assert [outline(call.items) for call in harness.backend.calls] == [
            ["Hi"],
            ["Hi", "Let me see.", "weather", "18 in Paris"],
            ["Hi", "Let me see.", "weather", "18 in Paris", "weather", "18 in Rome"],
        ]

    run_virtually(body())


def test_usage_adds_up_over_the_steps() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(weather()), *TWO_STEPS)
        usage = (await harness.run())["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (15, 9, 24)

    run_virtually(body())


def test_a_run_of_several_steps_is_one_attempt() -> None:
    async def body() -> None:
        assert "outlive" not in await ToolHarness(StubToolbox(weather()), *TWO_STEPS).run()

    run_virtually(body())


def test_a_call_is_durable_before_it_is_made_and_its_output_before_the_next_step() -> None:
    async def body() -> None:
        seen: list[list[str]] = []

        async def act(invocation: Invocation) -> ToolOutcome:
            seen.append(harness.event_types())
            return ToolOutcome("18")

        harness = ToolHarness(StubToolbox(StubTool("weather", act)), *TWO_STEPS)
        ask = harness.backend.stream

        def stream(call: Any, on_chunks: Any = None) -> Any:
            seen.append(harness.event_types())
            return ask(call)

        harness.backend.stream = stream  # type: ignore[method-assign]
        await harness.run()
        before, first_call, second, second_call, third = seen
        assert before[-1] == "response.in_progress"
        assert first_call[-1] == second_call[-1] == "response.mcp_call.in_progress"
        assert second[-1] == third[-1] == "response.output_item.done"

    run_virtually(body())


def test_text_shows_at_once_and_a_call_when_it_is_whole() -> None:
    async def body() -> None:
        gate = Gate()
        script: Script = [
            [text_chunk("Let me "), text_chunk("see.")],
            [call_chunk(0, "c", "weather", '{"city":')],
            gate,
            [call_chunk(0, None, None, '"Paris"}'), finish_chunk("tool_calls"), usage_chunk()],
        ]
        harness = ToolHarness(StubToolbox(weather()), script, ANSWER)
        running = harness.start()
        await gate.reached.wait()
        await turn()
        shown = [event_type.removeprefix("response.") for event_type in harness.event_types()]
        assert shown[-3:] == ["output_text.done", "content_part.done", "output_item.done"]
        gate.open()
        await running
        assert item_types(harness.check()) == ["message", "mcp_call", "message"]

    run_virtually(body())


@pytest.mark.parametrize("parallel", [None, True, False])
def test_calls_of_one_step_are_made_in_parallel_unless_the_request_forbids_it(parallel: bool | None) -> None:
    async def body() -> None:
        running, most = 0, 0

        async def act(invocation: Invocation) -> ToolOutcome:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1
            return ToolOutcome(invocation.arguments["city"])

        tool = StubTool("weather", act)
        step = model_step(PARIS, ROME, ("weather", '{"city":"Oslo"}'))
        harness = ToolHarness(StubToolbox(tool), [step], ANSWER, parallel_tool_calls=parallel)
        final = await harness.run()
        assert [item["output"] for item in final["output"][:3]] == ["Paris", "Rome", "Oslo"]
        assert most == (1 if parallel is False else 3)

    run_virtually(body())


def test_each_call_has_a_key_made_of_the_response_and_the_item() -> None:
    async def body() -> None:
        tool = weather()
        final = await ToolHarness(StubToolbox(tool), [model_step(PARIS, ROME)], ANSWER).run()
        keys = [invocation.key for invocation in tool.invocations]
        assert keys == [f"resp_1/{item['id']}" for item in final["output"][:2]]
        assert {invocation.owner for invocation in tool.invocations} == {"ann"}

    run_virtually(body())


def test_a_response_ends_before_its_tools_are_closed() -> None:
    harness: ToolHarness
    states: list[State] = []

    class SlowToolbox(StubToolbox):
        async def open(self, session_request: SessionRequest) -> ToolSession:
            session = await super().open(session_request)

            async def close() -> None:
                states.append(harness.live.state)
                await asyncio.sleep(5)

            session.close = close  # type: ignore[method-assign]
            return session

    async def body(*scripts: Script) -> str:
        nonlocal harness
        harness = ToolHarness(SlowToolbox(weather()), *scripts)
        return str((await harness.run())["status"])

    assert run_virtually(body(*TWO_STEPS)) == "completed"
    assert run_virtually(body([UpstreamFault("Gone.", retryable=False)])) == "failed"
    assert states == [State.ENDED, State.ENDED]


def test_tools_that_cannot_be_closed_leave_the_end_of_the_response_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    class BrokenToolbox(StubToolbox):
        async def open(self, session_request: SessionRequest) -> ToolSession:
            session = await super().open(session_request)

            async def close() -> None:
                raise RuntimeError

            session.close = close  # type: ignore[method-assign]
            return session

    async def body() -> None:
        harness = ToolHarness(BrokenToolbox(weather()), *TWO_STEPS)
        assert (await harness.run())["status"] == "completed"
        assert ("running response failed", "resp_1") in [
            (each.msg, vars(each).get("response_id")) for each in caplog.records
        ]

    run_virtually(body())


# -- calls of client tools, and limits


def test_a_call_of_a_client_tool_ends_the_response_after_the_server_tools_were_called() -> None:
    async def body() -> None:
        tool = weather()
        harness = ToolHarness(StubToolbox(tool), [model_step(PARIS, ("shell", "{}"))], tools=BOTH_SIDES)
        final = await harness.run()
        assert (final["status"], item_types(final)) == ("completed", ["mcp_call", "function_call"])
        assert (len(tool.invocations), len(harness.backend.calls)) == (1, 1)
        assert final["output"][0]["output"] == "18 in Paris"

    run_virtually(body())


def test_a_turn_with_calls_of_server_and_client_tools_can_be_continued() -> None:
    async def body() -> None:
        calls = [model_step(PARIS, ("shell", "{}"))]
        first = await ToolHarness(StubToolbox(weather()), calls, tools=BOTH_SIDES).run()
        output = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "ok"}
        harness = ToolHarness(StubToolbox(weather()), ANSWER, past=first["output"], input=[output], tools=BOTH_SIDES)
        await harness.run()
        assert outline(harness.backend.calls[0].items) == ["weather", "18 in Paris", "shell", "ok"]

    run_virtually(body())


def test_calls_beyond_max_tool_calls_are_ignored_and_the_model_reads_why() -> None:
    async def body() -> None:
        tool = weather()
        harness = ToolHarness(
            StubToolbox(tool), [model_step(PARIS)], [model_step(ROME, PARIS)], ANSWER, max_tool_calls=2
        )
        final = await harness.run()
        assert cities(tool) == ["Paris", "Rome"]
        assert item_types(final) == ["mcp_call", "mcp_call", "message"]
        assert harness.backend.calls[-1].request.tool_choice == "none"
        seen = outline(harness.backend.calls[-1].items)
        assert seen[:6] == ["Hi", "weather", "18 in Paris", "weather", "18 in Rome", "weather"]
        assert OVER_LIMIT in seen[6]

    run_virtually(body())


def test_a_call_of_the_clients_takes_the_place_of_an_ignored_one() -> None:
    async def body() -> None:
        tool = weather()
        steps: list[Script] = [[model_step(PARIS)], [model_step(ROME, PARIS, ("shell", "{}"))]]
        harness = ToolHarness(StubToolbox(tool), *steps, tools=BOTH_SIDES, max_tool_calls=2)
        final = await harness.run()
        assert cities(tool) == ["Paris", "Rome"]
        assert item_types(final) == ["mcp_call", "mcp_call", "function_call"]

    run_virtually(body())


def test_an_ignored_call_is_still_seen_after_a_crash() -> None:
    async def body() -> None:
        tool = weather(idempotent=True)
        harness = ToolHarness(StubToolbox(tool), [model_step(PARIS, ROME)], ANSWER, ANSWER, max_tool_calls=1)
        await harness.run()
        harness.cut(harness.positions("response.mcp_call.in_progress")[0])
        final = await harness.run()
        assert cities(tool) == ["Paris", "Paris"]
        assert item_types(final) == ["mcp_call", "message"]
        assert OVER_LIMIT in outline(harness.backend.calls[-1].items)[-1]

    run_virtually(body())


def test_an_ignored_call_of_a_step_that_is_taken_again_is_forgotten() -> None:
    async def body() -> None:
        again: list[Script] = [[model_step(ROME, text="Let me see.")], ANSWER]
        harness = ToolHarness(StubToolbox(weather()), [model_step(PARIS, ROME)], ANSWER, *again, max_tool_calls=1)
        await harness.run()
        harness.cut(harness.positions("response.output_item.added")[0] - 1)
        await harness.run()
        assert outline(harness.backend.calls[-1].items) == ["Hi", "Let me see.", "weather", "18 in Rome"]

    run_virtually(body())


def test_a_model_that_always_calls_tools_is_stopped_after_max_steps() -> None:
    async def body() -> None:
        tool = weather()
        harness = ToolHarness(StubToolbox(tool), [model_step(PARIS)], max_steps=3)
        final = await harness.run()
        assert (len(tool.invocations), len(harness.backend.calls)) == (3, 4)
        assert final["status"] == "completed"
        assert [item["status"] for item in final["output"]] == ["completed"] * 3 + ["incomplete"]

    run_virtually(body())


def test_a_required_tool_choice_applies_to_the_first_step_only() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(weather()), [model_step(PARIS)], ANSWER, tool_choice="required")
        await harness.run()
        assert [call.request.tool_choice for call in harness.backend.calls] == ["required", "auto"]

    run_virtually(body())


def test_max_output_tokens_limits_all_steps_together() -> None:
    async def body() -> None:
        first = [model_step(PARIS, usage=(5, 30))]
        harness = ToolHarness(StubToolbox(weather()), first, ANSWER, max_output_tokens=100)
        await harness.run()
        assert [call.request.max_output_tokens for call in harness.backend.calls] == [100, 70]
        first = [model_step(PARIS, usage=(5, 100))]
        harness = ToolHarness(StubToolbox(weather()), first, ANSWER, max_output_tokens=100)
        final = await harness.run()
        assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")
        assert len(harness.backend.calls) == 1

    run_virtually(body())


def test_the_calls_of_an_incomplete_step_are_not_made() -> None:
    async def body() -> None:
        tool = weather()
        cut_off = [call_chunk(0, "c", "weather", '{"city":'), finish_chunk("length"), usage_chunk()]
        final = await ToolHarness(StubToolbox(tool), [cut_off]).run()
        assert (final["status"], tool.invocations) == ("incomplete", [])
        assert final["output"][0]["status"] == "incomplete"

    run_virtually(body())


# -- approval


def test_a_call_that_needs_approval_ends_the_response_with_an_approval_request() -> None:
    async def body() -> None:
        tool = weather(needs_approval=True)
        final = await ToolHarness(StubToolbox(tool), [model_step(PARIS, text="May I?")]).run()
        assert (final["status"], item_types(final)) == ("completed", ["message", "mcp_approval_request"])
        assert final["output"][1]["arguments"] == PARIS[1]
        assert tool.invocations == []

    run_virtually(body())


@pytest.mark.parametrize("approve", [True, False])
def test_the_next_turn_makes_an_approved_call_and_reports_a_refused_one_to_the_model(approve: bool) -> None:
    async def body() -> None:
        past = (await ToolHarness(StubToolbox(weather(needs_approval=True)), [model_step(PARIS)]).run())["output"]
        response = {"type": "mcp_approval_response", "approval_request_id": past[0]["id"], "approve": approve}
        tool = weather(needs_approval=True)
        harness = ToolHarness(StubToolbox(tool), ANSWER, past=past, input=[response])
        final = await harness.run()
        assert item_types(final) == (["mcp_call", "message"] if approve else ["message"])
        assert len(tool.invocations) == approve
        if approve:
            assert final["output"][0]["approval_request_id"] == past[0]["id"]
            assert outline(harness.backend.calls[0].items) == ["weather", "18 in Paris"]
        else:
            assert "did not approve" in outline(harness.backend.calls[0].items)[1]

    run_virtually(body())


def test_an_approved_call_of_a_tool_that_no_longer_exists_fails() -> None:
    async def body() -> None:
        past = (await ToolHarness(StubToolbox(weather(needs_approval=True)), [model_step(PARIS)]).run())["output"]
        response = {"type": "mcp_approval_response", "approval_request_id": past[0]["id"], "approve": True}
        final = await ToolHarness(StubToolbox(), ANSWER, past=past, input=[response]).run()
        assert final["output"][0]["status"] == "failed"
        assert error_of(final["output"][0]) == NO_TOOL

    run_virtually(body())


# -- lists of tools, secrets


def test_lists_of_tools_are_shown_first_and_once() -> None:
    def make() -> ToolHarness:
        return ToolHarness(StubToolbox(weather(), lists=[LIST]), [model_step(PARIS)], ANSWER)

    async def body() -> None:
        whole = make()
        assert item_types(await whole.run()) == ["mcp_list_tools", "mcp_call", "message"]
        for last in whole.batches()[1:-1]:
            harness = make()
            await harness.run()
            harness.cut(last)
            assert item_types(await harness.run()).count("mcp_list_tools") == 1

    run_virtually(body())


def test_tools_are_opened_with_the_lists_that_responses_have_made() -> None:
    async def body() -> None:
        past: list[Json] = [LIST, {"id": "msg_0", "type": "message", "role": "user", "content": []}]
        harness = ToolHarness(StubToolbox(weather()), ANSWER, past=past)
        await harness.run()
        (session_request,) = harness.toolbox.session_requests
        assert [item["type"] for item in session_request.lists] == ["mcp_list_tools"]

    run_virtually(body())


def test_tools_that_cannot_be_opened_fail_the_response() -> None:
    class UnreachableToolbox(StubToolbox):
        async def open(self, session_request: SessionRequest) -> Any:
            raise UpstreamFault("The server docs cannot be reached.")

    async def body() -> None:
        final = await ToolHarness(UnreachableToolbox(), ANSWER).run()
        assert (final["status"], final["error"]["message"]) == ("failed", "The server docs cannot be reached.")

    run_virtually(body())


def test_sealed_secrets_are_opened_for_the_tools_of_a_run() -> None:
    async def body() -> None:
        secrets = {"docs": {"authorization": "canary"}}
        seal = SecretSeal([b"key"])
        harness = ToolHarness(StubToolbox(weather()), ANSWER, seal=seal)
        harness.sealed = seal.close(pack_secrets(secrets), purpose_of("resp_1"))
        await harness.run()
        assert harness.toolbox.session_requests[0].secrets == secrets

    run_virtually(body())


@pytest.mark.parametrize("seal", [SecretSeal([b"another"]), None], ids=["another key", "no key"])
def test_sealed_secrets_that_cannot_be_opened_fail_the_response(seal: SecretSeal | None) -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(weather()), ANSWER, seal=seal)
        harness.sealed = SecretSeal([b"key"]).close(pack_secrets({}), purpose_of("resp_1"))
        final = await harness.run()
        assert (final["status"], final["error"]["message"]) == ("failed", OTHER_SEAL)

    run_virtually(body())


# -- workers that die


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_run_cut_off_at_any_commit_continues_at_its_first_unfinished_step(idempotent: bool, parallel: bool) -> None:
    scripts: list[Script] = [[model_step(PARIS, ROME, text="Let me see.")], [model_step(PARIS)], ANSWER]

    def make() -> tuple[StubTool, ToolHarness]:
        tool = weather(idempotent=idempotent)
        return tool, ToolHarness(StubToolbox(tool), *scripts, parallel_tool_calls=parallel, continuation="prefill")

    async def body() -> None:
        _, whole = make()
        await whole.run()
        for last in whole.batches()[:-1]:
            tool, harness = make()
            await harness.run()
            harness.cut(last)
            await check_recovery(tool, harness, idempotent)

    run_virtually(body())


async def check_recovery(tool: StubTool, harness: ToolHarness, idempotent: bool) -> None:
    """Check that the next worker repeats no finished call, repeats begun ones only of an idempotent tool, and makes all
    others."""
    output = harness.revive().fold.output
    finished = [item for item in output if item.get("status") == "completed" and item["type"] == "mcp_call"]
    begun = [item for item in output if item.get("status") == "calling"]
    seen = harness.events()
    tool.invocations.clear()
    final = await harness.run()
    assert final["status"] == "completed"
    assert harness.events()[: len(seen)] == seen
    made = {invocation.key.removeprefix("resp_1/"): invocation for invocation in tool.invocations}
    assert len(made) == len(tool.invocations)
    assert not made.keys() & {item["id"] for item in finished}
    for item in begun:
        now = final["output"][output.index(item)]
        if idempotent:
            assert made[item["id"]].repeated
            assert now["status"] == "completed"
        else:
            assert item["id"] not in made
            assert error_of(now) == INTERRUPTED
    for item in final["output"]:
        if item["type"] == "mcp_call" and item["id"] not in {each["id"] for each in finished + begun}:
            assert not made[item["id"]].repeated
            assert item["status"] == "completed"


def test_a_call_that_was_announced_and_never_begun_is_made_by_the_next_worker() -> None:
    async def body() -> None:
        tool = weather()
        harness = ToolHarness(StubToolbox(tool), [model_step(PARIS, ROME)], ANSWER, parallel_tool_calls=False)
        await harness.run()
        harness.cut(harness.positions("response.mcp_call.in_progress")[0])  # the first is begun, the second is not
        tool.invocations.clear()
        final = await harness.run()
        assert [item["status"] for item in final["output"][:2]] == ["failed", "completed"]
        assert cities(tool) == ["Rome"]

    run_virtually(body())


def test_a_call_that_kills_its_server_is_repeated_max_repeats_times() -> None:
    async def body() -> None:
        tool = weather(idempotent=True)
        harness = ToolHarness(StubToolbox(tool), [model_step(PARIS)], ANSWER)
        await harness.run()
        harness.cut(harness.positions("response.mcp_call.in_progress")[0])
        tool.invocations.clear()
        for _ in range(MAX_REPEATS):
            called = asyncio.Event()

            async def hang(invocation: Invocation, called: asyncio.Event = called) -> ToolOutcome:
                called.set()
                await asyncio.Event().wait()
                raise AssertionError

            tool.act = hang
            running = harness.start()
            await called.wait()
            await kill(running)
        final = await harness.run()
        assert len(tool.invocations) == MAX_REPEATS
        assert final["status"] == "completed"
        assert error_of(final["output"][0]) == INTERRUPTED

    run_virtually(body())


def test_a_run_that_was_continued_between_steps_reports_where() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(weather()), *TWO_STEPS)
        await harness.run()
        done = harness.positions("response.output_item.done")
        harness.cut(done[1])
        final = await harness.run()
        assert final["outlive"] == {"attempts": 2, "resumed_at": [done[1] + 1]}

    run_virtually(body())


def test_a_step_that_kills_its_server_each_time_ends_the_response() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(weather()), *TWO_STEPS)
        await harness.run()
        harness.cut(harness.positions("response.output_item.done")[1])
        for _ in range(3):
            gate = Gate()
            harness.backend.scripts = [[gate]]
            running = harness.start()
            await gate.reached.wait()
            await kill(running)
        final = await harness.run()
        assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "interrupted")

    run_virtually(body())


@pytest.mark.parametrize("continuation", ["prefill", "none"])
def test_half_shown_text_is_continued_in_place_or_ends_the_response(continuation: Literal["prefill", "none"]) -> None:
    async def body() -> None:
        answer: Script = [
            [text_chunk("It "), text_chunk("is ")],
            [text_chunk("18."), finish_chunk(), usage_chunk()],
        ]
        tool = weather()
        harness = ToolHarness(StubToolbox(tool), [model_step(PARIS)], answer, continuation=continuation)
        await harness.run()
        harness.cut(harness.positions("response.output_text.delta")[1])
        harness.backend.scripts = [[[text_chunk("18."), finish_chunk(), usage_chunk()]]]
        final = await harness.run()
        assert len(tool.invocations) == 1
        assert texts(final) == ("It is 18." if continuation == "prefill" else "It is ")
        assert final["status"] == ("completed" if continuation == "prefill" else "incomplete")
        if continuation == "prefill":
            call = harness.backend.calls[-1]
            assert call.resume is not None
            assert (call.resume.text, outline(call.items)) == ("It is ", ["Hi", "weather", "18 in Paris"])

    run_virtually(body())


def test_a_recovered_response_whose_client_must_answer_ends_without_asking_the_model() -> None:
    def make() -> ToolHarness:
        return ToolHarness(StubToolbox(weather()), [model_step(PARIS, ("shell", "{}"))], tools=BOTH_SIDES)

    async def body() -> None:
        whole = make()
        await whole.run()
        for last in whole.batches()[1:-1]:
            harness = make()
            await harness.run()
            harness.cut(last)
            final = await harness.run()
            assert (final["status"], item_types(final)) == ("completed", ["mcp_call", "function_call"])
            assert len(harness.backend.calls) == 1

    run_virtually(body())


# -- upstreams that break


def test_a_step_whose_upstream_broke_is_asked_again_with_the_finished_text() -> None:
    async def body() -> None:
        tool = weather()
        broken: Script = [[text_chunk("Hm."), call_chunk(0, "c", "weather", '{"ci')], UpstreamFault("Gone.")]
        harness = ToolHarness(StubToolbox(tool), [model_step(PARIS)], broken, ANSWER)
        final = await harness.run()
        assert item_types(final) == ["mcp_call", "message", "message"]
        assert outline(harness.backend.calls[2].items) == ["Hi", "weather", "18 in Paris", "Hm."]
        assert len(tool.invocations) == 1
        assert final["outlive"]["attempts"] == 2

    run_virtually(body())


def test_a_step_with_nothing_visible_is_retried_like_a_whole_request() -> None:
    async def body() -> None:
        down: Script = [UpstreamFault("Busy.", status=503)]
        harness = ToolHarness(StubToolbox(weather()), [model_step(PARIS)], down, down, ANSWER)
        final = await harness.run()
        assert final["status"] == "completed"
        assert final["outlive"] == {"attempts": 3, "resumed_at": []}
        harness = ToolHarness(StubToolbox(weather()), [model_step(PARIS)], down)
        final = await harness.run()
        assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
        assert len(harness.backend.calls) == 1 + 4

    run_virtually(body())


# -- releasing and stopping


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_run_can_be_released_unless_a_call_is_under_way_that_may_not_be_repeated(idempotent: bool) -> None:
    async def body() -> None:
        called, finish = asyncio.Event(), asyncio.Event()

        async def act(invocation: Invocation) -> ToolOutcome:
            called.set()
            await finish.wait()
            return ToolOutcome("18")

        gate = Gate()
        tool = StubTool("weather", act, idempotent=idempotent)
        harness = ToolHarness(StubToolbox(tool), [model_step(PARIS)], [gate, *ANSWER])
        running = harness.start()
        await called.wait()
        assert harness.last_run.can_release() == idempotent
        finish.set()
        await gate.reached.wait()
        assert harness.last_run.can_release()
        gate.open()
        await running
        assert harness.last_run._tool_loop is None

    run_virtually(body())


def test_a_cancelled_run_cancels_its_calls_and_closes_its_tools() -> None:
    async def body() -> None:
        called = asyncio.Event()
        cancelled = False

        async def act(invocation: Invocation) -> ToolOutcome:
            nonlocal cancelled
            called.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = True
                raise
            raise AssertionError

        harness = ToolHarness(StubToolbox(StubTool("weather", act)), [model_step(PARIS)])
        running = harness.start()
        await called.wait()
        await kill(running)
        assert cancelled
        assert harness.toolbox.sessions[0].closed
        await harness.closer().end(harness.live, "cancelled")
        final = harness.check()
        assert (final["status"], final["output"][0]["status"]) == ("cancelled", "incomplete")

    run_virtually(body())

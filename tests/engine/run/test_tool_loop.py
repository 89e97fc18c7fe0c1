"""The durable loop: many steps in one response, and nothing made twice whenever its worker dies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.requests.secrets import pack_secrets, purpose_of
from outlive.core.toolcalls.calls import INTERRUPTED, ToolOutcome
from outlive.engine.run.tool_loop import MAX_REPEATS, OTHER_SEAL, OVER_LIMIT
from outlive.engine.run.tool_runner import NO_TOOL
from outlive.ports.toolbox import Invocation, SessionRequest
from outlive.storage.seal import SecretSeal
from outlive.testing import Script, call_chunk, finish_chunk, text_chunk, usage_chunk
from tests.engine.tool_harness import StubTool, StubToolbox, ToolHarness, kinds, texts, told_to_model, wants
from tests.engine.virtual_clock import run_virtually, turn
from tests.support.scripting import Gate

PARIS = ("weather", '{"city":"Paris"}')
ROME = ("weather", '{"city":"Rome"}')
ANSWER: Script = [wants(text="It is 18.")]
TWO_STEPS: list[Script] = [[wants(PARIS, text="Let me see.")], [wants(ROME)], ANSWER]


def weather(**marks: Any) -> StubTool:
    async def act(calling: Invocation) -> ToolOutcome:
        return ToolOutcome(f"18 in {calling.arguments['city']}")

    return StubTool("weather", act, **marks)


def run_with_harness(body: Callable[[], Awaitable[None]]) -> None:
    async def go() -> None:
        await body()

    run_virtually(go())


# -- one run, undisturbed


def test_a_response_goes_on_until_the_model_calls_nothing_more() -> None:
    async def body() -> None:
        tool = weather()
        harness = ToolHarness(StubToolbox(tool), *TWO_STEPS)
        final = await harness.run()
        assert final["status"] == "completed"
        assert kinds(final) == ["message", "mcp_call", "mcp_call", "message"]
        assert [item["output"] for item in final["output"] if item["type"] == "mcp_call"] == [
            "18 in Paris",
            "18 in Rome",
        ]
        assert [calling.arguments["city"] for calling in tool.calls] == ["Paris", "Rome"]
        assert harness.toolbox.sessions[0].closed

    run_with_harness(body)


def test_each_step_is_told_all_that_was_said_and_done_before() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(weather()), *TWO_STEPS)
        await harness.run()
        assert [told_to_model(call.items) for call in harness.backend.calls] == [
            ["Hi"],
            ["Hi", "Let me see.", "weather", "18 in Paris"],
            ["Hi", "Let me see.", "weather", "18 in Paris", "weather", "18 in Rome"],
        ]

    run_with_harness(body)


def test_usage_adds_up_over_the_steps() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(weather()), *TWO_STEPS)
        usage = (await harness.run())["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (15, 9, 24)

    run_with_harness(body)


def test_a_run_of_several_steps_is_one_attempt() -> None:
    async def body() -> None:
        assert "outlive" not in await ToolHarness(StubToolbox(weather()), *TWO_STEPS).run()

    run_with_harness(body)


def test_a_call_is_in_the_journal_before_it_is_made_and_its_output_before_the_next_step() -> None:
    async def body() -> None:
        seen: list[list[str]] = []

        async def act(calling: Invocation) -> ToolOutcome:
            seen.append([event["type"] for event in harness.events()])
            return ToolOutcome("18")

        harness = ToolHarness(StubToolbox(StubTool("weather", act)), *TWO_STEPS)
        asked = harness.backend.stream

        def stream(call: Any, on_chunks: Any = None) -> Any:
            seen.append([event["type"] for event in harness.events()])
            return asked(call)

        harness.backend.stream = stream  # type: ignore[method-assign]
        await harness.run()
        before, first_call, second, second_call, third = seen
        assert before[-1] == "response.in_progress"
        assert first_call[-1] == second_call[-1] == "response.mcp_call.in_progress"
        assert second[-1] == third[-1] == "response.output_item.done"

    run_with_harness(body)


def test_text_shows_while_the_model_speaks_and_calls_when_they_are_whole() -> None:
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
        shown = [event["type"].removeprefix("response.") for event in harness.events()]
        assert shown[-3:] == ["output_text.done", "content_part.done", "output_item.done"]
        gate.open()
        await running
        assert kinds(harness.check()) == ["message", "mcp_call", "message"]

    run_with_harness(body)


@pytest.mark.parametrize("parallel", [None, True, False])
def test_calls_of_one_step_are_made_together_or_one_by_one(parallel: bool | None) -> None:
    async def body() -> None:
        running, most = 0, 0

        async def act(calling: Invocation) -> ToolOutcome:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1
            return ToolOutcome(calling.arguments["city"])

        tool = StubTool("weather", act)
        step = wants(PARIS, ROME, ("weather", '{"city":"Oslo"}'))
        harness = ToolHarness(StubToolbox(tool), [step], ANSWER, parallel_tool_calls=parallel)
        final = await harness.run()
        assert [item["output"] for item in final["output"][:3]] == ["Paris", "Rome", "Oslo"]
        assert most == (1 if parallel is False else 3)

    run_with_harness(body)


def test_keys_of_calls_are_stable_and_their_own() -> None:
    async def body() -> None:
        tool = weather()
        final = await ToolHarness(StubToolbox(tool), [wants(PARIS, ROME)], ANSWER).run()
        keys = [calling.key for calling in tool.calls]
        assert keys == [f"resp_1/{item['id']}" for item in final["output"][:2]]
        assert {calling.owner for calling in tool.calls} == {"ann"}

    run_with_harness(body)


# -- calls of the client's own, and limits


SHELL: Json = {"type": "function", "name": "shell", "parameters": {"type": "object"}}
OURS: Json = {"type": "mcp", "server_label": "outlive"}


def test_calls_of_the_clients_end_the_response_after_those_of_the_server_were_made() -> None:
    async def body() -> None:
        tool = weather()
        harness = ToolHarness(StubToolbox(tool), [wants(PARIS, ("shell", "{}"))], tools=[OURS, SHELL])
        final = await harness.run()
        assert (final["status"], kinds(final)) == ("completed", ["mcp_call", "function_call"])
        assert (len(tool.calls), len(harness.backend.calls)) == (1, 1)
        assert final["output"][0]["output"] == "18 in Paris"

    run_with_harness(body)


def test_a_turn_with_calls_of_both_kinds_can_be_continued() -> None:
    async def body() -> None:
        first = await ToolHarness(StubToolbox(weather()), [wants(PARIS, ("shell", "{}"))], tools=[OURS, SHELL]).run()
        output = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "ok"}
        harness = ToolHarness(StubToolbox(weather()), ANSWER, past=first["output"], input=[output], tools=[OURS, SHELL])
        await harness.run()
        assert told_to_model(harness.backend.calls[0].items) == ["weather", "18 in Paris", "shell", "ok"]

    run_with_harness(body)


def test_no_more_calls_are_made_than_the_request_allows() -> None:
    async def body() -> None:
        tool = weather()
        harness = ToolHarness(StubToolbox(tool), [wants(PARIS)], [wants(ROME, PARIS)], ANSWER, max_tool_calls=2)
        final = await harness.run()
        assert len(tool.calls) == 2
        assert [item.get("status") for item in final["output"]] == ["completed", "completed", "failed", "completed"]
        assert final["output"][2]["error"]["content"][0]["text"] == OVER_LIMIT
        assert harness.backend.calls[-1].request.tool_choice == "none"
        assert OVER_LIMIT in told_to_model(harness.backend.calls[-1].items)[-1]

    run_with_harness(body)


def test_a_model_that_will_not_stop_calling_is_not_asked_for_ever() -> None:
    async def body() -> None:
        tool = weather()
        harness = ToolHarness(StubToolbox(tool), [wants(PARIS)], max_steps=3)
        final = await harness.run()
        assert (len(tool.calls), len(harness.backend.calls)) == (3, 4)
        assert final["status"] == "completed"
        assert [item["status"] for item in final["output"]] == ["completed"] * 3 + ["incomplete"]

    run_with_harness(body)


def test_what_makes_the_model_call_counts_for_the_first_step_only() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(weather()), [wants(PARIS)], ANSWER, tool_choice="required")
        await harness.run()
        assert [call.request.tool_choice for call in harness.backend.calls] == ["required", "auto"]

    run_with_harness(body)


def test_the_limit_of_tokens_holds_for_all_steps_together() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(weather()), [wants(PARIS, usage=(5, 30))], ANSWER, max_output_tokens=100)
        await harness.run()
        assert [call.request.max_output_tokens for call in harness.backend.calls] == [100, 70]
        harness = ToolHarness(StubToolbox(weather()), [wants(PARIS, usage=(5, 100))], ANSWER, max_output_tokens=100)
        final = await harness.run()
        assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")
        assert len(harness.backend.calls) == 1

    run_with_harness(body)


def test_a_step_that_was_cut_off_makes_no_calls() -> None:
    async def body() -> None:
        tool = weather()
        cut = [call_chunk(0, "c", "weather", '{"city":'), finish_chunk("length"), usage_chunk()]
        final = await ToolHarness(StubToolbox(tool), [cut]).run()
        assert (final["status"], tool.calls) == ("incomplete", [])
        assert final["output"][0]["status"] == "incomplete"

    run_with_harness(body)


# -- approval


def test_a_call_that_needs_approval_ends_the_response_with_a_question() -> None:
    async def body() -> None:
        tool = weather(needs_approval=True)
        final = await ToolHarness(StubToolbox(tool), [wants(PARIS, text="May I?")]).run()
        assert (final["status"], kinds(final)) == ("completed", ["message", "mcp_approval_request"])
        assert final["output"][1]["arguments"] == PARIS[1]
        assert tool.calls == []

    run_with_harness(body)


@pytest.mark.parametrize("approve", [True, False])
def test_the_next_turn_makes_the_call_or_tells_the_model_that_it_was_refused(approve: bool) -> None:
    async def body() -> None:
        asked = (await ToolHarness(StubToolbox(weather(needs_approval=True)), [wants(PARIS)]).run())["output"]
        response = {"type": "mcp_approval_response", "approval_request_id": asked[0]["id"], "approve": approve}
        tool = weather(needs_approval=True)
        harness = ToolHarness(StubToolbox(tool), ANSWER, past=asked, input=[response])
        final = await harness.run()
        assert kinds(final) == (["mcp_call", "message"] if approve else ["message"])
        assert len(tool.calls) == approve
        if approve:
            assert final["output"][0]["approval_request_id"] == asked[0]["id"]
            assert told_to_model(harness.backend.calls[0].items) == ["weather", "18 in Paris"]
        else:
            assert "did not approve" in told_to_model(harness.backend.calls[0].items)[1]

    run_with_harness(body)


def test_an_approved_call_of_a_tool_that_is_gone_fails() -> None:
    async def body() -> None:
        asked = (await ToolHarness(StubToolbox(weather(needs_approval=True)), [wants(PARIS)]).run())["output"]
        response = {"type": "mcp_approval_response", "approval_request_id": asked[0]["id"], "approve": True}
        final = await ToolHarness(StubToolbox(), ANSWER, past=asked, input=[response]).run()
        assert final["output"][0]["status"] == "failed"
        assert final["output"][0]["error"]["content"][0]["text"] == NO_TOOL

    run_with_harness(body)


# -- lists of tools, secrets


LIST: Json = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "docs", "tools": [], "error": None}


def test_lists_of_tools_are_shown_first_and_once() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(weather(), lists=[LIST]), [wants(PARIS)], ANSWER)
        final = await harness.run()
        assert kinds(final) == ["mcp_list_tools", "mcp_call", "message"]
        for last in harness.batches()[1:-1]:
            again = ToolHarness(StubToolbox(weather(), lists=[LIST]), [wants(PARIS)], ANSWER)
            await again.run()
            again.cut(last)
            assert kinds(await again.run()).count("mcp_list_tools") == 1

    run_with_harness(body)


def test_tools_are_opened_with_all_that_came_before() -> None:
    async def body() -> None:
        past: list[Json] = [LIST, {"id": "msg_0", "type": "message", "role": "user", "content": []}]
        harness = ToolHarness(StubToolbox(weather()), ANSWER, past=past)
        await harness.run()
        (order,) = harness.toolbox.orders
        assert [item["type"] for item in order.items] == ["mcp_list_tools", "message", "message"]

    run_with_harness(body)


def test_tools_that_cannot_be_opened_fail_the_response() -> None:
    class Broken(StubToolbox):
        async def open(self, order: SessionRequest) -> Any:
            raise UpstreamFault("The server docs cannot be reached.")

    async def body() -> None:
        final = await ToolHarness(Broken(), ANSWER).run()
        assert (final["status"], final["error"]["message"]) == ("failed", "The server docs cannot be reached.")

    run_with_harness(body)


def test_sealed_secrets_reach_the_tools_of_a_run_that_was_taken_over() -> None:
    async def body() -> None:
        secrets = {"docs": {"authorization": "canary"}}
        seal = SecretSeal([b"key"])
        harness = ToolHarness(StubToolbox(weather()), ANSWER, seal=seal)
        harness.sealed = seal.close(pack_secrets(secrets), purpose_of("resp_1"))
        await harness.run()
        assert harness.toolbox.orders[0].secrets == secrets
        other = ToolHarness(StubToolbox(weather()), ANSWER, seal=SecretSeal([b"another"]))
        other.sealed = harness.sealed
        final = await other.run()
        assert (final["status"], final["error"]["message"]) == ("failed", OTHER_SEAL)

    run_with_harness(body)


# -- workers that die


def after(harness: ToolHarness, last: int) -> list[str]:
    return [event["type"] for event in harness.events()[: last + 1]]


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_run_cut_off_at_any_commit_goes_on_at_its_first_unfinished_step(idempotent: bool, parallel: bool) -> None:
    scripts: list[Script] = [[wants(PARIS, ROME, text="Let me see.")], [wants(PARIS)], ANSWER]

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
            await check_revival(tool, harness, idempotent)

    run_with_harness(body)


async def check_revival(tool: StubTool, harness: ToolHarness, idempotent: bool) -> None:
    """Calls that were over are not made again; those that were begun as their tool declares; all others are made."""
    output = harness.revive().fold.output
    over = [item for item in output if item.get("status") == "completed" and item["type"] == "mcp_call"]
    begun = [item for item in output if item.get("status") == "calling"]
    seen = harness.events()
    tool.calls.clear()
    final = await harness.run()
    assert final["status"] == "completed"
    assert harness.events()[: len(seen)] == seen
    made = {calling.key.removeprefix("resp_1/"): calling for calling in tool.calls}
    assert len(made) == len(tool.calls)
    assert not made.keys() & {item["id"] for item in over}
    for item in begun:
        now = final["output"][output.index(item)]
        if idempotent:
            assert made[item["id"]].repeated
            assert now["status"] == "completed"
        else:
            assert item["id"] not in made
            assert now["error"]["content"][0]["text"] == INTERRUPTED
    for item in final["output"]:
        if item["type"] == "mcp_call" and item["id"] not in {one["id"] for one in over + begun}:
            assert not made[item["id"]].repeated
            assert item["status"] == "completed"


def test_a_call_that_was_announced_but_never_begun_is_made_after_all() -> None:
    async def body() -> None:
        tool = weather()
        harness = ToolHarness(StubToolbox(tool), [wants(PARIS, ROME)], ANSWER, parallel_tool_calls=False)
        await harness.run()
        types = [event["type"] for event in harness.events()]
        harness.cut(types.index("response.mcp_call.in_progress"))  # the first is begun, the second is not
        tool.calls.clear()
        final = await harness.run()
        assert [item["status"] for item in final["output"][:2]] == ["failed", "completed"]
        assert [calling.arguments["city"] for calling in tool.calls] == ["Rome"]

    run_with_harness(body)


def test_a_call_that_kills_its_server_is_not_repeated_for_ever() -> None:
    async def body() -> None:
        tool = weather(idempotent=True)
        harness = ToolHarness(StubToolbox(tool), [wants(PARIS)], ANSWER)
        await harness.run()
        begun = [event["type"] for event in harness.events()].index("response.mcp_call.in_progress")
        harness.cut(begun)
        tool.calls.clear()
        for _ in range(MAX_REPEATS):
            gate = asyncio.Event()

            async def hang(calling: Invocation, gate: asyncio.Event = gate) -> ToolOutcome:
                gate.set()
                await asyncio.Event().wait()
                raise AssertionError

            tool._act = hang
            running = harness.start()
            await gate.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        final = await harness.run()
        assert len(tool.calls) == MAX_REPEATS
        assert final["status"] == "completed"
        assert final["output"][0]["error"]["content"][0]["text"] == INTERRUPTED

    run_with_harness(body)


def test_a_run_that_was_taken_up_between_steps_says_where() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(weather()), *TWO_STEPS)
        await harness.run()
        done = [n for n, event in enumerate(harness.events()) if event["type"] == "response.output_item.done"]
        harness.cut(done[1])
        final = await harness.run()
        assert final["outlive"] == {"attempts": 2, "resumed_at": [done[1] + 1]}

    run_with_harness(body)


def test_a_step_that_never_gets_anywhere_is_not_tried_for_ever() -> None:
    async def body() -> None:
        harness = ToolHarness(StubToolbox(weather()), *TWO_STEPS)
        await harness.run()
        done = [n for n, event in enumerate(harness.events()) if event["type"] == "response.output_item.done"]
        harness.cut(done[1])
        for _ in range(3):
            gate = Gate()
            harness.backend.scripts = [[gate]]
            running = harness.start()
            await gate.reached.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        final = await harness.run()
        assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "interrupted")

    run_with_harness(body)


def test_text_that_was_half_shown_goes_on_in_place_or_ends_the_response() -> None:
    async def body() -> None:
        for continuation in ("prefill", "none"):
            answer: Script = [
                [text_chunk("It "), text_chunk("is ")],
                [text_chunk("18."), finish_chunk(), usage_chunk()],
            ]
            tool = weather()
            harness = ToolHarness(StubToolbox(tool), [wants(PARIS)], answer, continuation=continuation)
            await harness.run()
            texts_at = [n for n, event in enumerate(harness.events()) if event["type"] == "response.output_text.delta"]
            harness.cut(texts_at[1])
            harness.backend.scripts = [[[text_chunk("18."), finish_chunk(), usage_chunk()]]]
            final = await harness.run()
            assert len(tool.calls) == 1
            assert texts(final) == ("It is 18." if continuation == "prefill" else "It is ")
            assert final["status"] == ("completed" if continuation == "prefill" else "incomplete")
            if continuation == "prefill":
                call = harness.backend.calls[-1]
                assert call.resume is not None
                assert (call.resume.text, told_to_model(call.items)) == ("It is ", ["Hi", "weather", "18 in Paris"])

    run_with_harness(body)


def test_a_response_whose_client_must_answer_just_ends_when_it_is_taken_up() -> None:
    async def body() -> None:
        tool = weather()
        harness = ToolHarness(StubToolbox(tool), [wants(PARIS, ("shell", "{}"))], tools=[OURS, SHELL])
        await harness.run()
        for last in harness.batches()[1:-1]:
            again = ToolHarness(StubToolbox(weather()), [wants(PARIS, ("shell", "{}"))], tools=[OURS, SHELL])
            await again.run()
            again.cut(last)
            final = await again.run()
            assert (final["status"], kinds(final)) == ("completed", ["mcp_call", "function_call"])
            assert len(again.backend.calls) == 1

    run_with_harness(body)


# -- upstreams that break


def test_a_step_whose_upstream_breaks_is_asked_again_with_what_there_is() -> None:
    async def body() -> None:
        tool = weather()
        broken: Script = [[text_chunk("Hm."), call_chunk(0, "c", "weather", '{"ci')], UpstreamFault("Gone.")]
        harness = ToolHarness(StubToolbox(tool), [wants(PARIS)], broken, ANSWER)
        final = await harness.run()
        assert kinds(final) == ["mcp_call", "message", "message"]
        assert told_to_model(harness.backend.calls[2].items) == ["Hi", "weather", "18 in Paris", "Hm."]
        assert len(tool.calls) == 1
        assert final["outlive"]["attempts"] == 2

    run_with_harness(body)


def test_a_step_with_nothing_visible_is_retried_as_any_request_would_be() -> None:
    async def body() -> None:
        down: Script = [UpstreamFault("Busy.", status=503)]
        harness = ToolHarness(StubToolbox(weather()), [wants(PARIS)], down, down, ANSWER)
        final = await harness.run()
        assert final["status"] == "completed"
        assert final["outlive"] == {"attempts": 3, "resumed_at": []}
        harness = ToolHarness(StubToolbox(weather()), [wants(PARIS)], down)
        final = await harness.run()
        assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
        assert len(harness.backend.calls) == 1 + 4

    run_with_harness(body)


# -- leaving


def test_a_run_may_be_handed_back_unless_a_call_is_under_way_that_may_not_be_repeated() -> None:
    async def body() -> None:
        for idempotent in (True, False):
            started, go_on = asyncio.Event(), asyncio.Event()

            async def act(
                calling: Invocation, started: asyncio.Event = started, go_on: asyncio.Event = go_on
            ) -> ToolOutcome:
                started.set()
                await go_on.wait()
                return ToolOutcome("18")

            gate = Gate()
            harness = ToolHarness(
                StubToolbox(StubTool("weather", act, idempotent=idempotent)), [wants(PARIS)], [gate, *ANSWER]
            )
            runner = harness.runner()
            running = asyncio.ensure_future(runner.run(harness.claim(), harness.revive()))
            await started.wait()
            assert runner.can_continue(harness.claim(), harness.live) == idempotent
            go_on.set()
            await gate.reached.wait()
            assert runner.can_continue(harness.claim(), harness.live)
            gate.open()
            await running
            assert runner.stepping == {}

    run_with_harness(body)


def test_a_cancelled_run_cancels_its_calls_and_closes_its_tools() -> None:
    async def body() -> None:
        started = asyncio.Event()
        cancelled = False

        async def act(calling: Invocation) -> ToolOutcome:
            nonlocal cancelled
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled = True
                raise
            raise AssertionError

        harness = ToolHarness(StubToolbox(StubTool("weather", act)), [wants(PARIS)])
        running = harness.start()
        await started.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert cancelled
        assert harness.toolbox.sessions[0].closed
        await harness.runner().cancel(harness.claim(), harness.live)
        final = harness.check()
        assert (final["status"], final["output"][0]["status"]) == ("cancelled", "incomplete")

    run_with_harness(body)

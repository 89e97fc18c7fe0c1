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
from tests.engine.bench import Desk, StubTool, StubToolbox, kinds, texts, told, wants
from tests.engine.virtual import run_virtually, turn
from tests.support.scripting import Gate

PARIS = ("weather", '{"city":"Paris"}')
ROME = ("weather", '{"city":"Rome"}')
ANSWER: Script = [wants(text="It is 18.")]
TWO_STEPS: list[Script] = [[wants(PARIS, text="Let me see.")], [wants(ROME)], ANSWER]


def weather(**marks: Any) -> StubTool:
    async def act(calling: Invocation) -> ToolOutcome:
        return ToolOutcome(f"18 in {calling.arguments['city']}")

    return StubTool("weather", act, **marks)


def play(scene: Callable[[], Awaitable[None]]) -> None:
    async def go() -> None:
        await scene()

    run_virtually(go())


# -- one run, undisturbed


def test_a_response_goes_on_until_the_model_calls_nothing_more() -> None:
    async def scene() -> None:
        tool = weather()
        desk = Desk(StubToolbox(tool), *TWO_STEPS)
        final = await desk.run()
        assert final["status"] == "completed"
        assert kinds(final) == ["message", "mcp_call", "mcp_call", "message"]
        assert [item["output"] for item in final["output"] if item["type"] == "mcp_call"] == [
            "18 in Paris",
            "18 in Rome",
        ]
        assert [calling.arguments["city"] for calling in tool.calls] == ["Paris", "Rome"]
        assert desk.toolbox.benches[0].closed

    play(scene)


def test_each_step_is_told_all_that_was_said_and_done_before() -> None:
    async def scene() -> None:
        desk = Desk(StubToolbox(weather()), *TWO_STEPS)
        await desk.run()
        assert [told(call.items) for call in desk.backend.calls] == [
            ["Hi"],
            ["Hi", "Let me see.", "weather", "18 in Paris"],
            ["Hi", "Let me see.", "weather", "18 in Paris", "weather", "18 in Rome"],
        ]

    play(scene)


def test_usage_adds_up_over_the_steps() -> None:
    async def scene() -> None:
        desk = Desk(StubToolbox(weather()), *TWO_STEPS)
        usage = (await desk.run())["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (15, 9, 24)

    play(scene)


def test_a_run_of_several_steps_is_one_attempt() -> None:
    async def scene() -> None:
        assert "outlive" not in await Desk(StubToolbox(weather()), *TWO_STEPS).run()

    play(scene)


def test_a_call_is_in_the_journal_before_it_is_made_and_its_output_before_the_next_step() -> None:
    async def scene() -> None:
        seen: list[list[str]] = []

        async def act(calling: Invocation) -> ToolOutcome:
            seen.append([event["type"] for event in desk.events()])
            return ToolOutcome("18")

        desk = Desk(StubToolbox(StubTool("weather", act)), *TWO_STEPS)
        asked = desk.backend.stream

        def stream(call: Any, on_chunks: Any = None) -> Any:
            seen.append([event["type"] for event in desk.events()])
            return asked(call)

        desk.backend.stream = stream  # type: ignore[method-assign]
        await desk.run()
        before, first_call, second, second_call, third = seen
        assert before[-1] == "response.in_progress"
        assert first_call[-1] == second_call[-1] == "response.mcp_call.in_progress"
        assert second[-1] == third[-1] == "response.output_item.done"

    play(scene)


def test_text_shows_while_the_model_speaks_and_calls_when_they_are_whole() -> None:
    async def scene() -> None:
        gate = Gate()
        script: Script = [
            [text_chunk("Let me "), text_chunk("see.")],
            [call_chunk(0, "c", "weather", '{"city":')],
            gate,
            [call_chunk(0, None, None, '"Paris"}'), finish_chunk("tool_calls"), usage_chunk()],
        ]
        desk = Desk(StubToolbox(weather()), script, ANSWER)
        running = desk.start()
        await gate.reached.wait()
        await turn()
        shown = [event["type"].removeprefix("response.") for event in desk.events()]
        assert shown[-3:] == ["output_text.done", "content_part.done", "output_item.done"]
        gate.open()
        await running
        assert kinds(desk.check()) == ["message", "mcp_call", "message"]

    play(scene)


@pytest.mark.parametrize("parallel", [None, True, False])
def test_calls_of_one_step_are_made_together_or_one_by_one(parallel: bool | None) -> None:
    async def scene() -> None:
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
        desk = Desk(StubToolbox(tool), [step], ANSWER, parallel_tool_calls=parallel)
        final = await desk.run()
        assert [item["output"] for item in final["output"][:3]] == ["Paris", "Rome", "Oslo"]
        assert most == (1 if parallel is False else 3)

    play(scene)


def test_keys_of_calls_are_stable_and_their_own() -> None:
    async def scene() -> None:
        tool = weather()
        final = await Desk(StubToolbox(tool), [wants(PARIS, ROME)], ANSWER).run()
        keys = [calling.key for calling in tool.calls]
        assert keys == [f"resp_1/{item['id']}" for item in final["output"][:2]]
        assert {calling.owner for calling in tool.calls} == {"ann"}

    play(scene)


# -- calls of the client's own, and limits


SHELL: Json = {"type": "function", "name": "shell", "parameters": {"type": "object"}}
OURS: Json = {"type": "mcp", "server_label": "outlive"}


def test_calls_of_the_clients_end_the_response_after_those_of_the_server_were_made() -> None:
    async def scene() -> None:
        tool = weather()
        desk = Desk(StubToolbox(tool), [wants(PARIS, ("shell", "{}"))], tools=[OURS, SHELL])
        final = await desk.run()
        assert (final["status"], kinds(final)) == ("completed", ["mcp_call", "function_call"])
        assert (len(tool.calls), len(desk.backend.calls)) == (1, 1)
        assert final["output"][0]["output"] == "18 in Paris"

    play(scene)


def test_a_turn_with_calls_of_both_kinds_can_be_continued() -> None:
    async def scene() -> None:
        first = await Desk(StubToolbox(weather()), [wants(PARIS, ("shell", "{}"))], tools=[OURS, SHELL]).run()
        output = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "ok"}
        desk = Desk(StubToolbox(weather()), ANSWER, past=first["output"], input=[output], tools=[OURS, SHELL])
        await desk.run()
        assert told(desk.backend.calls[0].items) == ["weather", "18 in Paris", "shell", "ok"]

    play(scene)


def test_no_more_calls_are_made_than_the_request_allows() -> None:
    async def scene() -> None:
        tool = weather()
        desk = Desk(StubToolbox(tool), [wants(PARIS)], [wants(ROME, PARIS)], ANSWER, max_tool_calls=2)
        final = await desk.run()
        assert len(tool.calls) == 2
        assert [item.get("status") for item in final["output"]] == ["completed", "completed", "failed", "completed"]
        assert final["output"][2]["error"]["content"][0]["text"] == OVER_LIMIT
        assert desk.backend.calls[-1].request.tool_choice == "none"
        assert OVER_LIMIT in told(desk.backend.calls[-1].items)[-1]

    play(scene)


def test_a_model_that_will_not_stop_calling_is_not_asked_for_ever() -> None:
    async def scene() -> None:
        tool = weather()
        desk = Desk(StubToolbox(tool), [wants(PARIS)], max_steps=3)
        final = await desk.run()
        assert (len(tool.calls), len(desk.backend.calls)) == (3, 4)
        assert final["status"] == "completed"
        assert [item["status"] for item in final["output"]] == ["completed"] * 3 + ["incomplete"]

    play(scene)


def test_what_makes_the_model_call_counts_for_the_first_step_only() -> None:
    async def scene() -> None:
        desk = Desk(StubToolbox(weather()), [wants(PARIS)], ANSWER, tool_choice="required")
        await desk.run()
        assert [call.request.tool_choice for call in desk.backend.calls] == ["required", "auto"]

    play(scene)


def test_the_limit_of_tokens_holds_for_all_steps_together() -> None:
    async def scene() -> None:
        desk = Desk(StubToolbox(weather()), [wants(PARIS, usage=(5, 30))], ANSWER, max_output_tokens=100)
        await desk.run()
        assert [call.request.max_output_tokens for call in desk.backend.calls] == [100, 70]
        desk = Desk(StubToolbox(weather()), [wants(PARIS, usage=(5, 100))], ANSWER, max_output_tokens=100)
        final = await desk.run()
        assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "max_output_tokens")
        assert len(desk.backend.calls) == 1

    play(scene)


def test_a_step_that_was_cut_off_makes_no_calls() -> None:
    async def scene() -> None:
        tool = weather()
        cut = [call_chunk(0, "c", "weather", '{"city":'), finish_chunk("length"), usage_chunk()]
        final = await Desk(StubToolbox(tool), [cut]).run()
        assert (final["status"], tool.calls) == ("incomplete", [])
        assert final["output"][0]["status"] == "incomplete"

    play(scene)


# -- approval


def test_a_call_that_needs_approval_ends_the_response_with_a_question() -> None:
    async def scene() -> None:
        tool = weather(needs_approval=True)
        final = await Desk(StubToolbox(tool), [wants(PARIS, text="May I?")]).run()
        assert (final["status"], kinds(final)) == ("completed", ["message", "mcp_approval_request"])
        assert final["output"][1]["arguments"] == PARIS[1]
        assert tool.calls == []

    play(scene)


@pytest.mark.parametrize("approve", [True, False])
def test_the_next_turn_makes_the_call_or_tells_the_model_that_it_was_refused(approve: bool) -> None:
    async def scene() -> None:
        asked = (await Desk(StubToolbox(weather(needs_approval=True)), [wants(PARIS)]).run())["output"]
        response = {"type": "mcp_approval_response", "approval_request_id": asked[0]["id"], "approve": approve}
        tool = weather(needs_approval=True)
        desk = Desk(StubToolbox(tool), ANSWER, past=asked, input=[response])
        final = await desk.run()
        assert kinds(final) == (["mcp_call", "message"] if approve else ["message"])
        assert len(tool.calls) == approve
        if approve:
            assert final["output"][0]["approval_request_id"] == asked[0]["id"]
            assert told(desk.backend.calls[0].items) == ["weather", "18 in Paris"]
        else:
            assert "did not approve" in told(desk.backend.calls[0].items)[1]

    play(scene)


def test_an_approved_call_of_a_tool_that_is_gone_fails() -> None:
    async def scene() -> None:
        asked = (await Desk(StubToolbox(weather(needs_approval=True)), [wants(PARIS)]).run())["output"]
        response = {"type": "mcp_approval_response", "approval_request_id": asked[0]["id"], "approve": True}
        final = await Desk(StubToolbox(), ANSWER, past=asked, input=[response]).run()
        assert final["output"][0]["status"] == "failed"
        assert final["output"][0]["error"]["content"][0]["text"] == NO_TOOL

    play(scene)


# -- lists of tools, secrets


LIST: Json = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "docs", "tools": [], "error": None}


def test_lists_of_tools_are_shown_first_and_once() -> None:
    async def scene() -> None:
        desk = Desk(StubToolbox(weather(), lists=[LIST]), [wants(PARIS)], ANSWER)
        final = await desk.run()
        assert kinds(final) == ["mcp_list_tools", "mcp_call", "message"]
        for last in desk.batches()[1:-1]:
            again = Desk(StubToolbox(weather(), lists=[LIST]), [wants(PARIS)], ANSWER)
            await again.run()
            again.cut(last)
            assert kinds(await again.run()).count("mcp_list_tools") == 1

    play(scene)


def test_tools_are_opened_with_all_that_came_before() -> None:
    async def scene() -> None:
        past: list[Json] = [LIST, {"id": "msg_0", "type": "message", "role": "user", "content": []}]
        desk = Desk(StubToolbox(weather()), ANSWER, past=past)
        await desk.run()
        (order,) = desk.toolbox.orders
        assert [item["type"] for item in order.items] == ["mcp_list_tools", "message", "message"]

    play(scene)


def test_tools_that_cannot_be_opened_fail_the_response() -> None:
    class Broken(StubToolbox):
        async def open(self, order: SessionRequest) -> Any:
            raise UpstreamFault("The server docs cannot be reached.")

    async def scene() -> None:
        final = await Desk(Broken(), ANSWER).run()
        assert (final["status"], final["error"]["message"]) == ("failed", "The server docs cannot be reached.")

    play(scene)


def test_sealed_secrets_reach_the_tools_of_a_run_that_was_taken_over() -> None:
    async def scene() -> None:
        secrets = {"docs": {"authorization": "canary"}}
        seal = SecretSeal([b"key"])
        desk = Desk(StubToolbox(weather()), ANSWER, seal=seal)
        desk.sealed = seal.close(pack_secrets(secrets), purpose_of("resp_1"))
        await desk.run()
        assert desk.toolbox.orders[0].secrets == secrets
        other = Desk(StubToolbox(weather()), ANSWER, seal=SecretSeal([b"another"]))
        other.sealed = desk.sealed
        final = await other.run()
        assert (final["status"], final["error"]["message"]) == ("failed", OTHER_SEAL)

    play(scene)


# -- workers that die


def after(desk: Desk, last: int) -> list[str]:
    return [event["type"] for event in desk.events()[: last + 1]]


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_run_cut_off_at_any_commit_goes_on_at_its_first_unfinished_step(idempotent: bool, parallel: bool) -> None:
    scripts: list[Script] = [[wants(PARIS, ROME, text="Let me see.")], [wants(PARIS)], ANSWER]

    def make() -> tuple[StubTool, Desk]:
        tool = weather(idempotent=idempotent)
        return tool, Desk(StubToolbox(tool), *scripts, parallel_tool_calls=parallel, continuation="prefill")

    async def scene() -> None:
        _, whole = make()
        await whole.run()
        for last in whole.batches()[:-1]:
            tool, desk = make()
            await desk.run()
            desk.cut(last)
            await check_revival(tool, desk, idempotent)

    play(scene)


async def check_revival(tool: StubTool, desk: Desk, idempotent: bool) -> None:
    """Calls that were over are not made again; those that were begun as their tool declares; all others are made."""
    output = desk.revive().fold.output
    over = [item for item in output if item.get("status") == "completed" and item["type"] == "mcp_call"]
    begun = [item for item in output if item.get("status") == "calling"]
    seen = desk.events()
    tool.calls.clear()
    final = await desk.run()
    assert final["status"] == "completed"
    assert desk.events()[: len(seen)] == seen
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
    async def scene() -> None:
        tool = weather()
        desk = Desk(StubToolbox(tool), [wants(PARIS, ROME)], ANSWER, parallel_tool_calls=False)
        await desk.run()
        types = [event["type"] for event in desk.events()]
        desk.cut(types.index("response.mcp_call.in_progress"))  # the first is begun, the second is not
        tool.calls.clear()
        final = await desk.run()
        assert [item["status"] for item in final["output"][:2]] == ["failed", "completed"]
        assert [calling.arguments["city"] for calling in tool.calls] == ["Rome"]

    play(scene)


def test_a_call_that_kills_its_server_is_not_repeated_for_ever() -> None:
    async def scene() -> None:
        tool = weather(idempotent=True)
        desk = Desk(StubToolbox(tool), [wants(PARIS)], ANSWER)
        await desk.run()
        begun = [event["type"] for event in desk.events()].index("response.mcp_call.in_progress")
        desk.cut(begun)
        tool.calls.clear()
        for _ in range(MAX_REPEATS):
            gate = asyncio.Event()

            async def hang(calling: Invocation, gate: asyncio.Event = gate) -> ToolOutcome:
                gate.set()
                await asyncio.Event().wait()
                raise AssertionError

            tool._act = hang
            running = desk.start()
            await gate.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        final = await desk.run()
        assert len(tool.calls) == MAX_REPEATS
        assert final["status"] == "completed"
        assert final["output"][0]["error"]["content"][0]["text"] == INTERRUPTED

    play(scene)


def test_a_run_that_was_taken_up_between_steps_says_where() -> None:
    async def scene() -> None:
        desk = Desk(StubToolbox(weather()), *TWO_STEPS)
        await desk.run()
        done = [n for n, event in enumerate(desk.events()) if event["type"] == "response.output_item.done"]
        desk.cut(done[1])
        final = await desk.run()
        assert final["outlive"] == {"attempts": 2, "resumed_at": [done[1] + 1]}

    play(scene)


def test_a_step_that_never_gets_anywhere_is_not_tried_for_ever() -> None:
    async def scene() -> None:
        desk = Desk(StubToolbox(weather()), *TWO_STEPS)
        await desk.run()
        done = [n for n, event in enumerate(desk.events()) if event["type"] == "response.output_item.done"]
        desk.cut(done[1])
        for _ in range(3):
            gate = Gate()
            desk.backend.scripts = [[gate]]
            running = desk.start()
            await gate.reached.wait()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        final = await desk.run()
        assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "interrupted")

    play(scene)


def test_text_that_was_half_shown_goes_on_in_place_or_ends_the_response() -> None:
    async def scene() -> None:
        for continuation in ("prefill", "none"):
            answer: Script = [
                [text_chunk("It "), text_chunk("is ")],
                [text_chunk("18."), finish_chunk(), usage_chunk()],
            ]
            tool = weather()
            desk = Desk(StubToolbox(tool), [wants(PARIS)], answer, continuation=continuation)
            await desk.run()
            texts_at = [n for n, event in enumerate(desk.events()) if event["type"] == "response.output_text.delta"]
            desk.cut(texts_at[1])
            desk.backend.scripts = [[[text_chunk("18."), finish_chunk(), usage_chunk()]]]
            final = await desk.run()
            assert len(tool.calls) == 1
            assert texts(final) == ("It is 18." if continuation == "prefill" else "It is ")
            assert final["status"] == ("completed" if continuation == "prefill" else "incomplete")
            if continuation == "prefill":
                call = desk.backend.calls[-1]
                assert call.resume is not None
                assert (call.resume.text, told(call.items)) == ("It is ", ["Hi", "weather", "18 in Paris"])

    play(scene)


def test_a_response_whose_client_must_answer_just_ends_when_it_is_taken_up() -> None:
    async def scene() -> None:
        tool = weather()
        desk = Desk(StubToolbox(tool), [wants(PARIS, ("shell", "{}"))], tools=[OURS, SHELL])
        await desk.run()
        for last in desk.batches()[1:-1]:
            again = Desk(StubToolbox(weather()), [wants(PARIS, ("shell", "{}"))], tools=[OURS, SHELL])
            await again.run()
            again.cut(last)
            final = await again.run()
            assert (final["status"], kinds(final)) == ("completed", ["mcp_call", "function_call"])
            assert len(again.backend.calls) == 1

    play(scene)


# -- upstreams that break


def test_a_step_whose_upstream_breaks_is_asked_again_with_what_there_is() -> None:
    async def scene() -> None:
        tool = weather()
        broken: Script = [[text_chunk("Hm."), call_chunk(0, "c", "weather", '{"ci')], UpstreamFault("Gone.")]
        desk = Desk(StubToolbox(tool), [wants(PARIS)], broken, ANSWER)
        final = await desk.run()
        assert kinds(final) == ["mcp_call", "message", "message"]
        assert told(desk.backend.calls[2].items) == ["Hi", "weather", "18 in Paris", "Hm."]
        assert len(tool.calls) == 1
        assert final["outlive"]["attempts"] == 2

    play(scene)


def test_a_step_with_nothing_visible_is_retried_as_any_request_would_be() -> None:
    async def scene() -> None:
        down: Script = [UpstreamFault("Busy.", status=503)]
        desk = Desk(StubToolbox(weather()), [wants(PARIS)], down, down, ANSWER)
        final = await desk.run()
        assert final["status"] == "completed"
        assert final["outlive"] == {"attempts": 3, "resumed_at": []}
        desk = Desk(StubToolbox(weather()), [wants(PARIS)], down)
        final = await desk.run()
        assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
        assert len(desk.backend.calls) == 1 + 4

    play(scene)


# -- leaving


def test_a_run_may_be_handed_back_unless_a_call_is_under_way_that_may_not_be_repeated() -> None:
    async def scene() -> None:
        for idempotent in (True, False):
            started, go_on = asyncio.Event(), asyncio.Event()

            async def act(
                calling: Invocation, started: asyncio.Event = started, go_on: asyncio.Event = go_on
            ) -> ToolOutcome:
                started.set()
                await go_on.wait()
                return ToolOutcome("18")

            gate = Gate()
            desk = Desk(StubToolbox(StubTool("weather", act, idempotent=idempotent)), [wants(PARIS)], [gate, *ANSWER])
            runner = desk.runner()
            running = asyncio.ensure_future(runner.run(desk.claim(), desk.revive()))
            await started.wait()
            assert runner.can_continue(desk.claim(), desk.live) == idempotent
            go_on.set()
            await gate.reached.wait()
            assert runner.can_continue(desk.claim(), desk.live)
            gate.open()
            await running
            assert runner.stepping == {}

    play(scene)


def test_a_cancelled_run_cancels_its_calls_and_closes_its_tools() -> None:
    async def scene() -> None:
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

        desk = Desk(StubToolbox(StubTool("weather", act)), [wants(PARIS)])
        running = desk.start()
        await started.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert cancelled
        assert desk.toolbox.benches[0].closed
        await desk.runner().cancel(desk.claim(), desk.live)
        final = desk.check()
        assert (final["status"], final["output"][0]["status"]) == ("cancelled", "incomplete")

    play(scene)

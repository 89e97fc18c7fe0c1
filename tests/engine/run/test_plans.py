"""Plans: what follows each step of a run with tools, decided from values alone."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.core import toolcalls
from outlive.core.errors import InvalidRequest
from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json, add_item, number, read_frame
from outlive.core.fold import Fold
from outlive.core.grammar import FUNCTION_ARGUMENTS
from outlive.core.requests.create import CreateResponse
from outlive.core.toolcalls import INTERRUPTED, RequestedCall, ToolCall, ToolOutcome
from outlive.engine.run.plans import MAX_REPEATS, OVER_LIMIT, CallTools, Finish, StepResult, ToolPlan
from outlive.ports.backend import Ending
from outlive.ports.ledger import NO_CHECKPOINT, Checkpoint
from tests.core.journals import fold_of, opening
from tests.engine.tool_harness import SERVER_TOOLS, StubSession, StubTool
from tests.support.scripting import CountingIds

SHELL: Json = {"type": "function", "name": "shell", "parameters": {"type": "object"}}
LIST: Json = {"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "docs", "tools": [], "error": None}
COMPACTION: Json = {"id": "cmp_1", "type": "compaction", "encrypted_content": "x"}
MESSAGE: Json = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": []}
CLIENT_CALL: Json = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "c",
    "name": "shell",
    "arguments": "{}",
}
APPROVAL_REQUEST: Json = {
    "id": "mcpr_1",
    "type": "mcp_approval_request",
    "server_label": "outlive",
    "name": "weather",
    "arguments": '{"city":"Oslo"}',
}
COMPLETED = Ending("completed", usage={"input_tokens": 5, "output_tokens": 3})
INCOMPLETE = Ending("incomplete", reason="max_output_tokens")


def make_plan(*tools: StubTool, lists: list[Json] | None = None, max_steps: int = 100, **fields: Any) -> ToolPlan:
    request = CreateResponse(**{"model": "m", "input": [], "tools": [SERVER_TOOLS], **fields})
    session = StubSession({tool.spec.name: tool for tool in tools or (StubTool("weather"),)}, lists or [])
    return ToolPlan(request, session, CountingIds(), max_steps)


def item_done(item: Json, index: int) -> list[AnyDraft]:
    fields: Json = {"output_index": index, "item": item}
    return [Draft("response.output_item.added", fields), Draft("response.output_item.done", fields)]


def make_fold(*output: Json) -> Fold:
    """Return the fold of a response with these finished items."""
    drafts = [draft for index, item in enumerate(output) for draft in item_done(item, index)]
    return fold_of([*opening(), *drafts])


def call_at(index: int, name: str = "weather", **fields: Any) -> ToolCall:
    return ToolCall(item_id=f"mcp_{index}", output_index=index, label="outlive", name=name, arguments="{}", **fields)


def make_fold_with_calls(*pieces: list[AnyDraft]) -> Fold:
    return fold_of([*opening(), *(draft for piece in pieces for draft in piece)])


def finished_call(index: int) -> list[AnyDraft]:
    call = call_at(index)
    return [*toolcalls.announce(call), toolcalls.begin(call), *toolcalls.finish(call, ToolOutcome("18"))]


def begun_call(index: int) -> list[AnyDraft]:
    call = call_at(index)
    return [*toolcalls.announce(call), toolcalls.begin(call)]


def requested(index: int, city: str = "Paris", *, whole: bool = True) -> RequestedCall:
    return RequestedCall(index, "weather", f'{{"city":"{city}"}}', whole)


def items_done(drafts: list[AnyDraft]) -> list[Json]:
    """Return the items that the drafts finish."""
    return [draft.fields["item"] for draft in drafts if type(draft) is Draft and draft.type.endswith("item.done")]


def error_of(item: Json) -> str:
    return str(item["error"]["content"][0]["text"])


def describe(planned: CallTools) -> list[tuple[str, int, str]]:
    return [(call.name, call.output_index, call.arguments) for call, _ in planned.calls]


# -- after a step


def test_a_step_without_calls_finishes_with_the_usage_of_all_steps() -> None:
    drafts = item_done(MESSAGE, 0)
    checkpoint = Checkpoint(usage={"input_tokens": 10, "output_tokens": 7}, steps=1)
    following = make_plan().next(StepResult(drafts, COMPLETED), make_fold(), checkpoint)
    assert isinstance(following, Finish)
    assert following.drafts == drafts
    assert (following.ending.status, following.ending.usage) == ("completed", {"input_tokens": 15, "output_tokens": 10})


def test_the_calls_of_a_step_are_announced_in_their_place_and_scheduled() -> None:
    tool = StubTool("weather")
    before, after = item_done(MESSAGE, 0), item_done(CLIENT_CALL, 3)
    step = StepResult([*before, requested(1), requested(2, "Rome"), *after], COMPLETED)
    following = make_plan(tool).next(step, make_fold(), Checkpoint(usage={"output_tokens": 7}))
    assert isinstance(following, CallTools)
    assert describe(following) == [("weather", 1, '{"city":"Paris"}'), ("weather", 2, '{"city":"Rome"}')]
    assert [scheduled for _, scheduled in following.calls] == [tool, tool]
    assert not any(call.begun for call, _ in following.calls)
    assert not following.asks_approval
    assert (following.ending.status, following.ending.usage) == ("completed", {"input_tokens": 5, "output_tokens": 10})
    announced = [draft for call, _ in following.calls for draft in toolcalls.announce(call)]
    assert list(map(repr, following.drafts)) == list(map(repr, [*before, *announced, *after]))


def test_each_scheduled_call_has_an_id_of_its_own() -> None:
    following = make_plan().next(StepResult([requested(0), requested(1)], COMPLETED), make_fold(), NO_CHECKPOINT)
    assert isinstance(following, CallTools)
    assert len({call.item_id for call, _ in following.calls}) == 2


def test_a_call_that_needs_approval_becomes_an_approval_request() -> None:
    tool = StubTool("weather", needs_approval=True)
    following = make_plan(tool).next(StepResult([requested(0)], COMPLETED), make_fold(), NO_CHECKPOINT)
    assert isinstance(following, CallTools)
    assert (following.calls, following.asks_approval) == ([], True)
    (item,) = items_done(following.drafts)
    assert (item["type"], item["name"], item["arguments"]) == ("mcp_approval_request", "weather", '{"city":"Paris"}')


def test_calls_without_approval_are_scheduled_beside_one_that_needs_it() -> None:
    plan = make_plan(StubTool("weather", needs_approval=True), StubTool("clock"))
    step = StepResult([requested(0), RequestedCall(1, "clock", "{}", whole=True)], COMPLETED)
    following = plan.next(step, make_fold(), NO_CHECKPOINT)
    assert isinstance(following, CallTools)
    assert (describe(following), following.asks_approval) == ([("clock", 1, "{}")], True)


def test_calls_over_the_limit_are_ignored_and_the_others_are_scheduled() -> None:
    step = StepResult([requested(1), requested(2, "Rome")], COMPLETED)
    fold = make_fold_with_calls(finished_call(0))
    following = make_plan(max_tool_calls=2).next(step, fold, NO_CHECKPOINT)
    assert isinstance(following, CallTools)
    assert describe(following) == [("weather", 1, '{"city":"Paris"}')]
    assert items_done(following.drafts) == []
    ((index, ignored),) = following.ignored
    assert (index, ignored["arguments"], error_of(ignored)) == (2, '{"city":"Rome"}', OVER_LIMIT)


def test_the_item_after_an_ignored_call_takes_its_place() -> None:
    channel = Channel(FUNCTION_ARGUMENTS, "fc_1", 3)
    item = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "shell", "arguments": ""}
    shell: list[AnyDraft] = [
        add_item(3, item),
        Delta(channel, "{}"),
        channel.end("{}", "shell"),
        Draft("vendor.event", {}),
    ]
    step = StepResult([requested(0), requested(1), requested(2), *shell], COMPLETED)
    following = make_plan(max_tool_calls=1).next(step, make_fold(), NO_CHECKPOINT)
    assert isinstance(following, CallTools)
    assert [index for index, _ in following.ignored] == [1, 1]
    events = [read_frame(frame) for frame in number(following.drafts, -1)]
    assert [event.get("output_index") for event in events] == [0, 0, 0, 1, 1, 1, None]


def test_an_incomplete_step_finishes_without_its_calls() -> None:
    following = make_plan().next(StepResult([requested(0)], INCOMPLETE), make_fold(), NO_CHECKPOINT)
    assert isinstance(following, Finish)
    assert (following.ending.status, following.ending.reason) == ("incomplete", "max_output_tokens")
    assert [item["status"] for item in items_done(following.drafts)] == ["incomplete"]


def test_a_call_whose_arguments_were_cut_off_is_not_made() -> None:
    step = StepResult([requested(0, whole=False), requested(1)], COMPLETED)
    following = make_plan().next(step, make_fold(), NO_CHECKPOINT)
    assert isinstance(following, CallTools)
    assert describe(following) == [("weather", 1, '{"city":"Paris"}')]
    assert [item["status"] for item in items_done(following.drafts)] == ["incomplete"]


@pytest.mark.parametrize("needs_approval", [True, False])
@pytest.mark.parametrize(
    ("limits", "steps", "made"),
    [({"max_steps": 3}, 3, 0), ({"max_steps": 3}, 4, 0), ({"max_tool_calls": 1}, 1, 1), ({"max_tool_calls": 0}, 0, 0)],
)
def test_a_step_beyond_the_limits_finishes_without_its_calls(
    limits: dict[str, Any], steps: int, made: int, needs_approval: bool
) -> None:
    plan = make_plan(StubTool("weather", needs_approval=needs_approval), **limits)
    fold = make_fold_with_calls(*map(finished_call, range(made)))
    following = plan.next(StepResult([requested(made)], COMPLETED), fold, Checkpoint(steps=steps))
    assert isinstance(following, Finish)
    assert following.ending.status == "completed"
    assert [item["status"] for item in items_done(following.drafts)] == (
        ["incomplete"] if "max_steps" in limits else []
    )


def test_a_step_below_the_limits_makes_its_calls() -> None:
    plan = make_plan(max_steps=3, max_tool_calls=2)
    following = plan.next(
        StepResult([requested(1)], COMPLETED), make_fold_with_calls(finished_call(0)), Checkpoint(steps=2)
    )
    assert isinstance(following, CallTools)
    assert len(following.calls) == 1


# -- after the calls


def after_calls(plan: ToolPlan, fold: Fold, *, output_tokens: int | None = 3, asks: bool = False) -> Finish | None:
    usage = None if output_tokens is None else {"output_tokens": output_tokens}
    return plan.after_calls(CallTools([], [], Ending("completed", usage=usage), asks), fold)


def test_the_model_is_asked_again_after_its_calls() -> None:
    fold = make_fold_with_calls(finished_call(0))
    assert after_calls(make_plan(), fold) is None
    assert after_calls(make_plan(max_output_tokens=4), fold) is None
    assert after_calls(make_plan(max_output_tokens=4), fold, output_tokens=None) is None


def test_a_response_that_asks_for_approval_finishes() -> None:
    following = after_calls(make_plan(), make_fold(), asks=True)
    assert isinstance(following, Finish)
    assert (following.drafts, following.ending.status) == ([], "completed")


@pytest.mark.parametrize("item", [CLIENT_CALL, {**CLIENT_CALL, "type": "custom_tool_call"}, APPROVAL_REQUEST])
def test_a_response_whose_client_must_answer_finishes(item: Json) -> None:
    plan, fold = make_plan(), make_fold(MESSAGE, item)
    assert plan.is_clients_turn(fold)
    following = after_calls(plan, fold)
    assert isinstance(following, Finish)
    assert (following.drafts, following.ending.status) == ([], "completed")


@pytest.mark.parametrize("item", [MESSAGE, LIST, COMPACTION])
def test_other_items_are_not_the_clients_turn(item: Json) -> None:
    assert not make_plan().is_clients_turn(make_fold(item))


@pytest.mark.parametrize("output_tokens", [100, 130])
def test_a_response_that_has_used_up_its_output_tokens_finishes_as_incomplete(output_tokens: int) -> None:
    plan = make_plan(max_output_tokens=100)
    following = after_calls(plan, make_fold_with_calls(finished_call(0)), output_tokens=output_tokens)
    assert isinstance(following, Finish)
    assert (following.ending.status, following.ending.reason) == ("incomplete", "max_output_tokens")
    assert following.ending.usage == {"output_tokens": output_tokens}


# -- before the first step of a worker


def test_a_new_response_has_nothing_to_resume() -> None:
    planned = make_plan().resume([], make_fold(), NO_CHECKPOINT)
    assert (planned.drafts, planned.calls, planned.asks_approval) == ([], [], False)


def test_resume_keeps_the_usage_of_the_finished_steps() -> None:
    usage = {"output_tokens": 7}
    assert make_plan().resume([], make_fold(), Checkpoint(usage=usage)).ending.usage == usage


def test_resume_shows_the_lists_of_tools_that_were_not_shown() -> None:
    other = {**LIST, "id": "mcpl_2"}
    planned = make_plan(lists=[LIST, other]).resume([], make_fold(), NO_CHECKPOINT)
    assert list(map(repr, planned.drafts)) == list(
        map(repr, [*toolcalls.show_list(LIST, 0), *toolcalls.show_list(other, 1)])
    )
    planned = make_plan(lists=[LIST, other]).resume([], make_fold(LIST, MESSAGE), NO_CHECKPOINT)
    assert list(map(repr, planned.drafts)) == list(map(repr, toolcalls.show_list(other, 2)))
    assert make_plan(lists=[LIST, other]).resume([], make_fold(LIST, other), NO_CHECKPOINT).drafts == []


def test_resume_leaves_finished_calls_alone() -> None:
    planned = make_plan().resume([], make_fold_with_calls(finished_call(0)), NO_CHECKPOINT)
    assert (planned.drafts, planned.calls) == ([], [])


@pytest.mark.parametrize("idempotent", [True, False])
def test_resume_makes_an_open_call_that_was_not_begun(idempotent: bool) -> None:
    tool = StubTool("weather", idempotent=idempotent)
    planned = make_plan(tool).resume([], make_fold_with_calls(toolcalls.announce(call_at(0))), NO_CHECKPOINT)
    assert planned.drafts == []
    assert planned.calls == [(call_at(0), tool)]


def test_resume_repeats_a_begun_call_of_an_idempotent_tool() -> None:
    tool = StubTool("weather", idempotent=True)
    planned = make_plan(tool).resume([], make_fold_with_calls(begun_call(0)), Checkpoint(repeats={"mcp_0": 1}))
    assert planned.drafts == []
    assert planned.calls == [(call_at(0, begun=True), tool)]


@pytest.mark.parametrize(
    ("tool", "repeats"),
    [
        (StubTool("weather"), 0),
        (StubTool("weather", idempotent=True), MAX_REPEATS),
        (StubTool("another", idempotent=True), 0),
    ],
    ids=["not idempotent", "repeated too often", "tool is gone"],
)
def test_resume_fails_a_begun_call_that_may_not_be_repeated(tool: StubTool, repeats: int) -> None:
    plan, checkpoint = make_plan(tool), Checkpoint(repeats={"mcp_0": repeats})
    planned = plan.resume([], make_fold_with_calls(begun_call(0)), checkpoint)
    assert planned.calls == []
    (item,) = items_done(planned.drafts)
    assert (item["id"], item["status"], error_of(item)) == ("mcp_0", "failed", INTERRUPTED)
    assert not plan.may_repeat(call_at(0, begun=True), checkpoint)


def test_a_call_of_an_idempotent_tool_may_be_repeated_a_limited_number_of_times() -> None:
    plan = make_plan(StubTool("weather", idempotent=True))
    allowed = [plan.may_repeat(call_at(0, begun=True), Checkpoint(repeats={"mcp_0": n})) for n in range(4)]
    assert allowed == [n < MAX_REPEATS for n in range(4)]
    assert plan.may_repeat(call_at(1, begun=True), Checkpoint(repeats={"mcp_0": MAX_REPEATS}))


def test_resume_schedules_an_open_call_of_a_tool_that_is_gone_without_the_tool() -> None:
    fold = make_fold_with_calls(toolcalls.announce(call_at(0, "another")))
    assert make_plan().resume([], fold, NO_CHECKPOINT).calls == [(call_at(0, "another"), None)]


# -- approved calls


def answer(approve: bool, request_id: str = "mcpr_1") -> Json:
    return {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": approve}


def test_resume_announces_and_makes_an_approved_call_after_the_lists() -> None:
    tool = StubTool("weather", needs_approval=True)
    planned = make_plan(tool, lists=[LIST], input=[answer(True)]).resume([APPROVAL_REQUEST], make_fold(), NO_CHECKPOINT)
    ((call, scheduled),) = planned.calls
    assert (call.output_index, call.arguments, call.approval) == (1, '{"city":"Oslo"}', "mcpr_1")
    assert scheduled is tool
    assert list(map(repr, planned.drafts)) == list(
        map(repr, [*toolcalls.show_list(LIST, 0), *toolcalls.announce(call)])
    )


def test_resume_makes_several_approved_calls_one_after_the_other_in_the_output() -> None:
    past, given = [APPROVAL_REQUEST, {**APPROVAL_REQUEST, "id": "mcpr_2"}], [answer(True), answer(True, "mcpr_2")]
    planned = make_plan(input=given).resume(past, make_fold(), NO_CHECKPOINT)
    assert [(call.output_index, call.approval) for call, _ in planned.calls] == [(0, "mcpr_1"), (1, "mcpr_2")]


def test_resume_makes_no_refused_or_unanswered_call() -> None:
    for given in ([answer(False)], []):
        planned = make_plan(input=given).resume([APPROVAL_REQUEST], make_fold(), NO_CHECKPOINT)
        assert (planned.drafts, planned.calls) == ([], [])


def test_resume_makes_an_approved_call_once() -> None:
    call = call_at(0, approval="mcpr_1")
    plan = make_plan(input=[answer(True)])
    fold = make_fold_with_calls(
        [*toolcalls.announce(call), toolcalls.begin(call), *toolcalls.finish(call, ToolOutcome("18"))]
    )
    assert plan.resume([APPROVAL_REQUEST], fold, NO_CHECKPOINT).calls == []
    open_again = plan.resume([APPROVAL_REQUEST], make_fold_with_calls(toolcalls.announce(call)), NO_CHECKPOINT)
    assert [each for each, _ in open_again.calls] == [call]


def test_resume_schedules_an_approved_call_of_a_tool_that_is_gone_without_the_tool() -> None:
    planned = make_plan(StubTool("another"), input=[answer(True)]).resume(
        [APPROVAL_REQUEST], make_fold(), NO_CHECKPOINT
    )
    assert [tool for _, tool in planned.calls] == [None]


def test_an_approval_of_an_unknown_request_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        make_plan(input=[answer(True, "mcpr_9")]).resume([APPROVAL_REQUEST], make_fold(), NO_CHECKPOINT)


# -- offering tools to the model


def offer(plan: ToolPlan, *output: Json, checkpoint: Checkpoint = NO_CHECKPOINT) -> CreateResponse:
    return plan.offer(list(output), make_fold(*output), checkpoint)


def test_server_tools_are_offered_as_functions_after_the_clients() -> None:
    request = offer(make_plan(StubTool("weather"), StubTool("clock"), tools=[SHELL, SERVER_TOOLS]))
    assert [(tool["type"], tool["name"]) for tool in request.tools] == [
        ("function", "shell"),
        ("function", "weather"),
        ("function", "clock"),
    ]


@pytest.mark.parametrize(
    ("output", "choice"),
    [
        ([], "required"),
        ([LIST, COMPACTION], "required"),
        ([{"id": "mcp_1", "type": "mcp_call", "approval_request_id": "mcpr_1"}], "required"),
        ([LIST, MESSAGE], "auto"),
        ([{"id": "mcp_1", "type": "mcp_call", "approval_request_id": None}], "auto"),
    ],
)
def test_a_required_choice_applies_until_the_model_has_written_something(output: list[Json], choice: str) -> None:
    assert offer(make_plan(tool_choice="required"), *output).tool_choice == choice


@pytest.mark.parametrize("limits", [{"max_steps": 2}, {"max_tool_calls": 1}])
def test_server_tools_cannot_be_called_beyond_the_limits(limits: dict[str, Any]) -> None:
    fold, checkpoint = make_fold_with_calls(finished_call(0)), Checkpoint(steps=2)
    request = make_plan(**limits).offer(fold.output, fold, checkpoint)
    assert (request.tool_choice, [tool["name"] for tool in request.tools]) == ("none", ["weather"])
    request = make_plan(tools=[SHELL, SERVER_TOOLS], **limits).offer(fold.output, fold, checkpoint)
    assert (request.tool_choice, [tool["name"] for tool in request.tools]) == ("auto", ["shell"])


@pytest.mark.parametrize(("most", "used", "left"), [(None, 30, None), (100, None, 100), (100, 30, 70), (100, 130, 0)])
def test_each_step_may_use_the_output_tokens_that_are_left(
    most: int | None, used: int | None, left: int | None
) -> None:
    usage = None if used is None else {"output_tokens": used}
    assert offer(make_plan(max_output_tokens=most), checkpoint=Checkpoint(usage=usage)).max_output_tokens == left

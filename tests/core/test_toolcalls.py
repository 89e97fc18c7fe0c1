"""Calls that the server makes: their events are sound at every point, their state is read from a journal, the tools
of each step are offered, and the buffer releases calls only when they are whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core import toolcalls
from outlive.core.endings import Outcome, close_open, turn
from outlive.core.errors import InvalidRequest
from outlive.core.events import AnyDraft, Delta, Draft, Json, read_frame, split_frames
from outlive.core.fold import Fold
from outlive.core.requests.create import CreateResponse
from outlive.core.toolcalls import (
    RequestedCall,
    ToolCall,
    ToolCallBuffer,
    ToolOutcome,
    ToolSpec,
    add_server_tools,
    find_approved,
    without_server_tools,
)
from outlive.dialects.chat.translator import ChatTranslator
from outlive.ports.backend import ModelCall
from outlive.testing import call_chunk, finish_chunk, reasoning_chunk, text_chunk
from tests.core.journals import REQUEST, assert_official_event, end_with, fold_of, frames_of, opening
from tests.core.journals import chunks as any_chunks
from tests.support.grammar import check
from tests.support.scripting import CountingIds

CALL = ToolCall(item_id="mcp_1", output_index=0, label="outlive", name="weather", arguments='{"city":"Paris"}')
LIST: Json = {
    "id": "mcpl_1",
    "type": "mcp_list_tools",
    "server_label": "docs",
    "tools": [{"name": "search", "input_schema": {"type": "object"}, "annotations": None, "description": "Finds."}],
    "error": None,
}
PROGRESS = {"progress": 1.0, "total": 3.0, "message": "one of three"}


def life(outcome: ToolOutcome) -> list[AnyDraft]:
    return [
        *opening(),
        *toolcalls.announce(CALL),
        toolcalls.begin(CALL),
        toolcalls.report(CALL, PROGRESS),
        *toolcalls.finish(CALL, outcome),
    ]


def end_all(drafts: list[AnyDraft]) -> list[Json]:
    fold = fold_of(drafts)
    drafts = [*drafts, *end_with(fold, close_open(fold), Outcome(status="cancelled", at=9))]
    events = [read_frame(frame) for frame in split_frames(frames_of(drafts))]
    check(events)
    for event in events:
        assert_official_event(event)
    return events


@pytest.mark.parametrize("outcome", [ToolOutcome("18 degrees"), toolcalls.fail("no such city")])
def test_a_call_can_be_interrupted_after_any_of_its_events(outcome: ToolOutcome) -> None:
    drafts = life(outcome)
    for cut in range(len(opening()), len(drafts) + 1):
        final = end_all(drafts[:cut])[-1]["response"]
        if cut > len(opening()):
            wanted = ("completed" if outcome.error is None else "failed") if cut == len(drafts) else "incomplete"
            assert [item["status"] for item in final["output"]] == [wanted]


def test_open_calls_are_found_with_their_progress() -> None:
    drafts = life(ToolOutcome("18"))
    announced = len(opening()) + len(toolcalls.announce(CALL))
    assert toolcalls.find_open(fold_of(drafts[:announced])) == [CALL]
    assert [call.begun for call in toolcalls.find_open(fold_of(drafts[: announced + 1]))] == [True]
    assert [call.begun for call in toolcalls.find_open(fold_of(drafts[: announced + 2]))] == [True]
    assert toolcalls.find_open(fold_of(drafts)) == []


def test_a_fold_is_the_same_from_drafts_and_from_frames() -> None:
    drafts = life(ToolOutcome("18"))
    for cut in range(1, len(drafts) + 1):
        replayed = Fold()
        replayed.replay(frames_of(drafts[:cut]))
        assert replayed.output == fold_of(drafts[:cut]).output
        assert toolcalls.find_open(replayed) == toolcalls.find_open(fold_of(drafts[:cut]))


def test_a_begun_call_has_the_status_calling() -> None:
    fold = fold_of([*opening(), *toolcalls.announce(CALL), toolcalls.begin(CALL)])
    assert fold.output[0]["status"] == "calling"
    assert fold.output[0]["arguments"] == CALL.arguments


def test_an_unmade_call_ends_without_an_outcome() -> None:
    fold = fold_of([*opening(), *toolcalls.announce(CALL), toolcalls.close_unmade(CALL)])
    assert (fold.output[0]["status"], fold.output[0]["output"]) == ("incomplete", None)
    end_all([*opening(), *toolcalls.announce(CALL), toolcalls.close_unmade(CALL)])


@pytest.mark.parametrize("error", [None, "It did not answer."])
def test_a_list_of_tools_has_official_events(error: str | None) -> None:
    item = LIST if error is None else {**LIST, "tools": [], "error": error}
    events = end_all([*opening(), *toolcalls.show_list(item, 0)])
    assert events[-1]["response"]["output"] == [item]
    assert f"response.mcp_list_tools.{'failed' if error else 'completed'}" in [event["type"] for event in events]


def test_an_approval_request_is_an_item() -> None:
    events = end_all([*opening(), *toolcalls.ask_approval(CALL, "mcpr_1")])
    item = events[-1]["response"]["output"][0]
    assert item == {
        "id": "mcpr_1",
        "type": "mcp_approval_request",
        "server_label": "outlive",
        "name": "weather",
        "arguments": CALL.arguments,
    }


def test_a_turn_keeps_completed_and_failed_calls() -> None:
    done = fold_of(life(ToolOutcome("18"))).output
    failed = fold_of(life(toolcalls.fail("no"))).output
    left = fold_of([*opening(), *toolcalls.announce(CALL), toolcalls.close_unmade(CALL)]).output
    assert turn([*done, *failed, *left]) == [*done, *failed]


# -- approvals

APPROVAL_REQUEST: Json = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "bank",
    "name": "pay",
    "arguments": "{}",
}
MADE: Json = {"type": "mcp_call", "id": "mcp_1", "approval_request_id": "mcpr_1"}


def answer(approve: object, request_id: str = "mcpr_1") -> Json:
    return {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": approve}


@pytest.mark.parametrize(("approve", "found"), [(True, [APPROVAL_REQUEST]), (False, []), ("yes", [])])
def test_only_true_approves_a_call(approve: object, found: list[Json]) -> None:
    assert find_approved([APPROVAL_REQUEST], [answer(approve)], []) == found


def test_a_request_and_its_approval_may_come_together() -> None:
    assert find_approved([], [APPROVAL_REQUEST, answer(True)], []) == [APPROVAL_REQUEST]


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_call_made_before_is_not_made_again(where: int) -> None:
    past, given, output = [APPROVAL_REQUEST], [answer(True)], list[Json]()
    (past, given, output)[where].append(MADE)
    assert find_approved(past, given, output) == []


def test_an_approval_of_an_earlier_turn_does_not_count() -> None:
    assert find_approved([APPROVAL_REQUEST, answer(True)], [], []) == []


def test_an_approval_without_a_request_is_refused_unless_its_call_was_made() -> None:
    with pytest.raises(InvalidRequest, match="mcpr_2"):
        find_approved([APPROVAL_REQUEST], [answer(False, "mcpr_2")], [])
    assert find_approved([MADE], [answer(True)], []) == []


# -- the tools in the request of each step

WEATHER = ToolSpec("outlive", "weather", "Tells it.", {"type": "object"})
SEARCH = ToolSpec("docs", "search", "Finds.", {"type": "object"})
SPECS = {"weather": WEATHER, "docs_search": SEARCH}
THEIRS: Json = {"type": "function", "name": "search", "parameters": None, "strict": False}
SERVER: Json = {"type": "mcp", "server_label": "docs"}


def ask(tools: list[Json], choice: Any = "auto", *, first: bool = True, spent: bool = False) -> CreateResponse:
    request = CreateResponse(model="m", input=[], tools=tools, tool_choice=choice, max_output_tokens=100)
    return add_server_tools(request, SPECS, first=first, spent=spent, max_output_tokens=60)


def names(request: CreateResponse) -> list[str]:
    return [tool["name"] for tool in request.tools]


def test_server_tools_are_added_as_functions() -> None:
    asked = ask([SERVER, THEIRS])
    assert names(asked) == ["search", "weather", "docs_search"]
    assert {tool["type"] for tool in asked.tools} == {"function"}
    assert asked.tools[1]["description"] == "Tells it."
    assert asked.max_output_tokens == 60


@pytest.mark.parametrize(
    ("choice", "later"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "auto"),
        ({"type": "function", "name": "search"}, "auto"),
    ],
)
def test_a_forced_choice_counts_for_the_first_step_only(choice: Any, later: Any) -> None:
    assert ask([SERVER, THEIRS], choice).tool_choice == choice
    assert ask([SERVER, THEIRS], choice, first=False).tool_choice == later


def test_a_server_can_be_chosen_by_label_and_a_tool_of_it_by_name() -> None:
    chosen = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "docs_search"}]}
    assert ask([SERVER], {"type": "mcp", "server_label": "docs"}).tool_choice == chosen
    assert ask([SERVER], {"type": "mcp", "server_label": "docs", "name": "search"}).tool_choice == chosen
    later = ask([SERVER], {"type": "mcp", "server_label": "docs"}, first=False).tool_choice
    assert later == {**chosen, "mode": "auto"}


def test_allowed_tools_stay_allowed_in_later_steps() -> None:
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "mcp", "server_label": "outlive"}, {"type": "function", "name": "search"}],
    }
    allowed = [{"type": "function", "name": "weather"}, {"type": "function", "name": "search"}]
    assert ask([SERVER, THEIRS], choice).tool_choice == {**choice, "tools": allowed}
    assert ask([SERVER, THEIRS], choice, first=False).tool_choice == {**choice, "mode": "auto", "tools": allowed}


def test_server_tools_are_withdrawn_when_no_more_calls_may_be_made() -> None:
    alone = ask([SERVER], "required", spent=True)
    assert (alone.tool_choice, names(alone)) == ("none", ["weather", "docs_search"])
    beside = ask([SERVER, THEIRS], spent=True)
    assert (beside.tool_choice, names(beside)) == ("auto", ["search"])


def test_a_request_without_server_tools_is_unchanged() -> None:
    plain = CreateResponse(model="m", input=[], tools=[THEIRS])
    assert without_server_tools(plain) is plain
    mixed = CreateResponse(model="m", input=[], tools=[SERVER, THEIRS], tool_choice={"type": "mcp"})
    assert without_server_tools(mixed) == plain


# -- the buffer

OURS = {"weather"}


def sift(chunks: list[bytes], finish: str = "tool_calls") -> tuple[list[AnyDraft], list[AnyDraft | RequestedCall]]:
    """Return the drafts released during the step, and those at its end."""
    translator = ChatTranslator(ModelCall("m", REQUEST, []), CountingIds())
    sieve = ToolCallBuffer(OURS)
    shown: list[AnyDraft] = []
    for chunk in [*chunks, finish_chunk(finish)]:
        shown += sieve.feed(translator.feed(chunk))
    return shown, sieve.end(translator.end()[0])


def types(drafts: list[AnyDraft | RequestedCall]) -> list[str]:
    return ["Wanted" if isinstance(draft, RequestedCall) else draft.type.removeprefix("response.") for draft in drafts]


def test_text_is_released_at_once_and_its_end_with_what_follows() -> None:
    shown, rest = sift([text_chunk("Hello")], "stop")
    assert types([*shown]) == ["output_item.added", "content_part.added", "output_text.delta"]
    assert types(rest) == ["output_text.done", "content_part.done", "output_item.done"]


def test_an_end_that_comes_early_is_held_until_something_follows_it() -> None:
    """Some dialects end an item before it is known that another follows."""
    translator = ChatTranslator(ModelCall("m", REQUEST, []), CountingIds())
    said = [*translator.feed(text_chunk("Hi")), *translator.feed(finish_chunk()), *translator.end()[0]]
    sieve = ToolCallBuffer(OURS)
    assert types([*sieve.feed(said)])[-1] == "output_text.delta"
    assert types(sieve.end([])) == ["output_text.done", "content_part.done", "output_item.done"]
    sieve = ToolCallBuffer(OURS)
    sieve.feed(said)
    following = ChatTranslator(ModelCall("m", REQUEST, [], first=1), CountingIds()).feed(text_chunk("Ho"))[:1]
    assert types([*sieve.feed(following)])[-2:] == ["output_item.done", "output_item.added"]


def test_a_server_tools_call_is_held_until_the_step_ends() -> None:
    chunks = [text_chunk("Wait."), call_chunk(0, "c1", "weather", '{"city":'), call_chunk(0, None, None, '"Paris"}')]
    shown, rest = sift(chunks)
    # The end of the text is released as soon as something follows.
    assert types([*shown])[-1] == "output_item.done"
    assert rest == [RequestedCall(1, "weather", '{"city":"Paris"}', whole=True)]


def test_a_client_tools_call_is_released_as_it_grows() -> None:
    shown, rest = sift([call_chunk(0, "c1", "shell", '{"input":"ls"}')])
    assert types([*shown]) == ["output_item.added"]
    assert "Wanted" not in types(rest)


def test_calls_of_both_kinds_keep_their_order() -> None:
    chunks = [
        reasoning_chunk("Hm"),
        call_chunk(0, "c1", "shell", '{"input":"ls"}'),
        call_chunk(1, "c2", "weather", "{}"),
        call_chunk(2, "c3", "shell", '{"input":"pwd"}'),
        call_chunk(3, "c4", "weather", ""),
    ]
    shown, rest = sift(chunks)
    assert [piece.output_index for piece in rest if isinstance(piece, RequestedCall)] == [2, 4]
    assert [piece.arguments for piece in rest if isinstance(piece, RequestedCall)] == ["{}", "{}"]
    added = [
        piece.output_index if isinstance(piece, RequestedCall) else piece.fields["output_index"]
        for piece in [*shown, *rest]
        if isinstance(piece, RequestedCall) or (type(piece) is Draft and piece.type.endswith("item.added"))
    ]
    assert added == [0, 1, 2, 3, 4]


def test_a_truncated_call_is_not_whole() -> None:
    _, rest = sift([call_chunk(0, "c1", "weather", '{"city":')], "length")
    assert rest == [RequestedCall(0, "weather", '{"city":', whole=False)]


@given(any_chunks, st.sampled_from(["stop", "tool_calls", "length"]))
def test_every_draft_is_released_once(chunks: list[bytes], finish: str) -> None:
    translator = ChatTranslator(ModelCall("m", REQUEST, []), CountingIds())
    plain: list[AnyDraft] = []
    try:
        for chunk in [*chunks, finish_chunk(finish)]:
            plain += translator.feed(chunk)
        plain += translator.end()[0]
    except Exception:
        return  # the upstream broke
    shown, rest = sift(chunks, finish)
    ours = {piece.output_index for piece in rest if isinstance(piece, RequestedCall)}
    kept = [draft for draft in plain if _place(draft) not in ours]
    assert [repr(draft) for draft in [*shown, *rest] if not isinstance(draft, RequestedCall)] == [
        repr(draft) for draft in kept
    ]
    # The drafts released before the end of the step are a sound journal.
    check([_read(draft, n) for n, draft in enumerate([*opening(), *shown])], finished=False)


def _place(draft: AnyDraft) -> int:
    return int(draft.channel.output_index if isinstance(draft, Delta) else draft.fields["output_index"])


def _read(draft: AnyDraft, number: int) -> dict[str, object]:
    from outlive.core.events import read_frame

    return read_frame(draft.frame(number))

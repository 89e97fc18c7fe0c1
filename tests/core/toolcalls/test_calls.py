"""Calls that the server makes: their events are sound at every point, and their state is read from a journal."""

from __future__ import annotations

import pytest

from outlive.core.endings import Outcome, close_open, turn
from outlive.core.errors import InvalidRequest
from outlive.core.events import AnyDraft, Json, read_frame, split_frames
from outlive.core.fold import Fold
from outlive.core.toolcalls import calls
from outlive.core.toolcalls.calls import ToolCall, ToolOutcome, find_approved
from tests.core.journals import assert_official_event, end_with, fold_of, frames_of, opening
from tests.support.grammar import check

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
        *calls.announce(CALL),
        calls.begin(CALL),
        calls.report(CALL, PROGRESS),
        *calls.finish(CALL, outcome),
    ]


def end_all(drafts: list[AnyDraft]) -> list[Json]:
    fold = fold_of(drafts)
    drafts = [*drafts, *end_with(fold, close_open(fold), Outcome(status="cancelled", at=9))]
    events = [read_frame(frame) for frame in split_frames(frames_of(drafts))]
    check(events)
    for event in events:
        assert_official_event(event)
    return events


@pytest.mark.parametrize("outcome", [ToolOutcome("18 degrees"), calls.fail("no such city")])
def test_a_call_can_be_interrupted_after_any_of_its_events(outcome: ToolOutcome) -> None:
    drafts = life(outcome)
    for cut in range(len(opening()), len(drafts) + 1):
        final = end_all(drafts[:cut])[-1]["response"]
        if cut > len(opening()):
            wanted = ("completed" if outcome.error is None else "failed") if cut == len(drafts) else "incomplete"
            assert [item["status"] for item in final["output"]] == [wanted]


def test_open_calls_are_found_with_their_progress() -> None:
    drafts = life(ToolOutcome("18"))
    announced = len(opening()) + len(calls.announce(CALL))
    assert calls.find_open(fold_of(drafts[:announced])) == [CALL]
    assert [call.begun for call in calls.find_open(fold_of(drafts[: announced + 1]))] == [True]
    assert [call.begun for call in calls.find_open(fold_of(drafts[: announced + 2]))] == [True]
    assert calls.find_open(fold_of(drafts)) == []
    assert calls.count_made(fold_of(drafts)) == 1


def test_a_fold_is_the_same_from_drafts_and_from_frames() -> None:
    drafts = life(ToolOutcome("18"))
    for cut in range(1, len(drafts) + 1):
        replayed = Fold()
        replayed.replay(frames_of(drafts[:cut]))
        assert replayed.output == fold_of(drafts[:cut]).output
        assert calls.find_open(replayed) == calls.find_open(fold_of(drafts[:cut]))


def test_a_begun_call_has_the_status_calling() -> None:
    fold = fold_of([*opening(), *calls.announce(CALL), calls.begin(CALL)])
    assert fold.output[0]["status"] == "calling"
    assert fold.output[0]["arguments"] == CALL.arguments


def test_an_unmade_call_ends_without_an_outcome() -> None:
    fold = fold_of([*opening(), *calls.announce(CALL), calls.close_unmade(CALL)])
    assert (fold.output[0]["status"], fold.output[0]["output"]) == ("incomplete", None)
    end_all([*opening(), *calls.announce(CALL), calls.close_unmade(CALL)])


@pytest.mark.parametrize("error", [None, "It did not answer."])
def test_a_list_of_tools_has_official_events(error: str | None) -> None:
    item = LIST if error is None else {**LIST, "tools": [], "error": error}
    events = end_all([*opening(), *calls.show_list(item, 0)])
    assert events[-1]["response"]["output"] == [item]
    assert f"response.mcp_list_tools.{'failed' if error else 'completed'}" in [event["type"] for event in events]


def test_an_approval_request_is_an_item() -> None:
    events = end_all([*opening(), *calls.ask_approval(CALL, "mcpr_1")])
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
    failed = fold_of(life(calls.fail("no"))).output
    left = fold_of([*opening(), *calls.announce(CALL), calls.close_unmade(CALL)]).output
    assert turn([*done, *failed, *left]) == [*done, *failed]


# -- approvals

REQUEST: Json = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "pay"}
MADE: Json = {"type": "mcp_call", "id": "mcp_1", "approval_request_id": "mcpr_1"}


def answer(approve: object, request_id: str = "mcpr_1") -> Json:
    return {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": approve}


@pytest.mark.parametrize(("approve", "found"), [(True, [REQUEST]), (False, []), ("yes", [])])
def test_only_true_approves_a_call(approve: object, found: list[Json]) -> None:
    assert find_approved([REQUEST], [answer(approve)], []) == found


def test_a_request_and_its_approval_may_come_together() -> None:
    assert find_approved([], [REQUEST, answer(True)], []) == [REQUEST]


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_call_made_before_is_not_made_again(where: int) -> None:
    past, given, output = [REQUEST], [answer(True)], list[Json]()
    (past, given, output)[where].append(MADE)
    assert find_approved(past, given, output) == []


def test_an_approval_of_an_earlier_turn_does_not_count() -> None:
    assert find_approved([REQUEST, answer(True)], [], []) == []


def test_an_approval_without_a_request_is_refused_unless_its_call_was_made() -> None:
    with pytest.raises(InvalidRequest, match="mcpr_2"):
        find_approved([REQUEST], [answer(False, "mcpr_2")], [])
    assert find_approved([MADE], [answer(True)], []) == []

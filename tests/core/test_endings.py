"""The end of a response: open items are closed, and the terminal event is complete."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.endings import (
    Outcome,
    TerminalStatus,
    close_open,
    end,
    terminal,
    turn,
)
from outlive.core.events import AnyDraft, Draft, Json, read_frame, split_frames
from outlive.core.fold import Fold
from outlive.core.grammar import TERMINAL_STATUSES
from outlive.testing import call_chunk, reasoning_chunk, refusal_chunk, text_chunk
from tests.core.journals import (
    assert_official,
    assert_official_event,
    end_with,
    fold_of,
    frames_of,
    opening,
    run,
    runs,
)
from tests.support.grammar import check

OUTCOMES = [
    Outcome(status="incomplete", at=2, reason="interrupted", message="cut"),
    Outcome(status="cancelled", at=2),
    Outcome(status="failed", at=2, error={"code": "server_error", "message": "no"}),
]


def end_all(drafts: list[AnyDraft], outcome: Outcome) -> list[Json]:
    """Return the whole stream of a run that was cut off after these drafts."""
    fold = fold_of(drafts)
    rest = end_with(fold, close_open(fold), outcome)
    frames = frames_of(drafts) + frames_of(rest, fold.last)
    return [read_frame(frame) for frame in split_frames(frames)]


@given(runs, st.data(), st.sampled_from(OUTCOMES))
def test_closing_open_items_ends_every_journal_soundly(
    drafts: list[AnyDraft], data: st.DataObject, outcome: Outcome
) -> None:
    length = data.draw(st.integers(2, len(drafts)))
    events = end_all(drafts[:length], outcome)
    check(events)
    for event in events:
        assert_official_event(event)


@given(runs, st.data())
def test_closing_keeps_all_sent_text(drafts: list[AnyDraft], data: st.DataObject) -> None:
    length = data.draw(st.integers(2, len(drafts)))
    fold = fold_of(drafts[:length])
    closed = fold_of([*drafts[:length], *close_open(fold)])
    assert [_texts(item) for item in closed.output] == [_texts(item) for item in fold.output]
    assert list(closed.open_items()) == []


def _texts(item: Json) -> list[Any]:
    return [part.get("text", part.get("refusal")) for part in item.get("content") or []] + [
        item.get("arguments"),
        item.get("input"),
    ]


@given(runs)
def test_closing_leaves_finished_items_alone(drafts: list[AnyDraft]) -> None:
    fold = fold_of(drafts)
    still_open = {index for index, _, _ in fold.open_items()}
    closed = fold_of([*drafts, *close_open(fold)])
    for index, item in enumerate(fold.output):
        if index in still_open:
            assert closed.output[index] == {**item, "status": "incomplete"}
        else:
            assert closed.output[index] == item


@pytest.mark.parametrize("last", ["response.output_text.done", "response.content_part.done"])
def test_a_text_with_its_done_event_gets_no_second_one(last: str) -> None:
    drafts = run([text_chunk("Hi")])
    cut = 1 + next(n for n, draft in enumerate(drafts) if draft.type == last)
    types = [draft.type for draft in close_open(fold_of(drafts[:cut]))]
    assert "response.output_text.done" not in types
    check(end_all(drafts[:cut], OUTCOMES[0]))


def test_several_open_items_are_closed_in_order() -> None:
    chunks = [
        reasoning_chunk("Hm"),
        text_chunk("Hi"),
        refusal_chunk("no"),
        call_chunk(0, "call_a", "weather", "{"),
        text_chunk("And"),
    ]
    drafts = close_open(fold_of(run(chunks, finish=None)))
    done = [draft for draft in drafts if draft.type == "response.output_item.done"]
    assert [read_frame(draft.frame(0))["output_index"] for draft in done] == [2, 3]


def test_nothing_open_needs_no_closing() -> None:
    assert close_open(fold_of(opening())) == []


def outcome(status: TerminalStatus, **fields: Any) -> Outcome:
    return Outcome(status=status, at=9, **fields)


def ended(outcome: Outcome) -> Json:
    return end(fold_of(opening()).header, [], outcome)


@pytest.mark.parametrize("status", sorted(TERMINAL_STATUSES))
def test_every_end_is_a_response_that_the_official_types_know(status: TerminalStatus) -> None:
    response = ended(outcome(status, reason="max_output_tokens", error={"code": "server_error", "message": "x"}))
    assert_official(response)
    assert response["status"] == status
    assert response["completed_at"] == (9 if status == "completed" else None)


def test_only_an_incomplete_end_has_details() -> None:
    assert ended(outcome("incomplete", reason="interrupted", message="why"))["incomplete_details"] == {
        "reason": "interrupted",
        "message": "why",
    }
    assert ended(outcome("incomplete", reason="max_output_tokens"))["incomplete_details"] == {
        "reason": "max_output_tokens"
    }
    assert ended(outcome("cancelled"))["incomplete_details"] is None


def test_attempts_are_reported_when_there_was_more_than_one() -> None:
    assert "outlive" not in ended(outcome("completed"))
    assert ended(outcome("completed", attempts=2, resumed_at=[7]))["outlive"] == {"attempts": 2, "resumed_at": [7]}


def test_the_final_response_names_the_model_that_answered() -> None:
    assert ended(outcome("completed", model="m-2026"))["model"] == "m-2026"
    assert ended(outcome("completed"))["model"] == "m"


def test_the_service_tier_is_settled_at_the_end() -> None:
    assert ended(outcome("completed"))["service_tier"] == "default"
    assert ended(outcome("completed", service_tier="flex"))["service_tier"] == "flex"


def test_the_snapshot_has_the_bytes_of_the_terminal_event() -> None:
    draft = terminal(ended(outcome("completed")))
    assert draft.type == "response.completed"
    snapshot = bytes(draft.fields["response"])
    assert snapshot in draft.frame(3)
    fold = Fold()
    fold.replay(draft.frame(3))
    assert msgspec.json.decode(snapshot) == fold.response()


@pytest.mark.parametrize(
    ("item", "status", "kept"),
    [
        ({"type": "web_search_call"}, "incomplete", False),
        ({"type": "image_generation_call", "result": None}, "failed", True),
        ({"type": "mcp_list_tools", "server_label": "s", "tools": []}, "incomplete", True),
        ({"type": "acme:dream_call"}, "incomplete", False),
        ({"type": "shell_call", "call_id": "c"}, "incomplete", False),
        ({"type": "apply_patch_call", "call_id": "c"}, "in_progress", False),
    ],
)
def test_unfinished_calls_of_other_types_are_closed_and_not_kept(item: Json, status: str, kept: bool) -> None:
    fold = Fold({"status": "in_progress"})
    begun = {"id": "x_1", "status": "in_progress", **item}
    fold.apply([Draft("response.output_item.added", {"output_index": 0, "item": begun})])
    (done,) = close_open(fold)
    assert isinstance(done, Draft)
    assert done.fields["item"] == {**begun, "status": status}
    assert bool(turn([done.fields["item"]])) is kept
    assert turn([{**begun, "status": "completed"}]) != []


def test_a_turn_keeps_partial_messages_and_leaves_out_unfinished_calls() -> None:
    message: Json = {"id": "msg_1", "type": "message", "status": "incomplete"}
    whole: Json = {"id": "fc_1", "type": "function_call", "status": "completed"}
    broken: Json = {"id": "fc_2", "type": "function_call", "status": "incomplete"}
    custom: Json = {"id": "ctc_1", "type": "custom_tool_call", "status": "incomplete"}
    assert turn([message, whole, broken, custom]) == [message, whole]

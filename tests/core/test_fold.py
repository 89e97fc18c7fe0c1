"""A response is the fold of its events: in any batches, from drafts or from frames, up to any event."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json, number
from outlive.core.fold import Fold
from outlive.core.grammar import OUTPUT_TEXT, REASONING_TEXT, SUMMARY_TEXT
from outlive.testing import call_chunk, reasoning_chunk, text_chunk
from tests.core.journals import assert_official, fold_of, frames_of, opening, run, runs, state_of


@given(runs, st.data())
def test_folding_in_two_halves_equals_folding_at_once(drafts: list[AnyDraft], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(drafts)))
    halves = Fold()
    halves.apply(drafts[:cut])
    halves.apply(drafts[cut:])
    assert state_of(halves) == state_of(fold_of(drafts))


@given(runs, st.data())
def test_folding_drafts_equals_replaying_frames(drafts: list[AnyDraft], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(drafts)))
    replayed = Fold()
    replayed.replay(frames_of(drafts[:cut]))
    assert state_of(replayed) == state_of(fold_of(drafts[:cut]))
    # A worker that takes over replays what is there and applies what it makes itself.
    replayed.apply(drafts[cut:])
    assert state_of(replayed) == state_of(fold_of(drafts))


@given(runs, st.data())
def test_any_prefix_of_a_journal_folds_to_a_valid_response(drafts: list[AnyDraft], data: st.DataObject) -> None:
    length = data.draw(st.integers(1, len(drafts)))
    fold = fold_of(drafts[:length])
    assert fold.last == length - 1
    assert_official(fold.response())
    assert msgspec.json.decode(fold.snapshot()) == fold.response()


@given(runs)
def test_folding_does_not_change_earlier_results(drafts: list[AnyDraft]) -> None:
    fold, seen = Fold(), []
    for draft in drafts:
        fold.apply([draft])
        seen.append((fold.response(), fold.snapshot()))
    for given_out, bytes_then in seen:
        assert msgspec.json.encode(given_out) == bytes_then


@given(runs)
def test_nothing_is_visible_before_the_first_item(drafts: list[AnyDraft]) -> None:
    fold = Fold()
    for draft in drafts:
        fold.apply([draft])
        assert fold.visible == bool(fold.output)


def test_partial_text_shows_in_an_item_that_is_still_open() -> None:
    fold = fold_of(run([text_chunk("Hel"), text_chunk("lo")], finish=None))
    (item,) = fold.output
    assert item["status"] == "in_progress"
    assert item["content"][0]["text"] == "Hello"
    assert fold.status == "in_progress"
    assert not fold.ended


def test_open_and_finished_calls_have_their_arguments() -> None:
    chunks = [call_chunk(0, "call_a", "weather", "{}"), call_chunk(1, "call_b", "weather", '{"x":')]
    fold = fold_of(run(chunks, finish=None))
    assert [item["arguments"] for item in fold.output] == ["{}", '{"x":']
    assert [item["status"] for item in fold.output] == ["completed", "in_progress"]


def test_open_items_come_with_their_open_parts() -> None:
    fold = fold_of(run([reasoning_chunk("Hm"), text_chunk("Hi")], finish=None))
    ((index, item, parts),) = fold.open_items()
    assert (index, item["type"], parts) == (1, "message", [("content", 0)])


def test_a_summary_folds_like_a_text() -> None:
    place: Json = {"item_id": "rs_1", "output_index": 0, "summary_index": 0}
    channel = Channel(SUMMARY_TEXT, "rs_1", 0)
    item: Json = {"id": "rs_1", "type": "reasoning", "summary": [], "status": "in_progress"}
    fold = fold_of(
        [
            *opening(),
            Draft("response.output_item.added", {"output_index": 0, "item": item}),
            Draft("response.reasoning_summary_part.added", {**place, "part": {"type": "summary_text", "text": ""}}),
            Delta(channel, "In "),
            Delta(channel, "short"),
        ]
    )
    assert fold.output[0]["summary"] == [{"type": "summary_text", "text": "In short"}]
    assert [parts for _, _, parts in fold.open_items()] == [[("summary", 0)]]


def test_reasoning_text_may_come_without_its_part() -> None:
    item: Json = {"id": "rs_1", "type": "reasoning", "summary": [], "status": "in_progress"}
    channel = Channel(REASONING_TEXT, "rs_1", 0)
    fold = fold_of(
        [
            *opening(),
            Draft("response.output_item.added", {"output_index": 0, "item": item}),
            Delta(channel, "Hm"),
        ]
    )
    assert fold.output[0]["content"] == [{"type": "reasoning_text", "text": "Hm"}]


def test_an_unknown_event_does_not_change_the_response() -> None:
    fold = fold_of(run([text_chunk("Hi")], finish=None))
    before = fold.response()
    fold.apply([Draft("response.web_search_call.searching", {"item_id": "ws_1", "output_index": 0})])
    assert fold.response() == before


def test_a_text_is_done_from_its_done_event_to_the_end_of_its_item() -> None:
    drafts = run([text_chunk("Hi")])
    said = next(n for n, draft in enumerate(drafts) if draft.type == "response.output_text.done")
    assert not fold_of(drafts[:said]).is_text_done(OUTPUT_TEXT, 0)
    assert fold_of(drafts[: said + 1]).is_text_done(OUTPUT_TEXT, 0)
    assert not fold_of(drafts).is_text_done(OUTPUT_TEXT, 0)


def test_the_terminal_event_is_the_whole_response() -> None:
    fold = fold_of(run([text_chunk("Hi")]))
    final = {**fold.header, "status": "completed", "output": fold.output}
    fold.replay(b"".join(number([Draft("response.completed", {"response": final})], fold.last)))
    assert fold.ended
    assert fold.status == "completed"
    assert fold.response() == final


def test_a_fold_can_begin_with_an_accepted_header() -> None:
    accepted = fold_of(opening())
    assert state_of(Fold(accepted.header, accepted.last)) == state_of(accepted)

"""Frames hold any text, split where they were joined, and decode to the events they were made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.endings import close_open
from outlive.core.events import (
    DONE_FRAME,
    KEEP_ALIVE_FRAME,
    AnyDraft,
    Channel,
    Delta,
    Draft,
    is_last,
    number,
    payloads,
    read_frame,
    rename,
    split_frames,
)
from outlive.core.fold import Fold
from outlive.core.grammar import (
    DELTAS,
    DONES,
    FUNCTION_ARGUMENTS,
    OPEN_RESPONSES_NAMES,
    OUTPUT_TEXT,
    REASONING_TEXT,
    TERMINAL_EVENTS,
)
from tests.core.journals import NASTY, fold_of, frames_of, runs, state_of, texts
from tests.support.grammar import check


def test_a_draft_becomes_one_sse_event_of_its_own_type() -> None:
    assert Draft("response.x", {"a": 1}).frame(7) == (
        b'event: response.x\ndata: {"type":"response.x","sequence_number":7,"a":1}\n\n'
    )


def test_a_draft_without_fields_is_still_json() -> None:
    assert read_frame(Draft("response.x", {}).frame(0)) == {"type": "response.x", "sequence_number": 0}


@given(st.integers(0, 10**9), st.dictionaries(st.sampled_from(["a", "b"]), texts))
def test_a_frame_reads_back_as_what_it_was_made_of(n: int, fields: dict[str, str]) -> None:
    assert read_frame(Draft("response.x", fields).frame(n)) == {"type": "response.x", "sequence_number": n, **fields}


@given(texts, st.integers(0, 10**6))
def test_a_delta_reads_back_with_its_text_and_place(text: str, n: int) -> None:
    channel = Channel(OUTPUT_TEXT, "msg_1", 2, 1)
    assert read_frame(Delta(channel, text).frame(n)) == {
        "type": "response.output_text.delta",
        "sequence_number": n,
        "item_id": "msg_1",
        "output_index": 2,
        "content_index": 1,
        "delta": text,
        "logprobs": [],
    }


def test_only_text_deltas_carry_logprobs() -> None:
    channel = Channel(FUNCTION_ARGUMENTS, "fc_1", 0)
    assert set(read_frame(Delta(channel, "{").frame(3))) == {
        "type",
        "sequence_number",
        "item_id",
        "output_index",
        "delta",
    }


@pytest.mark.parametrize("text", NASTY)
def test_no_text_can_break_out_of_its_frame(text: str) -> None:
    frame = Delta(Channel(OUTPUT_TEXT, "msg_1", 0), text).frame(0)
    assert frame.count(b"\n") == 3
    assert frame.count(b"\r") == 0
    assert split_frames(frame) == [frame]


@given(st.lists(texts, max_size=10), st.integers(-1, 100))
def test_split_frames_are_the_joined_frames(pieces: list[str], after: int) -> None:
    channel = Channel(OUTPUT_TEXT, "msg_1", 0)
    drafts: list[AnyDraft] = [Delta(channel, text) for text in pieces]
    frames = number(drafts, after)
    assert split_frames(b"".join(frames)) == frames


@given(runs)
def test_payloads_are_the_frames_json(drafts: list[AnyDraft]) -> None:
    frames = number(drafts, -1)
    found = payloads(KEEP_ALIVE_FRAME + b"".join(frames) + KEEP_ALIVE_FRAME)
    assert [b"event: %b\ndata: %b\n\n" % (d.type.encode(), p) for d, p in zip(drafts, found, strict=True)] == frames


def test_no_bytes_split_into_no_frames() -> None:
    assert split_frames(b"") == []


@given(runs)
def test_every_event_of_a_run_reads_back(drafts: list[AnyDraft]) -> None:
    for frame, draft in zip(number(drafts, -1), drafts, strict=True):
        event = read_frame(frame)
        assert event["type"] == draft.type
        if isinstance(draft, Delta):
            assert event["delta"] == draft.text


@pytest.mark.parametrize("type_", sorted(TERMINAL_EVENTS))
def test_a_terminal_event_is_the_last(type_: str) -> None:
    before = Draft("response.in_progress", {"response": {}}).frame(0)
    last = Draft(type_, {"response": {"text": "\n\nevent: response.in_progress\n"}}).frame(1)
    assert is_last(last)
    assert is_last(before + last)
    assert not is_last(before)
    assert not is_last(last + before)


@given(runs)
def test_no_event_before_the_terminal_one_is_the_last(drafts: list[AnyDraft]) -> None:
    frames = number(drafts, -1)
    assert not any(is_last(frame) for frame in frames)
    assert not is_last(b"".join(frames))


def test_done_and_keep_alive_frames_have_no_number() -> None:
    assert DONE_FRAME == b"data: [DONE]\n\n"
    assert KEEP_ALIVE_FRAME.startswith(b":")
    assert KEEP_ALIVE_FRAME.endswith(b"\n\n")


def test_drafts_have_a_readable_repr() -> None:
    assert "response.x" in repr(Draft("response.x", {"a": 1}))
    assert "hello" in repr(Delta(Channel(OUTPUT_TEXT, "msg_1", 0), "hello"))


@given(runs, st.integers(-1, 10_000))
def test_numbers_go_on_without_gap_or_repeat(drafts: list[AnyDraft], after: int) -> None:
    numbers = [read_frame(frame)["sequence_number"] for frame in number(drafts, after)]
    assert numbers == list(range(after + 1, after + 1 + len(drafts)))


@given(runs, st.data())
def test_numbering_in_two_parts_gives_the_same_bytes(drafts: list[AnyDraft], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(drafts)))
    assert number(drafts[:cut], -1) + number(drafts[cut:], cut - 1) == number(drafts, -1)


def test_no_drafts_take_no_number() -> None:
    assert number([], 5) == []


def events_of(drafts: list[AnyDraft]) -> list[dict[str, object]]:
    return [read_frame(frame) for frame in split_frames(frames_of(drafts))]


@given(runs)
def test_renaming_changes_only_names(drafts: list[AnyDraft]) -> None:
    before, after = events_of(drafts), events_of(rename(drafts))
    assert after == [{**event, "type": OPEN_RESPONSES_NAMES.get(str(event["type"]), event["type"])} for event in before]
    assert not OPEN_RESPONSES_NAMES.keys() & {event["type"] for event in after}
    check(after, finished=False)


@given(runs)
def test_a_fold_is_the_same_under_both_names(drafts: list[AnyDraft]) -> None:
    before = state_of(fold_of(drafts))
    renamed = rename(drafts)
    replayed = Fold()
    replayed.replay(frames_of(renamed))
    assert before == state_of(fold_of(renamed)) == state_of(replayed)


@given(runs)
def test_closing_a_renamed_journal_keeps_its_names(drafts: list[AnyDraft]) -> None:
    renamed = rename(drafts)
    replayed = Fold()
    replayed.replay(frames_of(renamed))
    events = events_of([*renamed, *rename(close_open(replayed))])
    check(events, finished=False)
    assert not OPEN_RESPONSES_NAMES.keys() & {event["type"] for event in events}


def test_a_channel_is_renamed_once() -> None:
    channel = Channel(REASONING_TEXT, "rs_1", 0)
    key = channel.key
    first, second = rename([Delta(channel, "a"), Delta(channel, "b")])
    (third,) = rename([Delta(channel, "c")])
    assert first.type == second.type == third.type == "response.reasoning.delta"
    assert channel.key == key


def test_both_names_of_an_event_mean_the_same() -> None:
    texts = DELTAS | DONES
    assert all(texts[name] is texts[other] for name, other in OPEN_RESPONSES_NAMES.items())
    assert len(set(OPEN_RESPONSES_NAMES.values())) == len(OPEN_RESPONSES_NAMES)

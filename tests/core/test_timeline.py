"""A timeline has the milestones of a journal with the times of their commits, whatever the pages are."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from outlive.core.events import Draft, add_item, end_item, number
from outlive.core.timeline import MAX_FLUSHES, Milestones, make_timeline, read_details

CALL = {"id": "mcp_1", "type": "mcp_call", "name": "look", "status": "in_progress"}
TEXT = {"output_index": 1, "delta": "event: response.completed\ndata: {}\n\n"}
DRAFTS = [
    Draft("response.created", {"response": {}}),
    Draft("response.in_progress", {"response": {}}),
    add_item(0, CALL),
    Draft("response.mcp_call.in_progress", {"output_index": 0}),
    end_item(0, {**CALL, "status": "completed"}),
    add_item(1, {"id": "msg_1", "type": "message"}),
    *(Draft("response.output_text.delta", TEXT) for _ in range(5)),
    end_item(1, {"id": "msg_1", "type": "message"}),
    Draft("response.completed", {"response": {"status": "completed"}}),
]
FRAMES = number(DRAFTS, -1)


def read(cuts: list[int]) -> Milestones:
    """Read the journal in pages that end before these numbers; every event is a commit, at ten times its number."""
    milestones = Milestones([8])
    for first, end in zip([0, *cuts], [*cuts, len(FRAMES)], strict=True):
        milestones.add(end - 1, b"".join(FRAMES[first:end]), [(n, 10.0 * n) for n in range(first, end)])
    return milestones


@given(st.sets(st.integers(1, len(FRAMES) - 1)))
def test_pages_of_any_size_give_the_same_timeline(cuts: set[int]) -> None:
    timeline = make_timeline(read(sorted(cuts)), [(0.5, "n1", 1), (75.0, "n2", 1)], 0.0, 120.0)
    assert [(entry["type"], entry["at"], entry["sequence_number"]) for entry in timeline["entries"]] == [
        ("queued", 0.0, 0),
        ("start", 0.5, None),
        ("tool_call", 20.0, 2),
        ("first_token", 60.0, 6),
        ("takeover", 75.0, None),
        ("continuation", 80.0, 8),
        ("end", 120.0, 12),
    ]
    call = timeline["entries"][2]
    assert (call["item_type"], call["name"], call["status"], call["ended_at"]) == (
        "mcp_call",
        "look",
        "completed",
        40.0,
    )
    assert (timeline["events"], timeline["first_token_at"], timeline["ended_at"]) == (13, 60.0, 120.0)
    assert timeline["entries"][-1]["status"] == "completed"


def test_a_very_long_journal_has_evenly_spaced_flushes() -> None:
    milestones = Milestones([])
    for first in range(0, 50_000, 500):
        milestones.add(first + 499, b"", [(n, float(n)) for n in range(first, first + 500)])
    numbers = [number for number, _ in milestones.flushes]
    assert MAX_FLUSHES / 2 <= len(numbers) <= MAX_FLUSHES
    assert {later - earlier for earlier, later in pairwise(numbers)} == {32}


def test_the_extra_object_is_read_without_the_rest() -> None:
    assert read_details(b'{"output":[{"a":1}],"outlive":{"attempts":2}}') == {"attempts": 2}
    assert read_details(b'{"output":[]}') == read_details(None) == {}

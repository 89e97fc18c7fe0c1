"""Sequence numbers go on from where they were, without gap or repeat."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outlive.core.events import AnyDraft, read_frame
from outlive.core.numbering import number
from tests.core.journals import runs


@given(runs, st.integers(-1, 10_000))
def test_numbers_go_on_without_gap_or_repeat(drafts: list[AnyDraft], after: int) -> None:
    numbers = [read_frame(frame)["sequence_number"] for frame in number(drafts, after)]
    assert numbers == list(range(after + 1, after + 1 + len(drafts)))


@given(runs, st.data())
def test_numbering_in_two_parts_gives_the_same_bytes(drafts: list[AnyDraft], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(drafts)))
    assert number(drafts[:cut], -1) + number(drafts[cut:], cut - 1) == number(drafts, -1)


def test_nothing_takes_no_number() -> None:
    assert number([], 5) == []

"""Of a run that is told again, only what the journal lacks comes out."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft
from outlive.core.fold import Fold
from outlive.core.replay_filter import ReplayFilter
from outlive.dialects.responses.translator import ResponsesTranslator
from tests.dialects.playback import make_call
from tests.support import responses_events as theirs
from tests.support.responses_events import answer, call, chunks, message, reasoning
from tests.support.scripting import CountingIds

EVENTS = answer(reasoning("Hm.", "Well."), theirs.WEB_SEARCH, message("Hel", "lo", "!"), call('{"a"', ":1}"))


def drafts_of(cuts: list[int]) -> list[list[AnyDraft]]:
    """The drafts of the run, in reads of whatever size."""
    translator = ResponsesTranslator(make_call(), CountingIds())
    told = [translator.feed(chunk) for chunk in chunks(EVENTS)]
    places = sorted({0, len(told), *(place % (len(told) + 1) for place in cuts)})
    return [list(chain(*told[start:end])) for start, end in pairwise(places)]


WHOLE = list(chain(*drafts_of([])))


def shown(count: int) -> Fold:
    fold = Fold({"status": "in_progress"})
    fold.apply(WHOLE[:count])
    return fold


@given(st.integers(0, len(WHOLE)), st.lists(st.integers(0, 1000), max_size=10))
def test_wherever_it_broke_off_the_rest_comes_out_once(count: int, cuts: list[int]) -> None:
    replay = ReplayFilter(shown(count), count)
    rest = [draft for drafts in drafts_of(cuts) for draft in replay.filter(drafts)]
    assert [draft.frame(0) for draft in rest] == [draft.frame(0) for draft in WHOLE[count:]]
    replay.end()


def test_another_story_is_not_taken_for_the_same() -> None:
    fold = Fold({"status": "in_progress"})
    other = ResponsesTranslator(make_call(), CountingIds())
    for chunk in chunks(answer(message("Good", "bye"))):
        fold.apply(other.feed(chunk))
    replay = ReplayFilter(fold, fold.last + 1)
    with pytest.raises(UpstreamFault, match="same") as caught:
        replay.filter(WHOLE)
    assert not caught.value.retryable


def test_less_than_was_shown_is_not_the_same() -> None:
    replay = ReplayFilter(shown(9), 9)
    assert replay.filter(WHOLE[:5]) == []
    with pytest.raises(UpstreamFault, match="same"):
        replay.end()

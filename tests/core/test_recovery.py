"""A stopped run is continued if that loses nothing, and ended otherwise (D9, D10)."""

from __future__ import annotations

from itertools import chain, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.errors import UpstreamFault
from outlive.core.events import AnyDraft, read_frame, split_frames
from outlive.core.fold import Fold
from outlive.core.recovery import (
    CONTINUABLE,
    MAX_ATTEMPTS,
    Action,
    Decision,
    OpenText,
    ReplayFilter,
    decide,
    find_open_text,
)
from outlive.dialects.chat.translator import ChatTranslator
from outlive.dialects.responses.translator import ResponsesTranslator
from outlive.ports.backend import ModelCall
from outlive.testing import call_chunk, reasoning_chunk, refusal_chunk, text_chunk
from tests.core.journals import REQUEST, chunks, fold_of, frames_of, opening, run, runs, texts
from tests.dialects.playback import make_call
from tests.support import responses_events as theirs
from tests.support.grammar import check
from tests.support.responses_events import answer, call, message, reasoning
from tests.support.scripting import CountingIds


def decided(
    fold: Fold,
    attempts: int = 1,
    resumed_at: list[int] | None = None,
    continuation: str = "prefill",
    text_format: str = "text",
) -> Decision:
    return decide(
        fold, attempts=attempts, resumed_at=resumed_at or [], continuation=continuation, text_format=text_format
    )


def shown(*upstream: bytes) -> Fold:
    return fold_of(run(list(upstream), finish=None))


@pytest.mark.parametrize("attempts", range(1, MAX_ATTEMPTS + 1))
def test_a_run_without_visible_output_restarts(attempts: int) -> None:
    assert decided(fold_of(opening()), attempts, continuation="none") == Decision(Action.RESTART)


def test_a_run_without_visible_output_fails_after_its_last_attempt() -> None:
    assert decided(fold_of(opening()), MAX_ATTEMPTS + 1) == Decision(Action.FAIL)


@pytest.mark.parametrize("continuation", sorted(CONTINUABLE))
def test_an_open_text_is_continued_where_the_upstream_can(continuation: str) -> None:
    fold = shown(text_chunk("Once "), text_chunk("upon"))
    assert decided(fold, continuation=continuation) == Decision(
        Action.CONTINUE, OpenText("msg_1", 0, 0, "Once upon", 2)
    )


def test_an_open_text_is_interrupted_without_continuation() -> None:
    assert decided(shown(text_chunk("Once")), continuation="none") == Decision(Action.INTERRUPT)


@pytest.mark.parametrize("text_format", ["json_schema", "json_object"])
def test_only_plain_text_is_continued(text_format: str) -> None:
    assert decided(shown(text_chunk('{"a":')), text_format=text_format) == Decision(Action.INTERRUPT)


@pytest.mark.parametrize(
    "upstream",
    [
        [reasoning_chunk("Hm")],
        [refusal_chunk("No")],
        [text_chunk("Well"), refusal_chunk("No")],
        [call_chunk(0, "call_a", "weather", "{")],
        [call_chunk(0, "call_a", "weather", "{"), text_chunk("Hi")],
        [text_chunk("Hi"), call_chunk(0, "call_a", "weather", "{")],
    ],
)
def test_any_other_open_item_is_interrupted(upstream: list[bytes]) -> None:
    assert decided(shown(*upstream)) == Decision(Action.INTERRUPT)


def test_a_text_after_finished_reasoning_is_continued() -> None:
    found = find_open_text(shown(reasoning_chunk("Hm"), text_chunk("Hi")))
    assert found is not None
    assert (found.output_index, found.text) == (1, "Hi")


def test_a_text_with_its_done_event_is_not_continued() -> None:
    drafts = run([text_chunk("Hi")])
    said = next(n for n, draft in enumerate(drafts) if draft.type == "response.output_text.done")
    assert find_open_text(fold_of(drafts[:said])) is not None
    for cut in range(said + 1, len(drafts) + 1):
        assert find_open_text(fold_of(drafts[:cut])) is None


def test_fruitless_resumptions_are_limited() -> None:
    fold = shown(text_chunk("Once"))
    here = fold.last + 1
    assert decided(fold, resumed_at=[here] * (MAX_ATTEMPTS - 1)).action is Action.CONTINUE
    assert decided(fold, resumed_at=[here] * MAX_ATTEMPTS).action is Action.INTERRUPT
    # Resumptions elsewhere brought something new, so they do not count.
    assert decided(fold, resumed_at=[here - 1] * MAX_ATTEMPTS).action is Action.CONTINUE


@given(runs, st.data())
def test_every_prefix_has_a_decision(drafts: list[AnyDraft], data: st.DataObject) -> None:
    fold = fold_of(drafts[: data.draw(st.integers(1, len(drafts)))])
    attempts = data.draw(st.integers(1, 5))
    found = decided(fold, attempts)
    assert (found.action in (Action.RESTART, Action.FAIL)) == (not fold.visible)
    assert (found.open_text is not None) == (found.action is Action.CONTINUE)


@given(chunks, st.data(), st.lists(texts, max_size=4))
def test_a_continued_stream_is_as_sound_as_an_unbroken_one(
    upstream: list[bytes], data: st.DataObject, more: list[str]
) -> None:
    """A continued text keeps the grammar and loses no text, whatever came before."""
    before = run([*upstream, text_chunk("Once ")], finish=None)
    fold = fold_of(before)
    found = decided(fold)
    if found.open_text is None:
        return
    translator = ChatTranslator(ModelCall("m", REQUEST, [], found.open_text), _Ids())
    after = [draft for text in more for draft in translator.feed(text_chunk(text))]
    whole = [*before, *after]
    events = [read_frame(frame) for frame in split_frames(frames_of(before) + frames_of(after, fold.last))]
    check(events, finished=False)
    item = fold_of(whole).output[found.open_text.output_index]
    assert item["content"][0]["text"] == found.open_text.text + "".join(more)


class _Ids(CountingIds):
    """Counts on after the ids of the first attempt."""

    def new(self, prefix: str) -> str:
        return super().new(f"{prefix}_again")


EVENTS = answer(reasoning("Hm.", "Well."), theirs.WEB_SEARCH, message("Hel", "lo", "!"), call('{"a"', ":1}"))


def drafts_of(cuts: list[int]) -> list[list[AnyDraft]]:
    """Return the drafts of the run, cut into reads."""
    translator = ResponsesTranslator(make_call(), CountingIds())
    drafts = [translator.feed(chunk) for chunk in theirs.chunks(EVENTS)]
    places = sorted({0, len(drafts), *(place % (len(drafts) + 1) for place in cuts)})
    return [list(chain(*drafts[start:end])) for start, end in pairwise(places)]


WHOLE = list(chain(*drafts_of([])))


def folded(count: int) -> Fold:
    fold = Fold({"status": "in_progress"})
    fold.apply(WHOLE[:count])
    return fold


@given(st.integers(0, len(WHOLE)), st.lists(st.integers(0, 1000), max_size=10))
def test_a_repeated_run_passes_only_new_events(count: int, cuts: list[int]) -> None:
    replay = ReplayFilter(folded(count), count)
    rest = [draft for drafts in drafts_of(cuts) for draft in replay.filter(drafts)]
    assert [draft.frame(0) for draft in rest] == [draft.frame(0) for draft in WHOLE[count:]]
    replay.end()


def test_a_run_that_repeats_differently_is_a_fault() -> None:
    fold = Fold({"status": "in_progress"})
    other = ResponsesTranslator(make_call(), CountingIds())
    for chunk in theirs.chunks(answer(message("Good", "bye"))):
        fold.apply(other.feed(chunk))
    replay = ReplayFilter(fold, fold.last + 1)
    with pytest.raises(UpstreamFault, match="same") as caught:
        replay.filter(WHOLE)
    assert not caught.value.retryable


def test_a_run_that_ends_before_the_journal_is_a_fault() -> None:
    replay = ReplayFilter(folded(9), 9)
    assert replay.filter(WHOLE[:5]) == []
    with pytest.raises(UpstreamFault, match="same"):
        replay.end()

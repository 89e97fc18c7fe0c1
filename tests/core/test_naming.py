"""A response keeps the event names that it was created with, and folds the same under both."""

from __future__ import annotations

from hypothesis import given

from outlive.core.endings import close_open
from outlive.core.events import AnyDraft, Channel, Delta, read_frame, split_frames
from outlive.core.fold import Fold
from outlive.core.grammar import DELTAS, DONES, OPEN_RESPONSES_NAMES, REASONING_TEXT
from outlive.core.naming import Renaming
from tests.core.journals import fold_of, frames_of, runs, state_of
from tests.support.grammar import check


def events_of(drafts: list[AnyDraft]) -> list[dict[str, object]]:
    return [read_frame(frame) for frame in split_frames(frames_of(drafts))]


@given(runs)
def test_only_names_change(drafts: list[AnyDraft]) -> None:
    before, after = events_of(drafts), events_of(Renaming().rename(drafts))
    assert after == [{**event, "type": OPEN_RESPONSES_NAMES.get(str(event["type"]), event["type"])} for event in before]
    assert not OPEN_RESPONSES_NAMES.keys() & {event["type"] for event in after}
    check(after, finished=False)


@given(runs)
def test_a_fold_is_the_same_under_both_names(drafts: list[AnyDraft]) -> None:
    renamed = Renaming().rename(drafts)
    replayed = Fold()
    replayed.replay(frames_of(renamed))
    assert state_of(fold_of(drafts)) == state_of(fold_of(renamed)) == state_of(replayed)


@given(runs)
def test_what_is_open_is_closed_under_the_same_names(drafts: list[AnyDraft]) -> None:
    renaming = Renaming()
    renamed = renaming.rename(drafts)
    replayed = Fold()
    replayed.replay(frames_of(renamed))
    events = events_of([*renamed, *renaming.rename(close_open(replayed))])
    check(events, finished=False)
    assert not OPEN_RESPONSES_NAMES.keys() & {event["type"] for event in events}


def test_a_channel_is_renamed_once() -> None:
    channel = Channel(REASONING_TEXT, "rs_1", 0)
    first, second = Renaming().rename([Delta(channel, "a"), Delta(channel, "b")])
    assert isinstance(first, Delta) and isinstance(second, Delta)
    assert first.channel is second.channel
    assert first.channel.key == channel.key
    assert channel.type == "response.reasoning_text.delta"


def test_following_a_source_renames_what_it_gives() -> None:
    renaming, seen = Renaming(), []

    def feed(chunk: bytes) -> list[AnyDraft]:
        seen.append(chunk)
        return []

    assert renaming.follow(feed)(b"x") == []
    assert seen == [b"x"]


def test_both_names_of_an_event_mean_the_same() -> None:
    texts = DELTAS | DONES
    assert all(texts[name] is texts[other] for name, other in OPEN_RESPONSES_NAMES.items())
    assert len(set(OPEN_RESPONSES_NAMES.values())) == len(OPEN_RESPONSES_NAMES)

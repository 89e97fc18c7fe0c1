"""The pure core of streams: each event once, in order, whatever happens to the connections."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.client import ConnectionLost, PollTimeout, Token
from outlive.client.actions import Follow, Kind, Outcome, Probe, Retrieve, Sleep, Submit
from outlive.client.following import Chase
from tests.client.worlds import ENDED, LOST, OURS, Broken, Connection, World, fault, make_events, make_plan

ends: st.SearchStrategy[Outcome] = st.sampled_from([ENDED, LOST, fault(Kind.GARBLED)])
passing = st.sampled_from(
    [LOST, fault(Kind.BUSY, 503), fault(Kind.BUSY, 429, retry_after="2"), fault(Kind.MISSING, 404)]
)
broken = st.builds(
    Connection,
    refusal=st.none() | passing,
    events=st.integers(1, 7),
    end=ends,
    rewinds=st.integers(0, 0) | st.integers(0, 5),
)


def chase(world: World, **fields: Any) -> Chase:
    return Chase(make_plan(world.clock, streamed=True, **{"create": {}} | fields))


@given(st.integers(2, 60), st.lists(broken, max_size=30))
def test_whatever_breaks_every_event_is_delivered_once_and_in_order(count: int, connections: list[Connection]) -> None:
    world = World(make_events(count), [Connection(events=1, end=LOST), *connections], OURS, ["in_progress"])
    following = chase(world)
    world.run(following.run())
    assert world.delivered == world.events
    assert world.count(Submit) == 1
    assert following.token == Token("resp_1", count - 1, ended=True)


@given(st.integers(2, 40), st.integers(0, 39), st.lists(broken, max_size=10))
def test_a_token_taken_anywhere_goes_on_with_the_next_event(
    count: int, cursor: int, connections: list[Connection]
) -> None:
    cursor = min(cursor, count - 2)
    world = World(make_events(count), connections, OURS, ["in_progress"])
    world.run(chase(world, create=None, token=Token("resp_1", cursor)).run())
    assert world.delivered == world.events[cursor + 1 :]
    assert world.count(Submit) == 0


def test_the_token_moves_with_each_event_that_is_delivered() -> None:
    world = World(make_events(4), [])
    following = chase(world)
    seen = []
    program, outcome = following.run(), None
    try:
        while True:
            action = program.send(outcome)
            delivered = len(world.delivered)
            outcome = world.perform(action)
            if len(world.delivered) > delivered:
                seen.append(following.token)
    except StopIteration:
        pass
    assert seen == [Token("resp_1", 0), Token("resp_1", 1), Token("resp_1", 2), Token("resp_1", 3, ended=True)]


def test_waits_grow_while_nothing_new_comes_and_begin_anew_with_the_next_event() -> None:
    refused = Connection(refusal=LOST)
    world = World(make_events(9), [Connection(events=2, end=LOST), refused, refused, Connection(events=1, end=LOST)])
    world.run(chase(world).run())
    assert world.clock.slept == [0.25, 0.5, 1.0, 0.25]


def test_a_server_that_says_when_to_come_back_is_obeyed_within_reason() -> None:
    away = [fault(Kind.BUSY, 503, retry_after=seconds) for seconds in ("7", "86400", "soon", "-1")]
    world = World(make_events(9), [Connection(events=2, end=LOST), *(Connection(refusal=each) for each in away)])
    world.run(chase(world).run())
    assert world.clock.slept == [0.25, 7.0, 60.0, 2.0, 4.0]


def test_an_outage_longer_than_patience_ends_in_an_error_with_the_token() -> None:
    world = World(make_events(9), [Connection(events=3, end=LOST), *([Connection(refusal=LOST)] * 1000)])
    with pytest.raises(ConnectionLost) as lost:
        world.run(chase(world, patience={"outage_seconds": 60.0}).run())
    assert lost.value.token == Token("resp_1", 2)
    assert lost.value.response_id == "resp_1"
    assert isinstance(lost.value.__cause__, Broken)
    assert 60 <= world.clock.now < 70


def test_a_server_that_opens_and_breaks_at_once_is_an_outage_too() -> None:
    world = World(make_events(9), [Connection(events=3, end=LOST), *([Connection(events=0, end=LOST)] * 1000)])
    with pytest.raises(ConnectionLost):
        world.run(chase(world, patience={"outage_seconds": 60.0}).run())


# -- before the first event


@pytest.mark.parametrize("first", [Connection(refusal=LOST), Connection(refusal=fault(Kind.BUSY, 503))])
def test_a_failed_submit_is_repeated_once_an_outlive_answers(first: Connection) -> None:
    world = World(make_events(9), [first], OURS)
    following = chase(world)
    world.run(following.run())
    assert [type(action) for action in world.actions[:4]] == [Submit, Sleep, Probe, Submit]
    assert following.plan.progress.resubmits == 1
    assert world.delivered == world.events


@pytest.mark.parametrize("end", [LOST, ENDED])
def test_a_stream_cut_before_its_first_event_is_submitted_again_to_an_outlive(end: Outcome) -> None:
    world = World(make_events(9), [Connection(events=0, end=end)], OURS)
    world.run(chase(world).run())
    assert world.delivered == world.events
    assert world.count(Submit) == 2 and world.count(Probe) == 0


def test_an_outlive_that_never_gets_to_its_first_event_is_given_up() -> None:
    world = World(make_events(9), [Connection(events=0)] * 1000, OURS)
    with pytest.raises(ConnectionLost) as lost:
        world.run(chase(world, patience={"outage_seconds": 60.0}).run())
    assert lost.value.token is None and lost.value.response_id is None


def test_nobody_else_gets_a_second_submit() -> None:
    world = World(make_events(9), [Connection(refusal=LOST)])
    with pytest.raises(Broken):
        world.run(chase(world).run())
    assert world.count(Submit) == 1
    world = World(make_events(9), [Connection(events=0, end=LOST)])
    with pytest.raises(ConnectionLost):
        world.run(chase(world).run())
    assert world.count(Submit) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        fault(Kind.BUSY, 429, **OURS),
        fault(Kind.BUSY, 500, **OURS),
        fault(Kind.BUSY, 503, x_should_retry="false", **OURS),
        fault(Kind.REFUSED, 400, **OURS),
        fault(Kind.FINAL, 401, **OURS),
    ],
)
def test_a_submit_that_was_answered_is_not_repeated(refusal: Any) -> None:
    world = World(make_events(9), [Connection(refusal=refusal)], OURS)
    with pytest.raises(Broken):
        world.run(chase(world).run())
    assert world.count(Submit) == 1


def test_openai_is_neither_probed_nor_asked_twice_whatever_its_headers_say() -> None:
    world = World(make_events(9), [Connection(refusal=LOST)], OURS)
    with pytest.raises(Broken):
        world.run(chase(world, may_be_outlive=False).run())
    assert [type(action) for action in world.actions] == [Submit]


def test_what_is_not_stored_is_lost_with_its_connection() -> None:
    for connection, error in ((Connection(refusal=LOST), Broken), (Connection(events=3, end=ENDED), ConnectionLost)):
        world = World(make_events(9), [connection], OURS)
        with pytest.raises(error):
            world.run(chase(world, stored=False).run())
        assert world.count(Submit) == 1 and world.count(Follow) == 0


# -- where a stream cannot be resumed


@pytest.mark.parametrize("refusal", [fault(Kind.REFUSED, 400), fault(Kind.MISSING, 404)])
@pytest.mark.parametrize("status", ["completed", "failed", "incomplete", "cancelled"])
def test_a_refused_resume_is_polled_and_ends_with_the_terminal_event(refusal: Any, status: str) -> None:
    connections = [Connection(events=3, end=LOST), Connection(refusal=refusal)]
    world = World(make_events(9), connections, statuses=["in_progress", "in_progress", status])
    following = chase(world)
    world.run(following.run())
    assert world.delivered == [*world.events[:3], (status, 3)]
    assert following.plan.progress.fell_back and following.plan.progress.polls == 3
    assert following.token == Token("resp_1", 3, ended=True)


def test_a_deleted_response_of_an_outlive_is_an_error_at_once() -> None:
    gone = Connection(refusal=fault(Kind.MISSING, 404, **OURS))
    world = World(make_events(9), [Connection(events=3, end=LOST), gone], OURS)
    with pytest.raises(Broken):
        world.run(chase(world).run())
    assert world.count(Retrieve) == 0


def test_a_foreground_response_that_never_ends_is_not_waited_for_for_ever() -> None:
    connections = [Connection(events=3, end=LOST), Connection(refusal=fault(Kind.REFUSED, 400))]
    world = World(make_events(9), connections, statuses=["in_progress"])
    world.background = False
    with pytest.raises(PollTimeout):
        world.run(chase(world, patience={"outage_seconds": 60.0}).run())
    assert 60 <= world.clock.now < 70


def test_a_stream_that_keeps_ending_without_its_end_is_looked_up() -> None:
    empty = Connection(events=0)
    world = World(make_events(9), [Connection(events=3), *([empty] * 20)], statuses=["in_progress", "failed"])
    world.run(chase(world).run())
    assert world.delivered == [*world.events[:3], ("failed", 3)]
    assert world.count(Follow) == 4


def test_ends_that_each_bring_something_are_never_taken_for_the_end() -> None:
    slow = [Connection(events=1), Connection(events=0), Connection(events=0)] * 20
    world = World(make_events(15), slow, OURS, ["completed"])
    following = chase(world)
    world.run(following.run())
    assert world.delivered == world.events and not following.plan.progress.fell_back


def test_events_that_never_say_which_response_they_are_of_are_not_delivered_twice() -> None:
    nameless = [SimpleNamespace(type=event.type, sequence_number=event.sequence_number) for event in make_events(9)]
    world = World(nameless, [Connection(events=3, end=LOST)], OURS)
    with pytest.raises(ConnectionLost, match="which response"):
        world.run(chase(world).run())
    assert world.delivered == nameless[:3]


def test_what_makes_no_sense_again_and_again_is_raised() -> None:
    garbled = Connection(events=0, end=fault(Kind.GARBLED))
    world = World(make_events(9), [Connection(events=3, end=LOST), *([garbled] * 20)], statuses=["in_progress"])
    with pytest.raises(Broken, match="GARBLED"):
        world.run(chase(world).run())
    assert world.count(Follow) < 10


def test_events_without_numbers_are_delivered_but_cannot_be_resumed() -> None:
    events = [SimpleNamespace(type=event.type, response=SimpleNamespace(id="resp_1")) for event in make_events(9)]
    world = World(events, [Connection(events=3, end=LOST)])
    world.run(chase(world).run())
    assert world.delivered == [*events[:3], ("completed", 0)]


def test_a_token_that_has_ended_asks_for_nothing() -> None:
    world = World(make_events(9), [])
    world.run(chase(world, create=None, token=Token("resp_1", 8, ended=True)).run())
    assert world.actions == []

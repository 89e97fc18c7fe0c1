"""The pure core of streams delivers each event once and in order over broken connections."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.client import ConnectionLost, PollTimeout, Token
from outlive.client.core import FaultKind, Follow, Outcome, Retrieve, Sleep, StreamFollower, Submit
from tests.client.fake_server import (
    ENDED,
    LOST,
    OURS,
    PROBE,
    Connection,
    FakeError,
    FakeServer,
    fault,
    make_events,
    make_plan,
)

ends: st.SearchStrategy[Outcome] = st.sampled_from([ENDED, LOST, fault(FaultKind.GARBLED)])
temporary = st.sampled_from(
    [LOST, fault(FaultKind.BUSY, 503), fault(FaultKind.BUSY, 429, retry_after="2"), fault(FaultKind.MISSING, 404)]
)
broken = st.builds(
    Connection,
    refusal=st.none() | temporary,
    events=st.integers(1, 7),
    end=ends,
    rewinds=st.integers(0, 0) | st.integers(0, 5),
)


def make_follower(server: FakeServer, **fields: Any) -> StreamFollower:
    return StreamFollower(make_plan(server.clock, streamed=True, **{"create": {}} | fields))


@given(st.integers(2, 60), st.lists(broken, max_size=30))
def test_every_event_is_delivered_once_and_in_order_over_broken_connections(
    count: int, connections: list[Connection]
) -> None:
    server = FakeServer(make_events(count), [Connection(events=1, end=LOST), *connections], OURS, ["in_progress"])
    follower = make_follower(server)
    server.run(follower.run())
    assert server.delivered == server.events
    assert server.count(Submit) == 1
    assert follower.token == Token("resp_1", count - 1, ended=True)


@given(st.integers(2, 40), st.integers(0, 39), st.lists(broken, max_size=10))
def test_token_with_any_cursor_resumes_with_the_next_event(
    count: int, cursor: int, connections: list[Connection]
) -> None:
    cursor = min(cursor, count - 2)
    server = FakeServer(make_events(count), connections, OURS, ["in_progress"])
    server.run(make_follower(server, token=Token("resp_1", cursor)).run())
    assert server.delivered == server.events[cursor + 1 :]
    assert server.count(Submit) == 0


def test_token_advances_with_each_event_delivered() -> None:
    server = FakeServer(make_events(4), [])
    follower = make_follower(server)
    seen = []
    program, outcome = follower.run(), None
    try:
        while True:
            action = program.send(outcome)
            delivered = len(server.delivered)
            outcome = server.perform(action)
            if len(server.delivered) > delivered:
                seen.append(follower.token)
    except StopIteration:
        pass
    assert seen == [Token("resp_1", 0), Token("resp_1", 1), Token("resp_1", 2), Token("resp_1", 3, ended=True)]


def test_delays_double_until_an_event_arrives_and_then_start_over() -> None:
    refused = Connection(refusal=LOST)
    server = FakeServer(
        make_events(9), [Connection(events=2, end=LOST), refused, refused, Connection(events=1, end=LOST)]
    )
    server.run(make_follower(server).run())
    assert server.clock.slept == [0.25, 0.5, 1.0, 0.25]


def test_retry_after_is_followed_up_to_a_minute() -> None:
    away = [fault(FaultKind.BUSY, 503, retry_after=seconds) for seconds in ("7", "86400", "soon", "-1")]
    server = FakeServer(make_events(9), [Connection(events=2, end=LOST), *(Connection(refusal=each) for each in away)])
    server.run(make_follower(server).run())
    assert server.clock.slept == [0.25, 7.0, 60.0, 2.0, 4.0]


def test_outage_beyond_the_policy_raises_with_the_token() -> None:
    server = FakeServer(make_events(9), [Connection(events=3, end=LOST), *([Connection(refusal=LOST)] * 1000)])
    with pytest.raises(ConnectionLost) as lost:
        server.run(make_follower(server, retry_policy={"outage_seconds": 60.0}).run())
    assert lost.value.token == Token("resp_1", 2)
    assert lost.value.response_id == "resp_1"
    assert isinstance(lost.value.__cause__, FakeError)
    assert 60 <= server.clock.now < 70


def test_connections_that_break_at_once_count_as_an_outage() -> None:
    server = FakeServer(make_events(9), [Connection(events=3, end=LOST), *([Connection(events=0, end=LOST)] * 1000)])
    with pytest.raises(ConnectionLost):
        server.run(make_follower(server, retry_policy={"outage_seconds": 60.0}).run())


# -- before the first event


@pytest.mark.parametrize("first", [Connection(refusal=LOST), Connection(refusal=fault(FaultKind.BUSY, 503))])
def test_failed_submit_is_repeated_once_an_outlive_answers(first: Connection) -> None:
    server = FakeServer(make_events(9), [first], OURS)
    follower = make_follower(server)
    server.run(follower.run())
    assert server.actions[:4] == [Submit(), Sleep(0.25), PROBE, Submit()]
    assert follower.plan.stats.resubmits == 1
    assert server.delivered == server.events


@pytest.mark.parametrize("end", [LOST, ENDED])
def test_stream_cut_before_its_first_event_is_resubmitted_to_an_outlive(end: Outcome) -> None:
    server = FakeServer(make_events(9), [Connection(events=0, end=end)], OURS)
    server.run(make_follower(server).run())
    assert server.delivered == server.events
    assert server.count(Submit) == 2 and PROBE not in server.actions


def test_streams_without_a_first_event_raise_after_the_outage_limit() -> None:
    server = FakeServer(make_events(9), [Connection(events=0)] * 1000, OURS)
    with pytest.raises(ConnectionLost) as lost:
        server.run(make_follower(server, retry_policy={"outage_seconds": 60.0}).run())
    assert lost.value.token is None and lost.value.response_id is None


def test_other_servers_never_get_a_second_submit() -> None:
    server = FakeServer(make_events(9), [Connection(refusal=LOST)])
    with pytest.raises(FakeError):
        server.run(make_follower(server).run())
    assert server.count(Submit) == 1
    server = FakeServer(make_events(9), [Connection(events=0, end=LOST)])
    with pytest.raises(ConnectionLost):
        server.run(make_follower(server).run())
    assert server.count(Submit) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        fault(FaultKind.BUSY, 429, **OURS),
        fault(FaultKind.BUSY, 500, **OURS),
        fault(FaultKind.BUSY, 503, x_should_retry="false", **OURS),
        fault(FaultKind.REFUSED, 400, **OURS),
        fault(FaultKind.FINAL, 401, **OURS),
    ],
)
def test_answered_submit_is_not_repeated(refusal: Any) -> None:
    server = FakeServer(make_events(9), [Connection(refusal=refusal)], OURS)
    with pytest.raises(FakeError):
        server.run(make_follower(server).run())
    assert server.count(Submit) == 1


def test_openai_is_never_probed_or_resubmitted_to_even_with_our_header() -> None:
    server = FakeServer(make_events(9), [Connection(refusal=LOST)], OURS)
    with pytest.raises(FakeError):
        server.run(make_follower(server, may_be_outlive=False).run())
    assert [type(action) for action in server.actions] == [Submit]


def test_unstored_response_is_lost_with_its_connection() -> None:
    for connection, error in ((Connection(refusal=LOST), FakeError), (Connection(events=3, end=ENDED), ConnectionLost)):
        server = FakeServer(make_events(9), [connection], OURS)
        with pytest.raises(error):
            server.run(make_follower(server, stored=False).run())
        assert server.count(Submit) == 1 and server.count(Follow) == 0


# -- streams that cannot be resumed


@pytest.mark.parametrize("refusal", [fault(FaultKind.REFUSED, 400), fault(FaultKind.MISSING, 404)])
@pytest.mark.parametrize("status", ["completed", "failed", "incomplete", "cancelled"])
def test_refused_resume_polls_and_delivers_the_terminal_event(refusal: Any, status: str) -> None:
    connections = [Connection(events=3, end=LOST), Connection(refusal=refusal)]
    server = FakeServer(make_events(9), connections, statuses=["in_progress", "in_progress", status])
    follower = make_follower(server)
    server.run(follower.run())
    assert server.delivered == [*server.events[:3], (status, 3)]
    assert follower.plan.stats.fell_back and follower.plan.stats.polls == 3
    assert follower.token == Token("resp_1", 3, ended=True)


def test_deleted_response_of_an_outlive_raises_at_once() -> None:
    gone = Connection(refusal=fault(FaultKind.MISSING, 404, **OURS))
    server = FakeServer(make_events(9), [Connection(events=3, end=LOST), gone], OURS)
    with pytest.raises(FakeError):
        server.run(make_follower(server).run())
    assert server.count(Retrieve) == 0


def test_lost_foreground_response_raises_after_the_outage_limit() -> None:
    connections = [Connection(events=3, end=LOST), Connection(refusal=fault(FaultKind.REFUSED, 400))]
    server = FakeServer(make_events(9), connections, statuses=["in_progress"])
    server.background = False
    with pytest.raises(PollTimeout):
        server.run(make_follower(server, retry_policy={"outage_seconds": 60.0}).run())
    assert 60 <= server.clock.now < 70


def test_stream_that_keeps_ending_early_retrieves_the_response() -> None:
    empty = Connection(events=0)
    server = FakeServer(make_events(9), [Connection(events=3), *([empty] * 20)], statuses=["in_progress", "failed"])
    server.run(make_follower(server).run())
    assert server.delivered == [*server.events[:3], ("failed", 3)]
    assert server.count(Follow) == 4


def test_early_ends_with_new_events_never_fall_back_to_polling() -> None:
    slow = [Connection(events=1), Connection(events=0), Connection(events=0)] * 20
    server = FakeServer(make_events(15), slow, OURS, ["completed"])
    follower = make_follower(server)
    server.run(follower.run())
    assert server.delivered == server.events and not follower.plan.stats.fell_back


def test_events_without_a_response_id_are_not_delivered_twice() -> None:
    nameless = [SimpleNamespace(type=event.type, sequence_number=event.sequence_number) for event in make_events(9)]
    server = FakeServer(nameless, [Connection(events=3, end=LOST)], OURS)
    with pytest.raises(ConnectionLost, match="response's id"):
        server.run(make_follower(server).run())
    assert server.delivered == nameless[:3]


def test_repeatedly_garbled_stream_raises() -> None:
    garbled = Connection(events=0, end=fault(FaultKind.GARBLED))
    server = FakeServer(make_events(9), [Connection(events=3, end=LOST), *([garbled] * 20)], statuses=["in_progress"])
    with pytest.raises(FakeError, match="GARBLED"):
        server.run(make_follower(server).run())
    assert server.count(Follow) < 10


def test_events_without_numbers_are_delivered_but_not_resumed() -> None:
    events = [SimpleNamespace(type=event.type, response=SimpleNamespace(id="resp_1")) for event in make_events(9)]
    server = FakeServer(events, [Connection(events=3, end=LOST)])
    server.run(make_follower(server).run())
    assert server.delivered == [*events[:3], ("completed", 0)]


def test_ended_token_sends_no_request() -> None:
    server = FakeServer(make_events(9), [])
    server.run(make_follower(server, token=Token("resp_1", 8, ended=True)).run())
    assert server.actions == []

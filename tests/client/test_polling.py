"""The pure core of polling: when it asks, how long it waits, and what it does about errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.client import ConnectionLost, PollTimeout, Token
from outlive.client.actions import Action, Answer, Fault, Kind, Outcome, Probe, Rested, Retrieve, Sleep, Submit
from outlive.client.polling import poll
from tests.client.worlds import LOST, OURS, Broken, Clock, fault, make_plan, make_response


class Desk:
    """Answers submits and GETs from a list, in which a status stands for an answer; GETs that wait take their time."""

    def __init__(self, *answers: str | Fault | tuple[str, dict[str, str]], holds: bool = True) -> None:
        self.answers = list(answers)
        self.holds = holds
        self.clock = Clock()
        self.actions: list[Action] = []

    def run(self, **fields: Any) -> Any:
        program, outcome = poll(make_plan(self.clock, **fields)), None
        while True:
            try:
                action = program.send(outcome)
            except StopIteration as end:
                return end.value
            self.actions.append(action)
            outcome = self.perform(action)

    def count(self, kind: type) -> int:
        return sum(isinstance(action, kind) for action in self.actions)

    @property
    def waits(self) -> list[float | None]:
        return [action.wait for action in self.actions if isinstance(action, Retrieve)]

    def perform(self, action: Action) -> Outcome:
        if isinstance(action, Sleep):
            self.clock.sleep(action.seconds)
            return Rested()
        answer = self.answers.pop(0)
        if isinstance(answer, Fault):
            return answer
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        if isinstance(action, Retrieve) and action.wait and self.holds and status == "in_progress":
            self.clock.now += action.wait
        return Answer(make_response(status), headers)


def ours(status: str, after: int = 700) -> tuple[str, dict[str, str]]:
    return status, OURS | {"openai-poll-after-ms": str(after)}


def test_what_has_ended_on_the_first_answer_is_not_asked_for_again() -> None:
    desk = Desk("completed")
    assert desk.run(create={}).status == "completed"
    assert [type(action) for action in desk.actions] == [Submit]


def test_without_a_word_from_the_server_it_asks_every_second() -> None:
    desk = Desk("queued", "in_progress", "in_progress", "completed")
    assert desk.run(create={}).status == "completed"
    assert desk.clock.slept == [1.0, 1.0, 1.0]
    assert desk.waits == [None, None, None]


@pytest.mark.parametrize(
    ("header", "seconds"), [("250", 0.25), ("5000", 5.0), ("0", 0.1), ("9999999", 60.0), ("soon", 1.0), ("-5", 0.1)]
)
def test_the_servers_word_on_when_to_ask_again_is_honoured_within_reason(header: str, seconds: float) -> None:
    desk = Desk("queued", ("in_progress", {"openai-poll-after-ms": header}), "completed")
    desk.run(create={})
    assert desk.clock.slept == [1.0, seconds]


def test_an_explicit_interval_wins_over_the_header_and_over_waiting_gets() -> None:
    desk = Desk(ours("queued"), ours("in_progress"), ours("completed"))
    desk.run(create={}, interval=2.5)
    assert desk.clock.slept == [2.5, 2.5]
    assert desk.waits == [None, None]


def test_an_outlive_is_asked_to_hold_its_answer() -> None:
    desk = Desk(ours("queued"), ours("in_progress"), ours("completed"))
    desk.run(create={})
    assert desk.clock.slept == []
    assert desk.waits == [20.0, 20.0]


def test_one_that_is_found_out_by_its_first_answer_is_asked_so_from_the_second_on() -> None:
    desk = Desk(ours("in_progress"), ours("in_progress"), ours("completed"))
    desk.run(token=Token("resp_1"))
    assert desk.waits == [None, 20.0, 20.0]
    assert desk.clock.slept == []


def test_openai_is_never_asked_to_hold_whatever_its_headers_say() -> None:
    desk = Desk(ours("queued", 300), ours("in_progress", 300), ours("completed"))
    desk.run(create={}, may_be_outlive=False)
    assert desk.waits == [None, None]
    assert desk.clock.slept == [0.3, 0.3]


def test_a_held_answer_that_comes_too_early_does_not_make_a_busy_loop() -> None:
    desk = Desk(ours("queued"), ours("in_progress"), ours("in_progress"), ours("completed"), holds=False)
    desk.run(create={})
    assert desk.clock.slept == [0.7, 0.7]


# -- the longest wait


@pytest.mark.parametrize("answer", ["in_progress", ours("in_progress")])
def test_the_longest_wait_ends_in_an_error_with_the_id(answer: Any) -> None:
    desk = Desk(*([answer] * 100))
    with pytest.raises(PollTimeout) as timeout:
        desk.run(create={}, max_wait=4.5)
    assert timeout.value.response_id == "resp_1"
    assert timeout.value.waited_seconds == desk.clock.now == 4.5
    assert isinstance(timeout.value, TimeoutError)


def test_no_wait_at_all_still_submits_and_a_poll_still_asks_once() -> None:
    desk = Desk("queued")
    with pytest.raises(PollTimeout):
        desk.run(create={}, max_wait=0.0)
    assert [type(action) for action in desk.actions] == [Submit]
    desk = Desk("in_progress")
    with pytest.raises(PollTimeout):
        desk.run(token=Token("resp_1"), max_wait=0.0)
    assert [type(action) for action in desk.actions] == [Retrieve]


def test_the_longest_wait_counts_during_outages_too() -> None:
    desk = Desk("queued", *([LOST] * 100))
    with pytest.raises(PollTimeout) as timeout:
        desk.run(create={}, max_wait=10.0)
    assert desk.clock.now == 10.0
    assert isinstance(timeout.value.__cause__, Broken)


def test_the_end_that_comes_with_the_last_answer_is_taken() -> None:
    desk = Desk("queued", "in_progress", "completed")
    assert desk.run(create={}, max_wait=1.5).status == "completed"


# -- errors on the way

passing = st.sampled_from([LOST, fault(Kind.BUSY, 500), fault(Kind.BUSY, 503, retry_after="3"), fault(Kind.BUSY, 429)])


@given(st.lists(passing | st.just("in_progress"), max_size=30), st.sampled_from(["completed", "failed"]))
def test_transient_errors_never_cause_a_second_submit(between: list[Any], status: str) -> None:
    desk = Desk("queued", *between, status)
    assert desk.run(create={}, patience={"outage_seconds": 3600.0}).status == status
    assert desk.count(Submit) == 1 and desk.count(Probe) == 0
    assert desk.answers == []


def test_an_outage_longer_than_patience_is_an_error_with_the_id_and_without_a_submit() -> None:
    desk = Desk("queued", *([LOST] * 1000))
    with pytest.raises(ConnectionLost) as lost:
        desk.run(create={}, patience={"outage_seconds": 30.0})
    assert lost.value.response_id == "resp_1"
    assert desk.count(Submit) == 1


@pytest.mark.parametrize("kind", [Kind.REFUSED, Kind.FINAL, Kind.GARBLED])
def test_what_will_not_pass_is_raised_as_it_is(kind: Kind) -> None:
    with pytest.raises(Broken):
        Desk("queued", fault(kind)).run(create={})


def test_a_response_that_was_there_may_be_missing_for_a_moment() -> None:
    missing = fault(Kind.MISSING, 404)
    assert Desk("queued", missing, missing, missing, "completed").run(create={}).status == "completed"
    with pytest.raises(Broken):
        Desk("queued", *([missing] * 4), "completed").run(create={})


def test_an_unknown_id_is_an_error_at_once() -> None:
    desk = Desk(fault(Kind.MISSING, 404), "completed")
    with pytest.raises(Broken):
        desk.run(token=Token("resp_1"))
    assert desk.clock.slept == []


def test_a_proxys_404_in_front_of_an_outlive_is_an_outage_and_the_servers_own_is_final() -> None:
    by_proxy, own = fault(Kind.MISSING, 404), Fault(Kind.MISSING, Broken("gone"), 404, OURS)
    assert Desk(ours("queued"), *([by_proxy] * 9), ours("completed")).run(create={}).status == "completed"
    with pytest.raises(Broken, match="gone"):
        Desk(ours("queued"), own, ours("completed")).run(create={})


def test_a_submit_without_an_answer_is_not_repeated_unless_an_outlive_answers() -> None:
    desk = Desk(LOST, *([LOST] * 1000))
    with pytest.raises(Broken):
        desk.run(create={}, patience={"contact_seconds": 5.0})
    assert desk.count(Submit) == 1
    assert 5 <= desk.clock.now < 10

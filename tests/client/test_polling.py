"""The pure core of polling: times of requests, waits, and faults."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.client import ConnectionLost, PollTimeout, Token
from outlive.client.core import (
    Action,
    Fault,
    FaultKind,
    Outcome,
    Received,
    Retrieve,
    Sleep,
    Submit,
    poll,
)
from tests.client.fake_server import LOST, OURS, PROBE, FakeClock, FakeError, fault, make_plan, make_response


class FakePollServer:
    """Answer submits and GETs from a list of statuses and faults; with `holds`, GETs that wait take that time."""

    def __init__(self, *answers: str | Fault | tuple[str, dict[str, str]], holds: bool = True) -> None:
        self.answers = list(answers)
        self.holds = holds
        self.clock = FakeClock()
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
            return None
        answer = self.answers.pop(0)
        if isinstance(answer, Fault):
            return answer
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        if isinstance(action, Retrieve) and action.wait and self.holds and status == "in_progress":
            self.clock.now += action.wait
        return Received(make_response(status), headers)


def ours(status: str, after: int = 700) -> tuple[str, dict[str, str]]:
    return status, OURS | {"openai-poll-after-ms": str(after)}


def test_response_that_is_terminal_at_once_is_not_polled() -> None:
    server = FakePollServer("completed")
    assert server.run(create={}).status == "completed"
    assert [type(action) for action in server.actions] == [Submit]


def test_polls_every_second_without_a_header() -> None:
    server = FakePollServer("queued", "in_progress", "in_progress", "completed")
    assert server.run(create={}).status == "completed"
    assert server.clock.slept == [1.0, 1.0, 1.0]
    assert server.waits == [None, None, None]


@pytest.mark.parametrize(
    ("header", "seconds"), [("250", 0.25), ("5000", 5.0), ("0", 0.1), ("9999999", 60.0), ("soon", 1.0), ("-5", 0.1)]
)
def test_poll_header_sets_the_interval_within_limits(header: str, seconds: float) -> None:
    server = FakePollServer("queued", ("in_progress", {"openai-poll-after-ms": header}), "completed")
    server.run(create={})
    assert server.clock.slept == [1.0, seconds]


def test_explicit_interval_overrides_the_header_and_held_gets() -> None:
    server = FakePollServer(ours("queued"), ours("in_progress"), ours("completed"))
    server.run(create={}, interval=2.5)
    assert server.clock.slept == [2.5, 2.5]
    assert server.waits == [None, None]


def test_outlive_is_asked_to_hold_its_answers() -> None:
    server = FakePollServer(ours("queued"), ours("in_progress"), ours("completed"))
    server.run(create={})
    assert server.clock.slept == []
    assert server.waits == [20.0, 20.0]


def test_outlive_detected_by_its_first_answer_holds_the_second() -> None:
    server = FakePollServer(ours("in_progress"), ours("in_progress"), ours("completed"))
    server.run(token=Token("resp_1"))
    assert server.waits == [None, 20.0, 20.0]
    assert server.clock.slept == []


def test_openai_is_never_asked_to_hold_even_with_our_header() -> None:
    server = FakePollServer(ours("queued", 300), ours("in_progress", 300), ours("completed"))
    server.run(create={}, may_be_outlive=False)
    assert server.waits == [None, None]
    assert server.clock.slept == [0.3, 0.3]


def test_held_answers_that_come_early_do_not_cause_a_busy_loop() -> None:
    server = FakePollServer(ours("queued"), ours("in_progress"), ours("in_progress"), ours("completed"), holds=False)
    server.run(create={})
    assert server.clock.slept == [0.7, 0.7]


# -- the longest wait


@pytest.mark.parametrize("answer", ["in_progress", ours("in_progress")])
def test_longest_wait_raises_with_the_id(answer: Any) -> None:
    server = FakePollServer(*([answer] * 100))
    with pytest.raises(PollTimeout) as timeout:
        server.run(create={}, max_wait=4.5)
    assert timeout.value.response_id == "resp_1"
    assert timeout.value.waited_seconds == server.clock.now == 4.5
    assert isinstance(timeout.value, TimeoutError)


def test_zero_wait_still_sends_one_request() -> None:
    server = FakePollServer("queued")
    with pytest.raises(PollTimeout):
        server.run(create={}, max_wait=0.0)
    assert [type(action) for action in server.actions] == [Submit]
    server = FakePollServer("in_progress")
    with pytest.raises(PollTimeout):
        server.run(token=Token("resp_1"), max_wait=0.0)
    assert [type(action) for action in server.actions] == [Retrieve]


def test_longest_wait_also_limits_outages() -> None:
    server = FakePollServer("queued", *([LOST] * 100))
    with pytest.raises(PollTimeout) as timeout:
        server.run(create={}, max_wait=10.0)
    assert server.clock.now == 10.0
    assert isinstance(timeout.value.__cause__, FakeError)


def test_terminal_answer_at_the_deadline_is_returned() -> None:
    server = FakePollServer("queued", "in_progress", "completed")
    assert server.run(create={}, max_wait=1.5).status == "completed"


# -- faults

temporary = st.sampled_from(
    [LOST, *(fault(FaultKind.BUSY, status) for status in (500, 429)), fault(FaultKind.BUSY, 503, retry_after="3")]
)


@given(st.lists(temporary | st.just("in_progress"), max_size=30), st.sampled_from(["completed", "failed"]))
def test_temporary_faults_never_cause_a_second_submit(between: list[Any], status: str) -> None:
    server = FakePollServer("queued", *between, status)
    assert server.run(create={}, retry_policy={"outage_seconds": 3600.0}).status == status
    assert server.count(Submit) == 1 and PROBE not in server.actions
    assert server.answers == []


def test_outage_beyond_the_policy_raises_with_the_id_and_without_a_submit() -> None:
    server = FakePollServer("queued", *([LOST] * 1000))
    with pytest.raises(ConnectionLost) as lost:
        server.run(create={}, retry_policy={"outage_seconds": 30.0})
    assert lost.value.response_id == "resp_1"
    assert server.count(Submit) == 1


@pytest.mark.parametrize("kind", [FaultKind.REFUSED, FaultKind.FINAL, FaultKind.GARBLED])
def test_final_faults_are_raised_unchanged(kind: FaultKind) -> None:
    with pytest.raises(FakeError):
        FakePollServer("queued", fault(kind)).run(create={})


def test_known_response_may_be_missing_three_times() -> None:
    missing = fault(FaultKind.MISSING, 404)
    assert FakePollServer("queued", missing, missing, missing, "completed").run(create={}).status == "completed"
    with pytest.raises(FakeError):
        FakePollServer("queued", *([missing] * 4), "completed").run(create={})


def test_unknown_id_raises_at_once() -> None:
    server = FakePollServer(fault(FaultKind.MISSING, 404), "completed")
    with pytest.raises(FakeError):
        server.run(token=Token("resp_1"))
    assert server.clock.slept == []


def test_404_of_a_proxy_is_retried_and_404_of_an_outlive_is_final() -> None:
    by_proxy, own = fault(FaultKind.MISSING, 404), Fault(FaultKind.MISSING, FakeError("gone"), 404, OURS)
    assert FakePollServer(ours("queued"), *([by_proxy] * 9), ours("completed")).run(create={}).status == "completed"
    with pytest.raises(FakeError, match="gone"):
        FakePollServer(ours("queued"), own, ours("completed")).run(create={})


def test_unanswered_submit_is_not_repeated_unless_an_outlive_answers() -> None:
    server = FakePollServer(LOST, *([LOST] * 1000))
    with pytest.raises(FakeError):
        server.run(create={}, retry_policy={"contact_seconds": 5.0})
    assert server.count(Submit) == 1
    assert 5 <= server.clock.now < 10

"""The life cycle of a live response, transition by transition, and the registry of those that run here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from outlive.core.errors import InvalidRequest, StaleFence
from outlive.core.events import Draft
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import TRANSITIONS, IllegalTransition, LiveResponse, LiveResponses, State
from outlive.engine.run.closer import Closer
from outlive.ports.backend import Backend, Ending
from outlive.ports.ledger import AppendResult, Entry, Lease
from tests.core.journals import frames_of, opening
from tests.engine.live_responses import ADDED, COMPLETED, HeldLedger, deltas, make_live
from tests.engine.virtual_clock import VirtualClock, in_virtual_time, pass_time, turn

LEGAL = [(state, event) for state, events in TRANSITIONS.items() for event in events]
EVENTS = sorted({event for _, event in LEGAL})
ILLEGAL = [(state, event) for state in State for event in EVENTS if (state, event) not in LEGAL]
# Events that lead from OPEN to each state.
PATHS: dict[State, list[str]] = {
    State.OPEN: [],
    State.ENDING: ["close"],
    State.LOST: ["fence"],
    State.ENDED: ["close", "commit"],
}


def name(value: State | str) -> str:
    return value.value if isinstance(value, State) else value


def live_in(state: State) -> LiveResponse:
    live = make_live()
    for event in PATHS[state]:
        live.transition(event)
    return live


# -- the table


def test_every_state_has_its_row_in_the_table() -> None:
    assert set(TRANSITIONS) == set(State)


@pytest.mark.parametrize(("state", "event"), LEGAL, ids=name)
def test_an_event_of_the_table_leads_to_its_next_state(state: State, event: str) -> None:
    live = live_in(state)
    live.transition(event)
    assert live.state is TRANSITIONS[state][event]


@pytest.mark.parametrize(("state", "event"), ILLEGAL, ids=name)
def test_an_event_that_is_not_in_the_table_raises(state: State, event: str) -> None:
    live = live_in(state)
    with pytest.raises(StaleFence if state is State.LOST else IllegalTransition):
        live.transition(event)
    assert live.state is state


def test_an_event_that_does_not_exist_raises() -> None:
    with pytest.raises(IllegalTransition, match="resp_1: vanish in state open"):
        make_live().transition("vanish")


# -- the same transitions, as the run, the closer and the committer cause them


def no_route(model: str) -> tuple[Backend, str]:
    raise InvalidRequest("no upstream is configured")


class ClosingHarness:
    """One live response with a committer and a closer, on a ledger that the test holds."""

    def __init__(self) -> None:
        self.ledger = HeldLedger()
        self.committer = Committer(self.ledger, VirtualClock(), 0.0)
        self.closer = Closer(self.committer, no_route, VirtualClock())
        self.live = make_live(ledger=self.ledger)
        self.live.on_lost = self._on_lost
        self.stops = 0  # times the run was stopped
        self.closing: asyncio.Task[None]

    def _on_lost(self) -> None:
        self.stops += 1

    async def open(self) -> None:
        """Emit two events: the first is being appended, the second waits for that to be over."""
        self.committer.submit(self.live, [ADDED])
        await turn()
        self.committer.submit(self.live, deltas(1))

    async def close(self) -> None:
        """Begin to end the response. Its closing waits for the append under way."""
        self.closing = asyncio.create_task(self.closer.finish(self.live, [], Ending("completed"), None, 1))
        await turn()
        assert self.ledger.closings == []

    async def send(self) -> None:
        """Let the append succeed, if it is still under way. The closing is sent then."""
        if not self.ledger.closings:
            await self.ledger.commit()
        assert len(self.ledger.closings) == 1

    async def reach(self, state: State) -> None:
        await self.open()
        if state is not State.OPEN:
            await self.close()
        if state in (State.LOST, State.ENDED):
            await self.send()
            await (self.lose() if state is State.LOST else self.commit())
        assert self.live.state is state

    # -- one method for each event

    async def emit(self) -> None:
        self.committer.submit(self.live, deltas(1))

    async def reopen(self) -> None:
        """Stop the run before its closing is sent."""
        self.closing.cancel()
        await turn()

    async def retry(self) -> None:
        """Let the first try of the closing fail."""
        await self.send()
        await self.ledger.fail_close()

    async def commit(self) -> None:
        await self.send()
        await self.ledger.commit_close()

    async def lose(self) -> None:
        self.live.lose()
        await turn()


CAUSES: dict[str, Callable[[ClosingHarness], Awaitable[None]]] = {
    "emit": ClosingHarness.emit,
    "close": ClosingHarness.close,
    "reopen": ClosingHarness.reopen,
    "retry": ClosingHarness.retry,
    "commit": ClosingHarness.commit,
    "fence": ClosingHarness.lose,
}


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the events of all live responses."""
    recorded: list[str] = []
    transition = LiveResponse.transition

    def record(live: LiveResponse, event: str) -> None:
        transition(live, event)
        recorded.append(event)

    monkeypatch.setattr(LiveResponse, "transition", record)
    return recorded


@pytest.mark.parametrize(("state", "event"), LEGAL, ids=name)
@in_virtual_time
async def test_each_transition_is_caused_by_a_run_a_closer_or_a_committer(
    state: State, event: str, events: list[str]
) -> None:
    harness = ClosingHarness()
    await harness.reach(state)
    events.clear()
    await CAUSES[event](harness)
    assert harness.live.state is TRANSITIONS[state][event]
    # Every token is emitted: while a response is open, that looks at its state and leaves out the transition.
    assert events == ([] if event == "emit" else [event])


def test_emitted_events_show_only_once_they_are_durable() -> None:
    live = make_live()
    live.emit([ADDED])
    assert (live.tail.committed, live.is_durable, live.fold.visible) == (1, False, False)
    entry, drafts = live.pending.take(live.lease, 1.0)
    assert (live.tail.committed, live.is_durable, live.fold.visible) == (1, False, False)
    live.advance(entry, drafts)
    assert (live.tail.committed, live.is_durable, live.fold.visible) == (2, True, True)
    assert live.state is State.OPEN


def test_entries_that_were_put_back_are_durable_with_the_next_commit() -> None:
    live = make_live()
    live.emit([ADDED, *deltas(1, "a")])
    entry, drafts = live.pending.take(live.lease, 1.0)
    live.emit(deltas(1, "b"))
    live.pending.put_back(entry, drafts)
    live.advance(*live.pending.take(live.lease, 2.0))
    assert live.is_durable


def test_finished_items_are_remembered_before_they_are_durable() -> None:
    live = make_live()
    item = {"id": "msg_1", "type": "message", "status": "completed", "content": []}
    live.emit([ADDED, Draft("response.output_item.done", {"output_index": 0, "item": item})])
    assert live.output == {0: item}


def test_items_that_an_earlier_claim_finished_come_from_the_fold() -> None:
    assert list(make_live(durable=[*opening(), ADDED]).output) == [0]


@in_virtual_time
async def test_an_ending_response_ends_when_its_closing_is_committed() -> None:
    harness = ClosingHarness()
    live = harness.live
    await harness.reach(State.ENDING)
    await harness.send()
    assert (live.tail.ended, live.tail.final, live.is_durable, harness.closing.done()) == (False, None, False, False)
    await harness.commit()
    await harness.closing
    assert (live.tail.ended, live.tail.lost, live.is_durable) == (True, False, True)
    closed = harness.ledger.closings[0][1]
    assert live.tail.final == closed.snapshot
    last = live.tail.slice(closed.entry.first - 1)
    assert last is not None and (last.last, last.frames) == (live.tail.committed, closed.entry.frames)
    assert harness.stops == 0


@in_virtual_time
async def test_a_run_that_is_stopped_before_its_closing_is_sent_goes_on_and_ends_later() -> None:
    harness = ClosingHarness()
    live = harness.live
    await harness.reach(State.ENDING)
    await harness.reopen()
    assert harness.closing.cancelled()
    live.emit(deltas(1))
    await harness.close()
    await harness.commit()
    await harness.closing
    assert live.state is State.ENDED
    (_, closing, _) = harness.ledger.closings[0]
    assert closing.entry.first + closing.entry.count - 1 == live.tail.committed == 5


@in_virtual_time
async def test_a_closing_that_failed_is_tried_again_unchanged() -> None:
    harness = ClosingHarness()
    await harness.reach(State.ENDING)
    await harness.retry()
    assert (harness.live.tail.ended, harness.closing.done()) == (False, False)
    await pass_time(1.0)
    (_, first, _), (_, second, _) = harness.ledger.closings
    assert first is second
    await harness.ledger.commit_close()
    await harness.closing
    assert harness.live.state is State.ENDED


@in_virtual_time
async def test_losing_an_open_response_stops_its_run_and_wakes_its_readers() -> None:
    harness = ClosingHarness()
    live = harness.live
    await harness.open()
    waiter, last = live.tail.wait(), live.pending.last
    live.lose()
    assert (waiter.done(), live.tail.lost, live.tail.ended, harness.stops) == (True, True, False, 1)
    assert live.is_durable
    with pytest.raises(StaleFence):
        live.emit(deltas(1))
    with pytest.raises(StaleFence):
        harness.committer.submit(live, deltas(1))
    with pytest.raises(StaleFence):
        await harness.closer.end(live, "cancelled")
    assert live.pending.last == last
    assert harness.ledger.closings == []


@in_virtual_time
async def test_losing_an_ending_response_sends_no_closing() -> None:
    harness = ClosingHarness()
    await harness.reach(State.ENDING)
    harness.live.lose()
    await harness.ledger.commit([AppendResult.STALE])
    with pytest.raises(StaleFence):
        await harness.closing
    assert harness.ledger.closings == []
    assert harness.live.state is State.LOST


@in_virtual_time
async def test_a_second_loss_changes_nothing() -> None:
    harness = ClosingHarness()
    await harness.reach(State.LOST)
    harness.live.lose()
    assert (harness.live.tail.lost, harness.live.tail.ended) == (True, False)


@in_virtual_time
async def test_a_closing_that_was_committed_before_the_loss_was_noticed_ends_the_response() -> None:
    harness = ClosingHarness()
    await harness.reach(State.LOST)
    with pytest.raises(StaleFence):
        await harness.closing
    await harness.commit()
    tail = harness.live.tail
    assert (tail.ended, tail.final) == (True, harness.ledger.closings[0][1].snapshot)


@in_virtual_time
async def test_the_closing_of_a_lost_response_is_not_tried_again() -> None:
    harness = ClosingHarness()
    await harness.reach(State.LOST)
    await harness.ledger.fail_close()
    await pass_time(5.0)
    assert len(harness.ledger.closings) == 1
    assert harness.live.state is State.LOST


@pytest.mark.parametrize("state", [State.ENDING, State.ENDED], ids=name)
@in_virtual_time
async def test_a_response_whose_end_is_decided_takes_neither_events_nor_another_end(state: State) -> None:
    harness = ClosingHarness()
    live = harness.live
    await harness.reach(state)
    last, output = live.pending.last, dict(live.output)
    with pytest.raises(IllegalTransition):
        live.emit([Draft("response.output_item.done", {"output_index": 7, "item": {}})])
    with pytest.raises(IllegalTransition):
        await harness.closer.finish(live, deltas(1), Ending("completed"), None, 1)
    assert (live.state, live.pending.last, live.output) == (state, last, output)


@pytest.mark.parametrize("state", [State.OPEN, State.ENDED], ids=name)
@in_virtual_time
async def test_a_response_that_is_not_ending_cannot_show_a_terminal_event(state: State) -> None:
    harness = ClosingHarness()
    tail = harness.live.tail
    await harness.reach(state)
    before = (tail.committed, tail.ended, tail.final)
    with pytest.raises(IllegalTransition):
        harness.live.finish(Entry(harness.live.lease, tail.committed + 1, 1, 1.0, frames_of([COMPLETED])), b"other")
    assert (tail.committed, tail.ended, tail.final) == before


@in_virtual_time
async def test_an_ended_response_cannot_be_lost() -> None:
    harness = ClosingHarness()
    await harness.reach(State.ENDED)
    with pytest.raises(IllegalTransition):
        harness.live.lose()
    assert (harness.live.tail.lost, harness.stops) == (False, 0)


# -- the registry


@in_virtual_time
async def test_adding_a_response_loses_the_one_with_the_same_id() -> None:
    live = LiveResponses()
    first, second = make_live(), make_live()
    live.add(first)
    waiter = first.tail.wait()
    live.add(second)
    await waiter
    assert first.state is State.LOST
    assert live.get("resp_1") is second
    live.remove(first)
    assert live.get("resp_1") is second
    live.remove(second)
    assert live.get("resp_1") is None


def test_a_response_with_a_lower_fence_is_lost_when_it_is_added() -> None:
    live = LiveResponses()
    newer, older = make_live(lease=Lease("resp_1", 1, 2)), make_live(lease=Lease("resp_1", 1, 1))
    live.add(newer)
    live.add(older)
    assert (newer.state, older.state) == (State.OPEN, State.LOST)
    assert live.get("resp_1") is newer


def test_an_ended_response_stays_ended_when_another_takes_its_place() -> None:
    live = LiveResponses()
    ended, second = live_in(State.ENDED), make_live()
    live.add(ended)
    live.add(second)
    assert (ended.state, ended.tail.lost) == (State.ENDED, False)
    assert live.get("resp_1") is second


def test_the_registry_gives_out_the_tail_of_a_response_until_it_is_lost() -> None:
    live = LiveResponses()
    response = make_live()
    assert live.tail("resp_1") is None
    live.add(response)
    assert live.tail("resp_1") is response.tail
    response.lose()
    assert live.tail("resp_1") is None
    assert live.get("resp_1") is response


@in_virtual_time
async def test_readers_that_wait_for_a_response_are_woken_when_it_begins_and_when_it_leaves() -> None:
    live, response = LiveResponses(), make_live("resp_1")
    other = live.wait("resp_2")
    for change in (live.add, live.remove):
        waiter = live.wait("resp_1")
        change(response)
        await waiter
        await turn()
        assert not other.done()
    live.wake_all()
    await other


@in_virtual_time
async def test_wake_all_wakes_the_readers_of_every_response() -> None:
    live, responses = LiveResponses(), [make_live("resp_1"), make_live("resp_2")]
    for response in responses:
        live.add(response)
    waiters = [response.tail.wait() for response in responses]
    live.wake_all()
    await asyncio.gather(*waiters)


@in_virtual_time
async def test_waiters_that_stopped_waiting_leave_nothing_behind() -> None:
    live = LiveResponses()
    one, two = live.wait("resp_1"), live.wait("resp_1")
    live.stop_waiting("resp_1", one)
    live.stop_waiting("resp_1", two)
    live.stop_waiting("resp_1", two)
    assert live._waiters == {}

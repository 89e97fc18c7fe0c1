"""Following a stream to its end over any number of connections. The rules:

* every event with a number above the cursor is delivered once, and moves the cursor;
* only a terminal event ends a stream; after any other end it is followed again from the cursor;
* if the server refuses to resume, the response is polled, and the terminal event is made from the answer.
"""

from __future__ import annotations

from typing import Any

from outlive.client.actions import (
    TERMINAL_EVENTS,
    TERMINAL_STATUSES,
    Deliver,
    DeliverEnding,
    EventArrived,
    Fault,
    FaultKind,
    Follow,
    Read,
    Received,
    Retrieve,
    Sleep,
    StreamOpened,
)
from outlive.client.core import Backoff, Program, detect_outlive, submit
from outlive.client.plans import Plan
from outlive.client.polling import ANSWER_SECONDS, wait_end
from outlive.client.token import ConnectionLost, Token

# Connections in a row that end or turn unreadable without a new event, before the response itself is retrieved.
MOST_STALLS = 3
MOST_GARBLED = 5
# A connection open for this long counts as working even without events: a model may reason for many minutes.
HEALTHY_SECONDS = 5.0


class StreamFollower:
    """One stream over all its connections; `token` is the position reached."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.token = plan.token
        self._backoff = Backoff(plan)
        self._stalls = 0
        self._garbled = 0
        self._connected = False
        self._unnumbered = False
        self._answer: Received | None = None

    def has_ended(self) -> bool:
        return self.token is not None and self.token.ended

    def run(self) -> Program[None]:
        """Deliver every event once."""
        clock = self.plan.retry_policy.clock
        while not self.has_ended():
            if not (yield from self._connect()):
                yield from self._poll_instead()
                return
            before, since = self.token, clock()
            fault = yield from self._read()
            if self.has_ended():
                return
            if self.token != before:
                self._stalls = self._garbled = 0
            elif clock() - since >= HEALTHY_SECONDS:
                self._backoff.reset()
            yield from self._prepare_retry(fault, stalled=self.token == before)

    def _connect(self) -> Program[bool]:
        """Open a stream. Return False if the server refuses to resume it."""
        if self.token is None:
            yield from submit(self.plan)
            return True
        while not (self._unnumbered and self.token.cursor is None):
            outcome = yield Follow(self.token.response_id, self.token.cursor)
            assert isinstance(outcome, StreamOpened | Fault)
            detect_outlive(self.plan, outcome.headers)
            if isinstance(outcome, StreamOpened):
                self.plan.stats.resumes += self._connected
                self._connected = True
                return True
            if outcome.kind is FaultKind.REFUSED:
                return False
            if outcome.kind is FaultKind.MISSING and not self.plan.stats.outlive:
                # Perhaps an Outlive behind a proxy that answered 404 for it: then the stream can be resumed.
                answer = yield from self._retrieve()
                if isinstance(answer, Received):
                    self._answer = answer
                if not detect_outlive(self.plan, answer.headers):
                    return False
                if isinstance(answer, Received):
                    continue
            yield Sleep(self._backoff.delay_after(outcome, self.token))
        return False

    def _read(self) -> Program[Fault | None]:
        """Deliver events until the stream breaks (return the fault) or ends without an error (return None)."""
        while True:
            outcome = yield Read()
            if not isinstance(outcome, EventArrived):
                return outcome if isinstance(outcome, Fault) else None
            self._connected = True
            if self._move_cursor(outcome.event):
                self._backoff.reset()
                yield Deliver(outcome.event)
                if self.has_ended():
                    return None

    def _move_cursor(self, event: Any) -> bool:
        """Move the cursor to the event. Return False if the event was delivered before."""
        token = self.token or Token(_id_of(event))
        number = getattr(event, "sequence_number", None)
        if not isinstance(number, int):
            self._unnumbered, number = True, token.cursor
        elif token.cursor is not None and number <= token.cursor:
            return False
        if token.response_id:
            self.token = Token(token.response_id, number, event.type in TERMINAL_EVENTS)
            self.plan.stats.response_id = token.response_id
        return True

    def _prepare_retry(self, fault: Fault | None, stalled: bool) -> Program[None]:
        """Sleep until the next connection may be tried, or raise."""
        self._check_resumable(fault)
        if fault is None and self.token is None:
            fault = Fault(FaultKind.LOST, ConnectionLost("The stream ended before its first event."))
        if fault is not None and fault.kind is not FaultKind.GARBLED:
            yield Sleep(self._backoff.delay_after(fault, self.token))
            return
        if fault is not None and stalled:
            self._garbled += 1
            if self._garbled > MOST_GARBLED:
                raise fault.error
        self._stalls += stalled
        if self._stalls >= MOST_STALLS and (yield from self._deliver_ending()):
            return
        yield Sleep(self._backoff.next_delay())

    def _check_resumable(self, fault: Fault | None) -> None:
        """Raise if there is nothing to resume: a final fault, an unstored response, or one whose id is unknown."""
        if fault is not None and fault.kind is FaultKind.FINAL:
            raise fault.error
        cause = None if fault is None else fault.error
        if not self.plan.stored:
            raise ConnectionLost("The stream broke, and with store=False it cannot be resumed.", self.token) from cause
        if self.token is not None:
            return
        # If events without a response id were delivered already, a second submit would deliver them again.
        garbled = fault is not None and fault.kind is FaultKind.GARBLED
        if self._connected or not self.plan.stats.outlive or garbled:
            raise ConnectionLost("The stream broke before the server sent the response's id.") from cause
        # Sent again under the same key, the POST attaches to the response it began.
        self.plan.stats.resubmits += 1

    def _deliver_ending(self) -> Program[bool]:
        """Retrieve the response; if it has ended, deliver its terminal event and return True."""
        if self.token is None:
            return False
        outcome = yield from self._retrieve()
        if isinstance(outcome, Fault):
            yield Sleep(self._backoff.delay_after(outcome, self.token))
            return False
        self._backoff.reset()
        if outcome.response.status not in TERMINAL_STATUSES:
            return False
        yield from self._end_with(outcome.response)
        return True

    def _retrieve(self) -> Program[Received | Fault]:
        assert self.token is not None
        outcome = yield Retrieve(self.token.response_id, None, ANSWER_SECONDS)
        assert isinstance(outcome, Received | Fault)
        detect_outlive(self.plan, outcome.headers)
        self.plan.stats.polls += isinstance(outcome, Received)
        return outcome

    def _poll_instead(self) -> Program[None]:
        assert self.token is not None
        began = self.plan.retry_policy.clock()
        response = yield from wait_end(self.plan, self.token, began, self._answer, known=self._connected)
        yield from self._end_with(response)

    def _end_with(self, response: Any) -> Program[None]:
        assert self.token is not None
        self.plan.stats.fell_back = True
        number = 0 if self.token.cursor is None else self.token.cursor + 1
        self.token = Token(self.token.response_id, number, ended=True)
        yield DeliverEnding(response, number)


def _id_of(event: Any) -> str:
    response = getattr(event, "response", None)
    found = response.get("id") if isinstance(response, dict) else getattr(response, "id", None)
    return found if isinstance(found, str) else ""

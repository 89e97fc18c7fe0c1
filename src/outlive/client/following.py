"""Following a stream to its end, whatever happens to the connection. The rules:

* every event with a number above the cursor is delivered once, and the cursor moves with it;
* only a terminal event ends a stream; whatever else ends it was a cut, and it is followed again from the cursor;
* a server that will not resume is polled, and the terminal event is made of its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlive.client.actions import (
    Answer,
    Arrived,
    Conclude,
    Deliver,
    Fault,
    Follow,
    Kind,
    Opened,
    Read,
    Retrieve,
    Sleep,
)
from outlive.client.core import TERMINAL_EVENTS, TERMINAL_STATUSES, Outage, Program, note, submit
from outlive.client.errors import ConnectionLost
from outlive.client.polling import ANSWER_SECONDS, wait_end
from outlive.client.token import Token

if TYPE_CHECKING:
    from outlive.client.plans import Plan

# How often in a row a stream may end, or make no sense, without a single new event, before the response is asked for.
STALLS = 3
GARBLED_TRIES = 5
# A connection that lived for so long was one, though it brought no event: a model may think for many minutes.
LIVED_SECONDS = 5.0


class Chase:
    """One stream over all its connections; `token` is its place."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.token = plan.token
        self._outage = Outage(plan)
        self._stalls = 0
        self._garbled = 0
        self._connected = False
        self._unnumbered = False
        self._answer: Answer | None = None

    def has_ended(self) -> bool:
        return self.token is not None and self.token.ended

    def run(self) -> Program[None]:
        """Deliver every event once."""
        clock = self.plan.patience.clock
        while not self.has_ended():
            if not (yield from self._connect()):
                yield from self._fall_back()
                return
            before, since = self.token, clock()
            fault = yield from self._read()
            if self.has_ended():
                return
            if self.token != before:
                self._stalls = self._garbled = 0
            elif clock() - since >= LIVED_SECONDS:
                self._outage.clear()
            yield from self._mend(fault, stalled=self.token == before)

    # -- its parts

    def _connect(self) -> Program[bool]:
        """False when the server will not resume it."""
        if self.token is None:
            yield from submit(self.plan)
            return True
        while not (self._unnumbered and self.token.cursor is None):
            outcome = yield Follow(self.token.response_id, self.token.cursor)
            assert isinstance(outcome, Opened | Fault)
            note(self.plan, outcome.headers)
            if isinstance(outcome, Opened):
                self.plan.progress.resumes += self._connected
                self._connected = True
                return True
            if outcome.kind is Kind.REFUSED:
                return False
            if outcome.kind is Kind.MISSING and not self.plan.progress.outlive:
                # Perhaps an Outlive whose proxy had lost it for a moment: that one is worth following.
                answer = yield from self._ask()
                if isinstance(answer, Answer):
                    self._answer = answer
                if not note(self.plan, answer.headers):
                    return False
                if isinstance(answer, Answer):
                    continue
            yield Sleep(self._outage.weigh(outcome, self.token))
        return False

    def _read(self) -> Program[Fault | None]:
        """Deliver until the stream breaks (the fault) or stops as if all were well (None)."""
        while True:
            outcome = yield Read()
            if not isinstance(outcome, Arrived):
                return outcome if isinstance(outcome, Fault) else None
            self._connected = True
            if self._moves(outcome.event):
                self._outage.clear()
                yield Deliver(outcome.event)
                if self.has_ended():
                    return None

    def _moves(self, event: Any) -> bool:
        """Move the cursor past the event; false if it was delivered before."""
        token = self.token or Token(_id_of(event))
        number = getattr(event, "sequence_number", None)
        if not isinstance(number, int):
            self._unnumbered, number = True, token.cursor
        elif token.cursor is not None and number <= token.cursor:
            return False
        if token.response_id:
            self.token = Token(token.response_id, number, event.type in TERMINAL_EVENTS)
            self.plan.progress.response_id = token.response_id
        return True

    def _mend(self, fault: Fault | None, stalled: bool) -> Program[None]:
        """Wait until the next connection may be tried, or raise."""
        self._refuse_lost(fault)
        if fault is None and self.token is None:
            fault = Fault(Kind.LOST, ConnectionLost("The stream ended before its first event."))
        if fault is not None and fault.kind is not Kind.GARBLED:
            yield Sleep(self._outage.weigh(fault, self.token))
            return
        if fault is not None and stalled:
            self._garbled += 1
            if self._garbled > GARBLED_TRIES:
                raise fault.error
        self._stalls += stalled
        if self._stalls >= STALLS and (yield from self._look()):
            return
        yield Sleep(self._outage.next_delay())

    def _refuse_lost(self, fault: Fault | None) -> None:
        """Raise where there is nothing to take up: an unknown response, or one that nobody keeps."""
        if fault is not None and fault.kind is Kind.FINAL:
            raise fault.error
        cause = None if fault is None else fault.error
        if not self.plan.stored:
            raise ConnectionLost("The stream broke, and with store=False nobody can take it up.", self.token) from cause
        if self.token is not None:
            return
        # Events that did not say so either were delivered already, and would be again.
        if self._connected or not self.plan.progress.outlive or (fault is not None and fault.kind is Kind.GARBLED):
            raise ConnectionLost("The stream broke before the server said which response it is.") from cause
        # Sent again under the same key, the POST attaches to what it began.
        self.plan.progress.resubmits += 1

    def _look(self) -> Program[bool]:
        """Whether the response has ended, though its stream does not say so; then this ends the stream."""
        if self.token is None:
            return False
        outcome = yield from self._ask()
        if isinstance(outcome, Fault):
            yield Sleep(self._outage.weigh(outcome, self.token))
            return False
        self._outage.clear()
        if outcome.response.status not in TERMINAL_STATUSES:
            return False
        yield from self._conclude(outcome.response)
        return True

    def _ask(self) -> Program[Answer | Fault]:
        assert self.token is not None
        outcome = yield Retrieve(self.token.response_id, None, ANSWER_SECONDS)
        assert isinstance(outcome, Answer | Fault)
        note(self.plan, outcome.headers)
        self.plan.progress.polls += isinstance(outcome, Answer)
        return outcome

    def _fall_back(self) -> Program[None]:
        assert self.token is not None
        began = self.plan.patience.clock()
        response = yield from wait_end(self.plan, self.token, began, self._answer, known=self._connected)
        yield from self._conclude(response)

    def _conclude(self, response: Any) -> Program[None]:
        assert self.token is not None
        self.plan.progress.fell_back = True
        number = 0 if self.token.cursor is None else self.token.cursor + 1
        self.token = Token(self.token.response_id, number, ended=True)
        yield Conclude(response, number)


def _id_of(event: Any) -> str:
    response = getattr(event, "response", None)
    found = response.get("id") if isinstance(response, dict) else getattr(response, "id", None)
    return found if isinstance(found, str) else ""

"""The programs of the library: submitting, polling, and following a stream. They make every decision and do no I/O.

A program is a generator that yields an action and is sent its outcome; sdk.py performs the actions. Errors
arrive as Fault values. The rules of following a stream over any number of connections:

* every event with a number above the cursor is delivered once, and moves the cursor;
* only a terminal event ends a stream; after any other end it is followed again from the cursor;
* if the server refuses to resume, the response is polled, and the terminal event is made from the answer.
"""

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from openai import BaseModel
from openai.types.responses import Response, ResponseCompletedEvent, ResponseFailedEvent, ResponseIncompleteEvent

from outlive.client.errors import UNSUCCESSFUL, ConnectionLost, PollTimeout, Token
from outlive.client.plans import Plan

TERMINAL_STATUSES = ("completed", *UNSUCCESSFUL)
TERMINAL_EVENTS = tuple(f"response.{status}" for status in TERMINAL_STATUSES)
VERSION_HEADER = "x-outlive-version"
POLL_HEADER = "openai-poll-after-ms"
# An id that no response has, for requests of which only the answer's headers matter.
UNKNOWN_ID = "resp_nobody"
LONGEST_RETRY_AFTER = 60.0
# 404s in a row for a response that was seen before; one more is final.
MISSING_TRIES = 3
# Statuses of a proxy without a server behind it, or of a server that shuts down.
UNAVAILABLE = (502, 503, 504)
DEFAULT_INTERVAL = 1.0
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.1, 60.0
# Below the idle limits of common proxies, which begin at 30 s; the server holds a GET for 60 s at most.
LONG_POLL_SECONDS = 20.0
# For the answer itself, on top of the wait.
ANSWER_SECONDS = 30.0
# Connections in a row that end or turn unreadable without a new event, before the response itself is retrieved.
MOST_STALLS = 3
MOST_GARBLED = 5
# A connection open for this long counts as working even without events: a model may reason for many minutes.
HEALTHY_SECONDS = 5.0


class ResponseCancelledEvent(BaseModel):
    """Terminal event of a cancelled response, for which the SDK has no type."""

    response: Response
    sequence_number: int
    type: Literal["response.cancelled"]


EVENTS: dict[str, type[BaseModel]] = {
    "completed": ResponseCompletedEvent,
    "failed": ResponseFailedEvent,
    "incomplete": ResponseIncompleteEvent,
    "cancelled": ResponseCancelledEvent,
}


# -- actions


@dataclass(frozen=True, slots=True)
class Submit:
    """POST the response. The outcome is Received."""


class Follow(NamedTuple):
    """GET the stream of a response from after an event. The outcome is Received."""

    response_id: str
    after: int | None


@dataclass(frozen=True, slots=True)
class Read:
    """Read the open stream. The outcome is an event, or None at an end without an error: not yet the response's end."""


class Retrieve(NamedTuple):
    """GET the response. The outcome is Received."""

    response_id: str
    wait: float | None = None  # seconds for which the server, known to be an Outlive, may hold the GET
    timeout: float = ANSWER_SECONDS  # for the answer itself, on top of the wait


class Sleep(NamedTuple):
    seconds: float


class Deliver(NamedTuple):
    """Give an event to the caller."""

    event: Any


Action = Submit | Follow | Read | Retrieve | Sleep | Deliver

# -- outcomes


class Received(NamedTuple):
    """An answer of the server. `response` is None if the answer is a stream."""

    response: Any
    headers: Mapping[str, str] = MappingProxyType({})


class FaultKind(Enum):
    """Kinds of faults, by the way to handle them."""

    LOST = auto()  # no answer, or an incomplete one
    BUSY = auto()  # a temporary status: 408, 409, 425, 429, or 500 and above
    MISSING = auto()  # 404
    REFUSED = auto()  # 400 and similar: the same request fails again, another one may succeed
    GARBLED = auto()  # bytes in a stream that cannot be parsed, or an error sent inside the stream
    FINAL = auto()  # cannot be retried: a wrong key, a wrong argument, a bug


class Fault(NamedTuple):
    kind: FaultKind
    error: BaseException
    status: int | None = None
    headers: Mapping[str, str] = MappingProxyType({})


# Received, a Fault, an event of the SDK, or None.
Outcome = Any

# -- programs

T = TypeVar("T")
Program = Generator[Action, Outcome, T]


class Backoff:
    """Delays after faults, longer each time, until the retry policy's limit is reached."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.reset()

    def reset(self) -> None:
        """Start over, because something came through."""
        self._tries = self._missing = 0
        self._began: float | None = None

    def delay_after(self, fault: Fault, token: Token | None, known: bool = True) -> float:
        """Return the seconds to sleep before the next try. Raise if the fault is final or has lasted too long.

        `known`: the response was seen to exist, so that a 404 may be temporary.
        """
        if not self._is_temporary(fault, known):
            raise fault.error
        policy = self._plan.retry_policy
        now = policy.clock()
        self._began = now if self._began is None else self._began
        waited = now - self._began
        if waited >= policy.outage_seconds:
            left = "" if token is None else f" Response {token.response_id} was not cancelled."
            raise ConnectionLost(f"Nothing has come through for {waited:.0f} s.{left}", token) from fault.error
        self._plan.stats.faults += 1
        retry_after = min(_read_number(fault.headers, "retry-after") or 0.0, LONGEST_RETRY_AFTER)
        return max(self.next_delay(), retry_after)

    def next_delay(self) -> float:
        self._tries += 1
        return self._plan.retry_policy.delay(self._tries - 1)

    def _is_temporary(self, fault: Fault, known: bool) -> bool:
        if fault.kind is not FaultKind.MISSING:
            return fault.kind in (FaultKind.LOST, FaultKind.BUSY)
        if self._plan.stats.outlive:
            # Outlive's own 404 is final. One without its header comes from a proxy with no server behind it.
            return VERSION_HEADER not in fault.headers
        self._missing += 1
        return known and self._missing <= MISSING_TRIES


def submit(plan: Plan) -> Program[Received]:
    """POST, and repeat the POST under the same key only where that cannot start a second run."""
    began, tries = plan.retry_policy.clock(), 0
    while True:
        outcome = yield from ask(plan, Submit())
        if isinstance(outcome, Received):
            return outcome
        tries = yield from _await_outlive(plan, outcome, began, tries)
        plan.stats.resubmits += 1


def _await_outlive(plan: Plan, fault: Fault, began: float, tries: int) -> Program[int]:
    """Return once an Outlive answers, which recognises the key; raise the fault if none does."""
    lost = fault.kind is FaultKind.LOST or fault.status in UNAVAILABLE
    if not (lost and plan.stored and plan.may_be_outlive) or fault.headers.get("x-should-retry") == "false":
        raise fault.error
    policy, stats = plan.retry_policy, plan.stats
    while policy.clock() - began < (policy.outage_seconds if stats.outlive else policy.contact_seconds):
        stats.faults += 1
        yield Sleep(policy.delay(tries))
        tries += 1
        if stats.outlive:
            return tries
        answer = yield from ask(plan, Retrieve(UNKNOWN_ID))
        if plan.stats.outlive:  # by now
            return tries
        # A status of 500 or more may be a proxy's and does not identify the server behind it.
        if isinstance(answer, Received) or (answer.status or 500) < 500:
            break
    raise fault.error


def ask(plan: Plan, action: Submit | Follow | Retrieve) -> Program[Received | Fault]:
    """Send a request, note whether an Outlive answered, and count answered GETs."""
    outcome: Received | Fault = yield action
    plan.stats.outlive |= plan.may_be_outlive and VERSION_HEADER in outcome.headers
    plan.stats.polls += isinstance(action, Retrieve) and isinstance(outcome, Received)
    return outcome


def _read_number(headers: Mapping[str, str], name: str) -> float | None:
    try:
        return float(headers.get(name, ""))
    except ValueError:
        return None


# -- polling


def poll(plan: Plan) -> Program[Any]:
    """Submit the response, or begin with the plan's token, and poll until the response is terminal."""
    began = plan.retry_policy.clock()
    if plan.token is not None:
        return (yield from wait_end(plan, plan.token, began))
    answer = yield from submit(plan)
    plan.stats.response_id = answer.response.id
    return (yield from wait_end(plan, Token(answer.response.id), began, answer, known=True))


def wait_end(
    plan: Plan, token: Token, began: float, answer: Received | None = None, known: bool = False
) -> Program[Any]:
    """Poll until the response is terminal. `answer` is the latest answer; `known`: the response was seen to exist."""
    clock, backoff = plan.retry_policy.clock, Backoff(plan)
    deadline = math.inf if plan.max_wait is None else began + plan.max_wait
    early = False
    while True:
        if answer is not None:
            if answer.response.status in TERMINAL_STATUSES:
                return answer.response
            if plan.streamed and not plan.stats.outlive and getattr(answer.response, "background", None) is not True:
                # Servers other than Outlive never end a foreground response whose stream was lost.
                deadline = min(deadline, began + plan.retry_policy.outage_seconds)
            if clock() >= deadline:
                raise PollTimeout(token.response_id, clock() - began)
            if pause := _pause(plan, answer, early):
                yield Sleep(min(pause, deadline - clock()))
        asked = clock()
        left = deadline - asked
        wait = max(0.0, min(LONG_POLL_SECONDS, left)) if plan.stats.outlive and plan.interval is None else None
        timeout = min(ANSWER_SECONDS, max(1.0, left))
        outcome = yield from ask(plan, Retrieve(token.response_id, wait, timeout))
        if isinstance(outcome, Received):
            backoff.reset()
            answer, known = outcome, True
            early = wait is not None and clock() - asked < 0.9 * wait
            continue
        pause, answer = backoff.delay_after(outcome, token, known), None
        if clock() >= deadline:
            raise PollTimeout(token.response_id, clock() - began) from outcome.error
        yield Sleep(min(pause, deadline - clock()))


def _pause(plan: Plan, answer: Received, early: bool) -> float:
    """Return the seconds before the next GET: none for a server that holds GETs, unless it answered the last early."""
    if plan.interval is not None:
        return plan.interval
    if plan.stats.outlive and not early:
        return 0.0
    after_ms = _read_number(answer.headers, POLL_HEADER)
    return DEFAULT_INTERVAL if after_ms is None else max(SHORTEST_INTERVAL, min(after_ms / 1000, LONGEST_INTERVAL))


# -- following a stream


class StreamFollower:
    """One stream over all its connections; `token` is the position reached."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.token = plan.token
        self._backoff = Backoff(plan)
        self._stalls = self._garbled = 0
        self._connected = self._unnumbered = False
        self._answer: Received | None = None

    def has_ended(self) -> bool:
        return self.token is not None and self.token.ended

    def run(self) -> Program[None]:
        """Deliver every event once."""
        clock = self.plan.retry_policy.clock
        while not self.has_ended():
            resumed = yield from self._connect()
            before, since = self.token, clock()
            if not resumed:
                assert before is not None
                response = yield from wait_end(self.plan, before, since, self._answer, known=self._connected)
                yield self._end_with(before, response)
                return
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
        stats = self.plan.stats
        if self.token is None:
            yield from submit(self.plan)
            return True
        while not (self._unnumbered and self.token.cursor is None):
            outcome = yield from ask(self.plan, Follow(self.token.response_id, self.token.cursor))
            if isinstance(outcome, Received):
                stats.resumes += self._connected
                self._connected = True
                return True
            if outcome.kind is FaultKind.REFUSED:
                return False
            if outcome.kind is FaultKind.MISSING and not stats.outlive:
                # Perhaps an Outlive behind a proxy that answered 404 for it: then the stream can be resumed.
                answer = yield from ask(self.plan, Retrieve(self.token.response_id))
                if isinstance(answer, Received):
                    self._answer = answer
                if not self.plan.stats.outlive:  # by now
                    return False
                if isinstance(answer, Received):
                    continue
            yield Sleep(self._backoff.delay_after(outcome, self.token))
        return False

    def _read(self) -> Program[Fault | None]:
        """Deliver events until the stream breaks (return the fault) or ends without an error (return None)."""
        while not self.has_ended():
            event = yield Read()
            if event is None or isinstance(event, Fault):
                return event
            self._connected = True
            if self._move_cursor(event):
                self._backoff.reset()
                yield Deliver(event)
        return None

    def _move_cursor(self, event: Any) -> bool:
        """Move the cursor to the event. Return False if the event was delivered before."""
        response = getattr(event, "response", None)
        found = response.get("id") if isinstance(response, dict) else getattr(response, "id", None)
        token = self.token or Token(found if isinstance(found, str) else "")
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
        """Sleep until the next connection may be tried, or raise. After many stalls, see if the response has ended."""
        self._check_resumable(fault)
        if fault is None and self.token is None:
            fault = Fault(FaultKind.LOST, ConnectionLost("The stream ended before its first event."))
        if fault is not None and fault.kind is not FaultKind.GARBLED:
            yield Sleep(self._backoff.delay_after(fault, self.token))
            return
        assert self.token is not None
        if fault is not None and stalled:
            self._garbled += 1
            if self._garbled > MOST_GARBLED:
                raise fault.error
        self._stalls += stalled
        if self._stalls >= MOST_STALLS:
            outcome = yield from ask(self.plan, Retrieve(self.token.response_id))
            if isinstance(outcome, Fault):
                yield Sleep(self._backoff.delay_after(outcome, self.token))
            elif outcome.response.status in TERMINAL_STATUSES:
                yield self._end_with(self.token, outcome.response)
                return
            else:
                self._backoff.reset()
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

    def _end_with(self, token: Token, response: Any) -> Deliver:
        """End the stream with the terminal event that it would have ended with."""
        self.plan.stats.fell_back = True
        number = 0 if token.cursor is None else token.cursor + 1
        self.token = Token(token.response_id, number, ended=True)
        made = EVENTS[response.status].model_construct
        return Deliver(made(type=f"response.{response.status}", sequence_number=number, response=response))

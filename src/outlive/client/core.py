"""What to do next, given what came of the last step: the part that polling and streaming share.

A program is a generator that yields an action and is sent its outcome; it does no I/O. sync.py and aio.py perform the
actions. Errors come in as Fault values, so that every decision about them is made in here, in polling.py and in
following.py.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, TypeVar

from outlive.client.actions import Action, Answer, Contact, Fault, Kind, Opened, Outcome, Probe, Sleep, Submit
from outlive.client.errors import ConnectionLost
from outlive.client.token import Token

if TYPE_CHECKING:
    from outlive.client.plans import Plan

TERMINAL_STATUSES = ("completed", "failed", "cancelled", "incomplete")
UNSUCCESSFUL = ("failed", "cancelled", "incomplete")
TERMINAL_EVENTS = tuple(f"response.{status}" for status in TERMINAL_STATUSES)

VERSION_HEADER = "x-outlive-version"
LONGEST_RETRY_AFTER = 60.0
# How often a response that was there a moment ago may be missing before it is believed.
MISSING_TRIES = 3
# A proxy's word for "there is no server at the moment", or the server's own while it leaves.
AWAY = (502, 503, 504)

T = TypeVar("T")
Program = Generator[Action, Outcome, T]


class Outage:
    """Says how long to wait after a fault, longer each time, until the plan's patience is over."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._tries = 0
        self._missing = 0
        self._began: float | None = None

    def clear(self) -> None:
        """Something came through."""
        self._tries = self._missing = 0
        self._began = None

    def weigh(self, fault: Fault, token: Token | None, known: bool = True) -> float:
        """Seconds to wait before trying again. Raises what cannot be waited out.

        `known`: the response was seen to exist, so that a 404 is no final word.
        """
        if not self._passes(fault, known):
            raise fault.error
        patience = self._plan.patience
        now = patience.clock()
        self._began = now if self._began is None else self._began
        if now - self._began >= patience.outage_seconds:
            which = "" if token is None else f" Response {token.response_id} was left alone."
            raise ConnectionLost(
                f"Nothing has come through for {now - self._began:.0f} s.{which}", token
            ) from fault.error
        self._plan.progress.faults += 1
        return max(self.next_delay(), _retry_after(fault.headers))

    def next_delay(self) -> float:
        self._tries += 1
        return self._plan.patience.delay(self._tries - 1)

    def _passes(self, fault: Fault, known: bool) -> bool:
        if fault.kind is not Kind.MISSING:
            return fault.kind in (Kind.LOST, Kind.BUSY)
        if self._plan.progress.outlive:
            # Outlive forgets nothing that it has shown; but a proxy may be asked while there is no server behind it.
            return not is_outlive(fault.headers)
        self._missing += 1
        return known and self._missing <= MISSING_TRIES


def submit(plan: Plan) -> Program[Answer | Opened]:
    """POST, and again under the same key where that is sure not to run it twice."""
    began, tries = plan.patience.clock(), 0
    while True:
        outcome = yield Submit()
        assert isinstance(outcome, Answer | Opened | Fault)
        note(plan, outcome.headers)
        if not isinstance(outcome, Fault):
            return outcome
        tries = yield from _await_outlive(plan, outcome, began, tries)
        plan.progress.resubmits += 1


def _await_outlive(plan: Plan, fault: Fault, began: float, tries: int) -> Program[int]:
    """Return once an Outlive answers there, which knows the key; raise the fault if that cannot be."""
    lost = fault.kind is Kind.LOST or fault.status in AWAY
    if not (lost and plan.stored and plan.may_be_outlive) or fault.headers.get("x-should-retry") == "false":
        raise fault.error
    patience, progress = plan.patience, plan.progress
    while patience.clock() - began < (patience.outage_seconds if progress.outlive else patience.contact_seconds):
        progress.faults += 1
        yield Sleep(patience.delay(tries))
        tries += 1
        if progress.outlive:
            return tries
        outcome = yield Probe()
        if isinstance(outcome, Contact):
            if note(plan, outcome.headers):
                return tries
            break
    raise fault.error


def note(plan: Plan, headers: Mapping[str, str]) -> bool:
    """Remember who answered; true if it ever was an Outlive."""
    if plan.may_be_outlive and is_outlive(headers):
        plan.progress.outlive = True
    return plan.progress.outlive


def is_outlive(headers: Mapping[str, str]) -> bool:
    return VERSION_HEADER in headers


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return 0.0
    return min(seconds, LONGEST_RETRY_AFTER) if seconds > 0 else 0.0

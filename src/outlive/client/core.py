"""Decisions shared by polling and streaming: delays after faults, and repeated submits.

A program is a generator that yields an action and is sent its outcome; it does no I/O. sync.py and aio.py perform the
actions. Errors arrive as Fault values, so that every decision about them is made here, in polling.py and in
following.py.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TypeVar

from outlive.client.actions import (
    Action,
    Fault,
    FaultKind,
    Outcome,
    Probe,
    Probed,
    Received,
    Sleep,
    StreamOpened,
    Submit,
)
from outlive.client.plans import Plan
from outlive.client.token import ConnectionLost, Token

VERSION_HEADER = "x-outlive-version"
LONGEST_RETRY_AFTER = 60.0
# 404s in a row for a response that was seen before; one more is final.
MISSING_TRIES = 3
# Statuses of a proxy without a server behind it, or of a server that shuts down.
UNAVAILABLE = (502, 503, 504)

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
        if now - self._began >= policy.outage_seconds:
            left = "" if token is None else f" Response {token.response_id} was not cancelled."
            raise ConnectionLost(
                f"Nothing has come through for {now - self._began:.0f} s.{left}", token
            ) from fault.error
        self._plan.stats.faults += 1
        return max(self.next_delay(), _retry_after(fault.headers))

    def next_delay(self) -> float:
        self._tries += 1
        return self._plan.retry_policy.delay(self._tries - 1)

    def _is_temporary(self, fault: Fault, known: bool) -> bool:
        if fault.kind is not FaultKind.MISSING:
            return fault.kind in (FaultKind.LOST, FaultKind.BUSY)
        if self._plan.stats.outlive:
            # Outlive's own 404 is final. One without its header comes from a proxy with no server behind it.
            return not is_outlive(fault.headers)
        self._missing += 1
        return known and self._missing <= MISSING_TRIES


def submit(plan: Plan) -> Program[Received | StreamOpened]:
    """POST, and repeat the POST under the same key only where that cannot start a second run."""
    began, tries = plan.retry_policy.clock(), 0
    while True:
        outcome = yield Submit()
        assert isinstance(outcome, Received | StreamOpened | Fault)
        detect_outlive(plan, outcome.headers)
        if not isinstance(outcome, Fault):
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
        outcome = yield Probe()
        if isinstance(outcome, Probed):
            if detect_outlive(plan, outcome.headers):
                return tries
            break
    raise fault.error


def detect_outlive(plan: Plan, headers: Mapping[str, str]) -> bool:
    """Return True if this or an earlier answer came from an Outlive."""
    if plan.may_be_outlive and is_outlive(headers):
        plan.stats.outlive = True
    return plan.stats.outlive


def is_outlive(headers: Mapping[str, str]) -> bool:
    return VERSION_HEADER in headers


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return 0.0
    return min(seconds, LONGEST_RETRY_AFTER) if seconds > 0 else 0.0

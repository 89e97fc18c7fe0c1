"""Waiting for the end of a response: when to ask, for how long, and what to make of the answers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from outlive.client.actions import Answer, Fault, Retrieve, Sleep
from outlive.client.core import TERMINAL_STATUSES, Outage, Program, note, submit
from outlive.client.errors import PollTimeout
from outlive.client.token import Token

if TYPE_CHECKING:
    from outlive.client.plans import Plan

POLL_HEADER = "openai-poll-after-ms"
DEFAULT_INTERVAL = 1.0
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.1, 60.0
# Below the idle limits of common proxies, which begin at 30 s; the server holds a GET for 60 s at most.
LONG_POLL_SECONDS = 20.0
# For the answer itself, on top of the wait.
ANSWER_SECONDS = 30.0


def poll(plan: Plan) -> Program[Any]:
    """From the submit, or from the token, to the terminal response."""
    began = plan.patience.clock()
    if plan.token is not None:
        plan.progress.response_id = plan.token.response_id
        return (yield from wait_end(plan, plan.token, began))
    answer = yield from submit(plan)
    assert isinstance(answer, Answer)
    plan.progress.response_id = answer.response.id
    return (yield from wait_end(plan, Token(answer.response.id), began, answer, known=True))


def wait_end(plan: Plan, token: Token, began: float, answer: Answer | None = None, known: bool = False) -> Program[Any]:
    """Ask until the response is terminal. `answer` is what was said of it; `known`, that it was seen to exist."""
    clock, outage = plan.patience.clock, Outage(plan)
    deadline = math.inf if plan.max_wait is None else began + plan.max_wait
    early = False
    while True:
        if answer is not None:
            if answer.response.status in TERMINAL_STATUSES:
                return answer.response
            deadline = min(deadline, _hopeless_after(plan, answer, began))
            if clock() >= deadline:
                raise PollTimeout(token.response_id, clock() - began)
            if pause := _pause(plan, answer, early):
                yield Sleep(min(pause, deadline - clock()))
        asked = clock()
        wait = _wait(plan, deadline - asked)
        outcome = yield Retrieve(token.response_id, wait, min(ANSWER_SECONDS, max(1.0, deadline - asked)))
        assert isinstance(outcome, Answer | Fault)
        note(plan, outcome.headers)
        if isinstance(outcome, Answer):
            outage.clear()
            plan.progress.polls += 1
            answer, known = outcome, True
            early = wait is not None and clock() - asked < 0.9 * wait
            continue
        pause, answer = outage.weigh(outcome, token, known), None
        if clock() >= deadline:
            raise PollTimeout(token.response_id, clock() - began) from outcome.error
        yield Sleep(min(pause, deadline - clock()))


def _wait(plan: Plan, left: float) -> float | None:
    if plan.interval is not None or not plan.progress.outlive:
        return None
    return max(0.0, min(LONG_POLL_SECONDS, left))


def _pause(plan: Plan, answer: Answer, early: bool) -> float:
    """Seconds before asking again. A server that holds GETs needs none, unless it answered one before its time."""
    if plan.interval is not None:
        return plan.interval
    if plan.progress.outlive and not early:
        return 0.0
    try:
        seconds = int(answer.headers.get(POLL_HEADER, "")) / 1000
    except ValueError:
        return DEFAULT_INTERVAL
    return min(max(seconds, SHORTEST_INTERVAL), LONGEST_INTERVAL)


def _hopeless_after(plan: Plan, answer: Answer, began: float) -> float:
    """Whoever runs a foreground response for its connection only will never end one whose stream was lost."""
    lost = plan.streamed and not plan.progress.outlive and getattr(answer.response, "background", None) is not True
    return began + plan.patience.outage_seconds if lost else math.inf

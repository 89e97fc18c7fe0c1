"""Polling a response until it ends: when to ask, how long to wait, and how to react to each answer."""

from __future__ import annotations

import math
from typing import Any

from outlive.client.actions import TERMINAL_STATUSES, Fault, Received, Retrieve, Sleep
from outlive.client.core import Backoff, Program, detect_outlive, submit
from outlive.client.errors import PollTimeout
from outlive.client.plans import Plan
from outlive.client.token import Token

POLL_HEADER = "openai-poll-after-ms"
DEFAULT_INTERVAL = 1.0
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.1, 60.0
# Below the idle limits of common proxies, which begin at 30 s; the server holds a GET for 60 s at most.
LONG_POLL_SECONDS = 20.0
# For the answer itself, on top of the wait.
ANSWER_SECONDS = 30.0


def poll(plan: Plan) -> Program[Any]:
    """Submit the response, or begin with the plan's token, and poll until the response is terminal."""
    began = plan.retry_policy.clock()
    if plan.token is not None:
        return (yield from wait_end(plan, plan.token, began))
    answer = yield from submit(plan)
    assert isinstance(answer, Received)
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
            deadline = min(deadline, _abandoned_at(plan, answer, began))
            if clock() >= deadline:
                raise PollTimeout(token.response_id, clock() - began)
            if pause := _pause(plan, answer, early):
                yield Sleep(min(pause, deadline - clock()))
        asked = clock()
        wait = _choose_wait(plan, deadline - asked)
        outcome = yield Retrieve(token.response_id, wait, min(ANSWER_SECONDS, max(1.0, deadline - asked)))
        assert isinstance(outcome, Received | Fault)
        detect_outlive(plan, outcome.headers)
        if isinstance(outcome, Received):
            backoff.reset()
            plan.stats.polls += 1
            answer, known = outcome, True
            early = wait is not None and clock() - asked < 0.9 * wait
            continue
        pause, answer = backoff.delay_after(outcome, token, known), None
        if clock() >= deadline:
            raise PollTimeout(token.response_id, clock() - began) from outcome.error
        yield Sleep(min(pause, deadline - clock()))


def _choose_wait(plan: Plan, left: float) -> float | None:
    if plan.interval is not None or not plan.stats.outlive:
        return None
    return max(0.0, min(LONG_POLL_SECONDS, left))


def _pause(plan: Plan, answer: Received, early: bool) -> float:
    """Return the seconds before the next GET: none for a server that holds GETs, unless it answered the last early."""
    if plan.interval is not None:
        return plan.interval
    if plan.stats.outlive and not early:
        return 0.0
    try:
        seconds = int(answer.headers.get(POLL_HEADER, "")) / 1000
    except ValueError:
        return DEFAULT_INTERVAL
    return min(max(seconds, SHORTEST_INTERVAL), LONGEST_INTERVAL)


def _abandoned_at(plan: Plan, answer: Received, began: float) -> float:
    """Return when to give up: servers other than Outlive never end a foreground response whose stream was lost."""
    lost = plan.streamed and not plan.stats.outlive and getattr(answer.response, "background", None) is not True
    return began + plan.retry_policy.outage_seconds if lost else math.inf

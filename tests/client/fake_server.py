"""A server in memory for the pure core: it answers actions, and time passes only when the core sleeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from openai import BaseModel

from outlive.client.core import (
    UNKNOWN_ID,
    Action,
    Deliver,
    Fault,
    FaultKind,
    Follow,
    Outcome,
    Program,
    Read,
    Received,
    Retrieve,
    Sleep,
    Submit,
)
from outlive.client.plans import Plan, RetryPolicy

OURS = {"x-outlive-version": "1"}


class FakeError(Exception):
    """Error carried by the faults of the fake server."""


def fault(kind: FaultKind, status: int | None = None, **headers: str) -> Fault:
    return Fault(kind, FakeError(kind.name), status, {name.replace("_", "-"): value for name, value in headers.items()})


LOST = fault(FaultKind.LOST)
ENDED = None
PROBE = Retrieve(UNKNOWN_ID)


@dataclass
class FakeClock:
    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds
        self.slept.append(seconds)


def make_plan(clock: FakeClock, **fields: Any) -> Plan:
    policy = RetryPolicy(clock=lambda: clock.now, jitter=lambda: 1.0, **fields.pop("retry_policy", {}))
    return Plan(retry_policy=policy, **fields)


def make_events(count: int) -> list[Any]:
    """Make a stream of `count` events: the first has the response's id, the last is terminal."""
    first = SimpleNamespace(type="response.created", sequence_number=0, response=SimpleNamespace(id="resp_1"))
    middle = [SimpleNamespace(type="response.output_text.delta", sequence_number=n) for n in range(1, count - 1)]
    return [first, *middle, SimpleNamespace(type="response.completed", sequence_number=count - 1)]


@dataclass
class Connection:
    """Script of one connection: refused at once, or open for some events and then broken."""

    refusal: Fault | None = None
    events: int | None = None
    end: Outcome = ENDED
    rewinds: int = 0
    """Events sent again from before the cursor, as by a server that does not support starting_after."""


class FakeServer:
    """Stream `events` over `connections`, further ones unbroken; `statuses` answer GETs, the last one repeatedly."""

    def __init__(
        self,
        events: list[Any],
        connections: list[Connection],
        headers: dict[str, str] | None = None,
        statuses: list[str | Fault] | None = None,
    ) -> None:
        self.events = events
        self.connections = iter(connections)
        self.headers = headers or {}
        self.statuses = statuses or ["completed"]
        self.background = True
        self.clock = FakeClock()
        self.actions: list[Action] = []
        self.delivered: list[Any] = []
        self._open: Iterator[Outcome] = iter(())

    def run(self, program: Program[Any], limit: int = 100_000) -> Any:
        outcome: Outcome = None
        for _ in range(limit):
            try:
                action = program.send(outcome)
            except StopIteration as end:
                return end.value
            self.actions.append(action)
            outcome = self.perform(action)
        raise AssertionError(f"the program did not end after {limit} actions")

    def count(self, kind: type) -> int:
        return sum(isinstance(action, kind) for action in self.actions)

    def perform(self, action: Action) -> Outcome:
        match action:
            case Deliver(event):
                by_core = isinstance(event, BaseModel)
                self.delivered.append((event.response.status, event.sequence_number) if by_core else event)
            case Sleep(seconds):
                self.clock.sleep(seconds)
            case Submit():
                return self._connect(-1)
            case Follow(_, after):
                return self._connect(-1 if after is None else after)
            case Read():
                return next(self._open)
            case Retrieve(response_id) if response_id == UNKNOWN_ID:
                return fault(FaultKind.MISSING, 404, **self.headers)
            case Retrieve():
                status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
                return (
                    status
                    if isinstance(status, Fault)
                    else Received(make_response(status, self.background), self.headers)
                )
        return None

    def _connect(self, after: int) -> Outcome:
        connection = next(self.connections, Connection())
        if connection.refusal is not None:
            return connection.refusal
        begin = max(0, after + 1 - connection.rewinds)
        end = len(self.events) if connection.events is None else begin + connection.events
        self._open = iter([*self.events[begin:end], connection.end])
        return Received(None, self.headers)


def make_response(status: str, background: bool = True) -> Any:
    return SimpleNamespace(id="resp_1", status=status, background=background)

"""Actions that the core asks for and the outcomes it gets back: the only interface between the core and the SDK."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

UNSUCCESSFUL = ("failed", "cancelled", "incomplete")
TERMINAL_STATUSES = ("completed", *UNSUCCESSFUL)
TERMINAL_EVENTS = tuple(f"response.{status}" for status in TERMINAL_STATUSES)


# -- actions


@dataclass(frozen=True, slots=True)
class Submit:
    """POST the response. The outcome is Received, or StreamOpened if the plan streams."""


@dataclass(frozen=True, slots=True)
class Follow:
    """GET the stream of a response from after an event. The outcome is StreamOpened."""

    response_id: str
    after: int | None


@dataclass(frozen=True, slots=True)
class Read:
    """Read the next event of the open stream. The outcome is EventArrived or StreamEnded."""


@dataclass(frozen=True, slots=True)
class Retrieve:
    """GET the response. The outcome is Received."""

    response_id: str
    wait: float | None
    """Seconds for which the server may hold the GET; None unless the server is known to be an Outlive."""
    timeout: float
    """Seconds for the answer itself, on top of the wait."""


@dataclass(frozen=True, slots=True)
class Probe:
    """GET a response that does not exist, only to read the server's headers. The outcome is Probed."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Sleep. The outcome is Done."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give an event to the caller. The outcome is Done."""

    event: Any


@dataclass(frozen=True, slots=True)
class DeliverEnding:
    """Give the caller a terminal event made from the response. The outcome is Done."""

    response: Any
    sequence_number: int


Action = Submit | Follow | Read | Retrieve | Probe | Sleep | Deliver | DeliverEnding

# -- outcomes


@dataclass(frozen=True, slots=True)
class Received:
    response: Any
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamOpened:
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventArrived:
    event: Any


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The stream ended without an error. Only a terminal event before it shows that the response has ended."""


@dataclass(frozen=True, slots=True)
class Probed:
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    pass


class FaultKind(Enum):
    """Kinds of faults, by the way to handle them."""

    LOST = auto()
    """No answer, or an incomplete one."""
    BUSY = auto()
    """A temporary status: 408, 409, 425, 429, or 500 and above."""
    MISSING = auto()
    """404."""
    REFUSED = auto()
    """400 and similar: the same request fails again, another one may succeed."""
    GARBLED = auto()
    """Bytes in a stream that cannot be parsed, or an error sent inside the stream."""
    FINAL = auto()
    """Cannot be retried: a wrong key, a wrong argument, a bug."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    error: BaseException
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


Outcome = Received | StreamOpened | EventArrived | StreamEnded | Probed | Done | Fault | None

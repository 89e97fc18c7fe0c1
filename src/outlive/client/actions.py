"""What the core asks for, and what may come of it: the whole language between the core and the two clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol


class AnyResponse(Protocol):
    """As much of the SDK's Response as the core looks at."""

    id: str
    status: Any


# -- what to do


@dataclass(frozen=True, slots=True)
class Submit:
    """POST the response. Comes back as Answer, or as Opened when the plan is to stream."""


@dataclass(frozen=True, slots=True)
class Follow:
    """GET the stream of a response from after an event. Comes back as Opened."""

    response_id: str
    after: int | None


@dataclass(frozen=True, slots=True)
class Read:
    """The next event of the open stream. Comes back as Arrived or Ended."""


@dataclass(frozen=True, slots=True)
class Retrieve:
    """GET the response. Comes back as Answer."""

    response_id: str
    wait: float | None
    """Seconds for which the server may hold the GET; None for a server that is not known to do so."""
    timeout: float
    """Seconds for the answer itself, on top of the wait."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask for something that is not there, to learn who answers. Comes back as Contact."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Comes back as Rested."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand an event to the caller. Comes back as Rested."""

    event: Any


@dataclass(frozen=True, slots=True)
class Conclude:
    """Hand the caller a terminal event made of the response. Comes back as Rested."""

    response: Any
    sequence_number: int


Action = Submit | Follow | Read | Retrieve | Probe | Sleep | Deliver | Conclude

# -- what came of it


@dataclass(frozen=True, slots=True)
class Answer:
    response: Any
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Opened:
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Arrived:
    event: Any


@dataclass(frozen=True, slots=True)
class Ended:
    """The stream stopped as if all were well; whether it was, its last event says."""


@dataclass(frozen=True, slots=True)
class Contact:
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rested:
    pass


class Kind(Enum):
    """Of faults, by what can be done about them."""

    LOST = auto()
    """No answer, or no whole one."""
    BUSY = auto()
    """A status that passes: 408, 409, 425, 429 and from 500 on."""
    MISSING = auto()
    """404."""
    REFUSED = auto()
    """The server will not, but might do something else: 400 and its like."""
    GARBLED = auto()
    """What came makes no sense, or is itself an error."""
    FINAL = auto()
    """Nothing: a wrong key, a wrong argument, a bug."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: Kind
    error: BaseException
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


Outcome = Answer | Opened | Arrived | Ended | Contact | Rested | Fault | None

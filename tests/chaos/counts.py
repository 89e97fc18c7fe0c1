"""The record of a round: every turn as its user saw it, and the counts of faults, responses and violations."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields


@dataclass
class Turn:
    """One question of a user, and every frame of the answer that reached them, over all connections."""

    name: str  # in the request, so that its response and its item can be recognised
    model: str
    kind: str
    conversation: str | None
    response_id: str | None = None
    frames: list[bytes] = field(default_factory=list)
    cancelled: bool = False  # by the user
    ended: bool = False  # the user knows the outcome
    tries: list[str] = field(default_factory=list)  # to create it: times, node and outcome


@dataclass
class Counts:
    """The counts of one round or of several. Everything from `lost` on must be 0."""

    rounds: int = 0
    seconds: float = 0.0
    turns: int = 0
    responses: int = 0
    events: int = 0
    seen: int = 0  # events that reached a user
    resumed: int = 0  # connections that were cut and resumed on any node
    reattempted: int = 0  # responses that took more than one attempt
    resumed_at: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    gaps: int = 0
    repeats: int = 0
    changed: int = 0
    stuck: int = 0
    ends: int = 0
    doubled: int = 0
    locked: int = 0
    wrong: int = 0

    def add(self, other: Counts) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def violations(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in VIOLATIONS}


# Name of the count -> its meaning.
VIOLATIONS = {
    "lost": "lost events that a client saw",
    "gaps": "gaps in sequence numbers",
    "repeats": "repeated sequence numbers",
    "changed": "events that differ in a replay",
    "stuck": "stuck responses, clients or leases",
    "ends": "responses without exactly one terminal event",
    "doubled": "duplicate turns",
    "locked": "locked conversations",
    "wrong": "other errors (order of events, text, status, order of turns, tracebacks)",
}


def describe(counts: Counts) -> list[tuple[str, str]]:
    """Return the counts as lines for a terminal or a page."""
    injected = ", ".join(f"{number} {name}" for name, number in sorted(counts.injected.items()))
    statuses = ", ".join(f"{number:,} {name}" for name, number in counts.statuses.most_common())
    return [
        ("rounds", f"{counts.rounds} in {counts.seconds / 60:.1f} min"),
        ("faults injected", injected),
        ("responses", f"{counts.responses:,}: {statuses}"),
        ("taken over or restarted", f"{counts.reattempted:,}; texts were continued {counts.resumed_at:,} times"),
        ("events", f"{counts.events:,} journaled, {counts.seen:,} seen by clients over {counts.resumed:,} resumptions"),
        *((meaning, str(getattr(counts, name))) for name, meaning in VIOLATIONS.items()),
    ]

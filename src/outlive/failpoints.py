"""Failpoints: named places where a crash test kills the process with SIGKILL."""

import os
import signal

from outlive.core.errors import SettingsError

# What a transaction may commit; each has a point before and one after its commit.
OPERATIONS = (
    *("add items", "admit", "append", "claim", "close", "confirm", "create conversation", "delete"),
    *("delete conversation", "delete expired", "delete item", "erase", "expire", "find secret", "forget keys"),
    *("free dead leases", "mark answered", "pack", "probe", "release", "release leases", "restore"),
    *("save checkpoint", "shrink", "stage", "take over", "update conversation"),
)
POINTS = {
    *("before-call-journaled", "after-call-journaled", "before-output-journaled", "after-output-journaled"),
    *("before-upstream-noted", "between-steps", "after-webhook-sent", "before-commit", "after-commit"),
    *(f"{when}-commit-of-{each.replace(' ', '-')}" for when in ("before", "after") for each in OPERATIONS),
}

# OUTLIVE_KILL_AT="point" or "point:N" (the N-th time it is reached). Nothing else in the product reads it.
_given = os.environ.get("OUTLIVE_KILL_AT", "")
_point, _, _count = _given.partition(":")
_left = [int(_count) if _count.isdecimal() else 1]
# Lets a caller skip the work of composing a point's name.
is_set = bool(_point)


def check() -> None:
    """Raise SettingsError for a value that names no failpoint: its test would wait for a kill that never comes."""
    if _given and (_point not in POINTS or _count.strip("0123456789") or _left[0] < 1):
        known = "a failpoint, such as after-commit or after-commit:3"
        raise SettingsError(f"OUTLIVE_KILL_AT must be {known}, not {_given!r}.")


def hit(point: str) -> None:
    """Kill this process if a test has set this point."""
    if point == _point:
        _left[0] -= 1
        if _left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

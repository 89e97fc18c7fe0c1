"""Failpoints: named places where a crash test kills the process with SIGKILL."""

import os
import signal

# OUTLIVE_KILL_AT="point" or "point:N" (the N-th time it is reached). Nothing else in the product reads it.
_point, _, _count = os.environ.get("OUTLIVE_KILL_AT", "").partition(":")
_left = [int(_count or "1")]
# Lets a caller skip the work of composing a point's name.
is_set = bool(_point)


def hit(point: str) -> None:
    """Kill this process if a test has set this point."""
    if point == _point:
        _left[0] -= 1
        if _left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

"""A watchdog of the event loop: it finds steps that make everything else wait, and the place in the code."""

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable
from time import clock_gettime, monotonic, pthread_getcpuclockid, sleep
from types import FrameType
from typing import NamedTuple

log = logging.getLogger(__name__)

# Files at the top of the stack of a loop that waits: that of uvloop's caller, as it has no frames, and asyncio's own.
_WAITING_IN = ("/asyncio/runners.py", "/selectors.py")
_FRAMES = 6  # of a stack that are named
QUIET_SECONDS = 60.0  # between two warnings about one place


class LongStep(NamedTuple):
    """A time in which the loop did nothing else."""

    seconds: float
    cpu_seconds: float  # used by the loop's thread; the rest it has waited, for a disk, a lock or a processor
    place: str


class Watchdog:
    """A thread that looks at the loop at intervals, and asks one that is busy for a sign of life.

    A step of twice the threshold is always found, a shorter one by chance. An idle loop is not woken.
    """

    def __init__(self, seconds: float, report: Callable[[LongStep], None] | None = None) -> None:
        self._seconds = seconds  # the threshold, and the interval between two looks
        self._report = report or self._warn
        self._warned_at: dict[str, float] = {}  # by place
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._clock = pthread_getcpuclockid(self._loop_thread)
        self._answered_at = 0.0
        self._is_stopped = False

    def start(self) -> None:
        threading.Thread(target=self._watch, name="outlive-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._is_stopped = True

    def _watch(self) -> None:
        while not self._is_stopped:
            due, cpu = monotonic() + self._seconds, clock_gettime(self._clock)
            sleep(self._seconds)
            if not self._is_idle():
                try:
                    self._measure(due, cpu)
                except RuntimeError:
                    return  # the loop was closed

    def _measure(self, due: float, cpu: float) -> None:
        """Wait until the loop begins its next step, and report the one that it is in if that is long."""
        since, used, place = monotonic(), clock_gettime(self._clock), ""
        if used - cpu > self._seconds < since - due:
            # A call into C held the interpreter's lock, and kept this thread from looking. The line that made it has
            # hardly been left.
            since, used, place = due, cpu, self._find_place()
        self._answered_at = 0.0
        self._loop.call_soon_threadsafe(self._answer)
        while not self._answered_at and not self._is_stopped:
            sleep(self._seconds)
            place = place or ("" if self._answered_at else self._find_place())
        if self._answered_at - since >= self._seconds:
            seconds = self._answered_at - since
            self._report(LongStep(seconds, min(seconds, clock_gettime(self._clock) - used), place))

    def _answer(self) -> None:
        self._answered_at = monotonic()

    def _is_idle(self) -> bool:
        frame = sys._current_frames().get(self._loop_thread)
        return frame is None or frame.f_code.co_filename.endswith(_WAITING_IN)

    def _find_place(self) -> str:
        """Name the innermost frames of the loop's thread, the innermost first."""
        frame = sys._current_frames().get(self._loop_thread)
        return " < ".join([_name(*each) for each in traceback.walk_stack(frame)][:_FRAMES]) if frame else ""

    def _warn(self, step: LongStep) -> None:
        """Write a long step to the log, but not about a place that was named in the last minute."""
        innermost, now = step.place.partition(" < ")[0], monotonic()
        if now - self._warned_at.get(innermost, -QUIET_SECONDS) >= QUIET_SECONDS:
            self._warned_at[innermost] = now
            wall, cpu = step.seconds * 1000, step.cpu_seconds * 1000
            log.warning("event loop blocked for %.0f ms (%.0f ms of it computing) in %s", wall, cpu, step.place)


def _name(frame: FrameType, line: int) -> str:
    file = "/".join(frame.f_code.co_filename.rsplit("/", 2)[-2:])
    return f"{file}:{line} {frame.f_code.co_name}"

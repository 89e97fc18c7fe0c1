"""Batching: what is to be written while one transaction commits goes into the next one, together."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from outlive import failpoints

J = TypeVar("J")
R = TypeVar("R")
V = TypeVar("V")

# After a transaction of several jobs the next one waits so many seconds for each but the first, at most so many in all:
# a commit costs more than the jobs in it, so under load it should carry many.
PAUSE_PER_JOB = 0.0005
MAX_PAUSE = 0.002
# A batch of this size is written even if more jobs are there, so that none waits for a whole rush.
MAX_JOBS = 256


class Batching(Generic[J]):
    """Base of a writer that has one batch written at a time, while the next one gathers."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gathered: list[J] = []
        self._writing = False
        self._rest_until = 0.0

    def _add(self, job: J) -> None:
        self._gathered.append(job)
        if len(self._gathered) == 1 and not self._writing:
            self._schedule()

    def _start(self, batch: list[J]) -> None:
        """Begin to write a batch. `_finish` must follow, once its callers have their results."""
        raise NotImplementedError

    def _finish(self, count: int) -> None:
        self._writing = False
        self._rest_until = self._loop.time() + min((count - 1) * PAUSE_PER_JOB, MAX_PAUSE)
        if self._gathered:
            self._schedule()

    def _schedule(self) -> None:
        pause = self._rest_until - self._loop.time()
        if pause > 0:
            self._loop.call_later(pause, self._start_next)
        else:
            self._loop.call_soon(self._start_next)

    def _start_next(self) -> None:
        batch, self._gathered = self._gathered[:MAX_JOBS], self._gathered[MAX_JOBS:]
        self._writing = True
        self._start(batch)


def cut(values: Iterable[V], size_of: Callable[[V], int], bound: int) -> Iterator[list[V]]:
    """Yield the values in lists, each with so many that their sizes reach the bound."""
    gathered: list[V] = []
    size = 0
    for value in values:
        gathered.append(value)
        size += size_of(value)
        if size >= bound:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def settle(future: asyncio.Future[R], result: R | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def hit_failpoints(when: str, names: Iterable[str]) -> None:
    """Hit the failpoints of a commit: `before-commit` by itself, `before-commit-of-close` by what it commits."""
    if failpoints.is_set:
        for point in ("", *(f"-of-{name.replace(' ', '-')}" for name in names)):
            failpoints.hit(f"{when}-commit{point}")

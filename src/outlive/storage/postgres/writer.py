"""Writers: what there is to write of one kind goes into one transaction, with whatever gathers while the last commits.

There is one writer for each kind that comes in numbers, so that none waits for another's locks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from outlive.core.errors import OutliveError, StorageUnavailable

J = TypeVar("J")  # what is to be written
R = TypeVar("R")  # what came of it

# After a transaction of several jobs the next one waits so long for each but the first, at most so long in all: a
# commit costs more than the jobs in it, so under load it should carry many.
PAUSE_PER_JOB = 0.0005
MAX_PAUSE = 0.002
# A batch this large is written even if more is waiting, so that nobody waits for a whole stampede.
MAX_JOBS = 256


class Writer(Generic[J, R]):
    """One batch is being written while the next one gathers."""

    def __init__(self, write: Callable[[list[J]], Awaitable[list[R | OutliveError]]]) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[J, asyncio.Future[R]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._scheduled = False
        self._rest_until = 0.0

    def submit(self, job: J) -> asyncio.Future[R]:
        future: asyncio.Future[R] = self._loop.create_future()
        self._gathered.append((job, future))
        if not self._scheduled and self._writing is None:
            self._schedule()
        return future

    async def close(self, seconds: float) -> None:
        """Write what has gathered, unless the database is down for longer than that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._gathered or self._writing is not None:
                    await (asyncio.shield(self._writing) if self._writing is not None else asyncio.sleep(0.001))
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    def _schedule(self) -> None:
        self._scheduled = True
        pause = self._rest_until - self._loop.time()
        if pause > 0:
            self._loop.call_later(pause, self._hand_over)
        else:
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._scheduled = False
        batch, self._gathered = self._gathered[:MAX_JOBS], self._gathered[MAX_JOBS:]
        self._writing = self._loop.create_task(self._write_batch(batch))

    async def _write_batch(self, batch: list[tuple[J, asyncio.Future[R]]]) -> None:
        try:
            results = await self._try([job for job, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                _settle(future, result)
        finally:
            self._writing = None
            self._rest_until = self._loop.time() + min((len(batch) - 1) * PAUSE_PER_JOB, MAX_PAUSE)
            for _, future in batch:
                if not future.done():
                    future.cancel()  # the database is being closed
            if self._gathered:
                self._schedule()

    async def _try(self, jobs: list[J]) -> list[R | Exception]:
        try:
            return list(await self._write(jobs))
        except StorageUnavailable as error:
            return [error] * len(jobs)
        except Exception as error:
            if len(jobs) == 1:
                return [error]  # a mistake of ours: whoever asked gets to see it, and the writer lives on
            # One of them may be the cause: each alone, so that the others are not refused with it.
            return [result for job in jobs for result in await self._try([job])]


def _settle(future: asyncio.Future[R], result: R | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)

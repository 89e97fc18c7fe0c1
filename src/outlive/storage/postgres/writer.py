"""Writers on Postgres: jobs of one kind share a transaction with the jobs that gather while the last one commits.

There is one writer for each kind of job that comes in numbers, so that none waits for another's locks.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Generic

from outlive.core.errors import OutliveError, StorageUnavailable
from outlive.storage.batching import Batching, J, R, settle
from outlive.storage.postgres.connection import StatementFailed


class PostgresWriter(Batching[tuple[J, "asyncio.Future[R]"]], Generic[J, R]):
    """Writes jobs of type J, each of which gives an R."""

    def __init__(self, write: Callable[[list[J]], Awaitable[list[R | OutliveError]]]) -> None:
        super().__init__()
        self._write = write
        self._task: asyncio.Task[None] | None = None

    def submit(self, job: J) -> asyncio.Future[R]:
        future: asyncio.Future[R] = self._loop.create_future()
        self._add((job, future))
        return future

    async def close(self, seconds: float) -> None:
        """Write what has gathered, unless the database is down for longer than that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._gathered or self._task is not None:
                    await (asyncio.shield(self._task) if self._task is not None else asyncio.sleep(0.001))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _start(self, batch: list[tuple[J, asyncio.Future[R]]]) -> None:
        self._task = self._loop.create_task(self._write_batch(batch))

    async def _write_batch(self, batch: list[tuple[J, asyncio.Future[R]]]) -> None:
        try:
            results = await self._try([job for job, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                settle(future, result)
        finally:
            self._task = None
            for _, future in batch:
                if not future.done():
                    future.cancel()  # the database is being closed
            self._finish(len(batch))

    async def _try(self, jobs: list[J]) -> list[R | Exception]:
        try:
            return list(await self._write(jobs))
        except Exception as error:  # a bug must reach its caller, and not end the writer of all
            # A connection that was lost, or a lock that was waited for, would only take longer for each alone.
            unavailable = isinstance(error, StorageUnavailable) and not isinstance(error, StatementFailed)
            if len(jobs) == 1 or unavailable:
                return [error] * len(jobs)
        # One of them may be the cause: each alone, so that the others are not refused with it.
        return [result for job in jobs for result in await self._try([job])]

"""How an agent tells what it does, as it does it; and what it may know of the response that it makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol

from outlive import failpoints
from outlive.core.ids import IdSource
from outlive.core.toolcalls.calls import fail
from outlive.ports.backend import ModelCall
from outlive.served_agents import translator as chunks

# An agent that is faster than the storage waits once this much is on its way.
MOST_WAITING = 256

_Told = tuple[bytes, "asyncio.Future[None] | None"]


class AgentError(Exception):
    """Raised by an agent: its message is what the caller is told."""


class AgentChannel:
    """A line from the agent's task to whoever journals."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids
        self._told: asyncio.Queue[_Told | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(MOST_WAITING)

    async def tell(self, chunk: bytes) -> None:
        await self._room.acquire()
        self._told.put_nowait((chunk, None))

    async def begin(self, name: str, arguments: str) -> str:
        """A call is about to be made: back, with its item's id, when that is in the journal."""
        item_id = self._ids.new("mcp")
        failpoints.hit("before-call-journaled")
        await self._tell_durably(chunks.begin(item_id, name, arguments))
        failpoints.hit("after-call-journaled")
        return item_id

    async def finish(self, item_id: str, output: str | None, error: str | None = None) -> None:
        """A call is over: back when that is in the journal."""
        failpoints.hit("before-output-journaled")
        await self._tell_durably(chunks.finish(item_id, output, None if error is None else fail(error).error))
        failpoints.hit("after-output-journaled")

    async def _tell_durably(self, chunk: bytes) -> None:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._told.put_nowait((chunk, durable))
        await durable

    def over(self) -> None:
        self._told.put_nowait(None)

    async def listen(self, settle: Callable[[], Awaitable[None]] | None) -> AsyncGenerator[list[bytes], None]:
        """What is told, as it comes. Whoever takes a batch and asks for the next has put it up for commit."""
        while batch := await self._next():
            yield [chunk for chunk, _ in batch]
            waiting = [durable for _, durable in batch if durable is not None and not durable.done()]
            if waiting and settle is not None:
                await settle()
            for durable in waiting:
                durable.set_result(None)

    async def _next(self) -> list[_Told]:
        """All that waits, the first of it awaited; empty at the end."""
        told = await self._told.get()
        batch: list[_Told] = []
        while told is not None:
            batch.append(told)
            if told[1] is None:
                self._room.release()
            if self._told.empty():
                return batch
            told = self._told.get_nowait()
        if batch:
            self.over()  # to be found again, once this has been taken
        return batch


class AgentRunner(Protocol):
    """An agent of some kind."""

    # True: run again from its start, it says what it said before, so that an answer can go on in the middle of a text.
    repeats_itself: bool

    async def play(self, call: ModelCall, teller: AgentChannel) -> None:
        """Do the work. Whatever it raises is the agent's failure."""
        ...

"""The channel from an agent to the run that journals its text, its reasoning and its calls."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from outlive import failpoints
from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.toolcalls import ToolOutcome
from outlive.core.usage import make_usage
from outlive.served_agents.translator import encode

# An agent that is faster than the storage waits once this many chunks are queued.
MAX_QUEUED = 256

_Entry = tuple[bytes, "asyncio.Future[None] | None"]


class AgentError(Exception):
    """Raised by an agent: the caller gets its message."""


class AgentChannel:
    """Queue of chunks from the agent's task to the run that journals them."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids
        self._queue: asyncio.Queue[_Entry | None] = asyncio.Queue()
        self._slots = asyncio.Semaphore(MAX_QUEUED)

    async def text(self, piece: str) -> None:
        await self._send(encode("text", piece))

    async def reasoning(self, piece: str) -> None:
        await self._send(encode("reasoning", piece))

    async def end_item(self) -> None:
        """End a message or a reasoning item: the text that comes next begins another."""
        await self._send(encode("end_item"))

    async def usage(self, used: Any, *, cached: int, cache_write: int, reasoning: int) -> None:
        """Add the tokens that an SDK has counted, if any."""
        if used.total_tokens:
            details = {"cached": cached, "cache_write": cache_write, "reasoning": reasoning}
            made = make_usage(None, given=used.input_tokens, written=used.output_tokens, **details)
            await self._send(encode("usage", made))

    async def begin_call(self, name: str, arguments: str) -> str:
        """Journal a call that is about to be made. Returns its item's id once that is durable."""
        item_id = self._ids.new("mcp")
        failpoints.hit("before-call-journaled")
        await self._send_durably(encode("begin_call", item_id, name, arguments))
        failpoints.hit("after-call-journaled")
        return item_id

    async def finish_call(self, item_id: str, outcome: ToolOutcome) -> None:
        """Journal a call's output or failure. Returns once that is durable."""
        failpoints.hit("before-output-journaled")
        await self._send_durably(encode("finish_call", item_id, outcome.output, outcome.error))
        failpoints.hit("after-output-journaled")

    async def _send(self, chunk: bytes) -> None:
        await self._slots.acquire()
        self._queue.put_nowait((chunk, None))

    async def _send_durably(self, chunk: bytes) -> None:
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((chunk, durable))
        await durable

    def close(self) -> None:
        self._queue.put_nowait(None)

    async def batches(self, settle: Callable[[], Awaitable[None]] | None) -> AsyncGenerator[list[bytes], None]:
        """Yield the queued chunks, each time all that there are. A reader that asks for the next has submitted the last
        for commit; `settle` waits until it is durable."""
        while (entry := await self._queue.get()) is not None:
            batch: list[_Entry] = [entry]
            while not self._queue.empty():
                if (more := self._queue.get_nowait()) is None:
                    self.close()  # so that the next look finds the end again
                    break
                batch.append(more)
            for _, durable in batch:
                if durable is None:
                    self._slots.release()
            yield [chunk for chunk, _ in batch]
            waiting = [durable for _, durable in batch if durable is not None and not durable.done()]
            if waiting and settle is not None:
                await settle()
            for durable in waiting:
                durable.set_result(None)


def read_text(content: str | Sequence[Json]) -> str:
    """Return the text of a message, an output or a reasoning item."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)

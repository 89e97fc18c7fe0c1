"""Programs of the core, performed with an AsyncOpenAI client."""

from __future__ import annotations

from typing import Self

import anyio
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent

from outlive.client.actions import Action, Done, Follow, Outcome, Read, Sleep, Submit
from outlive.client.core import poll
from outlive.client.errors import check
from outlive.client.plans import Plan
from outlive.client.sdk import BaseStream, SdkCalls, interrupted, is_terminal, read_outcome


class AsyncPerformer(SdkCalls):
    async def perform(self, action: Action) -> Outcome:
        try:
            match action:
                case Read():
                    event = await anext(self._stream, None)
                    if is_terminal(event):  # closed before it is delivered: if cancelled here, it is read again
                        await self.close()
                    return read_outcome(event)
                case Sleep(seconds):
                    await (self._plan.retry_policy.sleep or anyio.sleep)(seconds)
                    return Done()
                case Submit() | Follow():
                    await self.close()
            return self._answered(action, await self._request(action))
        except Exception as error:  # any HTTP library's errors come through; the core raises those it cannot handle
            return self._failed(action, error)

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()


async def run_poll(client: AsyncOpenAI, plan: Plan) -> Response:
    """Perform the polling program to its end."""
    performer, program = AsyncPerformer(client, plan), poll(plan)
    outcome: Outcome = None
    while True:
        try:
            action = program.send(outcome)
        except StopIteration as end:
            return check(end.value, plan.raise_on)
        outcome = await performer.perform(action)


class AsyncResponseStream(BaseStream):
    """Iterator over the SDK's events that survives broken connections. Made by `stream` and `resume`.

    `close()`, or the end of an `async with` block, closes the connection early and leaves the run alone. After a call
    that was cancelled, for example by a timeout, the next call continues after the last event delivered.
    """

    def __init__(self, client: AsyncOpenAI, plan: Plan) -> None:
        super().__init__(plan)
        self._client = client
        self._performer = AsyncPerformer(client, plan)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ResponseStreamEvent:
        while (action := self._next_action()) is not None:
            if (event := self._event_of(action)) is not None:
                return event
            outcome: Outcome = None
            try:
                outcome = await self._performer.perform(action)
            finally:
                self._outcome = outcome or interrupted()
        await self._performer.close()  # opened during close(), if at all
        raise StopAsyncIteration

    async def get_final_response(self) -> Response:
        """Read the remaining events and return the terminal response, with any status (see `check`)."""
        async for _ in self:
            pass
        if self._response is None:
            self._response = await run_poll(self._client, self._plan_poll())
        return self._response

    async def close(self) -> None:
        """Close the connection. The run continues, and can be resumed with `token`."""
        self._program.close()
        await self._performer.close()

    aclose = close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

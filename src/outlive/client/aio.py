"""The programs of the core, performed with an AsyncOpenAI client."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import anyio
from openai import APIStatusError, AsyncOpenAI, AsyncStream
from openai.types.responses import Response, ResponseStreamEvent

from outlive.client.actions import (
    Action,
    Answer,
    Arrived,
    Conclude,
    Contact,
    Deliver,
    Ended,
    Follow,
    Opened,
    Outcome,
    Probe,
    Read,
    Rested,
    Retrieve,
    Sleep,
    Submit,
)
from outlive.client.core import TERMINAL_EVENTS, Program
from outlive.client.endings import check, make_event, response_of
from outlive.client.faults import classify, interrupted
from outlive.client.following import Chase
from outlive.client.plans import NOBODY, Plan
from outlive.client.polling import ANSWER_SECONDS, poll
from outlive.client.token import Token


class Caller:
    """Performs actions, one at a time; holds the open stream, if there is one."""

    def __init__(self, client: AsyncOpenAI, plan: Plan) -> None:
        self._client = client
        # The core decides about every retry but those of the submit, which are the SDK's.
        self._once = client.with_options(max_retries=0)
        self._plan = plan
        self._stream: AsyncStream[ResponseStreamEvent] | None = None

    async def perform(self, action: Action) -> Outcome:
        try:
            return await self._perform(action)
        except Exception as error:
            return classify(error, reading=isinstance(action, Read))

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.close()
            self._stream = None

    async def _perform(self, action: Action) -> Outcome:
        match action:
            case Read():
                assert self._stream is not None
                event = await anext(self._stream, None)
                if event is None:
                    return Ended()
                if event.type in TERMINAL_EVENTS:  # here, where an interruption loses nothing
                    await self.close()
                return Arrived(event)
            case Sleep(seconds):
                await (self._plan.patience.sleep or anyio.sleep)(seconds)
                return Rested()
            case Submit():
                return await self._submit()
            case Follow(response_id, after):
                retrieve = self._once.responses.retrieve
                return await self._open(await retrieve(response_id, **self._plan.follow_arguments(after)))
            case Retrieve(response_id, wait, timeout):
                raw: Any = self._once.responses.with_raw_response
                answer = await raw.retrieve(response_id, **self._plan.retrieve_arguments(wait, timeout))
                return Answer(answer.parse(), answer.headers)
            case Probe():
                return await self._probe()
            case _:
                raise AssertionError(action)

    async def _submit(self) -> Outcome:
        assert self._plan.create is not None
        create: Any = self._client.responses if self._plan.streamed else self._client.responses.with_raw_response
        answer = await create.create(**self._plan.create)
        return await self._open(answer) if self._plan.streamed else Answer(answer.parse(), answer.headers)

    async def _open(self, stream: Any) -> Opened:
        await self.close()
        self._stream = stream
        return Opened(stream.response.headers)

    async def _probe(self) -> Contact:
        raw: Any = self._once.responses.with_raw_response
        try:
            answer = await raw.retrieve(NOBODY, **self._plan.retrieve_arguments(None, ANSWER_SECONDS))
        except APIStatusError as error:
            if error.status_code >= 500:  # not the server itself, or not itself at the moment
                raise
            return Contact(error.response.headers)
        return Contact(answer.headers)


async def conclude(client: AsyncOpenAI, plan: Plan) -> Response:
    """Perform the polling program to its end."""
    caller, program = Caller(client, plan), poll(plan)
    outcome: Outcome = None
    while True:
        try:
            action = program.send(outcome)
        except StopIteration as end:
            return check(end.value, plan.raise_on)
        outcome = await caller.perform(action)


class AsyncResponseStream:
    """An iterator of the SDK's own events that survives its connections. It is made by `stream` and `resume`.

    In an `async with` block, or with `close()`, it hangs up early; the run is left alone. A call that is cancelled, by
    a timeout say, loses nothing: the next one goes on after the last event that was delivered.
    """

    def __init__(self, client: AsyncOpenAI, plan: Plan) -> None:
        plan.streamed = True
        self.progress = plan.progress
        self._client = client
        self._plan = plan
        self._chase = Chase(plan)
        self._caller = Caller(client, plan)
        self._program: Program[None] = self._chase.run()
        self._outcome: Outcome = None
        self._response: Response | None = None
        if plan.token is not None:
            plan.progress.response_id = plan.token.response_id

    @property
    def token(self) -> Token | None:
        """Where to go on after the last event that was delivered. None as long as the response is unknown."""
        return self._chase.token

    @property
    def response_id(self) -> str | None:
        return None if self.token is None else self.token.response_id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ResponseStreamEvent:
        while True:
            try:
                action = self._program.send(self._outcome)
            except StopIteration:
                await self._caller.close()
                raise StopAsyncIteration from None
            except BaseException:
                await self._caller.close()
                raise
            self._outcome = Rested()
            if isinstance(action, Deliver):
                return self._note(action.event)
            if isinstance(action, Conclude):
                return self._note(make_event(action.response, action.sequence_number))
            try:
                self._outcome = await self._caller.perform(action)
            except BaseException as interruption:
                self._outcome = interrupted(interruption)
                raise

    async def get_final_response(self) -> Response:
        """Read whatever is left and return the terminal response, however it ended (see `check`)."""
        async for _ in self:
            pass
        if self._response is None:
            if self.token is None:
                raise ValueError("The stream was closed before its first event.")
            self._response = await conclude(self._client, self._plan.polled(self.token))
        return self._response

    async def close(self) -> None:
        """Hang up. The run goes on, and `token` says where to take it up."""
        self._program.close()
        await self._caller.close()

    async def aclose(self) -> None:
        """The same as `close`."""
        await self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _note(self, event: Any) -> ResponseStreamEvent:
        if self._chase.has_ended():
            self._response = response_of(event)
        found: ResponseStreamEvent = event
        return found

"""Programs of the core, performed with an OpenAI or AsyncOpenAI client: actions become calls, errors become faults."""

import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar, cast

import anyio
import openai
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent

from outlive.client import core
from outlive.client.core import Fault, FaultKind, Received
from outlive.client.errors import ConnectionLost, Token, check
from outlive.client.plans import AnyClient, Plan

T = TypeVar("T")
KINDS = {
    **dict.fromkeys((401, 403), FaultKind.FINAL),
    404: FaultKind.MISSING,
    **dict.fromkeys((408, 409, 425, 429), FaultKind.BUSY),
}
# SDKs have changed their HTTP library, and some let its errors through: matched by name, so that none must be imported.
HTTP_LIBRARIES = {"httpx", "httpx2", "httpcore", "httpcore2", "h11", "h2", "anyio", "aiohttp"}
CONNECTION_ERRORS = {
    "TransportError", "NetworkError", "TimeoutException", "ProtocolError", "StreamError", "ConnectionNotAvailable",
    "BrokenResourceError", "ClosedResourceError", "EndOfStream", "ClientConnectionError", "ClientPayloadError",
}  # fmt: skip


def response_of(event: Any) -> Response | None:
    """Return the response that an event carries. (The SDK leaves it a dict in events whose type it does not know.)"""
    carried = getattr(event, "response", None)
    if isinstance(carried, dict):
        return Response.construct(**carried)
    return carried if isinstance(carried, Response) else None


class Performer:
    """Performs the actions of a program and holds the open stream, if there is one.

    Only calls of an AsyncOpenAI are awaited. With an OpenAI no coroutine of this module ever suspends: see `run_sync`.
    """

    def __init__(self, client: AnyClient, plan: Plan, program: core.Program[Any]) -> None:
        self._plan = plan
        self._program = program
        self._client: Any = client
        self._is_async = isinstance(client, AsyncOpenAI)
        # The SDK retries submits; the core decides about all other retries.
        self._without_retries: Any = client.with_options(max_retries=0)
        self._stream: Any = None
        self._outcome: core.Outcome = None
        self.result: Any = None  # that the program has returned

    async def advance(self) -> Any:
        """Perform actions up to the next event that the program delivers, and return that; None at the end.

        After an interruption, for example by Ctrl-C or a cancel, it can be called again.
        """
        while True:
            try:
                action = self._program.send(self._outcome)
            except StopIteration as end:
                self.result = end.value
                await self._close_stream()  # opened during close(), if at all
                return None
            if isinstance(action, core.Deliver):
                self._outcome = None
                return action.event
            try:
                self._outcome = await self._perform(action)
            except BaseException as error:  # any HTTP library's errors come through; the core raises what is final
                self._outcome = classify(error, reading=isinstance(action, core.Read))
                if not isinstance(error, Exception):
                    raise

    async def close(self) -> None:
        self._program.close()
        await self._close_stream()

    async def _perform(self, action: core.Action) -> core.Outcome:
        plan, submits, retrieves = self._plan, self._client.responses, self._without_retries.responses
        match action:
            case core.Sleep(seconds):
                sleep = plan.retry_policy.sleep or (anyio.sleep if self._is_async else time.sleep)
                return await self._wait(sleep(seconds))
            case core.Read():
                event = await anext(self._stream, None) if self._is_async else next(self._stream, None)
                if event is not None and event.type in core.TERMINAL_EVENTS:
                    await self._close_stream()  # before it is delivered: if interrupted here, it is read again
                return event
            case core.Retrieve(response_id, wait, timeout):
                arguments = plan.retrieve_arguments(wait, timeout)
                return await self._receive(retrieves.with_raw_response.retrieve(response_id, **arguments))
            case core.Submit() if not plan.streamed:
                return await self._receive(submits.with_raw_response.create(**plan.create))
            case core.Submit():
                await self._close_stream()
                self._stream = await self._wait(submits.create(**plan.create))
            case core.Follow(response_id, after):
                await self._close_stream()
                place = {"stream": True, "starting_after": openai.omit if after is None else after}
                self._stream = await self._wait(retrieves.retrieve(response_id, **plan.retrieve, **place))
        return Received(None, self._stream.response.headers)

    async def _receive(self, call: Any) -> Received:
        answer = await self._wait(call)
        return Received(answer.parse(), answer.headers)

    async def _wait(self, call: Any) -> Any:
        return await call if self._is_async else call

    async def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await self._wait(stream.close())


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError("a call of an OpenAI client suspended")


async def run_poll(client: AnyClient, plan: Plan) -> Response:
    """Perform the polling program to its end."""
    performer = Performer(client, plan, core.poll(plan))
    await performer.advance()
    return check(performer.result, plan.raise_on)


class BaseStream:
    """All that ResponseStream and AsyncResponseStream do; they only give it the names of their protocols."""

    def __init__(self, client: AnyClient, plan: Plan) -> None:
        self.stats = plan.stats
        self._plan = plan
        self._client = client
        self._follower = core.StreamFollower(plan)
        self._performer = Performer(client, plan, self._follower.run())
        self._response: Response | None = None

    @property
    def token(self) -> Token | None:
        """Position after the last event delivered. None as long as the response's id is unknown."""
        return self._follower.token

    @property
    def response_id(self) -> str | None:
        return None if self.token is None else self.token.response_id

    async def _read(self) -> ResponseStreamEvent | None:
        """Return the next event, or None at the end."""
        event: ResponseStreamEvent | None = await self._performer.advance()
        if event is not None and self._follower.has_ended():
            self._response = response_of(event)
        return event

    async def _read_all(self) -> Response:
        while await self._read() is not None:
            pass
        if self._response is None:
            if self.token is None:
                raise ValueError("The stream was closed before its first event.")
            # Its terminal event was not delivered here.
            self._response = await run_poll(self._client, replace(self._plan, token=self.token, streamed=False))
        return self._response


class ResponseStream(BaseStream, Iterator[ResponseStreamEvent], AbstractContextManager["ResponseStream"]):
    """Iterator over the SDK's events that survives broken connections. Made by `stream` and `resume`.

    `close()`, or the end of a `with` block, closes the connection early and leaves the run alone. After a call that was
    interrupted, for example by Ctrl-C, the next call continues after the last event delivered.
    """

    def __next__(self) -> ResponseStreamEvent:
        if (event := run_sync(self._read())) is None:
            raise StopIteration
        return event

    def get_final_response(self) -> Response:
        """Read the remaining events and return the terminal response, with any status (see `check`)."""
        return run_sync(self._read_all())

    def close(self) -> None:
        """Close the connection. The run continues, and can be resumed with `token`."""
        run_sync(self._performer.close())

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncResponseStream(
    BaseStream, AsyncIterator[ResponseStreamEvent], AbstractAsyncContextManager["AsyncResponseStream"]
):
    """Iterator over the SDK's events that survives broken connections. Made by `stream` and `resume`.

    `close()`, or the end of an `async with` block, closes the connection early and leaves the run alone. After a call
    that was cancelled, for example by a timeout, the next call continues after the last event delivered.
    """

    async def __anext__(self) -> ResponseStreamEvent:
        if (event := await self._read()) is None:
            raise StopAsyncIteration
        return event

    async def get_final_response(self) -> Response:
        """Read the remaining events and return the terminal response, with any status (see `check`)."""
        return await self._read_all()

    async def close(self) -> None:
        """Close the connection. The run continues, and can be resumed with `token`."""
        await self._performer.close()

    aclose = close

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def classify(error: BaseException, reading: bool = False) -> Fault:
    """Sort an error by its remedy. While `reading` a stream, a cut may also show as half a character or number."""
    if not isinstance(error, Exception):  # the action was interrupted, and its outcome is unknown
        lost = ConnectionLost("The call was interrupted.")
        lost.__cause__ = error
        return Fault(FaultKind.LOST, lost)
    if isinstance(error, openai.APIStatusError):
        status = error.status_code
        kind = KINDS.get(status, FaultKind.BUSY if status >= 500 else FaultKind.REFUSED)
        return Fault(kind, error, status, error.response.headers)
    if isinstance(error, openai.APIConnectionError | OSError | EOFError) or any(
        kind.__name__ in CONNECTION_ERRORS and kind.__module__.partition(".")[0] in HTTP_LIBRARIES
        for kind in type(error).__mro__
    ):
        return Fault(FaultKind.LOST, error)
    if reading and (isinstance(error, ValueError) or type(error) is openai.APIError):
        return Fault(FaultKind.GARBLED, error)
    return Fault(FaultKind.FINAL, error)

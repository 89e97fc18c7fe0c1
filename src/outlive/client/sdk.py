"""Programs of the core, performed with an OpenAI or AsyncOpenAI client: actions become calls, errors become faults."""

from __future__ import annotations

import sys
import time
from collections.abc import Coroutine
from typing import Any, Literal, Self, TypeVar, cast

import anyio
import openai
from openai import AsyncOpenAI, BaseModel, OpenAI
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseStreamEvent,
)

from outlive.client.core import (
    ANSWER_SECONDS,
    TERMINAL_EVENTS,
    Action,
    Deliver,
    DeliverEnding,
    Done,
    EventArrived,
    Fault,
    FaultKind,
    Follow,
    Outcome,
    Probe,
    Read,
    Received,
    Retrieve,
    Sleep,
    StreamFollower,
    Submit,
    poll,
)
from outlive.client.errors import ConnectionLost, Token, check
from outlive.client.plans import Plan

T = TypeVar("T")
# An id that no response has, for requests of which only the answer's headers matter.
UNKNOWN_ID = "resp_nobody"
BUSY = (408, 409, 425, 429)
FINAL = (401, 403)
# SDKs have changed their HTTP library, and some let its errors through: matched by name, so that none must be imported.
HTTP_LIBRARIES = {"httpx", "httpx2", "httpcore", "httpcore2", "h11", "h2", "anyio", "aiohttp"}
CONNECTION_ERRORS = {
    "TransportError", "NetworkError", "TimeoutException", "ProtocolError", "StreamError", "ConnectionNotAvailable",
    "BrokenResourceError", "ClosedResourceError", "EndOfStream", "ClientConnectionError", "ClientPayloadError",
}  # fmt: skip


class ResponseCancelledEvent(BaseModel):
    """Terminal event of a cancelled response, for which the SDK has no type."""

    response: Response
    sequence_number: int
    type: Literal["response.cancelled"]


EVENTS: dict[str, type[BaseModel]] = {
    "completed": ResponseCompletedEvent,
    "failed": ResponseFailedEvent,
    "incomplete": ResponseIncompleteEvent,
    "cancelled": ResponseCancelledEvent,
}


def make_event(response: Response, sequence_number: int) -> ResponseStreamEvent:
    """Build the terminal event that the stream of this response would have ended with."""
    status = str(response.status)
    event = EVENTS[status].model_construct(
        type=f"response.{status}", sequence_number=sequence_number, response=response
    )
    return cast("ResponseStreamEvent", event)


def response_of(event: Any) -> Response | None:
    """Return the response that an event carries. (The SDK leaves it a dict in events whose type it does not know.)"""
    carried = getattr(event, "response", None)
    if isinstance(carried, dict):
        return Response.construct(**carried)
    return carried if isinstance(carried, Response) else None


class Performer:
    """Performs one action at a time and holds the open stream, if there is one.

    Only calls of an AsyncOpenAI are awaited. With an OpenAI no coroutine of this module ever suspends: see `run_sync`.
    """

    def __init__(self, client: OpenAI | AsyncOpenAI, plan: Plan) -> None:
        self._plan = plan
        self._client: Any = client
        self._is_async = isinstance(client, AsyncOpenAI)
        # The SDK retries submits; the core decides about all other retries.
        self._without_retries: Any = client.with_options(max_retries=0)
        self._stream: Any = None

    async def perform(self, action: Action) -> Outcome:
        try:
            match action:
                case Read():
                    event = await anext(self._stream, None) if self._is_async else next(self._stream, None)
                    if event is not None and event.type in TERMINAL_EVENTS:
                        await self.close()  # before it is delivered: if interrupted here, it is read again
                    return EventArrived(event)
                case Sleep(seconds):
                    sleep = self._plan.retry_policy.sleep or (anyio.sleep if self._is_async else time.sleep)
                    await self._wait(sleep(seconds))
                    return Done()
                case Submit() | Follow():
                    await self.close()
            return self._answered(action, await self._wait(self._request(action)))
        except Exception as error:  # any HTTP library's errors come through; the core raises those it cannot handle
            return self._failed(action, error)

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await self._wait(stream.close())

    async def _wait(self, call: Any) -> Any:
        return await call if self._is_async else call

    def _request(self, action: Action) -> Any:
        """Call the SDK: an OpenAI returns the answer, an AsyncOpenAI an awaitable of it."""
        raw, plan = self._without_retries.responses.with_raw_response, self._plan
        match action:
            case Submit():
                assert plan.create is not None
                responses = self._client.responses
                return (responses if plan.streamed else responses.with_raw_response).create(**plan.create)
            case Follow(response_id, after):
                return self._without_retries.responses.retrieve(response_id, **plan.follow_arguments(after))
            case Retrieve(response_id, wait, timeout):
                return raw.retrieve(response_id, **plan.retrieve_arguments(wait, timeout))
            case Probe():
                return raw.retrieve(UNKNOWN_ID, **plan.retrieve_arguments(None, ANSWER_SECONDS))
            case _:
                raise AssertionError(action)

    def _answered(self, action: Action, answer: Any) -> Outcome:
        if isinstance(action, Follow) or (isinstance(action, Submit) and self._plan.streamed):
            self._stream = answer
            return Received(None, answer.response.headers)
        return Received(None if isinstance(action, Probe) else answer.parse(), answer.headers)

    def _failed(self, action: Action, error: Exception) -> Outcome:
        # A status of 500 or more may be a proxy's and does not identify the server behind it.
        if isinstance(action, Probe) and isinstance(error, openai.APIStatusError) and error.status_code < 500:
            return Received(None, error.response.headers)
        return classify(error, reading=isinstance(action, Read))


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, without an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError("a call of an OpenAI client suspended")


async def run_poll(client: OpenAI | AsyncOpenAI, plan: Plan) -> Response:
    """Perform the polling program to its end."""
    performer, program = Performer(client, plan), poll(plan)
    outcome: Outcome = None
    while True:
        try:
            action = program.send(outcome)
        except StopIteration as end:
            return check(end.value, plan.raise_on)
        outcome = await performer.perform(action)


class BaseStream:
    """All that ResponseStream and AsyncResponseStream do; they only give it the names of their protocols."""

    def __init__(self, client: OpenAI | AsyncOpenAI, plan: Plan) -> None:
        self.stats = plan.stats
        self._plan = plan
        self._client = client
        self._performer = Performer(client, plan)
        self._follower = StreamFollower(plan)
        self._program = self._follower.run()
        self._outcome: Outcome = None
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
        while (action := self._next_action()) is not None:
            if (event := self._event_of(action)) is not None:
                return event
            outcome: Outcome = None
            try:
                outcome = await self._performer.perform(action)
            finally:
                self._outcome = outcome or interrupted()
        await self._performer.close()  # opened during close(), if at all
        return None

    async def _read_all(self) -> Response:
        while await self._read() is not None:
            pass
        if self._response is None:
            if self.token is None:
                raise ValueError("The stream was closed before its first event.")
            # Its terminal event was not delivered here.
            self._response = await run_poll(self._client, self._plan.polled(self.token))
        return self._response

    async def _close(self) -> None:
        self._program.close()
        await self._performer.close()

    def _next_action(self) -> Action | None:
        """Resume the program with the last outcome. Return None at its end."""
        try:
            return self._program.send(self._outcome)
        except StopIteration:
            return None

    def _event_of(self, action: Action) -> ResponseStreamEvent | None:
        """Return the event that an action delivers; None if the action is to be performed."""
        if isinstance(action, Deliver):
            event: ResponseStreamEvent = action.event
        elif isinstance(action, DeliverEnding):
            event = make_event(action.response, action.sequence_number)
        else:
            return None
        if self._follower.has_ended():
            self._response = response_of(event)
        self._outcome = Done()
        return event


class ResponseStream(BaseStream):
    """Iterator over the SDK's events that survives broken connections. Made by `stream` and `resume`.

    `close()`, or the end of a `with` block, closes the connection early and leaves the run alone. After a call that was
    interrupted, for example by Ctrl-C, the next call continues after the last event delivered.
    """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ResponseStreamEvent:
        if (event := run_sync(self._read())) is None:
            raise StopIteration
        return event

    def get_final_response(self) -> Response:
        """Read the remaining events and return the terminal response, with any status (see `check`)."""
        return run_sync(self._read_all())

    def close(self) -> None:
        """Close the connection. The run continues, and can be resumed with `token`."""
        run_sync(self._close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncResponseStream(BaseStream):
    """Iterator over the SDK's events that survives broken connections. Made by `stream` and `resume`.

    `close()`, or the end of an `async with` block, closes the connection early and leaves the run alone. After a call
    that was cancelled, for example by a timeout, the next call continues after the last event delivered.
    """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ResponseStreamEvent:
        if (event := await self._read()) is None:
            raise StopAsyncIteration
        return event

    async def get_final_response(self) -> Response:
        """Read the remaining events and return the terminal response, with any status (see `check`)."""
        return await self._read_all()

    async def close(self) -> None:
        """Close the connection. The run continues, and can be resumed with `token`."""
        await self._close()

    aclose = close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def classify(error: Exception, reading: bool = False) -> Fault:
    """Sort an error by its remedy. While `reading` a stream, a cut may also show as half a character or number."""
    if isinstance(error, openai.APIStatusError):
        return Fault(_kind_of_status(error.status_code), error, error.status_code, error.response.headers)
    if isinstance(error, openai.APIConnectionError) or _is_connection_error(error):
        return Fault(FaultKind.LOST, error)
    if reading and (isinstance(error, ValueError) or type(error) is openai.APIError):
        return Fault(FaultKind.GARBLED, error)
    return Fault(FaultKind.FINAL, error)


def interrupted() -> Fault:
    """Make the fault of an action that was cut short by the exception being handled: its outcome is unknown."""
    error = ConnectionLost("The call was interrupted.")
    error.__cause__ = sys.exception()
    return Fault(FaultKind.LOST, error)


def _kind_of_status(status: int) -> FaultKind:
    if status >= 500 or status in BUSY:
        return FaultKind.BUSY
    if status in FINAL:
        return FaultKind.FINAL
    return FaultKind.MISSING if status == 404 else FaultKind.REFUSED


def _is_connection_error(error: Exception) -> bool:
    return isinstance(error, OSError | EOFError) or any(
        kind.__name__ in CONNECTION_ERRORS and kind.__module__.partition(".")[0] in HTTP_LIBRARIES
        for kind in type(error).__mro__
    )

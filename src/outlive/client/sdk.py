"""Programs of the core, performed with an OpenAI or AsyncOpenAI client: actions become calls, errors become faults."""

from __future__ import annotations

import sys
import time
from typing import Any, Literal, Self, cast

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

from outlive.client.actions import (
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
    Probed,
    Read,
    Received,
    Retrieve,
    Sleep,
    StreamEnded,
    StreamOpened,
    Submit,
)
from outlive.client.core import ANSWER_SECONDS, StreamFollower, poll
from outlive.client.errors import check
from outlive.client.plans import Plan
from outlive.client.token import ConnectionLost, Token

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


class SdkCalls:
    """Base of the two performers, which perform one action at a time and hold the open stream, if there is one."""

    def __init__(self, client: OpenAI | AsyncOpenAI, plan: Plan) -> None:
        self._plan = plan
        self._client: Any = client
        # The SDK retries submits; the core decides about all other retries.
        self._without_retries: Any = client.with_options(max_retries=0)
        self._stream: Any = None

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
            return StreamOpened(answer.response.headers)
        return Probed(answer.headers) if isinstance(action, Probe) else Received(answer.parse(), answer.headers)

    def _failed(self, action: Action, error: Exception) -> Outcome:
        # A status of 500 or more may be a proxy's and does not identify the server behind it.
        if isinstance(action, Probe) and isinstance(error, openai.APIStatusError) and error.status_code < 500:
            return Probed(error.response.headers)
        return classify(error, reading=isinstance(action, Read))


class BaseStream:
    """State that ResponseStream and AsyncResponseStream share."""

    def __init__(self, plan: Plan) -> None:
        self.stats = plan.stats
        self._plan = plan
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

    def _plan_poll(self) -> Plan:
        """Return the plan to poll a response whose terminal event was not delivered here."""
        if self.token is None:
            raise ValueError("The stream was closed before its first event.")
        return self._plan.polled(self.token)


class Performer(SdkCalls):
    def perform(self, action: Action) -> Outcome:
        try:
            match action:
                case Read():
                    event = next(self._stream, None)
                    if is_terminal(event):  # closed before it is delivered: if interrupted here, it is read again
                        self.close()
                    return read_outcome(event)
                case Sleep(seconds):
                    (self._plan.retry_policy.sleep or time.sleep)(seconds)
                    return Done()
                case Submit() | Follow():
                    self.close()
            return self._answered(action, self._request(action))
        except Exception as error:  # any HTTP library's errors come through; the core raises those it cannot handle
            return self._failed(action, error)

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


def run_poll(client: OpenAI, plan: Plan) -> Response:
    """Perform the polling program to its end."""
    performer, program = Performer(client, plan), poll(plan)
    outcome: Outcome = None
    while True:
        try:
            action = program.send(outcome)
        except StopIteration as end:
            return check(end.value, plan.raise_on)
        outcome = performer.perform(action)


class ResponseStream(BaseStream):
    """Iterator over the SDK's events that survives broken connections. Made by `stream` and `resume`.

    `close()`, or the end of a `with` block, closes the connection early and leaves the run alone. After a call that was
    interrupted, for example by Ctrl-C, the next call continues after the last event delivered.
    """

    def __init__(self, client: OpenAI, plan: Plan) -> None:
        super().__init__(plan)
        self._client = client
        self._performer = Performer(client, plan)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ResponseStreamEvent:
        while (action := self._next_action()) is not None:
            if (event := self._event_of(action)) is not None:
                return event
            outcome: Outcome = None
            try:
                outcome = self._performer.perform(action)
            finally:
                self._outcome = outcome or interrupted()
        self._performer.close()  # opened during close(), if at all
        raise StopIteration

    def get_final_response(self) -> Response:
        """Read the remaining events and return the terminal response, with any status (see `check`)."""
        for _ in self:
            pass
        if self._response is None:
            self._response = run_poll(self._client, self._plan_poll())
        return self._response

    def close(self) -> None:
        """Close the connection. The run continues, and can be resumed with `token`."""
        self._program.close()
        self._performer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


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


async def run_async_poll(client: AsyncOpenAI, plan: Plan) -> Response:
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
            self._response = await run_async_poll(self._client, self._plan_poll())
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


def read_outcome(event: Any) -> Outcome:
    return StreamEnded() if event is None else EventArrived(event)


def is_terminal(event: Any) -> bool:
    return event is not None and event.type in TERMINAL_EVENTS


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

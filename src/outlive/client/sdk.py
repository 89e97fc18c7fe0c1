"""Between the core and the SDK, for sync.py and aio.py alike: actions become calls, answers outcomes, errors faults."""

from __future__ import annotations

import sys
from typing import Any, Literal, cast

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
    StreamEnded,
    StreamOpened,
    Submit,
)
from outlive.client.core import ANSWER_SECONDS, StreamFollower
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

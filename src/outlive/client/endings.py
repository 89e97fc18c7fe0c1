"""Terminal events and statuses, as objects of the SDK."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, cast

from openai import BaseModel
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFailedEvent,
    ResponseIncompleteEvent,
    ResponseStreamEvent,
)

from outlive.client.actions import UNSUCCESSFUL
from outlive.client.errors import ResponseCancelled, ResponseFailed, ResponseIncomplete, UnsuccessfulResponse

ERRORS: dict[str, type[UnsuccessfulResponse]] = {
    "failed": ResponseFailed,
    "cancelled": ResponseCancelled,
    "incomplete": ResponseIncomplete,
}


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


def check(response: Response, raise_on: Collection[str] = UNSUCCESSFUL) -> Response:
    """Return the response, or raise the error for its status if that is among `raise_on`."""
    if response.status is not None and response.status in raise_on:
        raise ERRORS[response.status](response)
    return response

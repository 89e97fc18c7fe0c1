"""Errors of the client library. Errors that the server answers with stay those of the SDK."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from outlive.client.actions import UNSUCCESSFUL

if TYPE_CHECKING:
    from openai.types.responses import Response


class ClientError(Exception):
    """Base of all errors of this library."""


class InvalidToken(ClientError, ValueError):
    """The string is not a continuation token, or is damaged."""


class PollTimeout(ClientError, TimeoutError):
    """The response had not ended after the longest wait. It keeps running: poll it again, or cancel it."""

    def __init__(self, response_id: str, waited_seconds: float) -> None:
        super().__init__(
            f"Response {response_id} had not ended after {waited_seconds:.1f} s. It keeps running: poll it again, "
            f"or cancel it."
        )
        self.response_id = response_id
        self.waited_seconds = waited_seconds


class UnsuccessfulResponse(ClientError):
    """The response ended with another status than completed; `response` is the response as far as it got."""

    def __init__(self, response: Response) -> None:
        reason = ""
        if response.error is not None:
            reason = f": {response.error.message}"
        elif response.incomplete_details is not None:
            reason = f": {response.incomplete_details.reason}"
        super().__init__(f"Response {response.id} ended as {response.status}{reason}")
        self.response = response
        self.response_id = response.id


class ResponseFailed(UnsuccessfulResponse):
    """The response failed; `response.error` gives the reason."""


class ResponseCancelled(UnsuccessfulResponse):
    """The response was cancelled; `response.output` is its output up to then."""


class ResponseIncomplete(UnsuccessfulResponse):
    """The response ended early; `response.incomplete_details.reason` gives the reason."""


ERRORS: dict[str, type[UnsuccessfulResponse]] = {
    "failed": ResponseFailed,
    "cancelled": ResponseCancelled,
    "incomplete": ResponseIncomplete,
}


def check(response: Response, raise_on: Collection[str] = UNSUCCESSFUL) -> Response:
    """Return the response, or raise the error for its status if that is among `raise_on`."""
    if response.status is not None and response.status in raise_on:
        raise ERRORS[response.status](response)
    return response

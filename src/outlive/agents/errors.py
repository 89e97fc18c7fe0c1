"""How a turn can end badly: each is a ModelBehaviorError to the agents SDK and the namesake error of outlive.client."""

from __future__ import annotations

from agents import ModelBehaviorError
from agents.exceptions import _mark_error_to_drain_stream_events
from openai.types.responses import Response

from outlive import client

SUBMITTED = "_outlive_submitted"


class ResponseFailed(client.ResponseFailed, ModelBehaviorError):
    """The response failed; `response.error` says why."""


class ResponseCancelled(client.ResponseCancelled, ModelBehaviorError):
    """Somebody cancelled the response; what it had said until then is in `response.output`."""


class ResponseIncomplete(client.ResponseIncomplete, ModelBehaviorError):
    """The response ended early; `response.incomplete_details.reason` says why."""


BAD_ENDINGS: dict[str, type[ResponseFailed | ResponseCancelled | ResponseIncomplete]] = {
    "failed": ResponseFailed,
    "cancelled": ResponseCancelled,
    "incomplete": ResponseIncomplete,
}


def check_ending(response: Response) -> Response:
    """The response, if it completed."""
    kind = BAD_ENDINGS.get(response.status or "completed")
    if kind is None:
        return response
    error = kind(response)
    # Streamed events that wait for their reader are still delivered before the error is.
    _mark_error_to_drain_stream_events(error)
    raise error


def mark_submitted(error: BaseException, response_id: str) -> None:
    """The server has this run already: whatever went wrong, it must not be submitted again."""
    setattr(error, SUBMITTED, response_id)


def submitted_id(error: BaseException) -> str | None:
    """The response that was submitted before the error, or before one that it comes from."""
    seen: BaseException | None = error
    while seen is not None:
        if (found := getattr(seen, SUBMITTED, None)) is not None:
            return str(found)
        seen = seen.__cause__
    return None

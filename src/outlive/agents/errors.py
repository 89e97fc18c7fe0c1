"""Errors of model turns: each is an error of outlive.client and a ModelBehaviorError of the agents SDK."""

from __future__ import annotations

from agents import ModelBehaviorError
from agents.exceptions import _mark_error_to_drain_stream_events
from openai.types.responses import Response

from outlive.client import ResponseCancelled, ResponseFailed, ResponseIncomplete

SUBMITTED = "_outlive_submitted"


class TurnFailed(ResponseFailed, ModelBehaviorError):
    """The response failed; `response.error` gives the reason."""


class TurnCancelled(ResponseCancelled, ModelBehaviorError):
    """The response was cancelled; `response.output` is its output up to then."""


class TurnIncomplete(ResponseIncomplete, ModelBehaviorError):
    """The response ended early; `response.incomplete_details.reason` gives the reason."""


ERRORS: dict[str, type[TurnFailed | TurnCancelled | TurnIncomplete]] = {
    "failed": TurnFailed,
    "cancelled": TurnCancelled,
    "incomplete": TurnIncomplete,
}


def check_completed(response: Response) -> None:
    """Raise the error for the response's status unless it completed."""
    kind = ERRORS.get(response.status or "completed")
    if kind is not None:
        error = kind(response)
        # Streamed events that the caller has not read yet are still delivered before the error.
        _mark_error_to_drain_stream_events(error)
        raise error


def mark_submitted(error: BaseException, response_id: str) -> None:
    """Mark an error as raised after the submit: the call must not be submitted again."""
    setattr(error, SUBMITTED, response_id)


def submitted_id(error: BaseException) -> str | None:
    """Return the id of the response that was submitted before the error or one of its causes."""
    seen: BaseException | None = error
    while seen is not None:
        if (found := getattr(seen, SUBMITTED, None)) is not None:
            return str(found)
        seen = seen.__cause__
    return None

"""Helpers for the plain `openai` SDK: streams that survive cuts, polling that survives restarts, tokens that travel.

They work against Outlive and against OpenAI itself, with `OpenAI` and `AsyncOpenAI` alike, and import nothing of the
server. Install them with `pip install 'outlive[agents]'`; docs/client.md tells the whole story.
"""

from __future__ import annotations

try:
    import openai as _openai  # noqa: F401
except ImportError as missing:
    raise ImportError("outlive.client needs the openai SDK: pip install 'outlive[agents]'") from missing

from outlive.client.aio import AsyncResponseStream
from outlive.client.calls import create_and_poll, poll, resume, stream
from outlive.client.core import TERMINAL_EVENTS, TERMINAL_STATUSES, UNSUCCESSFUL
from outlive.client.endings import ResponseCancelledEvent, check, response_of
from outlive.client.errors import (
    ClientError,
    ConnectionLost,
    InvalidToken,
    PollTimeout,
    ResponseCancelled,
    ResponseFailed,
    ResponseIncomplete,
    UnsuccessfulResponse,
)
from outlive.client.patience import Patience, Progress
from outlive.client.sync import ResponseStream
from outlive.client.token import Token

__all__ = [
    "TERMINAL_EVENTS",
    "TERMINAL_STATUSES",
    "UNSUCCESSFUL",
    "AsyncResponseStream",
    "ClientError",
    "ConnectionLost",
    "InvalidToken",
    "Patience",
    "PollTimeout",
    "Progress",
    "ResponseCancelled",
    "ResponseCancelledEvent",
    "ResponseFailed",
    "ResponseIncomplete",
    "ResponseStream",
    "Token",
    "UnsuccessfulResponse",
    "check",
    "create_and_poll",
    "poll",
    "response_of",
    "resume",
    "stream",
]

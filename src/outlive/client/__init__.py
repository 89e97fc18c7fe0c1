"""Helpers for the plain `openai` SDK: streams that survive broken connections, polling that survives restarts, and
continuation tokens for other processes.

They work against Outlive and OpenAI, with `OpenAI` and `AsyncOpenAI` alike, and import nothing of the server. Install
them with `pip install 'outlive[agents]'`; docs/client.md describes them.
"""

from __future__ import annotations

try:
    import openai as _openai  # noqa: F401
except ImportError as missing:
    raise ImportError("outlive.client needs the openai SDK: pip install 'outlive[agents]'") from missing

from outlive.client.actions import TERMINAL_EVENTS, TERMINAL_STATUSES, UNSUCCESSFUL
from outlive.client.aio import AsyncResponseStream
from outlive.client.api import create_and_poll, poll, resume, stream
from outlive.client.endings import ResponseCancelledEvent, check, response_of
from outlive.client.errors import (
    ClientError,
    InvalidToken,
    PollTimeout,
    ResponseCancelled,
    ResponseFailed,
    ResponseIncomplete,
    UnsuccessfulResponse,
)
from outlive.client.retry import RetryPolicy, StreamStats
from outlive.client.sync import ResponseStream
from outlive.client.token import ConnectionLost, Token

__all__ = [
    "TERMINAL_EVENTS",
    "TERMINAL_STATUSES",
    "UNSUCCESSFUL",
    "AsyncResponseStream",
    "ClientError",
    "ConnectionLost",
    "InvalidToken",
    "PollTimeout",
    "ResponseCancelled",
    "ResponseCancelledEvent",
    "ResponseFailed",
    "ResponseIncomplete",
    "ResponseStream",
    "RetryPolicy",
    "StreamStats",
    "Token",
    "UnsuccessfulResponse",
    "check",
    "create_and_poll",
    "poll",
    "response_of",
    "resume",
    "stream",
]

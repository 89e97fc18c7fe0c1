"""Helpers for the plain `openai` SDK: streams that survive broken connections, polling that survives restarts, and
continuation tokens for other processes.

They work against Outlive and OpenAI, with `OpenAI` and `AsyncOpenAI` alike, and import nothing of the server. Install
them with `pip install 'outlive[agents]'`; docs/client.md describes them.
"""

from collections.abc import Coroutine
from typing import Any, overload

try:
    from openai import AsyncOpenAI, OpenAI
except ImportError as missing:
    raise ImportError("outlive.client needs the openai SDK: pip install 'outlive[agents]'") from missing

from openai.types.responses import Response
from typing_extensions import Unpack

from outlive.client.core import TERMINAL_EVENTS, TERMINAL_STATUSES, ResponseCancelledEvent
from outlive.client.errors import (
    UNSUCCESSFUL,
    ClientError,
    ConnectionLost,
    InvalidToken,
    PollTimeout,
    ResponseCancelled,
    ResponseFailed,
    ResponseIncomplete,
    Token,
    UnsuccessfulResponse,
    check,
)
from outlive.client.plans import (
    AnyClient,
    CreateAndPollParams,
    Plan,
    PollParams,
    ResumeParams,
    RetryPolicy,
    StreamParams,
    StreamStats,
    plan_create,
    plan_retrieve,
)
from outlive.client.sdk import AsyncResponseStream, ResponseStream, response_of, run_poll, run_sync

__all__ = [
    "TERMINAL_EVENTS", "TERMINAL_STATUSES", "UNSUCCESSFUL", "AsyncResponseStream", "ClientError", "ConnectionLost",
    "InvalidToken", "PollTimeout", "ResponseCancelled", "ResponseCancelledEvent", "ResponseFailed",
    "ResponseIncomplete", "ResponseStream", "RetryPolicy", "StreamStats", "Token", "UnsuccessfulResponse", "check",
    "create_and_poll", "poll", "response_of", "resume", "stream",
]  # fmt: skip

AsyncResponse = Coroutine[Any, Any, Response]
AnyStream = ResponseStream | AsyncResponseStream


@overload
def create_and_poll(client: OpenAI, **params: Unpack[CreateAndPollParams]) -> Response: ...
@overload
def create_and_poll(client: AsyncOpenAI, **params: Unpack[CreateAndPollParams]) -> AsyncResponse: ...
def create_and_poll(client: AnyClient, **params: Unpack[CreateAndPollParams]) -> Response | AsyncResponse:
    """Submit a background response and return it when it has ended, with any status.

    It takes the arguments of `client.responses.create` (`background=True` is implied) and those below. The response is
    submitted once: errors while polling are retried and never cause another submit. The POST carries an
    `Idempotency-Key`, so that a repeated POST to an Outlive attaches to the run that exists. To any other server only
    the SDK repeats the POST.

    * `idempotency_key`: the key of the POST; a new one by default.
    * `poll_interval_seconds`: the exact time between two GETs. By default an Outlive is asked to hold each GET until
      the end; any other server is asked again after its `openai-poll-after-ms`, or after 1.0 s if it sends none.
    * `max_wait_seconds`: raise PollTimeout, which has the response's id, if the response has not ended this long after
      the submit. The run is left alone.
    * `raise_on`: statuses that raise instead of being returned, among "failed", "cancelled" and "incomplete" (all
      three: `UNSUCCESSFUL`): ResponseFailed, ResponseCancelled or ResponseIncomplete, with the response attached.
    * `retry_policy`: a RetryPolicy with limits and delays of retries.
    * `stats`: a StreamStats to update during the call.

    Raises ConnectionLost if the server does not answer for longer than the retry policy allows, and the SDK's own
    errors for requests that the server refuses.
    """
    return _poll(client, plan_create(client, params, streamed=False))


@overload
def poll(client: OpenAI, response: Token | str, **params: Unpack[PollParams]) -> Response: ...
@overload
def poll(client: AsyncOpenAI, response: Token | str, **params: Unpack[PollParams]) -> AsyncResponse: ...
def poll(client: AnyClient, response: Token | str, **params: Unpack[PollParams]) -> Response | AsyncResponse:
    """Wait for a response that was submitted before, by any process, and return it when it has ended.

    `response` is its id, a Token, or a token's string. At least one GET is sent, even with `max_wait_seconds=0`. It
    takes the arguments of `client.responses.retrieve` and those of `create_and_poll`.
    """
    return _poll(client, plan_retrieve(client, response, params, streamed=False))


@overload
def stream(client: OpenAI, **params: Unpack[StreamParams]) -> ResponseStream: ...
@overload
def stream(client: AsyncOpenAI, **params: Unpack[StreamParams]) -> AsyncResponseStream: ...
def stream(client: AnyClient, **params: Unpack[StreamParams]) -> AnyStream:
    """Create a response and iterate over the SDK's events, each exactly once, over any number of connections.

    It takes the arguments of `client.responses.create`, and `idempotency_key`, `retry_policy` and `stats` as
    `create_and_poll` does. `stream=True` is implied. So is `background=True`, unless you give `background` or
    `store=False`: OpenAI resumes only background streams. (Outlive resumes every stored one.) Nothing is sent before
    the first event is asked for. The iterator ends after the terminal event (`TERMINAL_EVENTS`).

    After any break (a reset, an end inside a frame or without a terminal event, a restart of the server) the stream is
    resumed after the last event delivered. If a server refuses to resume (OpenAI: too old, or not in the background),
    the response is polled instead, and the terminal event, which has the whole response, comes next: the events between
    are missing and `stats.fell_back` is True. A stream with `store=False` cannot be resumed: ConnectionLost.

    A POST that broke before its first event is repeated under the same `Idempotency-Key`, only to an Outlive.
    """
    return _stream(client, plan_create(client, params, streamed=True))


@overload
def resume(client: OpenAI, token: Token | str, **params: Unpack[ResumeParams]) -> ResponseStream: ...
@overload
def resume(client: AsyncOpenAI, token: Token | str, **params: Unpack[ResumeParams]) -> AsyncResponseStream: ...
def resume(client: AnyClient, token: Token | str, **params: Unpack[ResumeParams]) -> AnyStream:
    """Continue a stream that this process or another one began, with the event after the token's cursor.

    `token` is a Token, its string, or the bare id of a response, which starts with the first event. A token whose
    terminal event was delivered gives an empty stream; its `get_final_response()` still returns the response. It takes
    the arguments of `client.responses.retrieve`, `retry_policy` and `stats`, and returns the same iterator as `stream`.
    """
    return _stream(client, plan_retrieve(client, token, params, streamed=True))


def _poll(client: AnyClient, plan: Plan) -> Response | AsyncResponse:
    polling = run_poll(client, plan)
    return run_sync(polling) if isinstance(client, OpenAI) else polling


def _stream(client: AnyClient, plan: Plan) -> AnyStream:
    return ResponseStream(client, plan) if isinstance(client, OpenAI) else AsyncResponseStream(client, plan)

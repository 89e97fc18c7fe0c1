"""The four functions: create_and_poll, poll, stream and resume, for OpenAI and AsyncOpenAI alike."""

from __future__ import annotations

from collections.abc import Collection, Coroutine
from typing import Any, overload

from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response
from typing_extensions import Unpack

from outlive.client import aio, sync
from outlive.client.aio import AsyncResponseStream
from outlive.client.params import CreateParams, RetrieveParams
from outlive.client.patience import Patience, Progress
from outlive.client.plans import plan_create, plan_retrieve
from outlive.client.sync import ResponseStream
from outlive.client.token import Token

PATIENT = Patience()


@overload
def create_and_poll(
    client: OpenAI,
    *,
    poll_interval_seconds: float | None = None,
    max_wait_seconds: float | None = None,
    raise_on: Collection[str] = (),
    idempotency_key: str | None = None,
    patience: Patience = PATIENT,
    progress: Progress | None = None,
    **create: Unpack[CreateParams],
) -> Response: ...
@overload
def create_and_poll(
    client: AsyncOpenAI,
    *,
    poll_interval_seconds: float | None = None,
    max_wait_seconds: float | None = None,
    raise_on: Collection[str] = (),
    idempotency_key: str | None = None,
    patience: Patience = PATIENT,
    progress: Progress | None = None,
    **create: Unpack[CreateParams],
) -> Coroutine[Any, Any, Response]: ...
def create_and_poll(
    client: OpenAI | AsyncOpenAI,
    *,
    poll_interval_seconds: float | None = None,
    max_wait_seconds: float | None = None,
    raise_on: Collection[str] = (),
    idempotency_key: str | None = None,
    patience: Patience = PATIENT,
    progress: Progress | None = None,
    **create: Unpack[CreateParams],
) -> Response | Coroutine[Any, Any, Response]:
    """Submit a background response and return it when it has ended, however it ended.

    `create` is what `client.responses.create` takes; `background=True` is implied. The response is submitted once:
    errors while polling are retried by themselves and never submit again. The POST carries an `Idempotency-Key` (yours
    if you give one), so that where it has to be repeated, on Outlive, the repeat attaches to the run that is there; a
    POST to any other server is repeated by the SDK alone.

    * `poll_interval_seconds`: ask exactly so often. Otherwise an Outlive is asked to hold each GET until the end, any
      other server is asked again after its `openai-poll-after-ms`, and after 1.0 s where it sends none.
    * `max_wait_seconds`: raise PollTimeout, which has the response's id, when it has not ended after so long from the
      submit on. The run is left alone.
    * `raise_on`: statuses that raise instead of being returned, of "failed", "cancelled" and "incomplete" (all three:
      `UNSUCCESSFUL`): ResponseFailed, ResponseCancelled or ResponseIncomplete, with the response attached.
    * `patience` says how outages are met; `progress` is filled in on the way.

    Raises ConnectionLost when the server stays away for longer than `patience` allows, and the SDK's own errors for
    whatever the server refuses.
    """
    plan = plan_create(
        client,
        create,
        streamed=False,
        interval=poll_interval_seconds,
        max_wait=max_wait_seconds,
        raise_on=raise_on,
        key=idempotency_key,
        patience=patience,
        progress=progress,
    )
    return sync.conclude(client, plan) if isinstance(client, OpenAI) else aio.conclude(client, plan)


@overload
def poll(
    client: OpenAI,
    response: Token | str,
    *,
    poll_interval_seconds: float | None = None,
    max_wait_seconds: float | None = None,
    raise_on: Collection[str] = (),
    patience: Patience = PATIENT,
    progress: Progress | None = None,
    **retrieve: Unpack[RetrieveParams],
) -> Response: ...
@overload
def poll(
    client: AsyncOpenAI,
    response: Token | str,
    *,
    poll_interval_seconds: float | None = None,
    max_wait_seconds: float | None = None,
    raise_on: Collection[str] = (),
    patience: Patience = PATIENT,
    progress: Progress | None = None,
    **retrieve: Unpack[RetrieveParams],
) -> Coroutine[Any, Any, Response]: ...
def poll(
    client: OpenAI | AsyncOpenAI,
    response: Token | str,
    *,
    poll_interval_seconds: float | None = None,
    max_wait_seconds: float | None = None,
    raise_on: Collection[str] = (),
    patience: Patience = PATIENT,
    progress: Progress | None = None,
    **retrieve: Unpack[RetrieveParams],
) -> Response | Coroutine[Any, Any, Response]:
    """Wait for a response that was submitted before, here or elsewhere, and return it when it has ended.

    `response` is its id, a Token, or a token's string. It is asked for once at least, even with `max_wait_seconds=0`.
    Everything else is as in `create_and_poll`.
    """
    plan = plan_retrieve(
        client,
        Token.of(response),
        retrieve,
        interval=poll_interval_seconds,
        max_wait=max_wait_seconds,
        raise_on=raise_on,
        patience=patience,
        progress=progress,
    )
    return sync.conclude(client, plan) if isinstance(client, OpenAI) else aio.conclude(client, plan)


@overload
def stream(
    client: OpenAI,
    *,
    idempotency_key: str | None = None,
    patience: Patience = PATIENT,
    progress: Progress | None = None,
    **create: Unpack[CreateParams],
) -> ResponseStream: ...
@overload
def stream(
    client: AsyncOpenAI,
    *,
    idempotency_key: str | None = None,
    patience: Patience = PATIENT,
    progress: Progress | None = None,
    **create: Unpack[CreateParams],
) -> AsyncResponseStream: ...
def stream(
    client: OpenAI | AsyncOpenAI,
    *,
    idempotency_key: str | None = None,
    patience: Patience = PATIENT,
    progress: Progress | None = None,
    **create: Unpack[CreateParams],
) -> ResponseStream | AsyncResponseStream:
    """Create a response and iterate over the SDK's own events, each exactly once, however often the connection breaks.

    `create` is what `client.responses.create` takes; `stream=True` is implied. So is `background=True`, unless you give
    `background` yourself or `store=False`: OpenAI resumes no other streams. (Outlive resumes every stored one.) Nothing
    is sent before the first event is asked for. The iterator ends after the terminal event (`TERMINAL_EVENTS`).

    Whatever breaks the stream, a reset, an end in the middle of a frame or without a terminal event, a restart, it is
    taken up again after the last event that was delivered. Where a server will not resume it (OpenAI: too old, or not
    in the background) it is polled instead, and the terminal event, which has the whole response, comes next: the
    events between are then missing and `progress.fell_back` is True. A stream with `store=False` cannot be resumed by
    anybody: ConnectionLost.

    A POST that broke before its first event is repeated under the same `Idempotency-Key`, on Outlive only.
    """
    plan = plan_create(
        client, create, streamed=True, key=idempotency_key, patience=patience, progress=progress, raise_on=()
    )
    return ResponseStream(client, plan) if isinstance(client, OpenAI) else AsyncResponseStream(client, plan)


@overload
def resume(
    client: OpenAI,
    token: Token | str,
    *,
    patience: Patience = PATIENT,
    progress: Progress | None = None,
    **retrieve: Unpack[RetrieveParams],
) -> ResponseStream: ...
@overload
def resume(
    client: AsyncOpenAI,
    token: Token | str,
    *,
    patience: Patience = PATIENT,
    progress: Progress | None = None,
    **retrieve: Unpack[RetrieveParams],
) -> AsyncResponseStream: ...
def resume(
    client: OpenAI | AsyncOpenAI,
    token: Token | str,
    *,
    patience: Patience = PATIENT,
    progress: Progress | None = None,
    **retrieve: Unpack[RetrieveParams],
) -> ResponseStream | AsyncResponseStream:
    """Go on with a stream that this process or another one left, from the event after the token's cursor.

    `token` is a Token, its string, or the bare id of a response: then it begins with the first event. A token whose
    terminal event was delivered gives an empty stream; its `get_final_response()` still has the response. Otherwise
    this is the iterator that `stream` returns.
    """
    plan = plan_retrieve(client, Token.of(token), retrieve, patience=patience, progress=progress, raise_on=())
    return ResponseStream(client, plan) if isinstance(client, OpenAI) else AsyncResponseStream(client, plan)

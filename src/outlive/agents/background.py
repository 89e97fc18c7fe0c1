"""One model call in the background: submitted once, polled or streamed, abandoned when its caller is cancelled."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agents.models.openai_client_utils import is_official_openai_client
from agents.models.openai_responses import _mark_transport_request_without_usage
from agents.tracing import custom_span
from openai import AsyncOpenAI, ConflictError, OpenAI
from openai.types.responses import Response, ResponseStreamEvent

from outlive import client as durable
from outlive.agents.cancelling import AbandonedCall, ProgressFuture
from outlive.agents.errors import check_completed, mark_submitted
from outlive.agents.scope import RunTurn
from outlive.agents.settings import Durability
from outlive.client import TERMINAL_EVENTS, AsyncResponseStream, PollTimeout, RetryPolicy, response_of

KEY_HEADER = "Idempotency-Key"
RESPONSE_ID = re.compile(r"\bresp_\w+")


@dataclass(kw_only=True)
class BackgroundCall:
    client: AsyncOpenAI
    create: dict[str, Any]
    """Arguments of `responses.create`, without `stream`."""
    key: str
    settings: Durability
    retry_policy: RetryPolicy
    turn: RunTurn | None = None
    """The turn of a durable run; None outside of one."""
    progress: ProgressFuture = field(default_factory=ProgressFuture)
    abandoned: bool = False

    @property
    def options(self) -> dict[str, Any]:
        return {"retry_policy": self.retry_policy, "stats": self.progress}

    async def find(self) -> str | None:
        """Return the id of the response that this turn was submitted as before, by any process."""
        found = await self.turn.find() if self.turn is not None else None
        if found is not None:
            self.progress.response_id = found
        return found

    async def record(self) -> None:
        if self.turn is not None and self.progress.response_id is not None:
            await self.turn.record(self.progress.response_id)

    async def adopt(self, error: ConflictError) -> str:
        """Return the id of the response that a process submitted this turn as and died before recording.

        The key is the same but the contents differ, for example instructions with the time of day: the first submit
        counts.
        """
        named = RESPONSE_ID.search(error.message) if error.code == "idempotency_key_reused" else None
        if self.turn is None or named is None:
            raise error
        self.progress.response_id = named.group()
        await self.record()
        return named.group()

    def finish(self, response: Response | None) -> None:
        """Count the completed turn, or raise for any other terminal status."""
        if response is not None:
            check_completed(response)
            _mark_transport_request_without_usage(response)
            if self.turn is not None:
                self.turn.complete()

    def abandon(self, work: asyncio.Future[Any], stream: bool) -> None:
        """Apply `on_cancel` after the caller was cancelled."""
        self.abandoned = True
        cancel = (self.settings.on_cancel or ("cancel" if self.turn is None else "detach")) == "cancel"
        headers = {**(self.create.get("extra_headers") or {}), KEY_HEADER: self.key}

        def submit_again(client: OpenAI) -> str:
            submit: Any = client.responses.create
            create = {**self.create, "background": True, "extra_headers": headers}
            if not stream:
                return str(submit(**create).id)
            with submit(**create, stream=True) as events:
                return str(next(iter(events)).response.id)

        knows_keys = not is_official_openai_client(self.client)
        AbandonedCall(self.client, self.progress, work, cancel, submit_again if knows_keys else None).release()

    @contextmanager
    def marking_errors(self) -> Iterator[None]:
        """Mark errors raised after the submit, so that no retry policy submits the call again."""
        try:
            yield
        except Exception as error:  # any error: a retry policy may approve of any
            if self.progress.response_id is not None:
                mark_submitted(error, self.progress.response_id)
            raise

    def begin_span(self) -> Callable[[], None]:
        """Start a span below the SDK's response span, which has no fields for polls and resumes. Return its end."""
        data: dict[str, Any] = {"background": True}
        span = custom_span("background response", data)
        span.start()

        def end() -> None:
            stats = self.progress
            data.update(response_id=stats.response_id, polls=stats.polls, resumes=stats.resumes)
            span.span_data.data.update(data)
            span.finish()

        return end


async def fetch(call: BackgroundCall) -> Response:
    """Return the completed response; raise for any other terminal status."""
    end_span = call.begin_span()
    work = asyncio.ensure_future(_poll(call))
    try:
        with call.marking_errors():
            response = await asyncio.shield(work)
    except asyncio.CancelledError:
        call.abandon(work, stream=False)
        raise
    finally:
        end_span()
    call.finish(response)
    return response


async def _poll(call: BackgroundCall) -> Response:
    waiting: dict[str, Any] = call.options | {
        "poll_interval_seconds": call.settings.background_poll_interval_seconds,
        "max_wait_seconds": call.settings.background_max_wait_seconds,
    }
    if (found := await call.find()) is not None:
        return await durable.poll(call.client, found, **waiting)
    submitting = asyncio.ensure_future(
        durable.create_and_poll(call.client, idempotency_key=call.key, **waiting, **call.create)
    )
    try:
        if call.turn is not None:
            known = asyncio.wrap_future(call.progress.known)
            either: set[asyncio.Future[Any]] = {submitting, known}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            await call.record()
        return await submitting
    except ConflictError as error:
        return await durable.poll(call.client, await call.adopt(error), **waiting)
    finally:
        submitting.cancel()


async def stream(call: BackgroundCall) -> AsyncIterator[ResponseStreamEvent]:
    """Yield every event once. Raise instead of yielding a terminal event of any other status than completed.

    (The runner turns such events into an error without a response; the errors raised here carry it.)
    """
    end_span = call.begin_span()
    began, max_wait = asyncio.get_running_loop().time(), call.settings.background_max_wait_seconds
    deadline = None if max_wait is None else began + max_wait
    # In a task of its own: when the caller is cancelled, the POST continues until the id is known.
    opening = asyncio.ensure_future(_open(call))
    try:
        with call.marking_errors():
            event, events = await asyncio.shield(opening)
            while event.type not in TERMINAL_EVENTS:
                yield event
                event = await _read(call, events, began, deadline)
    except (asyncio.CancelledError, GeneratorExit):  # cancelled, or closed before its end
        call.abandon(opening, stream=True)
        raise
    finally:
        end_span()
        if opening.done() and not opening.cancelled() and opening.exception() is None:
            await opening.result()[1].aclose()
    call.finish(response_of(event))
    yield event


async def _open(call: BackgroundCall) -> tuple[ResponseStreamEvent, AsyncResponseStream]:
    found = await call.find()
    if found is None:
        create = {**call.create, "background": True}
        events = durable.stream(call.client, idempotency_key=call.key, **call.options, **create)
    else:
        events = durable.resume(call.client, found, **call.options)
    try:
        event = await anext(events)
    except ConflictError as error:
        events = durable.resume(call.client, await call.adopt(error), **call.options)
        event = await anext(events)
    try:
        await call.record()
    finally:
        if call.abandoned:  # during the POST: the caller closes only a stream that it has seen
            await events.aclose()
    return event, events


async def _read(
    call: BackgroundCall, events: AsyncResponseStream, began: float, deadline: float | None
) -> ResponseStreamEvent:
    limit = asyncio.timeout_at(deadline)
    try:
        async with limit:
            return await anext(events)
    except TimeoutError:
        if not limit.expired():
            raise
        waited = asyncio.get_running_loop().time() - began
        raise PollTimeout(str(call.progress.response_id), waited) from None

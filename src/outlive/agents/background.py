"""One model call in the background: submitted once, polled or streamed, abandoned when its caller is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

from agents import ModelBehaviorError, exceptions
from agents.models.openai_client_utils import is_official_openai_client
from agents.tracing import custom_span
from openai import AsyncAzureOpenAI, AsyncOpenAI, ConflictError, OpenAI, OpenAIError
from openai.types.responses import Response, ResponseStreamEvent

from outlive import client as durable
from outlive.agents.journal import RunTurn
from outlive.agents.settings import Durability
from outlive.client import (
    TERMINAL_EVENTS,
    AsyncResponseStream,
    PollTimeout,
    ResponseCancelled,
    ResponseFailed,
    ResponseIncomplete,
    RetryPolicy,
    StreamStats,
    response_of,
)

log = logging.getLogger("outlive.agents")

KEY_HEADER = "Idempotency-Key"
RESPONSE_ID = re.compile(r"\bresp_\w+")
SUBMITTED = "_outlive_submitted"
# The longest time for which the thread that cancels a run may outlive the event loop, and so delay the process's end.
GRACE_SECONDS = 2.0
# Private to the SDK: with this mark, events that a caller has not read yet are delivered before the error. Where a
# version lacks it, the error waits for so long instead.
mark_to_drain: Callable[[BaseException], None] | None = getattr(exceptions, "_mark_error_to_drain_stream_events", None)
DRAIN_SECONDS = 0.2
LACKING = "" if mark_to_drain is not None else f"a failed stream of outlive.agents ends {DRAIN_SECONDS:g} s later"
if LACKING:
    log.warning("this version of openai-agents is not known here: %s", LACKING)


# -- errors of model turns: each is an error of outlive.client and a ModelBehaviorError of the agents SDK


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
        if mark_to_drain is not None:
            mark_to_drain(error)
        raise error


def submitted_id(error: BaseException) -> str | None:
    """Return the id of the response that was submitted before the error or one of its causes."""
    seen: BaseException | None = error
    while seen is not None:
        if (found := getattr(seen, SUBMITTED, None)) is not None:
            return str(found)
        seen = seen.__cause__
    return None


# -- cancelling: in a thread, so that the cancelled caller is not delayed


class ProgressFuture(StreamStats):
    """Statistics of a call, with a future of the response's id that any thread can wait for."""

    def __init__(self) -> None:
        self.known: Future[str] = Future()
        super().__init__()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "response_id" and value is not None and not self.known.done():
            self.known.set_result(value)


@dataclass(frozen=True)
class AbandonedCall:
    """A call whose caller was cancelled: the task that submits it, and a way to get its id if that task ends early."""

    client: AsyncOpenAI
    progress: ProgressFuture
    work: asyncio.Future[Any]
    cancel: bool
    submit_again: Callable[[OpenAI], str] | None

    def release(self) -> None:
        """Stop waiting for the run, without blocking; cancel it on the server if `cancel`.

        During the POST the run's id is unknown, so the POST is allowed to finish first. If the event loop ends before
        that, the POST is sent again under the same idempotency key to get the id.
        """
        self.work.add_done_callback(self._settle)
        if self.progress.known.done() and not self.cancel:
            self.work.cancel()
            return
        # Not a daemon: the interpreter waits for the thread at exit, GRACE_SECONDS at most.
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._finish, args=(loop,), daemon=False, name="outlive-cancel").start()

    def _settle(self, work: asyncio.Future[Any]) -> None:
        self.progress.known.cancel()  # without an id by now, there will be none
        if not work.cancelled():
            work.exception()  # marks it as retrieved: asyncio would log it otherwise

    def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        deadline = time.monotonic() + GRACE_SECONDS
        try:
            response_id = self._find_id(deadline)
            if self.cancel and response_id is not None:
                with _open_sync_client(self.client, deadline) as client:
                    client.responses.cancel(response_id)
        except OpenAIError as error:
            log.warning("cancelling an abandoned run failed: %s", error)
        finally:
            if not loop.is_closed():
                with contextlib.suppress(RuntimeError):  # closed in the meantime, which ended the task too
                    loop.call_soon_threadsafe(self.work.cancel)

    def _find_id(self, deadline: float) -> str | None:
        try:
            return self.progress.known.result(GRACE_SECONDS)
        except CancelledError:
            if not self.cancel or self.submit_again is None:
                return None
            with _open_sync_client(self.client, deadline) as client:
                return self.submit_again(client)
        except TimeoutError:
            log.warning("an abandoned run was not accepted within %.0f s; it may still start", GRACE_SECONDS)
            return None


def _open_sync_client(client: AsyncOpenAI, deadline: float) -> OpenAI:
    """Make a sync client of the same server: at interpreter exit no event loop can resolve a host name."""
    headers = {name: value for name, value in client.default_headers.items() if isinstance(value, str)}
    if isinstance(client, AsyncAzureOpenAI):
        headers["api-key"] = client.api_key
    return OpenAI(
        api_key=client.api_key or "none",
        base_url=client.base_url,
        default_headers=headers,
        default_query=client.default_query,
        timeout=max(0.1, deadline - time.monotonic()),
        max_retries=1,
    )


# -- calls


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

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """Record a span below the SDK's response span, which has no fields for polls and resumes, and mark errors.

        An error raised after the submit is marked, so that no retry policy submits the call again.
        """
        stats, span = self.progress, custom_span("background response", {"background": True})
        span.start()
        try:
            yield
        except Exception as error:  # any error: a retry policy may approve of any
            if stats.response_id is not None:
                setattr(error, SUBMITTED, stats.response_id)
            raise
        finally:
            span.span_data.data.update(response_id=stats.response_id, polls=stats.polls, resumes=stats.resumes)
            span.finish()


async def fetch(call: BackgroundCall) -> Response:
    """Return the completed response; raise for any other terminal status."""
    work = asyncio.ensure_future(_poll(call))
    try:
        with call.traced():
            response = await asyncio.shield(work)
    except asyncio.CancelledError:
        call.abandon(work, stream=False)
        raise
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
    began, max_wait = asyncio.get_running_loop().time(), call.settings.background_max_wait_seconds
    deadline = None if max_wait is None else began + max_wait
    # In a task of its own: when the caller is cancelled, the POST continues until the id is known.
    opening = asyncio.ensure_future(_open(call))
    try:
        with call.traced():
            event, events = await asyncio.shield(opening)
            while event.type not in TERMINAL_EVENTS:
                yield event
                event = await _read(call, events, began, deadline)
    except (asyncio.CancelledError, GeneratorExit):  # cancelled, or closed before its end
        call.abandon(opening, stream=True)
        raise
    finally:
        if opening.done() and not opening.cancelled() and opening.exception() is None:
            await opening.result()[1].aclose()
    if mark_to_drain is None and event.type != "response.completed":
        await asyncio.sleep(DRAIN_SECONDS)
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

"""One model call in the background: submitted once, polled or streamed, abandoned when its caller is cancelled."""

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

from agents import ModelBehaviorError, OpenAIProvider, exceptions
from agents.models.openai_client_utils import is_official_openai_client
from agents.tracing import custom_span
from openai import AsyncAzureOpenAI, AsyncOpenAI, ConflictError, OpenAI, OpenAIError
from openai.types.responses import Response, ResponseStreamEvent

from outlive import client as durable
from outlive.agents.journal import RunTurn
from outlive.agents.settings import Durability
from outlive.client import TERMINAL_EVENTS, AsyncResponseStream, PollTimeout, RetryPolicy, StreamStats, response_of
from outlive.client.errors import ERRORS
from outlive.client.plans import KEY_HEADER

log = logging.getLogger("outlive.agents")

RESPONSE_ID = re.compile(r"\bresp_\w+")
SUBMITTED = "_outlive_submitted"
# The longest time for which the thread that cancels a run may outlive the event loop, and so delay the process's end.
GRACE_SECONDS = 2.0
# Private to the SDK: with this mark, events that a caller has not read yet are delivered before the error. Where a
# version lacks it, the error waits for so long instead.
mark_to_drain: Callable[[BaseException], None] | None = getattr(exceptions, "_mark_error_to_drain_stream_events", None)
DRAIN_SECONDS = 0.2
# What is lost with a version that lacks a private name.
_LOSSES = {
    f"a failed stream of outlive.agents ends {DRAIN_SECONDS:g} s later": mark_to_drain,
    "DurableProvider does not use the SDK's default client": getattr(OpenAIProvider, "_get_client", None),
}
LACKING = ", and ".join(loss for loss, private in _LOSSES.items() if private is None)
if LACKING:
    log.warning("this version of openai-agents is not known here: %s", LACKING)


# Errors of model turns, by status: each is an error of outlive.client and a ModelBehaviorError of the agents SDK.
TURN_ERRORS = {
    status: type(f"Turn{status.capitalize()}", (kind, ModelBehaviorError), {}) for status, kind in ERRORS.items()
}


def submitted_id(error: BaseException) -> str | None:
    """Return the id of the response that was submitted before the error or one of its causes."""
    seen: BaseException | None = error
    while seen is not None:
        if (found := getattr(seen, SUBMITTED, None)) is not None:
            return str(found)
        seen = seen.__cause__
    return None


class ProgressFuture(StreamStats):
    """Statistics of a call, with a future of the response's id that any thread can wait for."""

    def __init__(self) -> None:
        self.known: Future[str] = Future()
        super().__init__()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "response_id" and value is not None and not self.known.done():
            self.known.set_result(value)


@dataclass
class BackgroundCall:
    client: AsyncOpenAI
    create: dict[str, Any]  # arguments of `responses.create`, without `stream`
    key: str
    settings: Durability
    retry_policy: RetryPolicy
    turn: RunTurn | None = None  # the turn of a durable run; None outside of one
    progress: ProgressFuture = field(default_factory=ProgressFuture)
    abandoned: bool = False

    async def fetch(self) -> Response:
        """Return the completed response; raise for any other terminal status."""
        work = asyncio.ensure_future(self._poll())
        try:
            with self._traced():
                response = await asyncio.shield(work)
        except asyncio.CancelledError:
            self._abandon(work, stream=False)
            raise
        self._finish(response)
        return response

    async def _poll(self) -> Response:
        waiting: dict[str, Any] = self._options | {
            "poll_interval_seconds": self.settings.background_poll_interval_seconds,
            "max_wait_seconds": self.settings.background_max_wait_seconds,
        }
        found = None if self.turn is None else await self.turn.find(self.client, self.retry_policy)
        if found is not None:
            return await durable.poll(self.client, found, **waiting)
        submit = durable.create_and_poll(self.client, idempotency_key=self.key, **waiting, **self.create)
        submitting = asyncio.ensure_future(submit)
        try:
            if self.turn is not None:
                known = asyncio.wrap_future(self.progress.known)
                either: set[asyncio.Future[Any]] = {submitting, known}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                await self._record()
            return await submitting
        except ConflictError as error:
            return await durable.poll(self.client, await self._adopt(error), **waiting)
        finally:
            submitting.cancel()

    async def stream(self) -> AsyncIterator[ResponseStreamEvent]:
        """Yield every event once. Raise instead of yielding a terminal event of any other status than completed.

        (The runner turns such events into an error without a response; the errors raised here carry it.)
        """
        began = asyncio.get_running_loop().time()
        # In a task of its own: when the caller is cancelled, the POST continues until the id is known.
        opening = asyncio.ensure_future(self._open())
        try:
            with self._traced():
                event, events = await asyncio.shield(opening)
                while event.type not in TERMINAL_EVENTS:
                    yield event
                    event = await self._read(events, began)
        except (asyncio.CancelledError, GeneratorExit):  # cancelled, or closed before its end
            self._abandon(opening, stream=True)
            raise
        finally:
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                await opening.result()[1].aclose()
        if mark_to_drain is None and event.type != "response.completed":
            await asyncio.sleep(DRAIN_SECONDS)
        self._finish(response_of(event))
        yield event

    async def _open(self) -> tuple[ResponseStreamEvent, AsyncResponseStream]:
        found = None if self.turn is None else await self.turn.find(self.client, self.retry_policy)
        if found is not None:
            events = durable.resume(self.client, found, **self._options)
        else:
            create = {**self.create, "background": True}
            events = durable.stream(self.client, idempotency_key=self.key, **self._options, **create)
        try:
            event = await anext(events)
        except ConflictError as error:
            events = durable.resume(self.client, await self._adopt(error), **self._options)
            event = await anext(events)
        try:
            await self._record()
        finally:
            if self.abandoned:  # during the POST: the caller closes only a stream that it has seen
                await events.aclose()
        return event, events

    async def _read(self, events: AsyncResponseStream, began: float) -> ResponseStreamEvent:
        max_wait = self.settings.background_max_wait_seconds
        limit = asyncio.timeout_at(None if max_wait is None else began + max_wait)
        try:
            async with limit:
                return await anext(events)
        except TimeoutError:
            if not limit.expired():
                raise
            waited = asyncio.get_running_loop().time() - began
            raise PollTimeout(str(self.progress.response_id), waited) from None

    @property
    def _options(self) -> dict[str, Any]:
        return {"retry_policy": self.retry_policy, "stats": self.progress}

    async def _record(self) -> None:
        if self.turn is not None and self.progress.response_id is not None:
            await self.turn.record(self.progress.response_id)

    async def _adopt(self, error: ConflictError) -> str:
        """Return the id of the response that a process submitted this turn as and died before recording.

        The key is the same but the contents differ, for example instructions with the time of day: the first submit
        counts.
        """
        named = RESPONSE_ID.search(error.message) if error.code == "idempotency_key_reused" else None
        if self.turn is None or named is None:
            raise error
        await self.turn.record(named.group())
        return named.group()

    def _finish(self, response: Response | None) -> None:
        """Count the completed turn, or raise for any other terminal status."""
        if response is None:
            return
        if (kind := TURN_ERRORS.get(str(response.status))) is not None:
            error = kind(response)
            if mark_to_drain is not None:
                mark_to_drain(error)
            raise error
        if self.turn is not None:
            self.turn.scope.completed += 1

    @contextlib.contextmanager
    def _traced(self) -> Iterator[None]:
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

    # -- cancelling: in a thread, so that the cancelled caller is not delayed

    def _abandon(self, work: asyncio.Future[Any], stream: bool) -> None:
        """Stop waiting for the run after the caller was cancelled, without blocking, and apply `on_cancel`.

        During the POST the run's id is unknown, so the POST is allowed to finish first. If the event loop ends before
        that, the POST is sent again under the same idempotency key to get the id.
        """
        self.abandoned = True
        work.add_done_callback(self._settle)
        cancel = (self.settings.on_cancel or ("cancel" if self.turn is None else "detach")) == "cancel"
        if self.progress.known.done() and not cancel:
            work.cancel()
            return
        # Not a daemon: the interpreter waits for the thread at exit, GRACE_SECONDS at most.
        task = (work, asyncio.get_running_loop(), cancel, stream)
        threading.Thread(target=self._end_run, args=task, daemon=False, name="outlive-cancel").start()

    def _settle(self, work: asyncio.Future[Any]) -> None:
        self.progress.known.cancel()  # without an id by now, there will be none
        if not work.cancelled():
            work.exception()  # marks it as retrieved: asyncio would log it otherwise

    def _end_run(self, work: asyncio.Future[Any], loop: asyncio.AbstractEventLoop, cancel: bool, stream: bool) -> None:
        deadline = time.monotonic() + GRACE_SECONDS
        response_id: str | None = None
        try:
            with contextlib.suppress(CancelledError):  # the POST ended with the event loop
                response_id = self.progress.known.result(GRACE_SECONDS)
            if cancel and (response_id is not None or not is_official_openai_client(self.client)):
                with _open_sync_client(self.client, deadline) as client:
                    client.responses.cancel(response_id or self._submit_again(client, stream))
        except TimeoutError:
            log.warning("an abandoned run was not accepted within %.0f s; it may still start", GRACE_SECONDS)
        except OpenAIError as error:
            log.warning("cancelling an abandoned run failed: %s", error)
        finally:
            if not loop.is_closed():
                with contextlib.suppress(RuntimeError):  # closed in the meantime, which ended the task too
                    loop.call_soon_threadsafe(work.cancel)

    def _submit_again(self, client: OpenAI, stream: bool) -> str:
        submit: Any = client.responses.create
        headers = {**(self.create.get("extra_headers") or {}), KEY_HEADER: self.key}
        create = {**self.create, "background": True, "extra_headers": headers}
        if not stream:
            return str(submit(**create).id)
        with submit(**create, stream=True) as events:
            return str(next(iter(events)).response.id)


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

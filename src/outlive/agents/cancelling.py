"""Cancel a run on the server after its caller was cancelled: in a thread, so that the caller is not delayed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from openai import AsyncAzureOpenAI, AsyncOpenAI, OpenAI, OpenAIError

from outlive.client import StreamStats

log = logging.getLogger("outlive.agents")

# The longest time for which the thread may run after the event loop, and so delay the end of the process.
GRACE_SECONDS = 2.0


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
                with _open(self.client, deadline) as client:
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
            with _open(self.client, deadline) as client:
                return self.submit_again(client)
        except TimeoutError:
            log.warning("an abandoned run was not accepted within %.0f s; it may still start", GRACE_SECONDS)
            return None


def _open(client: AsyncOpenAI, deadline: float) -> OpenAI:
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

"""Cancelling the server's run when its caller is cancelled: from a thread, so that it delays nobody and is not lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from openai import AsyncAzureOpenAI, AsyncOpenAI, OpenAI, OpenAIError

from outlive.agents.watch import Watch

log = logging.getLogger("outlive.agents")

# How long the thread may outlive the event loop, and thereby hold up the end of the process.
GRACE_SECONDS = 2.0


@dataclass(frozen=True)
class Submit:
    """A run that its caller has left: who submits it, and how its id is found out should that be interrupted."""

    client: AsyncOpenAI
    watch: Watch
    work: asyncio.Future[Any]
    ask_again: Callable[[OpenAI], str] | None = None


def leave(submit: Submit, cancel: bool) -> None:
    """Stop waiting for the run, without waiting for anything; cancel it on the server if `cancel`.

    While the POST is on its way nobody knows the run's id, so the POST is let finish first. When the loop ends before
    it does, the id is asked for again, under the same idempotency key.
    """
    submit.work.add_done_callback(lambda work: _settle(work, submit.watch))
    if submit.watch.known.done() and not cancel:
        submit.work.cancel()
        return
    # Not a daemon: the interpreter waits for it at its end, GRACE_SECONDS at most.
    loop = asyncio.get_running_loop()
    threading.Thread(target=_part, args=(submit, loop, cancel), daemon=False, name="outlive-cancel").start()


def _settle(work: asyncio.Future[Any], watch: Watch) -> None:
    watch.give_up()
    if not work.cancelled():
        work.exception()  # nobody is left to hear of it


def _part(submit: Submit, loop: asyncio.AbstractEventLoop, cancel: bool) -> None:
    deadline = time.monotonic() + GRACE_SECONDS
    try:
        response_id = _find_id(submit, deadline, cancel)
        if cancel and response_id is not None:
            with _open(submit.client, deadline) as client:
                client.responses.cancel(response_id)
    except OpenAIError as error:
        log.warning("a run whose caller left could not be cancelled: %s", error)
    finally:
        if not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it closed just now, and took the work with it
                loop.call_soon_threadsafe(submit.work.cancel)


def _find_id(submit: Submit, deadline: float, cancel: bool) -> str | None:
    try:
        return submit.watch.known.result(GRACE_SECONDS)
    except CancelledError:
        if not cancel or submit.ask_again is None:
            return None
        with _open(submit.client, deadline) as client:
            return submit.ask_again(client)
    except TimeoutError:
        log.warning("a run whose caller left was not accepted within %.0f s; it may still begin", GRACE_SECONDS)
        return None


def _open(client: AsyncOpenAI, deadline: float) -> OpenAI:
    """The same server and credentials for a thread: at the interpreter's end no event loop can look up a host name."""
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

"""One model call in the background: submitted once, waited for or streamed, and left properly when its caller goes."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agents.models.openai_client_utils import is_official_openai_client
from agents.tracing import custom_span
from openai import AsyncOpenAI, ConflictError, OpenAI
from openai.types.responses import Response

from outlive import client as durable
from outlive.agents.cancelling import Submit, leave
from outlive.agents.errors import mark_submitted
from outlive.agents.settings import OnCancel
from outlive.agents.turn import Turn
from outlive.agents.watch import Watch
from outlive.client import Patience

KEY_HEADER = "Idempotency-Key"
RESPONSE_ID = re.compile(r"\bresp_\w+")


@dataclass(frozen=True, kw_only=True)
class Errand:
    """What to submit, and how to wait for it."""

    client: AsyncOpenAI
    create: dict[str, Any]
    """What `responses.create` takes, without `stream`."""
    key: str
    interval: float | None
    max_wait: float | None
    on_cancel: OnCancel
    patience: Patience
    turn: Turn | None = None
    watch: Watch = field(default_factory=Watch)

    async def find(self) -> str | None:
        """The response that this errand was submitted as before, if it is a turn of a durable run."""
        found = await self.turn.find() if self.turn is not None else None
        if found is not None:
            self.watch.response_id = found
        return found

    def leave(self, work: asyncio.Future[Any], stream: bool) -> None:
        """The caller was cancelled: do as `on_cancel` says."""
        knows_keys = not is_official_openai_client(self.client)

        def ask_again(client: OpenAI) -> str:
            submit: Any = client.responses.create
            made = submit(**self._submitted(), **({"stream": True} if stream else {}))
            if not stream:
                return str(made.id)
            with made:
                return str(next(iter(made)).response.id)

        leave(
            Submit(self.client, self.watch, work, ask_again if knows_keys else None), cancel=self.on_cancel == "cancel"
        )

    def explain(self, error: Exception) -> None:
        """Make sure that nobody submits again what is submitted."""
        if self.watch.response_id is not None:
            mark_submitted(error, self.watch.response_id)

    async def adopt(self, error: ConflictError) -> str:
        """The response that this turn was submitted as by a process that died before it could record it.

        Its contents were other ones (instructions with the time of day in them, say): what was asked first counts.
        """
        named = RESPONSE_ID.search(error.message) if error.code == "idempotency_key_reused" else None
        if self.turn is None or named is None:
            raise error
        self.watch.response_id = named.group()
        await self.turn.note(named.group())
        return named.group()

    def _submitted(self) -> dict[str, Any]:
        headers = {**(self.create.get("extra_headers") or {}), KEY_HEADER: self.key}
        return {**self.create, "background": True, "extra_headers": headers}


@contextlib.contextmanager
def recorded(errand: Errand) -> Iterator[None]:
    """A span of its own below the SDK's response span, which has no room for what happened on the way."""
    end = begin_span(errand)
    try:
        yield
    finally:
        end()


def begin_span(errand: Errand) -> Any:
    data: dict[str, Any] = {"background": True}
    span = custom_span("background response", data)
    span.start()

    def end() -> None:
        watch = errand.watch
        data.update(response_id=watch.response_id, polls=watch.polls, resumes=watch.resumes)
        span.span_data.data.update(data)
        span.finish()

    return end


async def conclude(errand: Errand) -> Response:
    """The terminal response, however it ended."""
    with recorded(errand):
        work = asyncio.ensure_future(_perform(errand))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            errand.leave(work, stream=False)
            raise
        except Exception as error:
            errand.explain(error)
            raise


async def _perform(errand: Errand) -> Response:
    waiting: dict[str, Any] = {
        "poll_interval_seconds": errand.interval,
        "max_wait_seconds": errand.max_wait,
        "patience": errand.patience,
        "progress": errand.watch,
    }
    if (found := await errand.find()) is not None:
        return await durable.poll(errand.client, found, **waiting)
    submitting = asyncio.ensure_future(
        durable.create_and_poll(errand.client, idempotency_key=errand.key, **waiting, **errand.create)
    )
    try:
        if errand.turn is not None:
            known = asyncio.wrap_future(errand.watch.known)
            either: set[asyncio.Future[Any]] = {submitting, known}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if errand.watch.response_id is not None:
                await errand.turn.note(errand.watch.response_id)
        return await submitting
    except ConflictError as error:
        return await durable.poll(errand.client, await errand.adopt(error), **waiting)
    finally:
        submitting.cancel()

"""The base of backends that reach their upstream over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.dialects.transport.endpoint import Endpoint, RelayedAnswer
from outlive.dialects.transport.http1 import HttpPool
from outlive.dialects.transport.token_counter import TokenCounter
from outlive.ports.backend import BackgroundRuns, ContinuationMode, ModelCall, Upstream

T = TypeVar("T")

_MANY_ITEMS = 500


class HttpBackend:
    """One upstream. The pool is shared by all of them, and is not closed here."""

    stepwise = False
    headers: dict[str, str] = {}  # of the dialect; those of the settings win
    list_query: dict[str, str] = {}  # of requests for the list of models

    def __init__(self, upstream: Upstream, pool: HttpPool, ids: IdSource, path: str) -> None:
        """`path` is that of the requests for answers, below the upstream's URL."""
        self.name = upstream.name
        self.continuation: ContinuationMode = upstream.continuation
        self.background_runs: BackgroundRuns | None = None
        self._upstream = upstream
        self._endpoint = Endpoint(upstream, pool, self.headers)
        self._counter = TokenCounter(self._endpoint)
        self._ids = ids
        self._url = self._endpoint.url(path)

    async def pass_through(self, body: Json) -> RelayedAnswer:
        return await self._endpoint.pass_through(body)

    async def models(self) -> list[Json]:
        return await self._endpoint.models(**self.list_query)

    async def window(self, model: str) -> int | None:
        return await self._counter.window(model, **self.list_query)

    async def close(self) -> None:
        await self._endpoint.close()

    async def _render(self, call: ModelCall, render: Callable[[], T]) -> T:
        """Render a request; a long context is rendered in a thread, so that streams do not wait for it."""
        return await asyncio.to_thread(render) if len(call.items) > _MANY_ITEMS else render()

"""The base of backends that reach their upstream over HTTP."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.requests.body import EncodedBody, encode_body
from outlive.core.requests.create import CreateResponse
from outlive.dialects.offer import find_left_out
from outlive.dialects.transport.endpoint import Endpoint
from outlive.dialects.transport.http1 import Connection, HttpPool
from outlive.ports.backend import Backend, ModelCall, Upstream

log = logging.getLogger(__name__)

_MANY_ITEMS = 500
_MOST_LOGGED = 100  # callers name the types
_KEPT_SECONDS = 300.0  # a server may be restarted with another window
_UNKNOWN_SECONDS = 30.0

# The names under which servers list a model's window, the surest first: the one it was started with before the one it
# was trained with.
_WINDOWS = (
    "context_window", "loaded_context_length", "max_model_len", "n_ctx", "context_length", "max_context_length",
    "max_input_tokens", "inputTokenLimit",
)  # fmt: skip


class HttpBackend(Endpoint, Backend):
    """One upstream. The pool is shared by all of them, and is not closed here."""

    path: str  # of the requests for answers, below the upstream's URL
    headers: dict[str, str] = {}  # of the dialect; those of the settings win

    def __init__(self, upstream: Upstream, pool: HttpPool, ids: IdSource) -> None:
        super().__init__(upstream, pool, self.headers)
        self.continuation = upstream.continuation
        self._windows: dict[str, tuple[int | None, float]] = {}  # by model, until a time
        self._ids = ids
        self._url = self.url(self.path)
        self._logged: set[str] = set()  # types of tools that were left out

    async def window(self, model: str) -> int | None:
        """Return the most tokens that a model can hold: as the settings say, else as the server lists it."""
        if self.upstream.context_window is not None:
            return self.upstream.context_window
        known, until = self._windows.get(model, (None, 0.0))
        if time.monotonic() >= until:
            known = _find_window(await self._fetch_models(), model)
            self._windows[model] = known, time.monotonic() + (_KEPT_SECONDS if known else _UNKNOWN_SECONDS)
        return known

    async def _ask_count(self, path: str, body: Json, field: str = "input_tokens") -> int | None:
        """Ask for a number of tokens; None when there is none to be had. `../` leads out of the API's own folder."""
        url = self.url(path)
        if path.startswith("../"):
            url = url.replace("/v1/../", "/").replace("/../", "/")
        return _read_number(await self.fetch(url, body), field)

    async def _post(self, call: ModelCall, render: Callable[[], Json], **headers: str) -> Connection:
        """Render a request and send it: one with a long context is rendered in a thread, so that streams do not wait
        for it. Raises UpstreamFault for a refusal."""
        data: EncodedBody
        if call.large or len(call.items) > _MANY_ITEMS:
            data = await asyncio.to_thread(lambda: encode_body(render()))
        else:
            data = msgspec.json.encode(render())
        return await self.request("POST", self._url, data, call.headers | headers)


class FunctionsBackend(HttpBackend):
    """An upstream that knows no tools but functions."""

    def find_left_out(self, request: CreateResponse) -> list[str]:
        """Return the types of the tools in a checked request that the model is not given; log each once."""
        left_out = find_left_out(request)
        for kind in left_out:
            if kind not in self._logged and len(self._logged) < _MOST_LOGGED:
                self._logged.add(kind)
                log.warning(
                    "leaving out a tool that no server here runs (this is logged once; "
                    'unrunnable_tools = "refuse" refuses such requests)',
                    extra={"upstream": self.name, "tool": kind},
                )
        return left_out


def _read_number(answer: Any, name: str) -> int | None:
    number = answer.get(name) if isinstance(answer, dict) else None
    return number if isinstance(number, int) and number >= 0 else None


def _find_window(models: list[Json], model: str) -> int | None:
    """Return the window of that model in a list of models; of the only one, if there is one under whatever name."""
    found = [entry for entry in models if entry.get("id") == model] or (models if len(models) == 1 else [])
    places = (place for entry in found for place in (entry, entry.get("meta")))
    return next((number for place in places for name in _WINDOWS if (number := _read_number(place, name))), None)

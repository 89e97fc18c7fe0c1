"""What an upstream says about tokens: how many a request has, and how many its models can hold."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.dialects.transport.endpoint import CHAT_PATH, Endpoint

_SECONDS = 10.0  # to wait for a number
_KEPT_SECONDS = 300.0  # a server may be started anew with another window
_UNKNOWN_SECONDS = 30.0

# The names under which servers list a model's window, the surest first: what it was started with before what it was
# trained with.
_WINDOWS = (
    "context_window",
    "loaded_context_length",
    "max_model_len",
    "n_ctx",
    "context_length",
    "max_context_length",
    "max_input_tokens",
    "inputTokenLimit",
)

# What may stand in a chat's body and has no bearing on what is read.
_TOKENIZED = ("model", "messages", "tools", "chat_template_kwargs", "chat_template")


class TokenCounter:
    """Asks one upstream for numbers. It never stands in the way: what cannot be had is None."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._upstream = endpoint.upstream
        self._windows: dict[str, tuple[int | None, float]] = {}

    async def count_chat(self, body: Json) -> int | None:
        """How many tokens a Chat Completions request has."""
        if self._upstream.tokenizer == "llamacpp":
            return read_number(await self.ask(f"{CHAT_PATH}/input_tokens", {**body, "stream": False}), "input_tokens")
        if self._upstream.tokenizer == "vllm":
            asked = {name: body[name] for name in _TOKENIZED if name in body} | {"add_generation_prompt": True}
            return read_number(await self.ask("../tokenize", asked), "count")
        return None

    async def window(self, model: str, **query: str) -> int | None:
        """How many tokens a model can hold: as the settings say, else as the server lists it."""
        if self._upstream.context_window is not None:
            return self._upstream.context_window
        known, until = self._windows.get(model, (None, 0.0))
        if time.monotonic() >= until:
            listed = await self._endpoint.fetch(self._endpoint.url("models", **query))
            known = _find_window(listed, model)
            self._windows[model] = known, time.monotonic() + (_KEPT_SECONDS if known else _UNKNOWN_SECONDS)
        return known

    async def ask(self, path: str, body: Json) -> Any:
        """The JSON that answers; None for whatever else happens. `../` leads out of the API's own folder."""
        url = self._endpoint.url(path)
        if path.startswith("../"):
            url = url.replace("/v1/../", "/").replace("/../", "/")
        try:
            async with asyncio.timeout(_SECONDS):
                answer = await self._endpoint.ask("POST", url, msgspec.json.encode(body))
                try:
                    return msgspec.json.decode(await answer.read_whole()) if answer.status == 200 else None
                finally:
                    answer.leave()
        except (OSError, ValueError, UpstreamFault):
            return None


def read_number(answer: Any, name: str) -> int | None:
    number = answer.get(name) if isinstance(answer, dict) else None
    return number if isinstance(number, int) and number >= 0 else None


def _find_window(listed: Any, model: str) -> int | None:
    """The window of that model in a list of models; of the only one, if there is but one under whatever name."""
    data = listed.get("data") if isinstance(listed, dict) else None
    models = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    found = [entry for entry in models if entry.get("id") == model] or (models if len(models) == 1 else [])
    for entry in found:
        meta = entry.get("meta")
        for place in (entry, meta if isinstance(meta, dict) else {}):
            for name in _WINDOWS:
                if number := read_number(place, name):
                    return number
    return None

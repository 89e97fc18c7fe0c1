"""Token counts of an upstream: of a request, and of its models' windows."""

from __future__ import annotations

import time
from typing import Any

from outlive.core.events import Json
from outlive.dialects.transport.endpoint import CHAT_PATH, Endpoint

_KEPT_SECONDS = 300.0  # a server may be restarted with another window
_UNKNOWN_SECONDS = 30.0

# The names under which servers list a model's window, the surest first: the one it was started with before the one it
# was trained with.
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

# Fields of a chat's body that have a bearing on the tokens that the model reads.
_TOKENIZED = ("model", "messages", "tools", "chat_template_kwargs", "chat_template")


class TokenCounter:
    """Asks one upstream for numbers. It never raises: a number that cannot be had is None."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._upstream = endpoint.upstream
        self._windows: dict[str, tuple[int | None, float]] = {}

    async def count_chat(self, body: Json) -> int | None:
        """Count the tokens of a Chat Completions request."""
        if self._upstream.tokenizer == "llamacpp":
            return read_number(await self.ask(f"{CHAT_PATH}/input_tokens", {**body, "stream": False}), "input_tokens")
        if self._upstream.tokenizer == "vllm":
            asked = {name: body[name] for name in _TOKENIZED if name in body} | {"add_generation_prompt": True}
            return read_number(await self.ask("../tokenize", asked), "count")
        return None

    async def window(self, model: str, **query: str) -> int | None:
        """Return a model's window in tokens: as the settings say, else as the server lists it."""
        if self._upstream.context_window is not None:
            return self._upstream.context_window
        known, until = self._windows.get(model, (None, 0.0))
        if time.monotonic() >= until:
            listed = await self._endpoint.fetch(self._endpoint.url("models", **query))
            known = _find_window(listed, model)
            self._windows[model] = known, time.monotonic() + (_KEPT_SECONDS if known else _UNKNOWN_SECONDS)
        return known

    async def ask(self, path: str, body: Json) -> Any:
        """Return the JSON that answers; None for whatever else happens. `../` leads out of the API's own folder."""
        url = self._endpoint.url(path)
        if path.startswith("../"):
            url = url.replace("/v1/../", "/").replace("/../", "/")
        return await self._endpoint.fetch(url, body)


def read_number(answer: Any, name: str) -> int | None:
    number = answer.get(name) if isinstance(answer, dict) else None
    return number if isinstance(number, int) and number >= 0 else None


def _find_window(listed: Any, model: str) -> int | None:
    """Return the window of that model in a list of models; of the only one, if there is one under whatever name."""
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

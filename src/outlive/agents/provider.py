"""The provider for RunConfig: durable models by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents import Model, UserError
from agents.models.default_models import get_default_model
from agents.models.openai_provider import OpenAIProvider
from openai import AsyncOpenAI

from outlive.agents.responses import DurableResponsesModel
from outlive.agents.settings import AUTO_MODELS, Background, Durability, OnCancel
from outlive.agents.strict import RefusingWebSocketModel, StrictChatCompletionsModel
from outlive.client import Patience


class DurableProvider(OpenAIProvider):
    """Everything OpenAIProvider takes, and the four settings as defaults that an agent may override.

    With `use_responses=False` it gives Chat Completions models that fail fast (`strict=False`: as lenient as the SDK's,
    but for `background`); with `use_responses_websocket=True` websocket models that refuse `background`.
    """

    def __init__(
        self,
        openai_client: AsyncOpenAI | None = None,
        *,
        background: Background | None = None,
        background_poll_interval_seconds: float | None = None,
        background_max_wait_seconds: float | None = None,
        on_cancel: OnCancel | None = None,
        auto_models: Sequence[str] = AUTO_MODELS,
        patience: Patience | None = None,
        strict: bool = True,
        use_responses: bool = True,
        use_responses_websocket: bool = False,
        **openai: Any,
    ) -> None:
        super().__init__(
            openai_client=openai_client,
            use_responses=use_responses,
            use_responses_websocket=use_responses_websocket,
            **openai,
        )
        self._defaults = Durability(
            background=background,
            background_poll_interval_seconds=background_poll_interval_seconds,
            background_max_wait_seconds=background_max_wait_seconds,
            on_cancel=on_cancel,
        )
        self._auto_models, self._patience, self._strict = tuple(auto_models), patience, strict
        self._chat, self._websocket = not use_responses, use_responses_websocket
        if background is True and (self._chat or self._websocket):
            raise UserError("Only Responses models over HTTP run in the background.")

    def get_model(self, model_name: str | None) -> Model:
        client, name = self._get_client(), model_name if model_name is not None else get_default_model()
        if self._chat:
            buffered = self._buffer_streamed_tool_calls
            return StrictChatCompletionsModel(name, client, strict=self._strict, buffer_streamed_tool_calls=buffered)
        if self._websocket:
            return self._open_websocket(name, client, model_name is not None)
        return DurableResponsesModel(
            name,
            client,
            model_is_explicit=model_name is not None,
            defaults=self._defaults,
            auto_models=self._auto_models,
            patience=self._patience,
        )

    def _open_websocket(self, name: str, client: AsyncOpenAI, is_explicit: bool) -> Model:
        """One per loop and name, in the cache whose connections the SDK's provider closes."""
        self._prune_closed_ws_loop_caches()
        loop = self._get_running_loop()
        kept: dict[tuple[str, bool], Model] = {} if loop is None else self._ws_model_cache_by_loop.setdefault(loop, {})
        if (name, is_explicit) not in kept:
            options = self._responses_websocket_options
            kept[name, is_explicit] = RefusingWebSocketModel(
                name, client, model_is_explicit=is_explicit, websocket_options=options
            )
        return kept[name, is_explicit]

"""The provider for RunConfig: durable models by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents import Model, UserError
from agents.models.default_models import get_default_model
from agents.models.openai_provider import OpenAIProvider
from openai import AsyncOpenAI
from typing_extensions import Unpack

from outlive.agents.responses import DurableResponsesModel
from outlive.agents.settings import AUTO_MODELS, NAMES, Durability, DurabilityOptions
from outlive.agents.strict import RefusingWebSocketModel, StrictChatCompletionsModel
from outlive.client import RetryPolicy


class ProviderOptions(DurabilityOptions, total=False):
    """The durability settings, and the arguments of the SDK's OpenAIProvider."""

    api_key: str | None
    base_url: str | None
    organization: str | None
    project: str | None
    use_responses: bool
    use_responses_websocket: bool
    websocket_base_url: str | None
    responses_websocket_options: Any
    agent_registration: Any
    buffer_streamed_tool_calls: bool


class DurableProvider(OpenAIProvider):
    """An OpenAIProvider of durable models, with the durability settings as defaults that an agent may override.

    With `use_responses=False` it gives Chat Completions models that refuse what they cannot honour (`strict=False`:
    only `background`); with `use_responses_websocket=True` websocket models that refuse `background`.
    """

    def __init__(
        self,
        openai_client: AsyncOpenAI | None = None,
        *,
        auto_models: Sequence[str] = AUTO_MODELS,
        retry_policy: RetryPolicy | None = None,
        strict: bool = True,
        **options: Unpack[ProviderOptions],
    ) -> None:
        sdk: dict[str, Any] = {"use_responses": True, "use_responses_websocket": False} | dict(options)
        self._defaults = Durability(**{name: sdk.pop(name, None) for name in NAMES})
        super().__init__(openai_client=openai_client, **sdk)
        self._auto_models, self._retry_policy, self._strict = tuple(auto_models), retry_policy, strict
        self._chat, self._websocket = not sdk["use_responses"], sdk["use_responses_websocket"]
        if self._defaults.background is True and (self._chat or self._websocket):
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
            retry_policy=self._retry_policy,
        )

    def _open_websocket(self, name: str, client: AsyncOpenAI, is_explicit: bool) -> Model:
        """Return the model of this loop and name, from the cache whose connections the SDK's provider closes."""
        self._prune_closed_ws_loop_caches()
        loop = self._get_running_loop()
        kept: dict[tuple[str, bool], Model] = {} if loop is None else self._ws_model_cache_by_loop.setdefault(loop, {})
        if (name, is_explicit) not in kept:
            options = self._responses_websocket_options
            kept[name, is_explicit] = RefusingWebSocketModel(
                name, client, model_is_explicit=is_explicit, websocket_options=options
            )
        return kept[name, is_explicit]

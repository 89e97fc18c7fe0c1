"""Durable models: the SDK's Responses model with calls that run in the background of the server, and the provider that
gives RunConfig such models by name."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from typing import Any

from agents import Model, ModelSettings, UserError
from agents.models.default_models import get_default_model
from agents.models.openai_provider import OpenAIProvider
from agents.models.openai_responses import OpenAIResponsesModel
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest, ModelRetryNormalizedError
from openai import AsyncOpenAI, NotGiven, Omit, OpenAIError
from openai.types.responses import Response
from typing_extensions import Unpack

from outlive.agents import background
from outlive.agents.background import KEY_HEADER, BackgroundCall, submitted_id
from outlive.agents.journal import RunTurn
from outlive.agents.settings import (
    AUTO_MODELS,
    NAMES,
    Durability,
    DurabilityOptions,
    combine,
    is_unstored,
    split,
    wants_background,
)
from outlive.agents.strict import RefusingWebSocketModel, StrictChatCompletionsModel
from outlive.client import ClientError, RetryPolicy

# Keys of submits without an answer, kept for retries by the runner; only an outage leaves more than a few.
MOST_UNANSWERED = 100


class DurableResponsesModel(OpenAIResponsesModel):
    """A model that submits each call with `background: true` and waits for it: calls survive broken connections.

    A setting given here holds for every agent that uses this model; an agent sets its own with
    `ModelSettings.extra_args`. The same setting in both places is a TypeError. Both override `defaults`.
    """

    def __init__(
        self,
        model: str,
        openai_client: AsyncOpenAI,
        *,
        model_is_explicit: bool = True,
        defaults: Durability | None = None,
        auto_models: Sequence[str] = AUTO_MODELS,
        retry_policy: RetryPolicy | None = None,
        **fixed: Unpack[DurabilityOptions],
    ) -> None:
        super().__init__(model=model, openai_client=openai_client, model_is_explicit=model_is_explicit)
        self._fixed = Durability(**fixed)
        self._defaults = defaults or Durability()
        self._auto_models = tuple(auto_models)
        self._retry_policy = retry_policy or RetryPolicy()
        self._unanswered: dict[str, str] = {}

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Refuse retries of a call that is submitted already; no retry policy of the runner can override that."""
        response_id = submitted_id(request.error)
        if response_id is None:
            return super().get_retry_advice(request)
        return ModelRetryAdvice(
            suggested=False,
            replay_safety="unsafe",
            reason=f"Response {response_id} is submitted already: {request.error}",
            normalized=ModelRetryNormalizedError(is_abort=True),
        )

    # The only place where the SDK's model sends requests; its websocket model overrides the same method.
    async def _fetch_response(
        self,
        system_instructions: Any,
        input: Any,
        model_settings: ModelSettings,
        *rest: Any,
        stream: bool = False,
        **named: Any,
    ) -> Any:
        given, settings = split(model_settings)
        durability = combine(self._fixed, given, self._defaults)
        turn = self._next_turn()
        if not wants_background(durability.background, settings, str(self.model), self._auto_models):
            if turn is not None:
                raise UserError("The turns of a durable run are in the background: leave out `background`.")
            fetch: Any = super()._fetch_response
            return await fetch(system_instructions, input, settings, *rest, stream=stream, **named)
        if is_unstored(settings):
            raise UserError("A background response must be stored: leave out `store=False`, or set `background=False`.")
        built = self._build_response_create_kwargs(system_instructions, input, settings, *rest, **named)
        call = self._make_call(_strip(built), durability, turn)
        return background.stream(call) if stream else await self._fetch(call)

    def _next_turn(self) -> RunTurn | None:
        """Return the turn of the durable run that the model belongs to; None outside of one."""
        return None

    def _make_call(self, create: dict[str, Any], durability: Durability, turn: RunTurn | None) -> BackgroundCall:
        headers = dict(create.get("extra_headers") or {})
        given = [headers.pop(name) for name in list(headers) if name.lower() == KEY_HEADER.lower()]
        if given and turn is not None:
            raise UserError("A durable run makes its own Idempotency-Key: leave out the header.")
        create = {**create, "extra_headers": headers}
        return BackgroundCall(
            client=self._get_client(),
            create=create,
            key=turn.key if turn is not None else given[0] if given else self._choose_key(create),
            settings=durability,
            retry_policy=self._retry_policy,
            turn=turn,
        )

    async def _fetch(self, call: BackgroundCall) -> Response:
        try:
            return await background.fetch(call)
        except (OpenAIError, ClientError):
            if call.progress.response_id is None and call.turn is None:
                self._keep_key(call)
            raise

    # A submit whose answer was lost may have been accepted. If the runner's retry policy sends the same call again, it
    # goes out under the same key, and an Outlive attaches it to the existing run.

    def _choose_key(self, create: dict[str, Any]) -> str:
        return self._unanswered.pop(_digest(create), None) or f"outlive-{uuid.uuid4()}"

    def _keep_key(self, call: BackgroundCall) -> None:
        while len(self._unanswered) >= MOST_UNANSWERED:
            self._unanswered.pop(next(iter(self._unanswered)))
        self._unanswered[_digest(call.create)] = call.key


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


def _strip(built: dict[str, Any]) -> dict[str, Any]:
    """Drop arguments that were not given, and `stream`, which is set later."""
    left_out = (Omit, NotGiven, type(None))
    return {name: value for name, value in built.items() if not isinstance(value, left_out) and name != "stream"}


def _digest(create: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(create, sort_keys=True, default=repr).encode()).hexdigest()

"""Durable models: the SDK's Responses model with calls that run in the background of the server, and the provider that
gives RunConfig such models by name."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from agents import Model, ModelResponse, ModelSettings, UserError
from agents.models.default_models import get_default_model
from agents.models.openai_provider import OpenAIProvider
from agents.models.openai_responses import OpenAIResponsesModel, OpenAIResponsesWSModel
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest, ModelRetryNormalizedError
from openai import AsyncOpenAI, NotGiven, Omit, OpenAIError
from openai.types.responses import Response, ResponseStreamEvent
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


Create = Callable[[AsyncOpenAI, dict[str, Any]], Awaitable[Any]]


class RedirectingClient:
    """A client whose `responses.create` is another function: the public way to change how a model of the SDK sends."""

    def __init__(self, client: AsyncOpenAI, create: Create) -> None:
        self._client, self._create = client, create
        self.responses = SimpleNamespace(create=lambda **arguments: create(client, arguments))

    def with_options(self, **options: Any) -> RedirectingClient:
        return RedirectingClient(self._client.with_options(**options), self._create)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


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
        self._openai_client, self._is_explicit = openai_client, model_is_explicit
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

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: ModelSettings, *rest: Any, **named: Any
    ) -> ModelResponse:
        model, settings = self._choose_model(model_settings)
        return await model.get_response(system_instructions, input, settings, *rest, **named)

    async def stream_response(
        self, system_instructions: Any, input: Any, model_settings: ModelSettings, *rest: Any, **named: Any
    ) -> AsyncGenerator[ResponseStreamEvent, None]:
        model, settings = self._choose_model(model_settings)
        stream: Any = model.stream_response(system_instructions, input, settings, *rest, **named)
        async with aclosing(stream):
            async for event in stream:
                yield event

    def _choose_model(self, model_settings: ModelSettings) -> tuple[OpenAIResponsesModel, ModelSettings]:
        """Return a model of the SDK that sends one call, in the background or not, and its settings."""
        given, settings = split(model_settings)
        durability = combine(self._fixed, given, self._defaults)
        client = self._openai_client
        if wants_background(durability.background, settings, str(self.model), self._auto_models):
            if is_unstored(settings):
                raise UserError(
                    "A background response must be stored: leave out `store=False`, or set `background=False`."
                )

            async def create(client: AsyncOpenAI, arguments: dict[str, Any]) -> Any:
                call = self._make_call(client, _strip(arguments), durability)
                return background.stream(call) if arguments.get("stream") is True else await self._fetch(call)

            client = cast(AsyncOpenAI, RedirectingClient(client, create))
        elif self._next_turn(client) is not None:
            raise UserError("The turns of a durable run are in the background: leave out `background`.")
        return OpenAIResponsesModel(self.model, client, model_is_explicit=self._is_explicit), settings

    def _next_turn(self, client: AsyncOpenAI) -> RunTurn | None:
        """Return the turn of the durable run that the model belongs to; None outside of one."""
        return None

    def _make_call(self, client: AsyncOpenAI, create: dict[str, Any], durability: Durability) -> BackgroundCall:
        turn = self._next_turn(client)
        headers = dict(create.get("extra_headers") or {})
        given = [headers.pop(name) for name in list(headers) if name.lower() == KEY_HEADER.lower()]
        if given and turn is not None:
            raise UserError("A durable run makes its own Idempotency-Key: leave out the header.")
        create = {**create, "extra_headers": headers}
        return BackgroundCall(
            client=client,
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
        self._options, self._openai_client = sdk, openai_client
        if self._defaults.background is True and (not sdk["use_responses"] or sdk["use_responses_websocket"]):
            raise UserError("Only Responses models over HTTP run in the background.")

    def get_model(self, model_name: str | None) -> Model:
        if self._options["use_responses"] and self._options["use_responses_websocket"]:
            model = super().get_model(model_name)  # from the cache whose connections the SDK's provider closes
            if type(model) is OpenAIResponsesWSModel:
                model.__class__ = RefusingWebSocketModel  # adds no state
            return model
        client, name = self._find_client(), model_name if model_name is not None else get_default_model()
        if not self._options["use_responses"]:
            buffered = self._options.get("buffer_streamed_tool_calls", False)
            return StrictChatCompletionsModel(name, client, strict=self._strict, buffer_streamed_tool_calls=buffered)
        return DurableResponsesModel(
            name,
            client,
            model_is_explicit=model_name is not None,
            defaults=self._defaults,
            auto_models=self._auto_models,
            retry_policy=self._retry_policy,
        )

    def _find_client(self) -> AsyncOpenAI:
        """Return the given client, or the one that the SDK's provider makes; the SDK has no public way to get that."""
        if self._openai_client is None:
            names = ("api_key", "base_url", "organization", "project")
            given: dict[str, Any] = {name: self._options.get(name) for name in names}
            make: Callable[[], AsyncOpenAI] = getattr(self, "_get_client", partial(AsyncOpenAI, **given))
            self._openai_client = make()
        return self._openai_client


def _strip(built: dict[str, Any]) -> dict[str, Any]:
    """Drop arguments that were not given, and `stream`, which is set later."""
    left_out = (Omit, NotGiven, type(None))
    return {name: value for name, value in built.items() if not isinstance(value, left_out) and name != "stream"}


def _digest(create: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(create, sort_keys=True, default=repr).encode()).hexdigest()

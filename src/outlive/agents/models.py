"""Models and their providers: durable ones, whose calls run in the background of the server, and strict ones, which
have no state on the server and refuse requests that rely on it before anything is sent."""

import hashlib
import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from agents import Model, ModelProvider, ModelResponse, ModelSettings, TResponseInputItem, UserError
from agents.models.default_models import get_default_model
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_provider import OpenAIProvider
from agents.models.openai_responses import OpenAIResponsesModel, OpenAIResponsesWSModel
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest, ModelRetryNormalizedError
from openai import AsyncOpenAI, NotGiven, Omit, OpenAIError
from openai.types.responses import ResponseStreamEvent
from typing_extensions import Unpack

from outlive.agents import settings as durability
from outlive.agents.background import BackgroundCall, submitted_id
from outlive.agents.journal import RunTurn
from outlive.agents.settings import AUTO_MODELS, Durability, DurabilityOptions
from outlive.client import ClientError, RetryPolicy
from outlive.client.plans import KEY_HEADER

# Keys of submits without an answer, kept for retries by the runner; only an outage leaves more than a few.
MOST_UNANSWERED = 100
USE_RESPONSES = "Use a Responses model (outlive.agents.DurableResponsesModel), or send the whole history yourself."
OUTPUT_TYPES = ("function_call_output", "custom_tool_call_output")
CALL_TYPES = ("function_call", "custom_tool_call")
STATE = ("previous_response_id", "conversation_id")


class PreparedModel(Model):
    """Mixin that checks a call and its settings, and chooses the model that sends it."""

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: ModelSettings, *rest: Any, **named: Any
    ) -> ModelResponse:
        model, settings = self._prepare(input, model_settings, rest, named)
        answer: ModelResponse = await model.get_response(system_instructions, input, settings, *rest, **named)
        return answer

    async def stream_response(
        self, system_instructions: Any, input: Any, model_settings: ModelSettings, *rest: Any, **named: Any
    ) -> AsyncGenerator[ResponseStreamEvent, None]:
        model, settings = self._prepare(input, model_settings, rest, named)
        stream = model.stream_response(system_instructions, input, settings, *rest, **named)
        async with aclosing(stream) if hasattr(stream, "aclose") else nullcontext():
            async for event in stream:
                yield event

    def _prepare(self, input: Any, settings: ModelSettings, rest: Any, named: Any) -> tuple[Any, ModelSettings]:
        """Return the model, and the settings without those of durability."""
        raise NotImplementedError


# -- durable models


class RedirectingClient:
    """A client whose `responses.create` is another function: the public way to change how a model of the SDK sends."""

    def __init__(self, client: AsyncOpenAI, create: Callable[[AsyncOpenAI, dict[str, Any]], Awaitable[Any]]) -> None:
        self._client, self._create = client, create
        self.responses = SimpleNamespace(create=lambda **arguments: create(client, arguments))

    def with_options(self, **options: Any) -> "RedirectingClient":
        return RedirectingClient(self._client.with_options(**options), self._create)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class DurableResponsesModel(PreparedModel, OpenAIResponsesModel):
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

    def _prepare(self, input: Any, settings: ModelSettings, rest: Any, named: Any) -> tuple[Any, ModelSettings]:
        """Return a model of the SDK that sends one call, in the background or not, and its settings."""
        given, settings = durability.split(settings)
        chosen = durability.combine(self._fixed, given, self._defaults)
        client = self._openai_client
        if durability.wants_background(chosen.background, settings, str(self.model), self._auto_models):
            if durability.is_unstored(settings):
                raise UserError(
                    "A background response must be stored: leave out `store=False`, or set `background=False`."
                )
            client = cast(AsyncOpenAI, RedirectingClient(client, partial(self._send, chosen)))
        elif self._next_turn() is not None:
            raise UserError("The turns of a durable run are in the background: leave out `background`.")
        return OpenAIResponsesModel(self.model, client, model_is_explicit=self._is_explicit), settings

    def _next_turn(self) -> RunTurn | None:
        """Return the turn of the durable run that the model belongs to; None outside of one."""
        return None

    async def _send(self, chosen: Durability, client: AsyncOpenAI, arguments: dict[str, Any]) -> Any:
        """Send one call in the background: return its response, or the iterator over its events."""
        turn, left_out = self._next_turn(), (Omit, NotGiven, type(None))
        create = {name: value for name, value in arguments.items() if not isinstance(value, left_out)}
        streamed = create.pop("stream", False) is True
        headers = dict(create.get("extra_headers") or {})
        keys = [headers.pop(name) for name in list(headers) if name.lower() == KEY_HEADER.lower()]
        create["extra_headers"] = headers
        digest = hashlib.sha256(json.dumps(create, sort_keys=True, default=repr).encode()).hexdigest()
        if turn is not None:
            if keys:
                raise UserError("A durable run makes its own Idempotency-Key: leave out the header.")
            key = turn.key
        else:
            key = keys[0] if keys else self._unanswered.pop(digest, f"outlive-{uuid.uuid4()}")
        call = BackgroundCall(client, create, key, chosen, self._retry_policy, turn)
        if streamed:
            return call.stream()
        try:
            return await call.fetch()
        except (OpenAIError, ClientError):
            if call.progress.response_id is None and turn is None:
                # The submit may have been accepted. If the runner's retry policy sends the same call again, it goes out
                # under the same key, and an Outlive attaches it to the existing run.
                while len(self._unanswered) >= MOST_UNANSWERED:
                    self._unanswered.pop(next(iter(self._unanswered)))
                self._unanswered[digest] = key
            raise


# -- strict models


def check_stateless(
    input: str | Sequence[TResponseInputItem],
    *,
    previous_response_id: str | None = None,
    conversation_id: str | None = None,
    who: str = "This model",
) -> None:
    """Raise UserError if a request relies on state on the server, which no Chat Completions backend has."""
    for name, value in (("previous_response_id", previous_response_id), ("conversation_id", conversation_id)):
        if value is not None:
            raise UserError(f"{who} keeps no state on the server and cannot honour `{name}`. {USE_RESPONSES}")
    items: list[Any] = [each for each in input if isinstance(each, Mapping)]
    made = {each.get("call_id") for each in items if each.get("type") in CALL_TYPES}
    answered = [each.get("call_id") for each in items if each.get("type") in OUTPUT_TYPES]
    if orphans := [str(call_id) for call_id in answered if call_id not in made]:
        raise UserError(
            f"{who} was given the output of {', '.join(orphans)} without the call that it answers, as a runner sends "
            f"it with `auto_previous_response_id=True`: the model would not see the earlier items. {USE_RESPONSES}"
        )


class StatelessModel(PreparedModel):
    """Mixin for a model that cannot run in the background and, if strict, not rely on state on the server."""

    _who: str
    _strict = True

    def _prepare(self, input: Any, settings: ModelSettings, rest: Any, named: Any) -> tuple[Any, ModelSettings]:
        given, settings = durability.split(settings)
        if given.background is True:
            raise UserError(
                f"{self._who} cannot run in the background. Use outlive.agents.DurableResponsesModel over HTTP."
            )
        if self._strict:
            # The runner passes them by name, other callers perhaps by position, after four others.
            state = named | dict(zip(STATE, rest[4:6], strict=False))
            check_stateless(input, **{name: state.get(name) for name in STATE}, who=self._who)
        return super(PreparedModel, self), settings


class StrictChatCompletionsModel(StatelessModel, OpenAIChatCompletionsModel):
    """A Chat Completions model that refuses arguments it would have to ignore.

    `strict=False` refuses only `background`; the SDK then warns once about the rest and ignores it.
    """

    _who = "A Chat Completions model"

    def __init__(self, *args: Any, strict: bool = True, **named: Any) -> None:
        named.setdefault("strict_feature_validation", strict)
        super().__init__(*args, **named)
        self._strict = strict


class RefusingWebSocketModel(StatelessModel, OpenAIResponsesWSModel):
    """The SDK's websocket model, which streams over one connection and cannot resume."""

    _who = "The websocket model"
    _strict = False


class StrictModel(StatelessModel):
    """Wrapper with the same refusals for any other model based on Chat Completions, such as LiteLLM's."""

    def __init__(self, model: Model) -> None:
        self.inner = model
        self._who = type(model).__name__

    def _prepare(self, input: Any, settings: ModelSettings, rest: Any, named: Any) -> tuple[Any, ModelSettings]:
        return self.inner, super()._prepare(input, settings, rest, named)[1]

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self.inner.get_retry_advice(request)

    async def close(self) -> None:
        await self.inner.close()


class WrappedProvider(ModelProvider):
    """A provider whose models are those of another, each wrapped."""

    _wrap: Callable[[Model], Model]

    def __init__(self, provider: ModelProvider) -> None:
        self.inner = provider

    def get_model(self, model_name: str | None) -> Model:
        return self._wrap(self.inner.get_model(model_name))

    async def aclose(self) -> None:
        await self.inner.aclose()


class StrictProvider(WrappedProvider):
    """Wrapper that makes every model of another provider a StrictModel."""

    _wrap = StrictModel


# -- the provider of both


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
        self._defaults = Durability(**{name: sdk.pop(name, None) for name in durability.NAMES})
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
        if self._openai_client is None:
            names = ("api_key", "base_url", "organization", "project")
            given: dict[str, Any] = {name: self._options.get(name) for name in names}
            # The client that the SDK's provider makes; the SDK has no public way to get that.
            make: Callable[[], AsyncOpenAI] = getattr(self, "_get_client", partial(AsyncOpenAI, **given))
            self._openai_client = make()
        client, name = self._openai_client, model_name if model_name is not None else get_default_model()
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

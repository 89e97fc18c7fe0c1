"""Models without state on the server, which refuse requests that rely on it before anything is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from agents import Model, ModelProvider, ModelResponse, ModelSettings, TResponseInputItem, UserError
from agents.models.openai_chatcompletions import OpenAIChatCompletionsModel
from agents.models.openai_responses import OpenAIResponsesWSModel
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from openai.types.responses import ResponseStreamEvent

from outlive.agents.settings import split

USE_RESPONSES = "Use a Responses model (outlive.agents.DurableResponsesModel), or send the whole history yourself."
OUTPUT_TYPES = ("function_call_output", "custom_tool_call_output")
CALL_TYPES = ("function_call", "custom_tool_call")


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
    orphans = _find_orphans(input)
    if orphans:
        raise UserError(
            f"{who} was given the output of {', '.join(orphans)} without the call that it answers, as a runner sends "
            f"it with `auto_previous_response_id=True`: the model would not see the earlier items. {USE_RESPONSES}"
        )


def refuse_background(settings: ModelSettings, who: str) -> ModelSettings:
    """Return the settings without those of durability. Raise UserError if they ask for background."""
    given, rest = split(settings)
    if given.background is True:
        raise UserError(f"{who} cannot run in the background. Use outlive.agents.DurableResponsesModel over HTTP.")
    return rest


def _find_orphans(input: str | Sequence[TResponseInputItem]) -> list[str]:
    if isinstance(input, str):
        return []
    given: list[Any] = list(input)
    items = [each for each in given if isinstance(each, Mapping)]
    made = {each.get("call_id") for each in items if each.get("type") in CALL_TYPES}
    answered = [each.get("call_id") for each in items if each.get("type") in OUTPUT_TYPES]
    return [str(call_id) for call_id in answered if call_id not in made]


class CheckedModel(Model):
    """Mixin that checks a call, and the settings it is made with, before the model sends it."""

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: ModelSettings, *rest: Any, **named: Any
    ) -> ModelResponse:
        settings = self._check(input, model_settings, rest, named)
        return await super().get_response(system_instructions, input, settings, *rest, **named)  # type: ignore[safe-super]

    async def stream_response(
        self, system_instructions: Any, input: Any, model_settings: ModelSettings, *rest: Any, **named: Any
    ) -> AsyncIterator[ResponseStreamEvent]:
        settings = self._check(input, model_settings, rest, named)
        async for event in super().stream_response(system_instructions, input, settings, *rest, **named):  # type: ignore[safe-super]
            yield event

    def _check(self, input: Any, settings: ModelSettings, rest: Any, named: Any) -> ModelSettings:
        return refuse_background(settings, "The websocket model")


class StrictChatCompletionsModel(CheckedModel, OpenAIChatCompletionsModel):
    """A Chat Completions model that refuses arguments it would have to ignore.

    `strict=False` refuses only `background`; the SDK then warns once about the rest and ignores it.
    """

    def __init__(self, *args: Any, strict: bool = True, **named: Any) -> None:
        named.setdefault("strict_feature_validation", strict)
        super().__init__(*args, **named)
        self._strict = strict

    def _check(self, input: Any, settings: ModelSettings, rest: Any, named: Any) -> ModelSettings:
        settings = refuse_background(settings, "A Chat Completions model")
        if self._strict:
            check_stateless(input, **_state(rest, named), who="A Chat Completions model")
        return settings


class RefusingWebSocketModel(CheckedModel, OpenAIResponsesWSModel):
    """The SDK's websocket model, which streams over one connection and cannot resume."""


class StrictModel(Model):
    """Wrapper with the same refusals for any other model based on Chat Completions, such as LiteLLM's."""

    def __init__(self, model: Model) -> None:
        self.inner = model
        self._who = type(model).__name__

    async def get_response(
        self, system_instructions: Any, input: Any, model_settings: ModelSettings, *rest: Any, **named: Any
    ) -> ModelResponse:
        settings = self._check(input, model_settings, rest, named)
        return await self.inner.get_response(system_instructions, input, settings, *rest, **named)

    async def stream_response(
        self, system_instructions: Any, input: Any, model_settings: ModelSettings, *rest: Any, **named: Any
    ) -> AsyncIterator[ResponseStreamEvent]:
        settings = self._check(input, model_settings, rest, named)
        async for event in self.inner.stream_response(system_instructions, input, settings, *rest, **named):
            yield event

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self.inner.get_retry_advice(request)

    async def close(self) -> None:
        await self.inner.close()

    def _check(self, input: Any, settings: ModelSettings, rest: Any, named: Any) -> ModelSettings:
        settings = refuse_background(settings, self._who)
        check_stateless(input, **_state(rest, named), who=self._who)
        return settings


class StrictProvider(ModelProvider):
    """Wrapper that makes every model of another provider a StrictModel."""

    def __init__(self, provider: ModelProvider) -> None:
        self.inner = provider

    def get_model(self, model_name: str | None) -> Model:
        return StrictModel(self.inner.get_model(model_name))

    async def aclose(self) -> None:
        await self.inner.aclose()


def _state(rest: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return the two ids: the runner passes them by name, other callers perhaps by position, after four others."""
    placed = dict(zip(("previous_response_id", "conversation_id"), rest[4:6], strict=False))
    return {name: placed.get(name, named.get(name)) for name in ("previous_response_id", "conversation_id")}

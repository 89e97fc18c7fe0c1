"""The durable model: the SDK's Responses model whose calls run in the background of the server."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Sequence
from typing import Any

from agents import ModelSettings, UserError
from agents.models.openai_responses import OpenAIResponsesModel, _mark_transport_request_without_usage
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest, ModelRetryNormalizedError
from openai import AsyncOpenAI, NotGiven, Omit
from openai.types.responses import Response

from outlive.agents.background import KEY_HEADER, Errand, conclude
from outlive.agents.errors import check_ending, submitted_id
from outlive.agents.event_stream import EventStream
from outlive.agents.settings import (
    AUTO_MODELS,
    Background,
    Durability,
    OnCancel,
    combine,
    is_unstored,
    split,
    wants_background,
)
from outlive.agents.turn import Turn
from outlive.client import Patience

# Keys of submits that brought no answer, kept for the runner's own retry. More than a few would be an outage.
MOST_UNSETTLED = 100


class DurableResponsesModel(OpenAIResponsesModel):
    """Submits each call with `background: true` and waits for it, so that no cut connection and no restart loses it.

    A setting given here holds for every agent that uses this model; an agent sets its own through
    `ModelSettings.extra_args`. In both places at once it is a TypeError. `defaults` may be overridden by both.
    """

    def __init__(
        self,
        model: str,
        openai_client: AsyncOpenAI,
        *,
        model_is_explicit: bool = True,
        background: Background | None = None,
        background_poll_interval_seconds: float | None = None,
        background_max_wait_seconds: float | None = None,
        on_cancel: OnCancel | None = None,
        defaults: Durability | None = None,
        auto_models: Sequence[str] = AUTO_MODELS,
        patience: Patience | None = None,
    ) -> None:
        super().__init__(model=model, openai_client=openai_client, model_is_explicit=model_is_explicit)
        self._fixed = Durability(
            background=background,
            background_poll_interval_seconds=background_poll_interval_seconds,
            background_max_wait_seconds=background_max_wait_seconds,
            on_cancel=on_cancel,
        )
        self._defaults = defaults or Durability()
        self._auto_models = tuple(auto_models)
        self._patience = patience or Patience()
        self._unsettled: dict[str, str] = {}

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Once a call is submitted, no error on the way lets the runner submit it again, whatever its policy says."""
        response_id = submitted_id(request.error)
        if response_id is None:
            return super().get_retry_advice(request)
        return ModelRetryAdvice(
            suggested=False,
            replay_safety="unsafe",
            reason=f"Response {response_id} is submitted already: {request.error}",
            normalized=ModelRetryNormalizedError(is_abort=True),
        )

    # The one place where the SDK's model talks to the server; its websocket model overrides the same one.
    async def _fetch_response(
        self,
        system_instructions: Any,
        input: Any,
        model_settings: ModelSettings,
        *rest: Any,
        stream: bool = False,
        **named: Any,
    ) -> Any:
        said, settings = split(model_settings)
        choice = combine(self._fixed, said, self._defaults)
        turn = self._next_turn()
        if not wants_background(choice.background, settings, str(self.model), self._auto_models):
            if turn is not None:
                raise UserError("The turns of a durable run are in the background: leave out `background`.")
            asked: Any = super()._fetch_response
            return await asked(system_instructions, input, settings, *rest, stream=stream, **named)
        if is_unstored(settings):
            raise UserError("A background response must be stored: leave out `store=False`, or set `background=False`.")
        built = self._build_response_create_kwargs(system_instructions, input, settings, *rest, **named)
        errand = self._make_errand(_strip(built), choice, turn)
        return EventStream(errand) if stream else await self._conclude(errand)

    def _next_turn(self) -> Turn | None:
        """Models that belong to a durable run know which turn this is."""
        return None

    def _make_errand(self, create: dict[str, Any], choice: Durability, turn: Turn | None) -> Errand:
        headers = dict(create.get("extra_headers") or {})
        given = [headers.pop(name) for name in list(headers) if name.lower() == KEY_HEADER.lower()]
        if given and turn is not None:
            raise UserError("A durable run makes its own Idempotency-Key: leave out the header.")
        create = {**create, "extra_headers": headers}
        return Errand(
            client=self._get_client(),
            create=create,
            key=turn.key if turn is not None else given[0] if given else self._choose_key(create),
            interval=choice.background_poll_interval_seconds,
            max_wait=choice.background_max_wait_seconds,
            on_cancel=choice.on_cancel or ("cancel" if turn is None else "detach"),
            patience=self._patience,
            turn=turn,
        )

    async def _conclude(self, errand: Errand) -> Response:
        try:
            response = await conclude(errand)
        except Exception:
            if errand.watch.response_id is None and errand.turn is None:
                self._keep_key(errand)
            raise
        check_ending(response)
        _mark_transport_request_without_usage(response)
        if errand.turn is not None:
            errand.turn.end(response)
        return response

    # A submit whose answer was lost may have been accepted. When the runner's retry policy sends the same again, it
    # goes out under the same key, and an Outlive attaches it to the run that is there.

    def _choose_key(self, create: dict[str, Any]) -> str:
        return self._unsettled.pop(_digest(create), None) or f"outlive-{uuid.uuid4()}"

    def _keep_key(self, errand: Errand) -> None:
        while len(self._unsettled) >= MOST_UNSETTLED:
            self._unsettled.pop(next(iter(self._unsettled)))
        self._unsettled[_digest(errand.create)] = errand.key


def _strip(built: dict[str, Any]) -> dict[str, Any]:
    """Only what was given; `stream` is not ours to say."""
    left_out = (Omit, NotGiven, type(None))
    return {name: value for name, value in built.items() if not isinstance(value, left_out) and name != "stream"}


def _digest(create: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(create, sort_keys=True, default=repr).encode()).hexdigest()

"""An agent in this process, served as a model."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import NoReturn

from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.requests.create import CreateResponse
from outlive.ports.backend import BackgroundRuns, ContinuationMode, ModelCall, OnChunks, PassedAnswer
from outlive.served_agents.channel import AgentChannel, AgentError, AgentRunner
from outlive.served_agents.translator import AgentTranslator

log = logging.getLogger(__name__)


# How long an agent that is stopped may take to stop. One that will not is left alone: it can tell nobody anything.
STOP_SECONDS = 1.0


class AgentBackend:
    """One agent under the name of a model."""

    stepwise = True
    background_runs: BackgroundRuns | None = None

    def __init__(self, name: str, player: AgentRunner, ids: IdSource) -> None:
        self.name = name
        self.continuation: ContinuationMode = "prefill" if player.repeats_itself else "none"
        self._player = player
        self._ids = ids

    def check(self, request: CreateResponse) -> None:
        if request.tools:
            self._refuse("with tools of its own: it cannot be given a tool to call.", "tools[0].type")
        if request.max_tool_calls is not None:
            self._refuse("and decides itself how often it calls its tools.", "max_tool_calls")
        if (request.text.get("format") or {}).get("type", "text") != "text":
            self._refuse("and decides itself on the form of its answer.", "text.format")
        if request.top_logprobs is not None or "message.output_text.logprobs" in request.include:
            self._refuse("which knows of no probabilities.", "top_logprobs")

    def _refuse(self, why: str, param: str) -> NoReturn:
        raise InvalidRequest(f"{self.name} is an agent, {why}", param=param, code="unsupported_parameter")

    def translator(self, call: ModelCall) -> AgentTranslator:
        return AgentTranslator(call, self._ids, self.name)

    async def stream(self, call: ModelCall, on_chunks: OnChunks | None = None) -> AsyncGenerator[list[bytes], None]:
        teller = AgentChannel(self._ids)
        task = asyncio.create_task(self._play(call, teller))
        try:
            async for chunks in teller.listen(call.settle):
                yield chunks
            await task
        finally:
            await _stop(task)

    async def _play(self, call: ModelCall, teller: AgentChannel) -> None:
        try:
            await self._player.play(call, teller)
        except UpstreamFault:
            raise
        except AgentError as error:
            raise UpstreamFault(str(error), retryable=False) from error
        except Exception as error:
            # Its own words may hold anything, so they are for the log alone, which leaves them out, too.
            log.warning("the agent %s failed", self.name, exc_info=error)
            raise UpstreamFault(f"The agent {self.name} failed ({type(error).__name__}).", retryable=False) from error
        finally:
            teller.over()

    async def pass_through(self, body: Json) -> PassedAnswer:
        raise InvalidRequest(
            f"{self.name} is an agent: ask it through /v1/responses.", param="model", code="unsupported_model"
        )

    async def models(self) -> list[Json]:
        return [{"id": self.name, "object": "model", "created": 0, "owned_by": "agent"}]

    async def count(self, call: ModelCall) -> int | None:
        return None

    async def window(self, model: str) -> int | None:
        return None

    async def close(self) -> None:
        pass


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=STOP_SECONDS)
    if task.done() and not task.cancelled():
        task.exception()  # it was told of, or came too late

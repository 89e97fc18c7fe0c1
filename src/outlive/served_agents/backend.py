"""Agents in this process, loaded from the settings and served as models."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from outlive.config.settings import Settings
from outlive.config.user_modules import load_object
from outlive.core.errors import InvalidRequest, SettingsError, UpstreamFault
from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.requests.create import CreateResponse
from outlive.ports.backend import Backend, ContinuationMode, ModelCall, OnChunks, PassedAnswer
from outlive.served_agents.channel import AgentChannel, AgentError
from outlive.served_agents.function import run_function
from outlive.served_agents.translator import AgentTranslator

log = logging.getLogger(__name__)

# The time that a cancelled agent has to stop. One that does not is left behind: its channel is not read any more.
STOP_SECONDS = 1.0

# Answers a call over the channel. An exception means that the agent failed.
RunAgent = Callable[[ModelCall, AgentChannel], Awaitable[None]]

_UNSAFE = re.compile(r"[^\w.:-]+")


def load_agents(settings: Settings, ids: IdSource) -> dict[str, AgentBackend]:
    """Load the agents, each under its model's name. Raises SettingsError for what cannot be served."""
    agents: dict[str, AgentBackend] = {}
    for setting in settings.agents:
        given, equals, reference = setting.rpartition("=")
        own, run, continuation = _detect(load_object(reference, "--agent")[1], reference)
        # An agent's own name may be a sentence; a model's name is one word.
        name = given if equals else _UNSAFE.sub("-", own or reference.rpartition(":")[2]).strip("-")
        if not name or name in agents:
            raise SettingsError(f"The agent {reference} needs a name of its own: --agent NAME={reference}.")
        agents[name] = AgentBackend(name, continuation, run, ids)
    return agents


def _detect(agent: Any, reference: str) -> tuple[str | None, RunAgent, ContinuationMode]:
    """Return the agent's own name, if it has one, and how it is run. Raises SettingsError for what is no agent."""
    kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(agent).__mro__}
    if "agents.Agent" in kinds:
        from outlive.served_agents.openai_agents import run_openai_agent

        return agent.name, partial(run_openai_agent, agent), "none"
    if "pydantic_ai.AbstractAgent" in kinds:
        from outlive.served_agents.pydantic_agents import run_pydantic_agent

        return agent.name, partial(run_pydantic_agent, agent), "none"
    if inspect.isasyncgenfunction(agent) or inspect.iscoroutinefunction(agent):
        # Run again from its start it produces the same text, so that it can resume in the middle of one.
        return agent.__name__, partial(run_function, agent), "prefill"
    raise SettingsError(
        f"{reference} is neither an Agent of openai-agents or pydantic-ai nor an async function, "
        "so it cannot be served."
    )


@dataclass(eq=False)
class AgentBackend(Backend):
    """One agent under the name of a model."""

    name: str
    continuation: ContinuationMode
    run_agent: RunAgent
    ids: IdSource
    stepwise = True

    def check(self, request: CreateResponse) -> None:
        text_format = (request.text.get("format") or {}).get("type", "text")
        logprobs = request.top_logprobs is not None or "message.output_text.logprobs" in request.include
        for given, param, why in (
            (request.tools, "tools[0].type", "with tools of its own: it cannot be given a tool to call."),
            (request.max_tool_calls is not None, "max_tool_calls", "and decides itself how often it calls its tools."),
            (text_format != "text", "text.format", "and decides itself on the form of its answer."),
            (logprobs, "top_logprobs", "which knows of no probabilities."),
        ):
            if given:
                raise InvalidRequest(f"{self.name} is an agent, {why}", param=param, code="unsupported_parameter")

    def translator(self, call: ModelCall) -> AgentTranslator:
        return AgentTranslator(call, self.ids, self.name)

    async def stream(self, call: ModelCall, on_chunks: OnChunks | None = None) -> AsyncGenerator[list[bytes], None]:
        channel = AgentChannel(self.ids)
        task = asyncio.create_task(self._run(call, channel))
        try:
            async for chunks in channel.batches(call.settle):
                yield chunks
            await task
        finally:
            task.cancel()
            await asyncio.wait([task], timeout=STOP_SECONDS)
            if task.done() and not task.cancelled():
                task.exception()  # raised already, or too late to matter: marks it as seen, or asyncio would log it

    async def _run(self, call: ModelCall, channel: AgentChannel) -> None:
        try:
            await self.run_agent(call, channel)
        except UpstreamFault:
            raise
        except AgentError as error:
            raise UpstreamFault(str(error), retryable=False) from error
        except Exception as error:  # a user's agent may raise anything, which fails only its response
            # The message may hold anything, so the caller gets the type alone; the log leaves the message out, too.
            log.warning("agent failed", exc_info=error, extra={"model": self.name, "response_id": call.response_id})
            raise UpstreamFault(f"The agent {self.name} failed ({type(error).__name__}).", retryable=False) from error
        finally:
            channel.close()

    async def pass_through(self, body: Json, headers: dict[str, str] | None = None) -> PassedAnswer:
        message = f"{self.name} is an agent: ask it through /v1/responses."
        raise InvalidRequest(message, param="model", code="unsupported_model")

    async def models(self) -> list[Json]:
        return [{"id": self.name, "object": "model", "created": 0, "owned_by": "agent"}]

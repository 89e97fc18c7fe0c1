"""Which kind of agent an object is, and under what name it is served."""

from __future__ import annotations

import inspect

from outlive.core.errors import SettingsError
from outlive.served_agents.channel import AgentRunner
from outlive.served_agents.function import FunctionAgent


def detect_agent(agent: object, where: str) -> tuple[str | None, AgentRunner]:
    """The agent's own name, if it has one, and how it is run. Raises SettingsError for what is no agent."""
    roots = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(agent).__mro__}
    if "agents.Agent" in roots:
        from outlive.served_agents.openai_agents import OpenaiAgent

        return agent.name, OpenaiAgent(agent)  # type: ignore[attr-defined, arg-type]
    if "pydantic_ai.AbstractAgent" in roots:
        from outlive.served_agents.pydantic_agents import PydanticAgent

        return agent.name, PydanticAgent(agent)  # type: ignore[attr-defined, arg-type]
    if inspect.isasyncgenfunction(agent) or inspect.iscoroutinefunction(agent):
        return agent.__name__, FunctionAgent(agent)
    raise SettingsError(
        f"{where} is neither an Agent of openai-agents or pydantic-ai nor an async function, so it cannot be served."
    )

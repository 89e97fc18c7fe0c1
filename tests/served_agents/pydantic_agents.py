"""Agents of pydantic-ai that the tests serve. Each has a scripted model of its own: for-NAME."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.served_agents.function_agents import MODEL, UPSTREAM, look_up

PROVIDER = OpenAIProvider(base_url=UPSTREAM, api_key="any")


class File(BaseModel):
    name: str
    box: int


def search(word: str) -> str:
    """Asks the model to retry with a shorter word."""
    if len(word) > 3:
        raise ModelRetry("Only short words, please.")
    return f"{word} was found"


def fail(word: str) -> str:
    """Always fails."""
    raise ValueError(f"{word} failed")


def make(name: str, **fields: Any) -> Agent[Any, Any]:
    model = OpenAIChatModel(MODEL or f"for-{name}", provider=PROVIDER)
    return Agent(model, name=name, **fields)


pydantic_agent = make("pydantic_agent", instructions="Be brief.", tools=[look_up])
structured_pydantic = make("structured_pydantic", output_type=File, tools=[look_up])
retrying_tool = make("retrying_tool", tools=[search])
failing_tool_pydantic = make("failing_tool_pydantic", tools=[fail])

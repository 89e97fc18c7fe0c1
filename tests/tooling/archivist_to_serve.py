"""Agents of pydantic-ai that the tests serve as models. Each has a scripted model of its own: for-NAME."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.tooling.agents_to_serve import MODEL, UPSTREAM, look_up

PROVIDER = OpenAIProvider(base_url=UPSTREAM, api_key="any")


class File(BaseModel):
    name: str
    box: int


def search(word: str) -> str:
    """Wants short words."""
    if len(word) > 3:
        raise ModelRetry("Only short words, please.")
    return f"{word} was found"


def stumble(word: str) -> str:
    """Never works."""
    raise ValueError(f"{word} fell down")


def make(name: str, **fields: Any) -> Agent[Any, Any]:
    model = OpenAIChatModel(MODEL or f"for-{name}", provider=PROVIDER)
    return Agent(model, name=name, **fields)


archivist = make("archivist", instructions="Be brief.", tools=[look_up])
filer = make("filer", output_type=File, tools=[look_up])
seeker = make("seeker", tools=[search])
faller = make("faller", tools=[stumble])

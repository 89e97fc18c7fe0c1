"""Agents of openai-agents that the tests serve as models. Each has a scripted model of its own: for-NAME."""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    GuardrailFunctionOutput,
    OpenAIChatCompletionsModel,
    function_tool,
    input_guardrail,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

from tests.tooling.agents_to_serve import MODEL, UPSTREAM, look_up

CLIENT = AsyncOpenAI(base_url=UPSTREAM, api_key="any", max_retries=0)


class Book(BaseModel):
    title: str
    pages: int


@function_tool
def stumble(word: str) -> str:
    """Never works."""
    raise ValueError(f"{word} fell down")


@function_tool(needs_approval=True)
def burn(word: str) -> str:
    """Wants to be allowed."""
    return f"{word} is gone"


@input_guardrail
async def be_polite(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="please" not in str(input))


def make(name: str, **fields: Any) -> Agent[Any]:
    return Agent(name=name, model=OpenAIChatCompletionsModel(MODEL or f"for-{name}", CLIENT), **fields)


look = function_tool(look_up)
librarian = make("The Librarian", instructions="Be brief.", tools=[look])
triage = make("triage", handoffs=[make("expert", tools=[look])])
guarded = make("guarded", input_guardrails=[be_polite])
cataloguer = make("cataloguer", output_type=Book)
clumsy = make("clumsy", tools=[stumble])
pointer = make("pointer", tools=[look], tool_use_behavior="stop_on_first_tool")
cautious = make("cautious", tools=[burn])

"""Agents of openai-agents that the tests serve. Each has a scripted model of its own: for-NAME."""

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

from tests.served_agents.function_agents import MODEL, UPSTREAM, look_up

CLIENT = AsyncOpenAI(base_url=UPSTREAM, api_key="any", max_retries=0)


class Book(BaseModel):
    title: str
    pages: int


@function_tool
def fail(word: str) -> str:
    """Always fails."""
    raise ValueError(f"{word} failed")


@function_tool(needs_approval=True)
def erase(word: str) -> str:
    """Needs approval."""
    return f"{word} is gone"


@input_guardrail
async def require_please(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="please" not in str(input))


def make(name: str, **fields: Any) -> Agent[Any]:
    return Agent(name=name, model=OpenAIChatCompletionsModel(MODEL or f"for-{name}", CLIENT), **fields)


look = function_tool(look_up)
openai_agent = make("Openai Agent", instructions="Be brief.", tools=[look])
with_handoff = make("with_handoff", handoffs=[make("handoff_target", tools=[look])])
with_guardrail = make("with_guardrail", input_guardrails=[require_please])
structured_openai = make("structured_openai", output_type=Book)
failing_tool_openai = make("failing_tool_openai", tools=[fail])
tool_output_is_answer = make("tool_output_is_answer", tools=[look], tool_use_behavior="stop_on_first_tool")
needs_approval = make("needs_approval", tools=[erase])

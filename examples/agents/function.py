"""A plain async function as a model: outlive serve --agent examples.agents.function:reporter"""

from collections.abc import AsyncIterator

from outlive.agent import AgentContext, AgentRequest


async def count_words(text: str) -> int:
    return len(text.split())


async def reporter(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    yield "Let me count. "
    words = await context.call(count_words, text=request.text)  # recorded in the journal: not repeated after a restart
    yield f"You said {words} words."

"""Tools and an agent for the servers that are recorded, and for those that open what was recorded.

The module is copied into the folder that a server is started in. A file `hold-NAME` there holds a call up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

from outlive.agent import AgentContext, AgentRequest, CallFailed, ReasoningText
from outlive.tools import ToolContext, tool


def _is_held(word: str) -> bool:
    Path(f"reached-{word}").touch()
    return Path(f"hold-{word}").exists()


def _act(name: str, word: str, context: ToolContext) -> str:
    context.report("on it", progress=1, total=2)
    while _is_held(word):
        time.sleep(0.01)
    return f"{name} {word}{' again' if context.repeated else ''}"


@tool
def pay(amount: int, context: ToolContext) -> str:
    """Pay, which must not happen twice."""
    return _act("pay", str(amount), context)


@tool(idempotent=True)
def look(city: str, context: ToolContext) -> str:
    """Look, which may happen any number of times."""
    return _act("look", f"city-{city}", context)


async def look_up(word: str) -> str:
    """Look a word up."""
    while _is_held(word):
        await asyncio.sleep(0.01)
    return f"{word} is a word"


async def clerk(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    """Think, look two words up, and speak of them."""
    yield ReasoningText("Two words.")
    yield "Looking. "
    first = await context.call(look_up, word="first")
    yield f"First: {first}. "
    try:
        second = await context.call(look_up, word=request.text, idempotent=True)
    except CallFailed:
        second = "lost"
    yield f"Second: {second}."

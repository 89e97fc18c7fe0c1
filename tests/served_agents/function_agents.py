"""Functions that the tests serve as agents. Each call of a tool writes a line to the file that TOOL_FILE names.

A tool waits until the file that TOOL_GATE names exists, so that a server can be killed while the tool runs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from outlive.agent import AgentContext, AgentError, AgentRequest, CallFailed, ReasoningText

UPSTREAM = os.environ.get("MODEL_URL", "http://127.0.0.1:9/v1")
MODEL = os.environ.get("MODEL_NAME")  # for all agents that have a model; without it each has a scripted model
SECRET = "-".join(["canary", "in", "the", "agent"])
FILE = Path(os.environ.get("TOOL_FILE", os.devnull))
GATE = Path(os.environ.get("TOOL_GATE", os.devnull))


def record(word: str) -> None:
    with FILE.open("a") as file:
        file.write(f"{word}\n")


def is_open() -> bool:
    return GATE.exists()


async def look_up(word: str) -> str:
    """Look a word up."""
    record(word)
    while not is_open():
        await asyncio.sleep(0.01)
    return f"{word} is a word"


async def two_calls(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    """Reasons, makes two calls, and answers with their outputs."""
    yield ReasoningText("Let me see.")
    yield "Looking. "
    first = await context.call(look_up, word=request.text)
    yield f"First: {first}. "
    second = await context.call(look_up, word="dog", idempotent=True)
    yield f"Second: {second}."


async def one_call(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    """Makes one call, and handles its failure."""
    yield "Looking. "
    try:
        yield await context.call(look_up, word=request.text)
    except CallFailed:
        yield "It was interrupted."


async def slow_text(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    for n in range(40):
        yield f"line {n}\n"
        await asyncio.sleep(0.02)


async def echo(request: AgentRequest, context: AgentContext) -> str:
    """Returns its answer instead of yielding it."""
    return f"You said: {request.text}"


async def no_text(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    """Yields no text."""
    if request.text == "never":
        yield ""


async def returns_none(request: AgentRequest, context: AgentContext) -> None:
    """Returns None."""


async def ignores_cancel(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    """Does not stop when it is cancelled."""
    yield "On "
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            record("cancelled")


async def parallel_calls(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    """Makes two calls in parallel."""
    outputs = await asyncio.gather(*(context.call(look_up, word=word) for word in ("cat", "dog")))
    yield "; ".join(outputs)


async def diverging(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    """Takes another path after a crash."""
    if context.interrupted:
        await context.call(look_up, word="another")
        yield "Another way."
    else:
        await context.call(look_up, word="one")
        await context.call(look_up, word="stop")


async def raises_agent_error(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    if request.text == "never":
        yield ""
    raise AgentError("Ask me tomorrow.")


async def raises_error(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    yield "So far "
    raise RuntimeError(SECRET)

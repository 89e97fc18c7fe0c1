"""Agents that the tests serve as models. Each call of a tool leaves a line in the file that TOOL_FILE names.

TOOL_GATE names another: a tool that finds none there waits for it, so that a server can be killed while it runs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from outlive.agent import AgentContext, AgentError, AgentRequest, CallFailed, ReasoningText

UPSTREAM = os.environ.get("MODEL_URL", "http://127.0.0.1:9/v1")
MODEL = os.environ.get("MODEL_NAME")  # of all agents that have a model; else each has its own
SECRET = "-".join(["canary", "in", "the", "agent"])
FILE = Path(os.environ.get("TOOL_FILE", os.devnull))
GATE = Path(os.environ.get("TOOL_GATE", os.devnull))


def note(word: str) -> None:
    with FILE.open("a") as file:
        file.write(f"{word}\n")


def is_open() -> bool:
    return GATE.exists()


async def look_up(word: str) -> str:
    """Look a word up."""
    note(word)
    while not is_open():
        await asyncio.sleep(0.01)
    return f"{word} is a word"


async def clerk(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    """A function as an agent: it thinks, looks two words up, and tells of them."""
    yield ReasoningText("Let me see.")
    yield "Looking. "
    first = await context.call(look_up, word=request.text)
    yield f"First: {first}. "
    second = await context.call(look_up, word="dog", idempotent=True)
    yield f"Second: {second}."


async def asker(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    """Looks one word up, and takes it well when that comes to nothing."""
    yield "Looking. "
    try:
        yield await context.call(look_up, word=request.text)
    except CallFailed:
        yield "It was interrupted."


async def slow_reader(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    for n in range(40):
        yield f"line {n}\n"
        await asyncio.sleep(0.02)


async def echo(request: AgentRequest, context: AgentContext) -> str:
    """The smallest agent there is."""
    return f"You said: {request.text}"


async def silent(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    """Says nothing at all."""
    if request.text == "never":
        yield ""


async def absent(request: AgentRequest, context: AgentContext) -> None:
    """Returns nothing at all."""


async def endless(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    """Will not stop, even when it is told to."""
    yield "On "
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note("told-to-stop")


async def two_at_once(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    """Makes two calls side by side."""
    outputs = await asyncio.gather(*(context.call(look_up, word=word) for word in ("cat", "dog")))
    yield "; ".join(outputs)


async def fickle(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    """Goes another way after a crash."""
    if context.interrupted:
        await context.call(look_up, word="another")
        yield "Another way."
    else:
        await context.call(look_up, word="one")
        await context.call(look_up, word="stop")


async def complaining(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    if request.text == "never":
        yield ""
    raise AgentError("Ask me tomorrow.")


async def broken(request: AgentRequest, context: AgentContext) -> AsyncIterator[str]:
    yield "So far "
    raise RuntimeError(SECRET)

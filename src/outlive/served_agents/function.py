"""An async function as an agent: it is given the request and a context, and yields what it has to say."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from outlive.core.events import Json
from outlive.ports.backend import ModelCall
from outlive.served_agents import translator as chunks
from outlive.served_agents.channel import AgentChannel
from outlive.served_agents.rendering import render
from outlive.served_agents.replay_guard import ReplayGuard

MAX_ERROR = 1000


class Reasoning(str):
    """Yielded by an agent: a piece of what it thinks, not of what it says."""


class CallFailed(Exception):
    """A call that an agent made came to nothing; the message says why."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is asked."""

    model: str
    items: Sequence[Json]  # the conversation so far, this turn's input, and what this response holds by now
    instructions: str | None
    metadata: dict[str, str]
    temperature: float | None
    max_output_tokens: int | None

    @property
    def text(self) -> str:
        """What the user said last."""
        for item in reversed(self.items):
            if item.get("role") == "user":
                content = item.get("content")
                if isinstance(content, str):
                    return content
                parts = [part.get("text", "") for part in content or [] if part.get("type") == "input_text"]
                return "".join(parts)
        return ""


class Context:
    """What an agent knows of the response that it makes, and how its steps become part of it."""

    def __init__(self, call: ModelCall, teller: AgentChannel, recall: ReplayGuard) -> None:
        self.response_id = call.response_id
        self.owner = call.owner
        self.interrupted = bool(call.own) or call.resume is not None  # it has been begun before
        self._teller = teller
        self._recall = recall
        self._calls = 0

    @property
    def key(self) -> str:
        """Of the next call: the same for the same call, however often it is made."""
        return f"{self.response_id}/{self._calls + 1}"

    async def call(
        self, function: Callable[..., Any], /, *, name: str | None = None, idempotent: bool = False, **arguments: Any
    ) -> str:
        """Make a call as a step of the response: it is in the journal before it is made, and its output before anything
        that comes of it. One that was finished before a crash is not made again: its output is given back.

        Raises CallFailed when the function raises; and, unless it is idempotent, when the call was interrupted.
        """
        self._calls += 1
        called = name or str(getattr(function, "__name__", "call"))
        written = msgspec.json.encode(arguments, enc_hook=str).decode()
        made = self._recall.take_call(called, written, idempotent)
        if made is not None:
            return _recall_output(made)
        item_id = await self._teller.begin(called, written)
        try:
            output = render(await _run(function, arguments))
        except Exception as error:
            message = f"{type(error).__name__}: {error}"[:MAX_ERROR]
            await self._teller.finish(item_id, None, message)
            raise CallFailed(message) from error
        await self._teller.finish(item_id, output)
        return output


AgentFunction = Callable[[Request, Context], AsyncIterator[str] | Awaitable[str | None]]


class FunctionAgent:
    """Run again from its start after a crash; what it said and did before is passed over as it comes by."""

    repeats_itself = True

    def __init__(self, function: AgentFunction) -> None:
        self._function = function

    async def play(self, call: ModelCall, teller: AgentChannel) -> None:
        recall = ReplayGuard(call.own, call.resume.text if call.resume is not None else None)
        request = call.request
        asked = Request(
            model=call.model,
            items=call.items,
            instructions=request.instructions,
            metadata=request.metadata,
            temperature=request.temperature,
            max_output_tokens=request.max_output_tokens,
        )
        answer = self._function(asked, Context(call, teller, recall))
        if inspect.isawaitable(answer):
            await self._say(await answer or "", teller, recall)
            return
        async for piece in answer:
            await self._say(piece, teller, recall)

    async def _say(self, piece: object, teller: AgentChannel, recall: ReplayGuard) -> None:
        if not isinstance(piece, str):
            raise TypeError(f"An agent yields text, not {type(piece).__name__}.")
        thinks = isinstance(piece, Reasoning)
        if rest := recall.take_text("reasoning" if thinks else "message", str(piece)):
            await teller.tell(chunks.thought(rest) if thinks else chunks.text(rest))


async def _run(function: Callable[..., Any], arguments: dict[str, Any]) -> object:
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    result = await asyncio.to_thread(lambda: function(**arguments))
    return await result if inspect.isawaitable(result) else result


def _recall_output(item: Json) -> str:
    error = item.get("error")
    if error is None:
        return str(item.get("output") or "")
    content = error.get("content") if isinstance(error, dict) else None
    raise CallFailed(str(content[0].get("text")) if content else "The call failed.")

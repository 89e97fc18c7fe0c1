"""An async function as an agent: it takes the request and a context, and yields its output."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.owners import split
from outlive.core.toolcalls import INTERRUPTED, ToolOutcome, describe_error, fail, render_result
from outlive.ports.backend import ModelCall
from outlive.served_agents.channel import AgentChannel, read_text

DIVERGED = "The agent went another way than before it was interrupted."


class ReasoningText(str):
    """Yielded by an agent: a piece of its reasoning, not of its answer."""


class CallFailed(Exception):
    """A call that an agent made has failed; the message is the reason."""


class AgentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request that an agent answers."""

    model: str
    items: Sequence[Json]  # the conversation so far, this turn's input, and this response's items so far
    instructions: str | None
    metadata: dict[str, str]
    temperature: float | None
    max_output_tokens: int | None

    @property
    def text(self) -> str:
        """Return the text of the user's last message."""
        for item in reversed(self.items):
            if item.get("role") == "user":
                content = item.get("content") or ""
                if isinstance(content, str):
                    return content
                return read_text([part for part in content if part.get("type") == "input_text"])
        return ""


class ReplayGuard:
    """The output of an interrupted run, skipped piece by piece as the agent produces it again."""

    def __init__(self, items: Sequence[Json], open_text: str | None) -> None:
        self._steps: list[tuple[str, str] | Json] = []
        for item in items:
            kind = item.get("type")
            if kind == "mcp_call":
                self._steps.append(item)
            elif kind in ("message", "reasoning") and (text := read_text(item.get("content") or "")):
                self._steps.append((kind, text))
        if open_text is not None:
            self._steps.append(("message", open_text))
        self._must_match = open_text is not None

    def skip_text(self, kind: str, piece: str) -> str:
        """Return the new part of a piece. Raises UpstreamFault when it cannot follow a text that is half shown."""
        while piece and self._steps:
            step = self._steps[0]
            shown = step[1] if isinstance(step, tuple) and step[0] == kind else None
            shared = min(len(shown or ""), len(piece))
            if shown is None or shown[:shared] != piece[:shared]:
                self._diverge()
                break
            piece = piece[shared:]
            self._steps[:1] = [(kind, shown[shared:])] if shown[shared:] else []
        return piece

    def skip_call(self, name: str, arguments: str, idempotent: bool) -> Json | None:
        """Return the item of the same call, if it was made before and need not, or must not, be made again."""
        if not self._steps:
            return None
        step = self._steps[0]
        if isinstance(step, tuple) or (step["name"], step["arguments"]) != (name, arguments):
            self._diverge()
            return None
        self._steps.pop(0)
        return None if idempotent and _read_error(step) == INTERRUPTED else step

    def _diverge(self) -> None:
        """Skip nothing from here on: the agent does something else than before."""
        if self._must_match:
            raise UpstreamFault(DIVERGED, retryable=False)
        self._steps = []


class AgentContext:
    """The response that an agent makes, and the calls that are steps of it."""

    def __init__(self, call: ModelCall, channel: AgentChannel, guard: ReplayGuard) -> None:
        self.response_id = call.response_id
        self.owner, self.end_user = split(call.owner)
        self.interrupted = bool(call.own) or call.resume is not None  # it has been begun before
        self._channel = channel
        self._guard = guard
        self._calls = 0

    @property
    def key(self) -> str:
        """Return the key of the next call: the same for the same call, however often it is made."""
        return f"{self.response_id}/{self._calls + 1}"

    async def call(
        self, function: Callable[..., Any], /, *, name: str | None = None, idempotent: bool = False, **arguments: Any
    ) -> str:
        """Make a call as a step of the response: it is journaled before it is made, and its output before anything that
        follows from it. A call that was finished before a crash is not made again: its output is returned.

        Raises CallFailed when the function raises; and, unless it is idempotent, when the call was interrupted.
        """
        self._calls += 1
        called = name or str(getattr(function, "__name__", "call"))
        written = msgspec.json.encode(arguments, enc_hook=str).decode()
        made = self._guard.skip_call(called, written, idempotent)
        if made is not None:
            if (reason := _read_error(made)) is not None:
                raise CallFailed(reason)
            return str(made.get("output") or "")
        item_id = await self._channel.begin_call(called, written)
        try:
            if inspect.iscoroutinefunction(function):
                result = await function(**arguments)
            else:
                result = await asyncio.to_thread(function, **arguments)
                result = await result if inspect.isawaitable(result) else result
            output = render_result(result)
        except Exception as error:  # a user's function may raise anything, and its call must end
            await self._channel.finish_call(item_id, fail(describe_error(error)))
            raise CallFailed(describe_error(error)) from error
        await self._channel.finish_call(item_id, ToolOutcome(output))
        return output


AgentFunction = Callable[[AgentRequest, AgentContext], AsyncIterator[str] | Awaitable[str | None]]


async def run_function(function: AgentFunction, call: ModelCall, channel: AgentChannel) -> None:
    """Run the function, after a crash again from its start, and skip the output that the response already has."""
    guard = ReplayGuard(call.own, call.resume.text if call.resume is not None else None)
    request = AgentRequest(
        model=call.model,
        items=call.items,
        instructions=call.request.instructions,
        metadata=call.request.metadata,
        temperature=call.request.temperature,
        max_output_tokens=call.request.max_output_tokens,
    )
    answer = function(request, AgentContext(call, channel, guard))
    if inspect.isawaitable(answer):
        await _send(await answer or "", channel, guard)
        return
    async for piece in answer:
        await _send(piece, channel, guard)


async def _send(piece: object, channel: AgentChannel, guard: ReplayGuard) -> None:
    if not isinstance(piece, str):
        raise TypeError(f"An agent yields text, not {type(piece).__name__}.")
    is_reasoning = isinstance(piece, ReasoningText)
    if rest := guard.skip_text("reasoning" if is_reasoning else "message", str(piece)):
        await (channel.reasoning(rest) if is_reasoning else channel.text(rest))


def _read_error(item: Json) -> str | None:
    """Return the reason why a call failed; None for one that did not."""
    return None if item.get("error") is None else str(item["error"]["content"][0]["text"])

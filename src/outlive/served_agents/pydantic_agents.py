"""An Agent of pydantic-ai as a model: its text is streamed, and its tool calls are steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pydantic_ai import Agent, RunContext
from pydantic_ai import messages as ai
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.run import AgentRunResultEvent
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from outlive.core.events import Json
from outlive.core.toolcalls import ToolOutcome, describe_error, fail, render_result
from outlive.ports.backend import ModelCall
from outlive.served_agents.channel import AgentChannel, AgentError


class JournalingCapability(AbstractCapability[Any]):
    """Journals each call before it is made, and its output before the agent goes on."""

    def __init__(self, channel: AgentChannel) -> None:
        self._channel = channel

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ai.ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        item_id = await self._channel.begin_call(call.tool_name, call.args_as_json_str())
        try:
            result = await handler(args)
        except Exception as error:  # a user's tool may raise anything, and its call must end
            await self._channel.finish_call(item_id, fail(describe_error(error)))
            raise
        await self._channel.finish_call(item_id, ToolOutcome(render_result(result)))
        return result


class PydanticAgent:
    """Restarts the agent after a crash with its history and the outputs of finished calls."""

    repeatable = False

    def __init__(self, agent: Agent[Any, Any]) -> None:
        self._agent = agent

    async def run(self, call: ModelCall, channel: AgentChannel) -> None:
        run = self._agent.run_stream_events(
            message_history=read_messages(call.items),
            instructions=call.request.instructions,
            capabilities=[JournalingCapability(channel)],
            model_settings=_read_settings(call),
            infer_name=False,
        )
        async with run as events:
            async for event in events:
                await _forward(event, channel)


def _read_settings(call: ModelCall) -> ModelSettings:
    """Return the request's settings, which replace the agent's own."""
    request = call.request
    given = {"temperature": request.temperature, "top_p": request.top_p, "max_tokens": request.max_output_tokens}
    return cast("ModelSettings", {name: value for name, value in given.items() if value is not None})


async def _forward(event: Any, channel: AgentChannel) -> None:
    if isinstance(event, ai.PartStartEvent):
        await _send(event.part, getattr(event.part, "content", None), channel)
    elif isinstance(event, ai.PartDeltaEvent):
        await _send(event.delta, getattr(event.delta, "content_delta", None), channel)
    elif isinstance(event, ai.PartEndEvent) and isinstance(event.part, ai.TextPart | ai.ThinkingPart):
        await channel.end_item()
    elif isinstance(event, AgentRunResultEvent):
        if not isinstance(event.result.output, str):  # a structured answer came as the call of a tool
            await channel.text(render_result(event.result.output))
        used = event.result.usage
        await channel.usage(used, cached=used.cache_read_tokens, reasoning=0)


async def _send(piece: Any, text: str | None, channel: AgentChannel) -> None:
    if not text:
        return
    if isinstance(piece, ai.TextPart | ai.TextPartDelta):
        await channel.text(text)
    elif isinstance(piece, ai.ThinkingPart | ai.ThinkingPartDelta):
        await channel.reasoning(text)


def read_messages(items: Sequence[Json]) -> list[ai.ModelMessage]:
    """Return the items as the messages of pydantic-ai: requests and responses in turn."""
    messages: list[ai.ModelMessage] = []
    names: dict[str, str] = {}
    for item in items:
        kind, role = item.get("type"), item.get("role")
        if kind == "function_call":
            names[item["call_id"]] = item["name"]
            _parts(messages, ai.ModelResponse).append(ai.ToolCallPart(item["name"], item["arguments"], item["call_id"]))
        elif kind == "function_call_output":
            name = names.get(item["call_id"], "tool")
            _parts(messages, ai.ModelRequest).append(ai.ToolReturnPart(name, _text_of(item["output"]), item["call_id"]))
        elif role == "assistant":
            _parts(messages, ai.ModelResponse).append(ai.TextPart(_text_of(item["content"])))
        elif role == "user":
            _parts(messages, ai.ModelRequest).append(ai.UserPromptPart(_read_content(item["content"])))
        elif role in ("system", "developer"):
            _parts(messages, ai.ModelRequest).append(ai.SystemPromptPart(_text_of(item["content"])))
    return messages


def _parts(messages: list[ai.ModelMessage], kind: type[ai.ModelRequest | ai.ModelResponse]) -> list[Any]:
    """Return the parts of the last message, or of a new one if the last is of the other kind."""
    if not messages or not isinstance(messages[-1], kind):
        messages.append(kind(parts=[]))
    return messages[-1].parts  # type: ignore[return-value]


def _read_content(content: Any) -> str | list[ai.UserContent]:
    """Return a user message's text, or its parts if there are images or files among them."""
    if isinstance(content, str) or all(part.get("type") == "input_text" for part in content):
        return _text_of(content)
    return [_read_part(part) for part in content]


def _read_part(part: Json) -> ai.UserContent:
    if part.get("type") == "input_image" and part.get("image_url"):
        return _read_url(part["image_url"], ai.ImageUrl)
    if part.get("type") == "input_file" and (part.get("file_url") or part.get("file_data")):
        return _read_url(part.get("file_url") or part["file_data"], ai.DocumentUrl)
    if part.get("type") == "input_text":
        return str(part.get("text", ""))
    raise AgentError(f"The agent cannot be shown what is of type {part.get('type')}.")


def _read_url(url: str, kind: type[ai.ImageUrl | ai.DocumentUrl]) -> ai.ImageUrl | ai.DocumentUrl | ai.BinaryContent:
    return ai.BinaryContent.from_data_uri(url) if url.startswith("data:") else kind(url)


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)

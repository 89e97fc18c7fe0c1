"""An Agent of pydantic-ai as a model: its text is streamed, and its tool calls are steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.run import AgentRunResultEvent
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from outlive.core.events import Json
from outlive.ports.backend import ModelCall
from outlive.served_agents.channel import AgentChannel, AgentError, render


class JournalingCapability(AbstractCapability[Any]):
    """Journals each call before it is made, and its output before the agent goes on."""

    def __init__(self, channel: AgentChannel) -> None:
        self._channel = channel

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        item_id = await self._channel.begin_call(call.tool_name, call.args_as_json_str())
        try:
            result = await handler(args)
        except Exception as error:  # a user's tool may raise anything, and its call must end
            await self._channel.fail_call(item_id, error)
            raise
        await self._channel.finish_call(item_id, render(result))
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
    settings = ModelSettings()
    if request.temperature is not None:
        settings["temperature"] = request.temperature
    if request.top_p is not None:
        settings["top_p"] = request.top_p
    if request.max_output_tokens is not None:
        settings["max_tokens"] = request.max_output_tokens
    return settings


async def _forward(event: Any, channel: AgentChannel) -> None:
    if isinstance(event, PartStartEvent):
        await _send(event.part, getattr(event.part, "content", None), channel)
    elif isinstance(event, PartDeltaEvent):
        await _send(event.delta, getattr(event.delta, "content_delta", None), channel)
    elif isinstance(event, PartEndEvent) and isinstance(event.part, TextPart | ThinkingPart):
        await channel.end_item()
    elif isinstance(event, AgentRunResultEvent):
        if not isinstance(event.result.output, str):  # a structured answer came as the call of a tool
            await channel.text(render(event.result.output))
        used = event.result.usage
        await channel.usage(used, cached=used.cache_read_tokens, reasoning=0)


async def _send(piece: Any, text: str | None, channel: AgentChannel) -> None:
    if not text:
        return
    if isinstance(piece, TextPart | TextPartDelta):
        await channel.text(text)
    elif isinstance(piece, ThinkingPart | ThinkingPartDelta):
        await channel.reasoning(text)


def read_messages(items: Sequence[Json]) -> list[ModelMessage]:
    """Return the items as the messages of pydantic-ai: requests and responses in turn."""
    messages: list[ModelMessage] = []
    names: dict[str, str] = {}
    for item in items:
        kind, role = item.get("type"), item.get("role")
        if kind == "function_call":
            names[item["call_id"]] = item["name"]
            _answer(messages).append(ToolCallPart(item["name"], item["arguments"], item["call_id"]))
        elif kind == "function_call_output":
            name = names.get(item["call_id"], "tool")
            _ask(messages).append(ToolReturnPart(name, _text_of(item["output"]), item["call_id"]))
        elif role == "assistant":
            _answer(messages).append(TextPart(_text_of(item["content"])))
        elif role == "user":
            _ask(messages).append(UserPromptPart(_read_content(item["content"])))
        elif role in ("system", "developer"):
            _ask(messages).append(SystemPromptPart(_text_of(item["content"])))
    return messages


def _ask(messages: list[ModelMessage]) -> list[Any]:
    if not messages or not isinstance(messages[-1], ModelRequest):
        messages.append(ModelRequest(parts=[]))
    return messages[-1].parts  # type: ignore[return-value]


def _answer(messages: list[ModelMessage]) -> list[Any]:
    if not messages or not isinstance(messages[-1], ModelResponse):
        messages.append(ModelResponse(parts=[]))
    return messages[-1].parts  # type: ignore[return-value]


def _read_content(content: Any) -> str | list[UserContent]:
    """Return a user message's text, or its parts if there are images or files among them."""
    if isinstance(content, str) or all(part.get("type") == "input_text" for part in content):
        return _text_of(content)
    return [_read_part(part) for part in content]


def _read_part(part: Json) -> UserContent:
    if part.get("type") == "input_image" and part.get("image_url"):
        return _read_url(part["image_url"], ImageUrl)
    if part.get("type") == "input_file" and (part.get("file_url") or part.get("file_data")):
        return _read_url(part.get("file_url") or part["file_data"], DocumentUrl)
    if part.get("type") == "input_text":
        return str(part.get("text", ""))
    raise AgentError(f"The agent cannot be shown what is of type {part.get('type')}.")


def _read_url(url: str, kind: type[ImageUrl | DocumentUrl]) -> ImageUrl | DocumentUrl | BinaryContent:
    return BinaryContent.from_data_uri(url) if url.startswith("data:") else kind(url)


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)

"""An Agent of pydantic-ai as a model: its text streams, and the calls of its tools are steps."""

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
from outlive.served_agents import translator as chunks
from outlive.served_agents.channel import AgentChannel, AgentError
from outlive.served_agents.rendering import render

MAX_ERROR = 1000


class Journaling(AbstractCapability[Any]):
    """Tells of each call before it is made, and of what came of it before anything else is done."""

    def __init__(self, teller: AgentChannel) -> None:
        self._teller = teller

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        item_id = await self._teller.begin(call.tool_name, call.args_as_json_str())
        try:
            result = await handler(args)
        except Exception as error:
            await self._teller.finish(item_id, None, f"{type(error).__name__}: {error}"[:MAX_ERROR])
            raise
        await self._teller.finish(item_id, render(result))
        return result


class PydanticAgent:
    """After a crash it is given its history and the outputs of finished calls, and goes on from there."""

    repeats_itself = False

    def __init__(self, agent: Agent[Any, Any]) -> None:
        self._agent = agent

    async def play(self, call: ModelCall, teller: AgentChannel) -> None:
        asked = self._agent.run_stream_events(
            message_history=read_messages(call.items),
            instructions=call.request.instructions,
            capabilities=[Journaling(teller)],
            model_settings=_read_settings(call),
            infer_name=False,
        )
        async with asked as events:
            async for event in events:
                await _tell(event, teller)


def _read_settings(call: ModelCall) -> ModelSettings:
    """What the request says in place of the agent's own settings."""
    request = call.request
    settings = ModelSettings()
    if request.temperature is not None:
        settings["temperature"] = request.temperature
    if request.top_p is not None:
        settings["top_p"] = request.top_p
    if request.max_output_tokens is not None:
        settings["max_tokens"] = request.max_output_tokens
    return settings


async def _tell(event: Any, teller: AgentChannel) -> None:
    if isinstance(event, PartStartEvent):
        await _say(event.part, getattr(event.part, "content", None), teller)
    elif isinstance(event, PartDeltaEvent):
        await _say(event.delta, getattr(event.delta, "content_delta", None), teller)
    elif isinstance(event, PartEndEvent) and isinstance(event.part, TextPart | ThinkingPart):
        await teller.tell(chunks.pause())
    elif isinstance(event, AgentRunResultEvent):
        if not isinstance(event.result.output, str):  # a structured answer came as the call of a tool
            await teller.tell(chunks.text(render(event.result.output)))
        used = event.result.usage
        if used.total_tokens:
            await teller.tell(chunks.use(_show_usage(used)))


async def _say(piece: Any, text: str | None, teller: AgentChannel) -> None:
    if not text:
        return
    if isinstance(piece, TextPart | TextPartDelta):
        await teller.tell(chunks.text(text))
    elif isinstance(piece, ThinkingPart | ThinkingPartDelta):
        await teller.tell(chunks.thought(text))


def read_messages(items: Sequence[Json]) -> list[ModelMessage]:
    """The items as the messages that pydantic-ai keeps, one after the other."""
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
    """What a user says, with the images and files in it."""
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


def _show_usage(used: Any) -> Json:
    return {
        "input_tokens": used.input_tokens,
        "input_tokens_details": {"cached_tokens": used.cache_read_tokens or 0},
        "output_tokens": used.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.total_tokens,
    }

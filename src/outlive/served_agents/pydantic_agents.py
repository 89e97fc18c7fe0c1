"""An Agent of pydantic-ai as a model: its text is streamed, and its tool calls are steps."""

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
from outlive.served_agents.channel import AgentChannel, AgentError, read_text


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


async def run_pydantic_agent(agent: Agent[Any, Any], call: ModelCall, channel: AgentChannel) -> None:
    """Run the agent, after a crash again with its history and the outputs of finished calls."""
    request = call.request  # its settings replace the agent's own
    given = {"temperature": request.temperature, "top_p": request.top_p, "max_tokens": request.max_output_tokens}
    run = agent.run_stream_events(
        message_history=read_messages(call.items),
        instructions=request.instructions,
        capabilities=[JournalingCapability(channel)],
        model_settings=cast("ModelSettings", {name: value for name, value in given.items() if value is not None}),
        infer_name=False,
    )
    async with run as events:
        async for event in events:
            await _forward(event, channel)


async def _forward(event: Any, channel: AgentChannel) -> None:
    if isinstance(event, ai.PartStartEvent | ai.PartDeltaEvent):
        match event.part if isinstance(event, ai.PartStartEvent) else event.delta:
            case ai.TextPart(content=str(text)) | ai.TextPartDelta(content_delta=str(text)) if text:
                await channel.text(text)
            case ai.ThinkingPart(content=str(text)) | ai.ThinkingPartDelta(content_delta=str(text)) if text:
                await channel.reasoning(text)
    elif isinstance(event, ai.PartEndEvent) and isinstance(event.part, ai.TextPart | ai.ThinkingPart):
        await channel.end_item()
    elif isinstance(event, AgentRunResultEvent):
        if not isinstance(event.result.output, str):  # a structured answer came as the call of a tool
            await channel.text(render_result(event.result.output))
        used = event.result.usage
        counts = {"cached": used.cache_read_tokens, "cache_write": used.cache_write_tokens}
        await channel.usage(used, **counts, reasoning=0)


def read_messages(items: Sequence[Json]) -> list[ai.ModelMessage]:
    """Return the items as the messages of pydantic-ai: requests and responses in turn."""
    messages: list[Any] = []
    names = {item["call_id"]: item["name"] for item in items if item.get("type") == "function_call"}
    for item in items:
        if (part := _read_item(item, names)) is not None:
            kind = ai.ModelResponse if isinstance(part, ai.ToolCallPart | ai.TextPart) else ai.ModelRequest
            if not messages or not isinstance(messages[-1], kind):
                messages.append(kind(parts=[]))
            messages[-1].parts.append(part)
    return messages


def _read_item(item: Json, names: dict[str, str]) -> ai.ModelRequestPart | ai.ModelResponsePart | None:
    match item:
        case {"type": "function_call", "call_id": call_id}:
            return ai.ToolCallPart(item["name"], item["arguments"], call_id)
        case {"type": "function_call_output", "call_id": call_id}:
            return ai.ToolReturnPart(names.get(call_id, "tool"), read_text(item["output"]), call_id)
        case {"role": "assistant", "content": content}:
            return ai.TextPart(read_text(content))
        case {"role": "user", "content": content}:
            return ai.UserPromptPart(_read_content(content))
        case {"role": "system" | "developer", "content": content}:
            return ai.SystemPromptPart(read_text(content))
    return None


def _read_content(content: Any) -> str | list[ai.UserContent]:
    """Return a user message's text, or its parts if there are images or files among them."""
    if isinstance(content, str) or all(part.get("type") == "input_text" for part in content):
        return read_text(content)
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

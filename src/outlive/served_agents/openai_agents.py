"""An Agent of the openai-agents SDK as a model: its text is streamed, and its tool calls are steps."""

from typing import Any

from agents import Agent, ModelSettings, RunConfig, RunContextWrapper, RunHooks, Runner
from agents.tool import Tool

from outlive.core.toolcalls import ToolOutcome, render_result
from outlive.ports.backend import ModelCall
from outlive.served_agents.channel import AgentChannel, AgentError

MAX_TURNS = 100

_REASONING = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")


class JournalingHooks(RunHooks[Any]):
    """Journals each call before it is made, and its output before the agent goes on."""

    def __init__(self, channel: AgentChannel) -> None:
        self._channel = channel
        self._items: dict[str, str] = {}

    async def on_tool_start(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool) -> None:
        arguments = getattr(context, "tool_arguments", None) or "{}"
        self._items[_call_id(context)] = await self._channel.begin_call(tool.name, str(arguments))

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object) -> None:
        item_id = self._items.pop(_call_id(context), None)
        if item_id is not None:
            await self._channel.finish_call(item_id, ToolOutcome(render_result(result)))


async def run_openai_agent(agent: Agent[Any], call: ModelCall, channel: AgentChannel) -> None:
    """Run the agent, after a crash again with its history and the outputs of finished calls."""
    request = call.request  # its settings replace the agent's own
    settings = ModelSettings(temperature=request.temperature, top_p=request.top_p, max_tokens=request.max_output_tokens)
    run = Runner.run_streamed(
        agent,
        _make_input(call),
        hooks=JournalingHooks(channel),
        max_turns=MAX_TURNS,
        run_config=RunConfig(tracing_disabled=True, model_settings=settings),
    )
    answered = False  # by text of its own after the last output of a tool
    try:
        async for event in run.stream_events():
            if event.type == "raw_response_event":
                answered = await _forward(event.data, channel) or answered
            elif event.type == "run_item_stream_event" and event.name == "tool_output":
                answered = False
    finally:
        run.cancel()
    if run.interruptions:
        raise AgentError("The agent wants a person's approval, for which it cannot be asked here.")
    if not answered and run.final_output is not None:  # the output of a tool is its answer
        await channel.text(render_result(run.final_output))
    used = run.context_wrapper.usage
    cached, reasoning = used.input_tokens_details.cached_tokens, used.output_tokens_details.reasoning_tokens
    cache_write = getattr(used.input_tokens_details, "cache_write_tokens", 0)  # models of other makers may lack it
    await channel.usage(used, cached=cached, cache_write=cache_write, reasoning=reasoning)


async def _forward(event: Any, channel: AgentChannel) -> bool:
    """Send what an event of the model holds. Returns True for text of the answer."""
    if event.type == "response.output_text.delta":
        await channel.text(event.delta)
        return True
    if event.type in _REASONING:
        await channel.reasoning(event.delta)
    elif event.type == "response.output_item.done" and event.item.type in ("message", "reasoning"):
        await channel.end_item()
    return False


def _call_id(context: RunContextWrapper[Any]) -> str:
    return str(getattr(context, "tool_call_id", ""))


def _make_input(call: ModelCall) -> list[Any]:
    """Return the items as the SDK takes them: without reasoning, which only its own model can read, and without ids."""
    items = [] if not call.request.instructions else [{"role": "developer", "content": call.request.instructions}]
    for item in call.items:
        if item.get("role") == "assistant":
            items.append(item)  # the SDK requires id and status in its own messages
        elif item.get("type") != "reasoning":
            items.append({name: value for name, value in item.items() if name not in ("id", "status")})
    return items

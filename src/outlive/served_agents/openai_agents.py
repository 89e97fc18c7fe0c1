"""An Agent of the openai-agents SDK as a model: its text streams, and the calls of its tools are steps."""

from __future__ import annotations

from typing import Any

from agents import Agent, ModelSettings, RunConfig, RunContextWrapper, RunHooks, Runner
from agents.tool import Tool

from outlive.core.events import Json
from outlive.ports.backend import ModelCall
from outlive.served_agents import translator as chunks
from outlive.served_agents.channel import AgentChannel, AgentError
from outlive.served_agents.rendering import render

MAX_TURNS = 100

_THOUGHTS = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")


class Journaling(RunHooks[Any]):
    """Tells of each call before it is made, and of what came of it before anything else is done."""

    def __init__(self, teller: AgentChannel) -> None:
        self._teller = teller
        self._items: dict[str, str] = {}

    async def on_tool_start(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool) -> None:
        arguments = getattr(context, "tool_arguments", None) or "{}"
        self._items[_call_id(context)] = await self._teller.begin(tool.name, str(arguments))

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Agent[Any], tool: Tool, result: object) -> None:
        item_id = self._items.pop(_call_id(context), None)
        if item_id is not None:
            await self._teller.finish(item_id, render(result))


class OpenaiAgent:
    """After a crash it is given its history and the outputs of finished calls, and goes on from there."""

    repeats_itself = False

    def __init__(self, agent: Agent[Any]) -> None:
        self._agent = agent

    async def play(self, call: ModelCall, teller: AgentChannel) -> None:
        run = Runner.run_streamed(
            self._agent,
            _show(call),
            hooks=Journaling(teller),
            max_turns=MAX_TURNS,
            run_config=RunConfig(tracing_disabled=True, model_settings=_read_settings(call)),
        )
        spoke = False  # last, and not its tools
        try:
            async for event in run.stream_events():
                if event.type == "raw_response_event":
                    spoke = await _tell(event.data, teller) or spoke
                elif event.type == "run_item_stream_event" and event.name == "tool_output":
                    spoke = False
        finally:
            run.cancel()
        if run.interruptions:
            raise AgentError("The agent wants a person's approval, for which it cannot be asked here.")
        if not spoke and run.final_output is not None:  # the output of a tool is its answer
            await teller.tell(chunks.text(render(run.final_output)))
        used = run.context_wrapper.usage
        if used.total_tokens:
            await teller.tell(chunks.use(_show_usage(used)))


async def _tell(event: Any, teller: AgentChannel) -> bool:
    """Whether it was a word of its answer."""
    if event.type == "response.output_text.delta":
        await teller.tell(chunks.text(event.delta))
        return True
    if event.type in _THOUGHTS:
        await teller.tell(chunks.thought(event.delta))
    elif event.type == "response.output_item.done" and event.item.type in ("message", "reasoning"):
        await teller.tell(chunks.pause())
    return False


def _read_settings(call: ModelCall) -> ModelSettings:
    """What the request says in place of the agent's own settings."""
    request = call.request
    return ModelSettings(temperature=request.temperature, top_p=request.top_p, max_tokens=request.max_output_tokens)


def _call_id(context: RunContextWrapper[Any]) -> str:
    return str(getattr(context, "tool_call_id", ""))


def _show(call: ModelCall) -> list[Any]:
    """The items as the SDK takes them: without thoughts, which only their model knows again, and without our ids."""
    shown = [_strip(item) for item in call.items if item.get("type") != "reasoning"]
    if call.request.instructions:
        return [{"role": "developer", "content": call.request.instructions}, *shown]
    return shown


def _strip(item: Json) -> Json:
    if item.get("role") == "assistant":
        return item  # the SDK knows what it said itself by id and status
    return {name: value for name, value in item.items() if name not in ("id", "status")}


def _show_usage(used: Any) -> Json:
    return {
        "input_tokens": used.input_tokens,
        "input_tokens_details": {"cached_tokens": used.input_tokens_details.cached_tokens or 0},
        "output_tokens": used.output_tokens,
        "output_tokens_details": {"reasoning_tokens": used.output_tokens_details.reasoning_tokens or 0},
        "total_tokens": used.total_tokens,
    }

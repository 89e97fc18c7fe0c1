"""Agents whose tools are recorded: a tool whose output is on record is answered from there instead of being fired."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from agents import Agent, FunctionTool, Handoff, Tool, UserError
from agents.run_context import RunContextWrapper
from agents.tool import ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool, ShellTool
from agents.tool_context import ToolContext

from outlive.agents.journal import Journal
from outlive.agents.responses import DurableResponsesModel
from outlive.agents.scope import RunTurn, current
from outlive.agents.turn import Turn

UNRECORDED = (ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool)
AnyAgent = TypeVar("AnyAgent", bound=Agent[Any])


class RunModel(DurableResponsesModel):
    """A durable model whose calls are the turns of a run."""

    def _next_turn(self) -> Turn | None:
        scope = current.get()
        return None if scope is None else RunTurn(scope, self._get_client(), self._patience)


def bind_model(model: object) -> RunModel:
    """The same model, as part of a run."""
    if isinstance(model, RunModel):
        return model
    if not isinstance(model, DurableResponsesModel):
        raise UserError(f"A durable run needs durable models: a DurableResponsesModel, not {type(model).__name__}.")
    bound = copy.copy(model)
    # Only the class differs, and it has no state of its own: this way subclasses keep theirs.
    bound.__class__ = _derive(type(model), RunModel, {})
    assert isinstance(bound, RunModel)
    return bound


class Cast:
    """The agents of a run: twins of the caller's own, which stay as they are, with everything reachable by handoff."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._twins: dict[int, tuple[Agent[Any], Agent[Any]]] = {}

    def twin(self, agent: AnyAgent) -> AnyAgent:
        known = self._twins.get(id(agent))
        if known is not None:
            return known[1]  # type: ignore[return-value]
        if hasattr(agent, "_outlive_cast"):
            return agent
        made = copy.copy(agent)
        made.__class__ = _derive(type(agent), RecordedAgent, {})
        vars(made)["_outlive_cast"] = self
        # Before its handoffs: agents hand off in circles.
        self._twins[id(agent)] = (agent, made)
        if made.model is not None and not isinstance(made.model, str):
            made.model = bind_model(made.model)
        made.handoffs = [self._twin_handoff(each) for each in agent.handoffs]
        return made

    def record(self, tool: Tool) -> Tool:
        if isinstance(tool, UNRECORDED) or (isinstance(tool, ShellTool) and tool.executor is not None):
            raise UserError(f"A durable run cannot record the tool {tool.name!r}: use a function tool in its place.")
        if not isinstance(tool, FunctionTool):
            return tool  # hosted tools run on the server, as part of the turn
        twin = copy.copy(tool)
        invoke, journal = twin.on_invoke_tool, self._journal

        async def invoke_once(context: ToolContext[Any], arguments: str) -> Any:
            scope = current.get()
            if scope is None:
                return await invoke(context, arguments)
            inside = scope.inside(context.tool_call_id)
            if not journal.has_output(inside.path):
                before = current.set(inside)
                try:
                    output = await invoke(context, arguments)
                finally:
                    current.reset(before)
                if await journal.record_output(inside.path, output):
                    return output
            return journal.output(inside.path)

        twin.on_invoke_tool = invoke_once
        return twin

    def _twin_handoff(self, target: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(target, Agent):
            return self.twin(target)
        made, invoke = copy.copy(target), target.on_invoke_handoff

        async def hand_off(context: RunContextWrapper[Any], arguments: str) -> Any:
            return self.twin(await invoke(context, arguments))

        made.on_invoke_handoff = hand_off
        return made


class RecordedAgent(Agent[Any]):
    """Its tools, those of MCP servers too, are recorded as they are handed to the runner."""

    _outlive_cast: Cast

    async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        return [self._outlive_cast.record(tool) for tool in await super().get_all_tools(run_context)]


_derived: dict[tuple[type, type], type] = {}


def _derive(kind: type, mixin: type, names: dict[str, Any]) -> type:
    """`mixin` in front of `kind`, made once."""
    if (kind, mixin) not in _derived:
        bases = (mixin,) if issubclass(mixin, kind) else (mixin, kind)
        _derived[kind, mixin] = type(kind.__name__, bases, names)
    return _derived[kind, mixin]

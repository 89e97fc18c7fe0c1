"""Models, agents and sessions of a durable run, wrapped so that recorded steps are not executed again."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from agents import Agent, FunctionTool, Handoff, Tool, TResponseInputItem, UserError
from agents.memory import Session
from agents.memory.session import SessionABC
from agents.run_context import RunContextWrapper
from agents.tool import ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool, ShellTool
from agents.tool_context import ToolContext

from outlive.agents.journal import RunJournal
from outlive.agents.responses import DurableResponsesModel
from outlive.agents.scope import RunTurn, current

UNRECORDED = (ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool)
AnyAgent = TypeVar("AnyAgent", bound=Agent[Any])


class RunModel(DurableResponsesModel):
    """A durable model whose calls are the turns of a run."""

    def _next_turn(self) -> RunTurn | None:
        scope = current.get()
        return None if scope is None else RunTurn(scope, self._get_client(), self._retry_policy)


def bind_model(model: object) -> RunModel:
    """Return a copy of the model whose calls are the turns of a run."""
    if isinstance(model, RunModel):
        return model
    if not isinstance(model, DurableResponsesModel):
        raise UserError(f"A durable run needs durable models: a DurableResponsesModel, not {type(model).__name__}.")
    bound = copy.copy(model)
    # Only the class changes, and RunModel adds no state: subclasses of the caller keep theirs.
    bound.__class__ = _derive(type(model), RunModel)
    assert isinstance(bound, RunModel)
    return bound


class RecordedAgents:
    """Copies of the caller's agents, and of all that they hand off to, whose tools are recorded."""

    def __init__(self, journal: RunJournal) -> None:
        self._journal = journal
        self._wrapped: dict[int, tuple[Agent[Any], Agent[Any]]] = {}

    def wrap(self, agent: AnyAgent) -> AnyAgent:
        known = self._wrapped.get(id(agent))
        if known is not None:
            return known[1]  # type: ignore[return-value]
        if isinstance(agent, RecordedAgent):
            return agent
        made = copy.copy(agent)
        made.__class__ = _derive(type(agent), RecordedAgent)
        vars(made)["_outlive_agents"] = self
        # Before its handoffs, which may lead back to this agent. The original is kept so that its id stays taken.
        self._wrapped[id(agent)] = (agent, made)
        if made.model is not None and not isinstance(made.model, str):
            made.model = bind_model(made.model)
        made.handoffs = [self._wrap_handoff(each) for each in agent.handoffs]
        return made

    def record(self, tool: Tool) -> Tool:
        if isinstance(tool, UNRECORDED) or (isinstance(tool, ShellTool) and tool.executor is not None):
            raise UserError(f"A durable run cannot record the tool {tool.name!r}: use a function tool instead.")
        if not isinstance(tool, FunctionTool):
            return tool  # hosted tools run on the server, as part of the turn
        recorded = copy.copy(tool)
        invoke, journal = recorded.on_invoke_tool, self._journal

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

        recorded.on_invoke_tool = invoke_once
        return recorded

    def _wrap_handoff(self, target: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(target, Agent):
            return self.wrap(target)
        made, invoke = copy.copy(target), target.on_invoke_handoff

        async def hand_off(context: RunContextWrapper[Any], arguments: str) -> Any:
            return self.wrap(await invoke(context, arguments))

        made.on_invoke_handoff = hand_off
        return made


class RecordedAgent(Agent[Any]):
    """An agent whose tools, also those of MCP servers, are recorded."""

    _outlive_agents: RecordedAgents

    async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        return [self._outlive_agents.record(tool) for tool in await super().get_all_tools(run_context)]


_derived: dict[tuple[type, type], type] = {}


def _derive(kind: type, mixin: type) -> type:
    """Return a subclass with `mixin` before `kind`, made once."""
    if (kind, mixin) not in _derived:
        bases = (mixin,) if issubclass(mixin, kind) else (mixin, kind)
        _derived[kind, mixin] = type(kind.__name__, bases, {})
    return _derived[kind, mixin]


class ReplayedSession(SessionABC):
    """A session as it was when the run began, plus the items that the run has added so far.

    A restarted run repeats everything from its beginning, and must neither see nor add again what it added before.
    Items are matched by position: the first item that the run adds goes where it added its first item before. So a
    session belongs to one run until that run is over.
    """

    def __init__(self, inner: Session, journal: RunJournal, name: str) -> None:
        self._inner = inner
        self._journal = journal
        self._name = name
        self._items: list[TResponseInputItem] | None = None
        self._end = 0
        self.session_id = inner.session_id
        self.session_settings = getattr(inner, "session_settings", None)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        items = await self._load()
        seen = items[: self._end]
        return seen if limit is None else seen[max(0, len(seen) - limit) :]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        kept = await self._load()
        new = items[len(kept) - self._end :] if self._end < len(kept) else items
        if new:
            await self._inner.add_items(new)
            kept.extend(new)
        self._end += len(items)

    async def pop_item(self) -> TResponseInputItem | None:
        items = await self._load()
        if self._end == 0:
            return None
        self._end -= 1
        if self._end == len(items) - 1:
            items.pop()
            return await self._inner.pop_item()
        return items[self._end]

    async def clear_session(self) -> None:
        await self._inner.clear_session()
        self._items, self._end = [], 0

    async def _load(self) -> list[TResponseInputItem]:
        if self._items is None:
            items: list[Any] = list(await self._inner.get_items())
            began = self._journal.length(self._name)
            if began is None:
                await self._journal.record_length(self._name, len(items))
                began = self._journal.length(self._name)
            self._items, self._end = items, min(began or 0, len(items))
        return self._items

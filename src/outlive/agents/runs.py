"""A run that survives its own process: started again after a kill, it continues where it was.

Models, agents and sessions of the run are wrapped so that recorded steps are not executed again.
"""

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Self, TypeVar

from agents import Agent, Handoff, Runner, RunResult, RunResultStreaming, TResponseInputItem, UserError
from agents.memory import Session
from agents.memory.session import SessionABC
from agents.models.multi_provider import MultiProvider
from agents.run_config import RunConfig, RunOptions
from agents.run_context import RunContextWrapper
from agents.tool import ApplyPatchTool, ComputerTool, CustomTool, FunctionTool, LocalShellTool, ShellTool, Tool
from agents.tool_context import ToolContext
from openai import AsyncOpenAI
from typing_extensions import Unpack

from outlive.agents.journal import RunJournal, RunTurn, Scope, current, pack, unpack
from outlive.agents.models import DurableProvider, DurableResponsesModel, WrappedProvider

UNRECORDED = (ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool)
AnyAgent = TypeVar("AnyAgent", bound=Agent[Any])
RunnerOptions = RunOptions[Any]


class DurableRun:
    """Open a run, store its token, run agents through it; open it again with the token in any other process.

    A reopened run repeats everything from the beginning, as fast as records can be read: a submitted turn is attached
    to instead of being submitted, and a tool whose output is recorded is not called. The first step without a record is
    the first that is really executed.
    """

    def __init__(self, client: AsyncOpenAI, journal: RunJournal) -> None:
        self._client = client
        self._journal = journal
        self._recorded: dict[int, tuple[Agent[Any], Agent[Any]]] = {}  # by the id of the caller's agent
        self._calls = 0

    @classmethod
    async def open(cls, client: AsyncOpenAI, token: str | None = None) -> Self:
        """Open a new run, or the one with that token. Store the token before you run anything."""
        if token is None:
            made = await client.conversations.create(metadata={"outlive": "run"})
            return cls(client, RunJournal(client, made.id))
        journal = RunJournal(client, token.strip())
        await journal.load()
        return cls(client, journal)

    @property
    def token(self) -> str:
        """The run's identity as one string: the id of the conversation that holds its records."""
        return self._journal.conversation_id

    async def run(self, agent: Agent[Any], input: Any, **options: Unpack[RunnerOptions]) -> RunResult:
        """Run an agent as `Runner.run` does, durably. Takes the same arguments."""
        with self._enter(options):
            return await Runner.run(self.recorded(agent), input, **options)

    async def run_streamed(self, agent: Agent[Any], input: Any, **options: Unpack[RunnerOptions]) -> RunResultStreaming:
        """Run an agent as `Runner.run_streamed` does, durably. Recorded turns stream again from their first event."""
        with self._enter(options):
            return Runner.run_streamed(self.recorded(agent), input, **options)

    def recorded(self, agent: AnyAgent) -> AnyAgent:
        """Return the agent's copy in this run. Needed only for agents as tools: `run.recorded(agent).as_tool(...)`."""
        if id(agent) in self._recorded:
            return self._recorded[id(agent)][1]  # type: ignore[return-value]
        if isinstance(agent, RecordedAgent):
            return agent
        made = copy.copy(agent)
        made.__class__ = _derive(type(agent), RecordedAgent)  # type: ignore[arg-type]
        vars(made)["_outlive_journal"] = self._journal
        # Before its handoffs, which may lead back to this agent. The original is kept so that its id stays taken.
        self._recorded[id(agent)] = (agent, made)
        made.model = bind_model(made.model)
        made.handoffs = [self._record_handoff(each) for each in agent.handoffs]
        return made

    async def forget(self) -> None:
        """Delete the records. The run ends with that: its token can no longer be opened."""
        await self._journal.erase()

    @contextmanager
    def _enter(self, options: RunnerOptions) -> Iterator[None]:
        """Make the runner's options durable. Runner calls are identified by their order, the same in each process."""
        self._calls += 1
        name = str(self._calls)
        given = options.get("run_config") or {}
        config = RunConfig(**given) if isinstance(given, dict) else given
        provider = config.model_provider
        if isinstance(provider, MultiProvider) and provider.provider_map is None:
            # The default of RunConfig: no provider was given.
            provider = DurableProvider(self._client)
        if isinstance(provider, RunProvider):
            raise UserError("This RunConfig belongs to a durable run already.")
        model = bind_model(config.model)
        options["run_config"] = dataclasses.replace(config, model=model, model_provider=RunProvider(provider))
        if (session := options.get("session")) is not None:
            options["session"] = ReplayedSession(session, self._journal, name)
        # Only the tasks that the runner starts inherit the scope.
        with Scope(self._journal, name, conversation_id=options.get("conversation_id")).entered():
            yield

    def _record_handoff(self, target: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(target, Agent):
            return self.recorded(target)
        made, invoke = copy.copy(target), target.on_invoke_handoff

        async def hand_off(context: RunContextWrapper[Any], arguments: str) -> Any:
            return self.recorded(await invoke(context, arguments))

        made.on_invoke_handoff = hand_off
        return made


class RunModel(DurableResponsesModel):
    """A durable model whose calls are the turns of a run."""

    def _next_turn(self) -> RunTurn | None:
        scope = current.get()
        # Only completed turns are counted, so a retry by the runner is the same turn again.
        return None if scope is None else RunTurn(scope, f"{scope.path}.{scope.completed + 1}")


def bind_model(model: Any) -> Any:
    """Return a copy of the model whose calls are the turns of a run; a name, or None, as it is."""
    if model is None or isinstance(model, str | RunModel):
        return model
    if not isinstance(model, DurableResponsesModel):
        raise UserError(f"A durable run needs durable models: a DurableResponsesModel, not {type(model).__name__}.")
    bound = copy.copy(model)
    # Only the class changes, and RunModel adds no state: subclasses of the caller keep theirs.
    bound.__class__ = _derive(type(model), RunModel)
    return bound


class RunProvider(WrappedProvider):
    """A provider whose models are bound to the run."""

    _wrap = staticmethod(bind_model)


class RecordedAgent(Agent[Any]):
    """An agent whose tools, also those of MCP servers, are recorded."""

    _outlive_journal: RunJournal

    async def get_all_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        return [_record_tool(tool, self._outlive_journal) for tool in await super().get_all_tools(run_context)]


def _record_tool(tool: Tool, journal: RunJournal) -> Tool:
    if isinstance(tool, UNRECORDED) or (isinstance(tool, ShellTool) and tool.executor is not None):
        raise UserError(f"A durable run cannot record the tool {tool.name!r}: use a function tool instead.")
    if not isinstance(tool, FunctionTool):
        return tool  # hosted tools run on the server, as part of the turn
    recorded, invoke = copy.copy(tool), tool.on_invoke_tool

    async def invoke_once(context: ToolContext[Any], arguments: str) -> Any:
        scope = current.get()
        if scope is None:
            return await invoke(context, arguments)
        # A scope of its own: tools run concurrently, and each may have turns.
        inside = Scope(journal, f"{scope.path}/{context.tool_call_id}")
        if not journal.find("tool", inside.path):
            with inside.entered():
                output = await invoke(context, arguments)
            if await journal.record("tool", inside.path, pack(output)):
                return output
        return unpack(journal.find("tool", inside.path)[0])

    recorded.on_invoke_tool = invoke_once
    return recorded


@cache
def _derive(kind: type, mixin: type) -> type:
    """Return a subclass with `mixin` before `kind`, made once."""
    return type(kind.__name__, (mixin,) if issubclass(mixin, kind) else (mixin, kind), {})


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
            if not self._journal.find("session", self._name):
                await self._journal.record("session", self._name, len(items))
            began = self._journal.find("session", self._name)[0]  # the number of its items when the run began
            self._items, self._end = items, min(began, len(items))
        return self._items

"""A run that survives its own process: started again after a kill, it continues where it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypedDict, TypeVar

from agents import (
    Agent,
    Model,
    ModelProvider,
    RunConfig,
    RunErrorHandlers,
    RunHooks,
    Runner,
    RunResult,
    RunResultStreaming,
    UserError,
)
from agents.memory import Session
from agents.models.multi_provider import MultiProvider
from openai import AsyncOpenAI
from typing_extensions import Unpack

from outlive.agents.journal import RunJournal
from outlive.agents.provider import DurableProvider
from outlive.agents.recording import RecordedAgents, ReplayedSession, bind_model
from outlive.agents.scope import Scope, current

AnyAgent = TypeVar("AnyAgent", bound=Agent[Any])


class RunnerOptions(TypedDict, total=False):
    """Keyword arguments of `Runner.run`."""

    context: Any
    max_turns: int | None
    hooks: RunHooks[Any] | None
    run_config: RunConfig | None
    error_handlers: RunErrorHandlers[Any] | None
    previous_response_id: str | None
    auto_previous_response_id: bool
    conversation_id: str | None
    session: Session | None


class DurableRun:
    """Open a run, store its token, run agents through it; open it again with the token in any other process.

    A reopened run repeats everything from the beginning, as fast as records can be read: a submitted turn is attached
    to instead of being submitted, and a tool whose output is recorded is not called. The first step without a record is
    the first that is really executed.
    """

    def __init__(self, client: AsyncOpenAI, journal: RunJournal) -> None:
        self._client = client
        self._journal = journal
        self._agents = RecordedAgents(journal)
        self._calls = 0

    @classmethod
    async def open(cls, client: AsyncOpenAI, token: str | None = None) -> DurableRun:
        """Open a new run, or the one with that token. Store the token before you run anything."""
        if token is None:
            return cls(client, await RunJournal.create(client))
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
        return self._agents.wrap(agent)

    async def forget(self) -> None:
        """Delete the records. The run ends with that: its token can no longer be opened."""
        await self._journal.erase()

    @contextmanager
    def _enter(self, options: RunnerOptions) -> Iterator[None]:
        """Make the runner's options durable. Runner calls are identified by their order, the same in each process."""
        self._calls += 1
        name = str(self._calls)
        options["run_config"] = self._configure(options.get("run_config"))
        session = options.get("session")
        if session is not None:
            options["session"] = ReplayedSession(session, self._journal, name)
        # Only the tasks that the runner starts inherit the scope.
        before = current.set(Scope(self._journal, name, conversation_id=options.get("conversation_id")))
        try:
            yield
        finally:
            current.reset(before)

    def _configure(self, given: RunConfig | None) -> RunConfig:
        config = given or RunConfig()
        provider = config.model_provider
        if isinstance(provider, MultiProvider) and provider.provider_map is None:
            # The default of RunConfig: no provider was given.
            provider = DurableProvider(self._client)
        model = config.model
        if model is not None and not isinstance(model, str):
            model = bind_model(model)
        return dataclasses.replace(config, model=model, model_provider=RunProvider(provider))


class RunProvider(ModelProvider):
    """A provider whose models are bound to the run."""

    def __init__(self, inner: ModelProvider) -> None:
        if isinstance(inner, RunProvider):
            raise UserError("This RunConfig belongs to a durable run already.")
        self._inner = inner

    def get_model(self, model_name: str | None) -> Model:
        return bind_model(self._inner.get_model(model_name))

    async def aclose(self) -> None:
        await self._inner.aclose()

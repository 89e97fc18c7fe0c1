"""A run that survives its own process: killed and started again, it goes on where it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from agents import Agent, Model, ModelProvider, RunConfig, Runner, RunResult, RunResultStreaming, UserError
from agents.memory import Session
from agents.models.multi_provider import MultiProvider
from openai import AsyncOpenAI

from outlive.agents.journal import Journal
from outlive.agents.provider import DurableProvider
from outlive.agents.scope import Scope, current
from outlive.agents.sessions import ReplayedSession
from outlive.agents.tools import Cast, bind_model

AnyAgent = TypeVar("AnyAgent", bound=Agent[Any])


class DurableRun:
    """Open one, keep its token, run agents through it; open it again with the token in any other process.

    A run that was opened again does everything from the beginning, as fast as records can be read: a turn that was
    submitted is attached to instead of being submitted, a tool whose output is on record is not fired. The first thing
    that is not on record is the first thing that really happens.
    """

    def __init__(self, client: AsyncOpenAI, journal: Journal) -> None:
        self._client = client
        self._journal = journal
        self._cast = Cast(journal)
        self._calls = 0

    @classmethod
    async def open(cls, client: AsyncOpenAI, token: str | None = None) -> DurableRun:
        """A new run, or the one with that token. Store the token before you run anything."""
        if token is None:
            return cls(client, await Journal.create(client))
        journal = Journal(client, token.strip())
        await journal.load()
        return cls(client, journal)

    @property
    def token(self) -> str:
        """One string that says which run this is: the id of the conversation that holds its records."""
        return self._journal.conversation_id

    async def run(
        self,
        agent: Agent[Any],
        input: Any,
        *,
        session: Session | None = None,
        run_config: RunConfig | None = None,
        **runner: Any,
    ) -> RunResult:
        """What `Runner.run` does, durably; it takes what that takes."""
        with self._enter(runner) as name:
            return await Runner.run(
                self.recorded(agent),
                input,
                session=self._replay(session, name),
                run_config=self._configure(run_config),
                **runner,
            )

    async def run_streamed(
        self,
        agent: Agent[Any],
        input: Any,
        *,
        session: Session | None = None,
        run_config: RunConfig | None = None,
        **runner: Any,
    ) -> RunResultStreaming:
        """What `Runner.run_streamed` does, durably. Recorded turns are streamed again from their first event."""
        with self._enter(runner) as name:
            return Runner.run_streamed(
                self.recorded(agent),
                input,
                session=self._replay(session, name),
                run_config=self._configure(run_config),
                **runner,
            )

    def recorded(self, agent: AnyAgent) -> AnyAgent:
        """The agent's twin in this run. Needed for agents as tools only: `run.recorded(agent).as_tool(...)`."""
        return self._cast.twin(agent)

    async def forget(self) -> None:
        """Delete the records. The run is over then: its token is worth nothing any more."""
        await self._journal.erase()

    @contextmanager
    def _enter(self, runner: dict[str, Any]) -> Iterator[str]:
        """Runner calls are told apart by their order, so a script must make them in the same order each time."""
        self._calls += 1
        name = str(self._calls)
        # The tasks that the runner starts inherit the scope; nobody else does.
        before = current.set(Scope(self._journal, name, conversation_id=runner.get("conversation_id")))
        try:
            yield name
        finally:
            current.reset(before)

    def _replay(self, session: Session | None, name: str) -> ReplayedSession | None:
        return None if session is None else ReplayedSession(session, self._journal, name)

    def _configure(self, given: RunConfig | None) -> RunConfig:
        config = given or RunConfig()
        provider = config.model_provider
        if isinstance(provider, MultiProvider) and provider.provider_map is None:
            # What a RunConfig has when nothing was said.
            provider = DurableProvider(self._client)
        model = config.model
        if model is not None and not isinstance(model, str):
            model = bind_model(model)
        return dataclasses.replace(config, model=model, model_provider=RunProvider(provider))


class RunProvider(ModelProvider):
    """The models of a provider, as part of a run."""

    def __init__(self, inner: ModelProvider) -> None:
        if isinstance(inner, RunProvider):
            raise UserError("This RunConfig belongs to a durable run already.")
        self._inner = inner

    def get_model(self, model_name: str | None) -> Model:
        return bind_model(self._inner.get_model(model_name))

    async def aclose(self) -> None:
        await self._inner.aclose()

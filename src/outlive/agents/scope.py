"""Where in a durable run we are: which Runner call, inside which tool, and how many turns it has behind it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from openai import AsyncOpenAI
from openai.types.responses import Response

from outlive.agents.journal import Journal
from outlive.client import Patience, PollTimeout, poll

current: ContextVar[Scope | None] = ContextVar("outlive_scope", default=None)


@dataclass
class Scope:
    """One Runner call. Its turns come one after the other, so that counting them names them."""

    journal: Journal
    path: str
    conversation_id: str | None = None
    completed: int = 0

    def inside(self, call_id: str) -> Scope:
        """For whatever a tool runs: tools are called side by side, and each has turns of its own."""
        return Scope(self.journal, f"{self.path}/{call_id}")


@dataclass
class RunTurn:
    """The turn that a scope is at: what `outlive.agents.turn.Turn` describes."""

    scope: Scope
    client: AsyncOpenAI
    patience: Patience
    name: str = field(init=False)

    def __post_init__(self) -> None:
        # A retry by the runner is the same turn again: only a completed one is counted.
        self.name = f"{self.scope.path}.{self.scope.completed + 1}"

    @property
    def key(self) -> str:
        return self.scope.journal.make_key(f"{self.name}#{len(self.scope.journal.responses(self.name))}")

    async def find(self) -> str | None:
        submitted = self.scope.journal.responses(self.name)
        if not submitted or await self._was_lost(submitted[-1]):
            return None
        return submitted[-1]

    async def note(self, response_id: str) -> None:
        await self.scope.journal.record_turn(self.name, response_id)

    def end(self, response: Response) -> None:
        self.scope.completed += 1

    async def _was_lost(self, response_id: str) -> bool:
        """Whether the turn is to be submitted anew: it failed, or was interrupted where nothing is left of it."""
        try:
            response = await poll(self.client, response_id, max_wait_seconds=0, patience=self.patience)
        except PollTimeout:
            return False
        if response.status == "failed":
            return True
        reason = response.incomplete_details.reason if response.incomplete_details is not None else None
        # A conversation keeps an interrupted turn: asking again would say everything twice in it.
        return str(reason) == "interrupted" and self.scope.conversation_id is None

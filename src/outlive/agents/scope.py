"""Position in a durable run: the Runner call, the tool call inside it, and the number of turns completed."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from openai import AsyncOpenAI

from outlive.agents.journal import RunJournal
from outlive.client import PollTimeout, RetryPolicy, poll

current: ContextVar[Scope | None] = ContextVar("outlive_scope", default=None)


@dataclass
class Scope:
    """One Runner call. Its turns are sequential, so their number identifies them."""

    journal: RunJournal
    path: str
    conversation_id: str | None = None
    completed: int = 0

    def inside(self, call_id: str) -> Scope:
        """Return the scope of a tool call: tools run concurrently, and each may have turns of its own."""
        return Scope(self.journal, f"{self.path}/{call_id}")


@dataclass
class RunTurn:
    """The next model turn of a scope."""

    scope: Scope
    client: AsyncOpenAI
    retry_policy: RetryPolicy
    name: str = field(init=False)

    def __post_init__(self) -> None:
        # Only completed turns are counted, so a retry by the runner is the same turn again.
        self.name = f"{self.scope.path}.{self.scope.completed + 1}"

    @property
    def key(self) -> str:
        """Idempotency key of the next submit of this turn."""
        return self.scope.journal.make_key(f"{self.name}#{len(self.scope.journal.responses(self.name))}")

    async def find(self) -> str | None:
        """Return the id of the response to attach to; None if the turn is to be submitted."""
        submitted = self.scope.journal.responses(self.name)
        if not submitted or await self._was_lost(submitted[-1]):
            return None
        return submitted[-1]

    async def record(self, response_id: str) -> None:
        await self.scope.journal.record_turn(self.name, response_id)

    def complete(self) -> None:
        self.scope.completed += 1

    async def _was_lost(self, response_id: str) -> bool:
        """Return True if the turn failed, or was interrupted and left nothing behind."""
        try:
            response = await poll(self.client, response_id, max_wait_seconds=0, retry_policy=self.retry_policy)
        except PollTimeout:
            return False
        if response.status == "failed":
            return True
        reason = response.incomplete_details.reason if response.incomplete_details is not None else None
        # A conversation keeps an interrupted turn: submitted again, its items would be in there twice.
        return str(reason) == "interrupted" and self.scope.conversation_id is None

"""Records of a durable run, kept on the server in a conversation of their own, and the position reached in the run.

Every record is one item, a message whose text is a JSON object, so that any server with conversations can hold it:
`{"turn": NAME, "response": ID}`, `{"tool": NAME, "output": ...}` or `{"session": NAME, "length": N}`.
"""

from __future__ import annotations

import hashlib
import json
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from openai import AsyncOpenAI, ConflictError

from outlive.client import PollTimeout, RetryPolicy, poll

# The SDK waits 0.5 to 8 s between tries: enough for a server to restart while a tool's output waits to be recorded.
RECORD_RETRIES = 8

Content = ToolOutputText | ToolOutputImage | ToolOutputFileContent
CONTENT_TYPES: dict[str, type[Content]] = {
    "text": ToolOutputText,
    "image": ToolOutputImage,
    "file": ToolOutputFileContent,
}


class RunJournal:
    """Loaded once, then appended to. The first record of a turn, tool call or session is the valid one."""

    def __init__(self, client: AsyncOpenAI, conversation_id: str) -> None:
        self._client = client.with_options(max_retries=RECORD_RETRIES)
        self.conversation_id = conversation_id
        self._turns: dict[str, list[str]] = {}
        self._outputs: dict[str, Any] = {}
        self._lengths: dict[str, int] = {}

    @classmethod
    async def create(cls, client: AsyncOpenAI) -> RunJournal:
        made = await client.conversations.create(metadata={"outlive": "run"})
        return cls(client, made.id)

    async def load(self) -> None:
        self._turns, self._outputs, self._lengths = {}, {}, {}
        async for item in self._client.conversations.items.list(self.conversation_id, order="asc", limit=100):
            for part in getattr(item, "content", None) or []:
                self._apply(json.loads(part.text))

    async def erase(self) -> None:
        await self._client.conversations.delete(self.conversation_id)

    def make_key(self, name: str) -> str:
        """Make the idempotency key of a record or turn: the same in every process of this run."""
        return f"outlive-run-{hashlib.sha256(f'{self.conversation_id} {name}'.encode()).hexdigest()[:40]}"

    def responses(self, turn: str) -> list[str]:
        """Return the ids of a turn's responses, oldest first; more than one if an earlier one failed."""
        return self._turns.get(turn, [])

    async def record_turn(self, turn: str, response_id: str) -> None:
        if response_id not in self.responses(turn):
            await self._add(f"turn {turn} {response_id}", {"turn": turn, "response": response_id})

    def has_output(self, tool: str) -> bool:
        return tool in self._outputs

    def output(self, tool: str) -> Any:
        return unpack(self._outputs[tool])

    async def record_output(self, tool: str, output: Any) -> bool:
        """Record a tool's output. Return False if another process has recorded one before."""
        return await self._add(f"tool {tool}", {"tool": tool, "output": pack(output)})

    def length(self, session: str) -> int | None:
        """Return the number of items that the session had when the run began; None if not recorded."""
        return self._lengths.get(session)

    async def record_length(self, session: str, length: int) -> None:
        await self._add(f"session {session}", {"session": session, "length": length})

    async def _add(self, name: str, record: dict[str, Any]) -> bool:
        text = {"type": "input_text", "text": json.dumps(record)}
        item: Any = {"type": "message", "role": "developer", "content": [text]}
        try:
            await self._client.conversations.items.create(
                self.conversation_id, items=[item], extra_headers={"Idempotency-Key": self.make_key(name)}
            )
        except ConflictError:
            # Another process works on the same run and was faster: its record is the valid one.
            await self.load()
            return False
        self._apply(record)
        return True

    def _apply(self, record: dict[str, Any]) -> None:
        if "turn" in record:
            self._turns.setdefault(record["turn"], []).append(record["response"])
        elif "tool" in record:
            self._outputs.setdefault(record["tool"], record["output"])
        elif "session" in record:
            self._lengths.setdefault(record["session"], record["length"])


def pack(output: Any) -> Any:
    """Convert a tool's output to JSON that unpacks to what the model would have seen.

    `json` where a round trip changes nothing, `content` for the SDK's own output types, otherwise the `text`.
    """
    if isinstance(output, Content):
        return {"content": output.model_dump(mode="json", exclude_none=True)}
    if isinstance(output, list) and any(isinstance(each, Content) for each in output):
        return {"list": [pack(each) for each in output]}
    try:
        again = json.loads(json.dumps(output))
    except (TypeError, ValueError):
        return {"text": str(output)}
    # The SDK shows the model str(output), and a round trip changes that of tuples, numbers as keys and the like.
    return {"json": output} if str(again) == str(output) else {"text": str(output)}


def unpack(packed: Any) -> Any:
    if "content" in packed:
        return CONTENT_TYPES[packed["content"]["type"]].model_validate(packed["content"])
    if "list" in packed:
        return [unpack(each) for each in packed["list"]]
    return packed["json"] if "json" in packed else packed["text"]


# -- position in a run

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

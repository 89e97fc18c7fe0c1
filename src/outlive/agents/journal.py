"""What a durable run has done so far: records in a conversation of its own, which the server keeps.

Every record is one item, a message whose text is a JSON object, so that any server with conversations can hold it:
`{"turn": NAME, "response": ID}`, `{"tool": NAME, "output": ...}` or `{"session": NAME, "length": N}`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from openai import AsyncOpenAI, ConflictError

from outlive.agents.outputs import pack, unpack

# The SDK waits 0.5 to 8 s between tries: enough for a server to restart while a tool's output waits to be recorded.
RECORD_RETRIES = 8


class Journal:
    """Loaded once, then appended to; what was recorded first is what counts."""

    def __init__(self, client: AsyncOpenAI, conversation_id: str) -> None:
        self._client = client.with_options(max_retries=RECORD_RETRIES)
        self.conversation_id = conversation_id
        self._turns: dict[str, list[str]] = {}
        self._outputs: dict[str, Any] = {}
        self._lengths: dict[str, int] = {}

    @classmethod
    async def create(cls, client: AsyncOpenAI) -> Journal:
        made = await client.conversations.create(metadata={"outlive": "run"})
        return cls(client, made.id)

    async def load(self) -> None:
        self._turns, self._outputs, self._lengths = {}, {}, {}
        async for item in self._client.conversations.items.list(self.conversation_id, order="asc", limit=100):
            for part in getattr(item, "content", None) or []:
                self._take(json.loads(part.text))

    async def erase(self) -> None:
        await self._client.conversations.delete(self.conversation_id)

    def make_key(self, name: str) -> str:
        """An idempotency key: the same for the same thing of the same run, in every process."""
        return f"outlive-run-{hashlib.sha256(f'{self.conversation_id} {name}'.encode()).hexdigest()[:40]}"

    # -- turns

    def responses(self, turn: str) -> list[str]:
        """As what a turn was submitted, oldest first; more than one if an earlier one had to be given up."""
        return self._turns.get(turn, [])

    async def record_turn(self, turn: str, response_id: str) -> None:
        if response_id not in self.responses(turn):
            await self._add(f"turn {turn} {response_id}", {"turn": turn, "response": response_id})

    # -- tools

    def has_output(self, tool: str) -> bool:
        return tool in self._outputs

    def output(self, tool: str) -> Any:
        return unpack(self._outputs[tool])

    async def record_output(self, tool: str, output: Any) -> bool:
        """False if another process has recorded one before."""
        return await self._add(f"tool {tool}", {"tool": tool, "output": pack(output)})

    # -- sessions

    def length(self, session: str) -> int | None:
        """How many items the session had when the run began."""
        return self._lengths.get(session)

    async def record_length(self, session: str, length: int) -> None:
        await self._add(f"session {session}", {"session": session, "length": length})

    # --

    async def _add(self, name: str, record: dict[str, Any]) -> bool:
        item: Any = {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": json.dumps(record)}],
        }
        try:
            await self._client.conversations.items.create(
                self.conversation_id, items=[item], extra_headers={"Idempotency-Key": self.make_key(name)}
            )
        except ConflictError:
            # Another process works on the same run and was faster; from here on its record is the truth.
            await self.load()
            return False
        self._take(record)
        return True

    def _take(self, record: dict[str, Any]) -> None:
        if "turn" in record:
            self._turns.setdefault(record["turn"], []).append(record["response"])
        elif "tool" in record:
            self._outputs.setdefault(record["tool"], record["output"])
        elif "session" in record:
            self._lengths.setdefault(record["session"], record["length"])

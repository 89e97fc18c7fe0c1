"""Records of a durable run, kept on the server in a conversation of their own, and the position reached in the run.

Every record is one item, a message whose text is a JSON object, so that any server with conversations can hold it:
`{"turn": NAME, "response": ID}`, `{"tool": NAME, "output": ...}` or `{"session": NAME, "length": N}`.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from agents.tool import ToolOutputFileContent, ToolOutputImage, ToolOutputText
from openai import AsyncOpenAI, ConflictError
from pydantic import TypeAdapter

from outlive.client import PollTimeout, RetryPolicy, poll

# The SDK waits 0.5 to 8 s between tries: enough for a server to restart while a tool's output waits to be recorded.
RECORD_RETRIES = 8

Content = ToolOutputText | ToolOutputImage | ToolOutputFileContent
CONTENT: TypeAdapter[Content] = TypeAdapter(Content)
# The kinds of records, and the field that has the value of each.
VALUES = {"turn": "response", "tool": "output", "session": "length"}


class RunJournal:
    """Loaded once, then appended to. The first record of a tool call or session is the valid one."""

    def __init__(self, client: AsyncOpenAI, conversation_id: str) -> None:
        self._client = client.with_options(max_retries=RECORD_RETRIES)
        self.conversation_id = conversation_id
        self._values: dict[tuple[str, str], list[Any]] = {}

    async def load(self) -> None:
        self._values = {}
        async for item in self._client.conversations.items.list(self.conversation_id, order="asc", limit=100):
            for part in getattr(item, "content", None) or []:
                self._apply(json.loads(part.text))

    async def erase(self) -> None:
        await self._client.conversations.delete(self.conversation_id)

    def make_key(self, name: str) -> str:
        """Make the idempotency key of a record or turn: the same in every process of this run."""
        return f"outlive-run-{hashlib.sha256(f'{self.conversation_id} {name}'.encode()).hexdigest()[:40]}"

    def find(self, kind: str, name: str) -> list[Any]:
        """Return what was recorded under a name, oldest first: of a turn one response more for each that failed."""
        return self._values.get((kind, name), [])

    async def record(self, kind: str, name: str, value: Any) -> bool:
        """Return False if another process, which works on the same run, was faster: its record is the valid one."""
        record = {kind: name, VALUES[kind]: value}
        text = {"type": "input_text", "text": json.dumps(record)}
        item: Any = {"type": "message", "role": "developer", "content": [text]}
        key = self.make_key(f"{kind} {name} {value}" if kind == "turn" else f"{kind} {name}")
        headers = {"Idempotency-Key": key}
        try:
            await self._client.conversations.items.create(self.conversation_id, items=[item], extra_headers=headers)
        except ConflictError:
            await self.load()
            return False
        self._apply(record)
        return True

    def _apply(self, record: dict[str, Any]) -> None:
        for kind in record.keys() & VALUES.keys():
            self._values.setdefault((kind, record[kind]), []).append(record[VALUES[kind]])


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
        return CONTENT.validate_python(packed["content"])
    if "list" in packed:
        return [unpack(each) for each in packed["list"]]
    return packed["json"] if "json" in packed else packed["text"]


# -- position in a run


@dataclass
class Scope:
    """One Runner call, or one call of a tool in it. Its turns are sequential, so their number identifies them."""

    journal: RunJournal
    path: str
    conversation_id: str | None = None
    completed: int = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make it the scope of everything that is called and started inside the block."""
        before = current.set(self)
        try:
            yield
        finally:
            current.reset(before)


current: ContextVar[Scope | None] = ContextVar("outlive_scope", default=None)


@dataclass
class RunTurn:
    """The next model turn of a scope."""

    scope: Scope
    name: str

    @property
    def key(self) -> str:
        """Idempotency key of the next submit of this turn."""
        return self.scope.journal.make_key(f"{self.name}#{len(self._submitted)}")

    @property
    def _submitted(self) -> list[str]:
        return self.scope.journal.find("turn", self.name)

    async def find(self, client: AsyncOpenAI, retry_policy: RetryPolicy) -> str | None:
        """Return the id of the response to attach to; None if the turn is to be submitted: it was not yet, failed, or
        was interrupted and left nothing behind."""
        if not self._submitted:
            return None
        found = self._submitted[-1]
        try:
            response = await poll(client, found, max_wait_seconds=0, retry_policy=retry_policy)
        except PollTimeout:
            return found
        reason = response.incomplete_details.reason if response.incomplete_details is not None else None
        # A conversation keeps an interrupted turn: submitted again, its items would be in there twice.
        left_nothing = str(reason) == "interrupted" and self.scope.conversation_id is None
        return None if response.status == "failed" or left_nothing else found

    async def record(self, response_id: str) -> None:
        if response_id not in self._submitted:
            await self.scope.journal.record("turn", self.name, response_id)

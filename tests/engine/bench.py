"""A run with tools, on a scripted model and a journal in memory that can be cut off anywhere and taken up again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from outlive.core import status
from outlive.core.events import Json, read_frame, split_frames
from outlive.core.fold import Fold
from outlive.core.numbering import number
from outlive.core.requests.create import parse_create
from outlive.core.requests.limits import Limits
from outlive.core.toolcalls.calls import ToolOutcome, ToolSpec
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponse
from outlive.engine.run.runner import Runner
from outlive.ports.backend import Backend, ContinuationMode
from outlive.ports.ledger import NO_CHECKPOINT, Checkpoint, Claim, Lease, Position
from outlive.ports.toolbox import Invocation, SessionRequest, Tool, Tools, ToolSession
from outlive.storage.memory import MemoryJournal, MemoryLedger
from outlive.storage.seal import SecretSeal
from outlive.testing import Script, ScriptedBackend, call_chunk, finish_chunk, text_chunk, usage_chunk
from tests.core.journals import assert_official_event, opening
from tests.engine.virtual import VirtualClock
from tests.support.scripting import CountingIds

OURS = {"type": "mcp", "server_label": "outlive"}

Act = Callable[[Invocation], Awaitable[ToolOutcome]]


class StubTool:
    """A tool that does what a test says, and keeps count."""

    def __init__(self, name: str, act: Act | str = "done", **marks: Any) -> None:
        self.spec = ToolSpec("outlive", name, f"Does {name}.", {"type": "object", "properties": {}})
        self.idempotent: bool = marks.get("idempotent", False)
        self.seconds: float = marks.get("seconds", 30.0)
        self.needs_approval: bool = marks.get("needs_approval", False)
        self.calls: list[Invocation] = []
        self._act = act

    async def call(self, calling: Invocation) -> ToolOutcome:
        self.calls.append(calling)
        return ToolOutcome(self._act) if isinstance(self._act, str) else await self._act(calling)


class StubBench:
    def __init__(self, tools: Mapping[str, StubTool], lists: list[Json]) -> None:
        self.tools: dict[str, Tool] = dict(tools)
        self.lists = lists
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class StubToolbox:
    """Has the tools that a test gives it."""

    def __init__(self, *tools: StubTool, lists: Sequence[Json] = ()) -> None:
        self.tools = {tool.spec.name: tool for tool in tools}
        self.lists = list(lists)
        self.orders: list[SessionRequest] = []
        self.benches: list[StubBench] = []

    def check(self, request: Any) -> None: ...

    def serves(self, request: Any) -> bool:
        return True

    async def open(self, order: SessionRequest) -> ToolSession:
        self.orders.append(order)
        self.benches.append(StubBench(self.tools, self.lists))
        return self.benches[-1]


class NotingLedger(MemoryLedger):
    """Keeps the checkpoint, as a ledger on disk would."""

    checkpoint: Checkpoint = NO_CHECKPOINT

    async def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint


class NoHistory:
    def __init__(self, items: list[Json]) -> None:
        self.items = items

    async def locate(self, owner: str, *, conversation: str | None, parent: str | None) -> Position | None:
        return None

    async def before(self, position: Position) -> list[Json]:
        return self.items


class Desk:
    """One response and its journal. `run` runs it; a worker that dies leaves it as it is, for the next `run`."""

    def __init__(
        self,
        toolbox: StubToolbox,
        *scripts: Script,
        continuation: ContinuationMode = "none",
        past: list[Json] | None = None,
        max_steps: int = 100,
        max_output: int = 1000,
        seal: SecretSeal | None = None,
        **fields: Any,
    ) -> None:
        self.ids = CountingIds()
        self.clock = VirtualClock()
        body = {"model": "m", "input": "Hi", "tools": [OURS], **fields}
        if past:
            body["previous_response_id"] = "resp_0"
        self.request = parse_create(body, self.ids, Limits())
        self.toolbox = toolbox
        self.backend = ScriptedBackend("scripted", scripts, continuation=continuation, ids=self.ids)
        self.journal = MemoryJournal()
        self.ledger = NotingLedger(self.journal)
        self.past = past or []
        self.tools = Tools(toolbox=toolbox, ids=self.ids, seal=seal, max_steps=max_steps, max_output=max_output)
        self.sealed: bytes | None = None
        self.committer = Committer(self.ledger, self.clock, 0.0)
        self.attempts = 0
        drafts = opening(request=self.request)
        self.lease = self.ledger.admit("resp_1", b"".join(number(drafts, -1)), len(drafts))
        self.live: LiveResponse

    def revive(self) -> LiveResponse:
        fold = Fold()
        for batch in self.journal.batches["resp_1"]:
            fold.replay(batch.frames)
        self.live = LiveResponse(self.lease, fold)
        return self.live

    def runner(self) -> Runner:
        return Runner(self._route, NoHistory(self.past), self.clock, self.ledger, self.committer, tools=self.tools)

    def claim(self) -> Claim:
        claim = Claim(self.lease, "ann", self.request, Position(0, 0), self.attempts, self.ledger.checkpoint, False)
        return msgspec.structs.replace(claim, sealed=self.sealed)

    async def run(self) -> Json:
        """Run it to its end; the final object, with the whole journal found sound."""
        self.attempts += 1
        live = self.revive()
        await self.runner().run(self.claim(), live)
        return self.check()

    def start(self) -> asyncio.Task[None]:
        self.attempts += 1
        return asyncio.ensure_future(self.runner().run(self.claim(), self.revive()))

    def cut(self, last: int) -> None:
        """The worker died when this event was the last on disk."""
        frames = [frame for batch in self.journal.batches["resp_1"] for frame in split_frames(batch.frames)]
        lease = self.ledger.admit("resp_1", b"".join(frames[: last + 1]), last + 1)
        self.lease = Lease("resp_1", lease.key, 1)

    def events(self) -> list[Json]:
        frames = b"".join(batch.frames for batch in self.journal.batches["resp_1"])
        return [read_frame(frame) for frame in split_frames(frames)]

    def batches(self) -> list[int]:
        """The last event of each commit."""
        return [batch.last for batch in self.journal.batches["resp_1"]]

    def check(self) -> Json:
        events = self.events()
        status.check(events)
        for event in events:
            assert_official_event(event)
        final: Json = events[-1]["response"]
        return final

    def _route(self, model: str) -> tuple[Backend, str]:
        return self.backend, model


def wants(*calls: tuple[str, str], text: str = "", usage: tuple[int, int] = (5, 3)) -> list[bytes]:
    """A step of the model: perhaps some words, and calls by name and arguments."""
    chunks = [text_chunk(text)] if text else []
    chunks += [call_chunk(n, f"call_{n}", name, arguments) for n, (name, arguments) in enumerate(calls)]
    return [*chunks, finish_chunk("tool_calls" if calls else "stop"), usage_chunk(*usage)]


def kinds(final: Json) -> list[str]:
    return [item["type"] for item in final["output"]]


def texts(final: Json) -> str:
    return "".join(part["text"] for item in final["output"] if item["type"] == "message" for part in item["content"])


def told(items: list[Json]) -> list[str]:
    """What a model is told, in short: texts, names of calls, outputs."""
    return [
        item["name"] if item["type"] == "function_call" else item.get("output") or item["content"][0]["text"]
        for item in items
    ]

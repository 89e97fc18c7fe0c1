"""One run on a scripted model with scripted tools, over a journal in memory that can be cut after any event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from outlive.core.errors import StorageUnavailable
from outlive.core.events import Json, number, read_frame, split_frames
from outlive.core.fold import Fold
from outlive.core.requests.checks import Limits
from outlive.core.requests.create import parse_create
from outlive.core.toolcalls import ToolOutcome, ToolSpec
from outlive.engine.delivery.committer import Committer
from outlive.engine.delivery.live import LiveResponse
from outlive.engine.ephemeral import MemoryJournal, MemoryLedger
from outlive.engine.run.closer import Closer
from outlive.engine.run.compactor import Compactor
from outlive.engine.run.run import Run, RunServices
from outlive.ports.backend import Backend, ContinuationMode
from outlive.ports.database import LoadedItems
from outlive.ports.ledger import NO_CHECKPOINT, AppendResults, Checkpoint, Claim, Closing, Entry, Lease, Position
from outlive.ports.storage import UNBOUNDED
from outlive.ports.toolbox import Invocation, SessionRequest, Tool, Tools, ToolSession
from outlive.storage.seal import SecretSeal
from outlive.testing import Script, ScriptedBackend, call_chunk, finish_chunk, text_chunk, usage_chunk
from tests.core.journals import assert_official_event, opening
from tests.engine.virtual_clock import VirtualClock
from tests.support import grammar
from tests.support.scripting import CountingIds

SERVER_TOOLS: Json = {"type": "mcp", "server_label": "outlive"}

T = TypeVar("T")
Act = Callable[[Invocation], Awaitable[ToolOutcome]]


class StubTool:
    """A tool that records its invocations and acts as a test says: returns a fixed output, or calls a function."""

    def __init__(
        self,
        name: str,
        act: Act | str = "done",
        *,
        idempotent: bool = False,
        seconds: float = 30.0,
        needs_approval: bool = False,
    ) -> None:
        self.spec = ToolSpec("outlive", name, f"Does {name}.", {"type": "object", "properties": {}})
        self.idempotent = idempotent
        self.read_only = False
        self.seconds = seconds
        self.needs_approval = needs_approval
        self.invocations: list[Invocation] = []
        self.act = act

    async def call(self, invocation: Invocation) -> ToolOutcome:
        self.invocations.append(invocation)
        return ToolOutcome(self.act) if isinstance(self.act, str) else await self.act(invocation)


class StubSession:
    """A session with the given tools and lists of tools, which records that it was closed."""

    def __init__(self, tools: Mapping[str, StubTool], lists: Sequence[Json] = ()) -> None:
        self.tools: dict[str, Tool] = dict(tools)
        self.lists = list(lists)
        self.closed = False

    async def close(self) -> None:
        self.closed = True


class StubToolbox:
    """A toolbox with the given tools, which serves every request."""

    def __init__(self, *tools: StubTool, lists: Sequence[Json] = ()) -> None:
        self.tools = {tool.spec.name: tool for tool in tools}
        self.lists = list(lists)
        self.session_requests: list[SessionRequest] = []
        self.sessions: list[StubSession] = []

    def check(self, request: Any) -> None: ...

    def serves(self, request: Any) -> bool:
        return True

    async def open(self, session_request: SessionRequest) -> ToolSession:
        self.session_requests.append(session_request)
        self.sessions.append(StubSession(self.tools, self.lists))
        return self.sessions[-1]


class NoTools(StubToolbox):
    """A toolbox that serves no request."""

    def serves(self, request: Any) -> bool:
        return False


class StubLedger(MemoryLedger):
    """The ledger in memory, which saves the checkpoint too, and whose calls wait or fail when a test says so."""

    def __init__(self, journal: MemoryJournal) -> None:
        super().__init__(journal)
        self.checkpoint = NO_CHECKPOINT
        self.closings: list[Closing] = []  # in the order in which they were sent
        self.held: dict[str, asyncio.Event] = {}  # methods that wait for their event
        self.failing: dict[str, int] = {}  # how many of the next calls of a method fail

    def hold(self, method: str) -> asyncio.Event:
        """Have the calls of a method wait until the returned event is set."""
        self.held[method] = asyncio.Event()
        return self.held[method]

    def append(self, entries: list[Entry]) -> asyncio.Future[AppendResults]:
        return self._call("append", lambda: super(StubLedger, self).append(entries))

    def close(self, closing: Closing) -> asyncio.Future[None]:
        self.closings.append(closing)
        return self._call("close", lambda: super(StubLedger, self).close(closing))

    async def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None:
        self._fail("save_checkpoint")
        self.checkpoint = checkpoint

    def _call(self, method: str, call: Callable[[], asyncio.Future[T]]) -> asyncio.Future[T]:
        held = self.held.get(method)
        if (held is None or held.is_set()) and not self.failing.get(method):
            return call()

        async def later() -> T:
            if held is not None:
                await held.wait()
            self._fail(method)
            return await call()

        return asyncio.ensure_future(later())

    def _fail(self, method: str) -> None:
        if self.failing.get(method, 0) > 0:
            self.failing[method] -= 1
            raise StorageUnavailable(method)


class FixedHistory:
    """A history that consists of the same items for every response."""

    def __init__(self, items: list[Json]) -> None:
        self.items = items

    async def locate(self, owner: str, *, conversation: str | None, parent: str | None) -> Position | None:
        return None

    async def before(self, position: Position, most: int = UNBOUNDED) -> LoadedItems:
        return LoadedItems(self.items, True)

    async def find_outputs(self, owner: str, item_ids: list[str]) -> list[Json]:
        return [item for item in self.items if item["id"] in item_ids]


class ToolHarness:
    """One response and its journal. Each `run` or `start` is a worker that claims it and continues from the journal."""

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
        body = {"model": "m", "input": "Hi", "tools": [SERVER_TOOLS], **fields}
        if past:
            body["previous_response_id"] = "resp_0"
        self.request = parse_create(body, self.ids, Limits())
        self.toolbox = toolbox
        self.backend = ScriptedBackend("scripted", scripts, continuation=continuation, ids=self.ids)
        self.journal = MemoryJournal()
        self.ledger = StubLedger(self.journal)
        self.past = past or []
        self.tools = Tools(toolbox=toolbox, ids=self.ids, seal=seal, max_steps=max_steps, max_output=max_output)
        self.sealed: bytes | None = None  # the secrets of the request's tools
        self.committer = Committer(self.ledger, self.clock, 0.0)
        self.attempts = 0
        drafts = opening(request=self.request)
        self.lease = self.ledger.admit("resp_1", b"".join(number(drafts, -1)), len(drafts))
        self.live: LiveResponse  # of the newest worker
        self.last_run: Run

    # -- driving

    async def run(self) -> Json:
        """Run the response to its end. Returns the final object, after checking the whole journal."""
        await self.start()
        return self.check()

    def start(self) -> asyncio.Task[None]:
        """Start to run the response."""
        self.attempts += 1
        self.last_run = Run(self.services(), self.revive())
        return asyncio.ensure_future(self.last_run.run())

    def revive(self) -> LiveResponse:
        """Make the live response from the journal and the saved checkpoint."""
        fold = Fold()
        for batch in self.journal.batches["resp_1"]:
            fold.replay(batch.frames)
        claim = Claim(
            self.lease,
            "ann",
            self.request,
            Position(0, 0),
            self.attempts,
            self.ledger.checkpoint,
            False,
            sealed=self.sealed,
        )
        self.live = LiveResponse(claim, fold, self.ledger)
        return self.live

    def services(self) -> RunServices:
        """Return the services of a run, as they are set by now."""
        return RunServices(
            route=self._route,
            history=FixedHistory(self.past),
            clock=self.clock,
            committer=self.committer,
            closer=self.closer(),
            compactor=Compactor(SecretSeal([b""]), CountingIds(), self.clock),
            tools=self.tools,
        )

    def closer(self) -> Closer:
        """Return a closer of this response."""
        return Closer(self.committer, self._route, self.clock)

    def cut(self, last: int) -> None:
        """Drop every event after that number from the journal, as if the worker had died there."""
        frames = [frame for batch in self.journal.batches["resp_1"] for frame in split_frames(batch.frames)]
        lease = self.ledger.admit("resp_1", b"".join(frames[: last + 1]), last + 1)
        self.lease = Lease("resp_1", lease.key, 1)

    def _route(self, model: str) -> tuple[Backend, str]:
        return self.backend, model

    # -- looking

    def events(self) -> list[Json]:
        """Return the events in the journal."""
        frames = b"".join(batch.frames for batch in self.journal.batches["resp_1"])
        return [read_frame(frame) for frame in split_frames(frames)]

    def event_types(self) -> list[str]:
        """Return the types of the events in the journal."""
        return [event["type"] for event in self.events()]

    def positions(self, event_type: str) -> list[int]:
        """Return the numbers of all events of that type."""
        return [n for n, found in enumerate(self.event_types()) if found == event_type]

    def batches(self) -> list[int]:
        """Return the number of the last event of each commit."""
        return [batch.last for batch in self.journal.batches["resp_1"]]

    def check(self) -> Json:
        """Check the whole journal, and return the final object."""
        events = self.events()
        grammar.check(events)
        for event in events:
            assert_official_event(event)
        final: Json = events[-1]["response"]
        return final


def model_step(*calls: tuple[str, str], text: str = "", usage: tuple[int, int] = (5, 3)) -> list[bytes]:
    """Return the chunks of one step of a model: an optional text, then calls by name and arguments."""
    chunks = [text_chunk(text)] if text else []
    chunks += [call_chunk(n, f"call_{n}", name, arguments) for n, (name, arguments) in enumerate(calls)]
    return [*chunks, finish_chunk("tool_calls" if calls else "stop"), usage_chunk(*usage)]


def item_types(final: Json) -> list[str]:
    """Return the types of a response's output items."""
    return [item["type"] for item in final["output"]]


def texts(final: Json) -> str:
    """Return the text of all messages of a response."""
    return "".join(part["text"] for item in final["output"] if item["type"] == "message" for part in item["content"])


def outline(items: list[Json]) -> list[str]:
    """Return a context in short: texts, names of calls, outputs."""
    return [
        item["name"] if item["type"] == "function_call" else item.get("output") or item["content"][0]["text"]
        for item in items
    ]

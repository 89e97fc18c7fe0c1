"""The whole engine on a real SQLite file, with a scripted model, a fixed clock and counting ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from outlive.core.errors import StorageUnavailable
from outlive.core.events import Json, read_frame, split_frames
from outlive.engine.admission import Accepted, Submission
from outlive.engine.engine import Engine, EngineOptions
from outlive.engine.slots import Capacity
from outlive.ports.backend import Backend, Backends, ContinuationMode
from outlive.ports.bell import Bell
from outlive.ports.catalog import Catalog, Paging
from outlive.ports.conversations import Conversations
from outlive.ports.database import LoadedItems
from outlive.ports.ledger import Admission, Admitted, AppendResults, Checkpoint, Claim, Closing, Entry, Lease
from outlive.ports.retention import Retention
from outlive.ports.storage import UNBOUNDED, Storage
from outlive.ports.toolbox import Tools
from outlive.storage.seal import SecretSeal
from outlive.storage.sqlite.connection import SqliteDatabase
from outlive.storage.sqlite.journal import SqliteHistory, SqliteJournal, SqlitePacking
from outlive.storage.sqlite.ledger import SqliteLedger
from outlive.testing import Script, ScriptedBackend
from outlive.tooling.sender import HttpSender
from tests.core.journals import assert_official_event
from tests.engine.bus import Bus, CountingHeartbeat
from tests.support import grammar
from tests.support.scripting import CountingIds

TIMEOUT = 60.0  # seconds; only a hang should ever meet it, not a busy machine


class FixedClock:
    """Time stands still but for what is slept, which takes no time at all."""

    def __init__(self) -> None:
        self.time = 1_000_000.0
        self.ahead = 0.0  # of the wall clock alone
        self.slept: list[float] = []
        self.pause = 0.0  # what a sleep takes in real seconds

    def now(self) -> float:
        return self.time + self.ahead

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(self.pause)


class FaultyLedger(SqliteLedger):
    """The real ledger, with points where a test may hold it or have its storage fail."""

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database)
        self.failing: dict[str, int] = {}  # how many of the next calls of a method fail
        self.held: dict[str, asyncio.Event] = {}  # methods that wait before they do anything
        self.reached: dict[str, asyncio.Event] = {}
        self.shared = False  # other nodes live on the same database: free only the leases of those that are `dead`
        self.dead: set[str] = set()

    def hold(self, method: str) -> asyncio.Event:
        """Have a method wait, and return the event that is set once a call waits there."""
        self.held[method] = asyncio.Event()
        self.reached[method] = asyncio.Event()
        return self.reached[method]

    def let_pass(self, method: str) -> None:
        self.held.pop(method).set()

    async def _pass(self, method: str) -> None:
        if (event := self.held.get(method)) is not None:
            self.reached[method].set()
            await event.wait()
        if self.failing.get(method, 0) > 0:
            self.failing[method] -= 1
            raise StorageUnavailable(method, "a test says so")

    def append(self, entries: list[Entry]) -> asyncio.Future[AppendResults]:
        async def go() -> AppendResults:
            await self._pass("append")
            return await super(FaultyLedger, self).append(entries)

        return asyncio.ensure_future(go())

    def close(self, closing: Closing) -> asyncio.Future[None]:
        async def go() -> None:
            await self._pass("close")
            await super(FaultyLedger, self).close(closing)

        return asyncio.ensure_future(go())

    def admit(self, admission: Admission) -> asyncio.Future[Admitted]:
        async def go() -> Admitted:
            await self._pass("admit")
            return await super(FaultyLedger, self).admit(admission)

        return asyncio.ensure_future(go())

    async def claim(self, worker: str, limit: int, busy_owners: frozenset[str]) -> list[Claim]:
        await self._pass("claim")
        claims = await super().claim(worker, limit, busy_owners)
        await self._pass("claimed")
        return claims

    async def take_over(self, response_id: str, worker: str) -> Claim | None:
        await self._pass("take_over")
        return await super().take_over(response_id, worker)

    async def release_leases(self, leases: list[Lease]) -> None:
        await self._pass("release_leases")
        await super().release_leases(leases)

    async def confirm_leases(self, worker: str, leases: list[Lease]) -> list[bool]:
        await self._pass("confirm")
        return await super().confirm_leases(worker, leases)

    async def free_dead_leases(self) -> int:
        """Of the workers that a test calls dead; all, when none is named."""
        await self._pass("free_dead_leases")
        if not self.dead:
            return 0 if self.shared else await super().free_dead_leases()
        names = sorted(self.dead)
        marks = ",".join("?" * len(names))
        sql = f"UPDATE leases SET worker = NULL WHERE worker IN ({marks})"
        return await self._database.write("free_dead_leases", lambda db: db.execute(sql, names).rowcount)

    async def save_checkpoint(self, lease: Lease, checkpoint: Checkpoint) -> None:
        await self._pass("save_checkpoint")
        await super().save_checkpoint(lease, checkpoint)


class FaultyJournal(SqliteJournal):
    """The real journal, which fails as often as a test sets."""

    failing = 0
    reads = 0

    async def read(self, response_id: str, after: int, max_bytes: int) -> Any:
        self.reads += 1
        if self.failing > 0:
            self.failing -= 1
            raise StorageUnavailable("read", "a test says so")
        return await super().read(response_id, after, max_bytes)


class FaultyHistory(SqliteHistory):
    """The real history, which fails as often as a test sets."""

    failing = 0

    async def before(self, position: Any, most: int = UNBOUNDED) -> LoadedItems:
        if self.failing > 0:
            self.failing -= 1
            raise StorageUnavailable("history", "a test says so")
        return await super().before(position, most)


class Harness:
    """One server's engine, and short ways to drive it and look at it."""

    def __init__(
        self,
        database: SqliteDatabase,
        scripts: Sequence[Script],
        *,
        continuation: ContinuationMode = "none",
        capacity: Capacity | None = None,
        linger: float = 0.0,
        run_seconds: float | None = None,
        days: tuple[float | None, float | None] = (30.0, None),  # for which responses and conversations are kept
        ids: CountingIds | None = None,
        name: str = "worker",
        bus: Bus | None = None,
        claims: bool = True,
        tools: Tools | None = None,
        abandon_after: float | None = None,
        pack_after: float | None = None,
    ) -> None:
        self.database = database
        self.bus = bus
        self.heartbeat = CountingHeartbeat()
        self.clock, self.ids = FixedClock(), ids or CountingIds()
        self.backend = ScriptedBackend("scripted", scripts, continuation=continuation, ids=self.ids)
        self.ledger, self.journal = FaultyLedger(database), FaultyJournal(database)
        self.ledger.shared = bus is not None
        self.history, self.catalog = FaultyHistory(database), Catalog(database)
        self.conversations, self.retention = Conversations(database), Retention(database)
        storage = Storage(
            ledger=self.ledger,
            journal=self.journal,
            history=self.history,
            catalog=self.catalog,
            conversations=self.conversations,
            retention=self.retention,
            database=database,
            packing=SqlitePacking(database),
            bell=bus.bell() if bus is not None else Bell(),
            heartbeat=self.heartbeat,
            probe=database.probe,
            secret=b"secret",
            shared=bus is not None,
        )
        options = EngineOptions(
            name=name,
            sender=HttpSender(private=True),
            capacity=capacity or Capacity(running=100, queued=100),
            response_days=days[0],
            conversation_days=days[1],
            claims=claims,
            commit_seconds=linger,
            run_seconds=run_seconds,
            abandon_after=abandon_after,
            pack_after=pack_after,
        )
        self.engine = engine = Engine(
            storage,
            Backends({"scripted": self.backend}, self._route),
            options,
            clock=self.clock,
            ids=self.ids,
            seal=SecretSeal([b"secret"]),
            tools=tools,
        )
        self.memory = engine.ephemeral.ledger
        self.worker, self.admitter, self.ephemeral = engine.worker, engine.admitter, engine.ephemeral
        self.reader, self.live, self.shutdown = engine.reader, engine.reader.live, engine.reader.shutdown
        self.creates, self.contexts, self.sweeper = engine.creates, engine.contexts, engine.sweeper
        self.services, self.committer = engine.services, engine.services.committer
        self.mirrors, self.node = engine.reader.mirrors, engine.node
        self.notifier = engine.node.notifier if engine.node is not None else None

    def _route(self, model: str) -> tuple[Backend, str]:
        return self.backend, model

    # -- driving

    async def create(
        self,
        input: Any = "Hi",
        *,
        owner: str = "ann",
        key: str | None = None,
        retry: int | None = None,
        **fields: Any,
    ) -> Accepted:
        body = {"model": "m", "input": input, **fields}
        return await self.engine.admitter.admit(
            Submission(owner=owner, body=body, idempotency_key=key, retry_count=retry)
        )

    async def answer(self, input: Any = "Hi", **fields: Any) -> Json:
        """A whole response; its final object."""
        accepted = await self.create(input, **fields)
        return await self.end(accepted.response_id, fields.get("owner", "ann"))

    async def converse(self, owner: str = "ann") -> str:
        conversation: Json = {"id": self.ids.new("conv"), "created_at": 1, "metadata": {}}
        return await self.conversations.create(owner, conversation, [], self.clock.now(), None)

    # -- looking

    async def end(self, response_id: str, owner: str = "ann") -> Json:
        """Wait for the end; the final object, with the whole journal found sound."""
        await self.reader.wait_end(response_id)
        final = await self.show(response_id, owner)
        assert final is not None
        events = await self.events(response_id)
        grammar.check(events)
        for event in events:
            assert_official_event(event)
        assert events[-1]["response"] == final
        return final

    async def show(self, response_id: str, owner: str = "ann") -> Json | None:
        record = await self.catalog.response(owner, response_id)
        return None if record.snapshot is None else msgspec.json.decode(record.snapshot)

    async def frames(self, response_id: str) -> list[bytes]:
        batch = await SqliteJournal.read(self.journal, response_id, -1, 1 << 30)
        return split_frames(batch.frames) if batch is not None else []

    async def events(self, response_id: str) -> list[Json]:
        return [read_frame(frame) for frame in await self.frames(response_id)]

    async def types(self, response_id: str) -> list[str]:
        return [event["type"].removeprefix("response.") for event in await self.events(response_id)]

    async def texts_of(self, conversation: str, owner: str = "ann") -> list[str]:
        page = await self.catalog.items(owner, conversation, Paging(limit=100, order="asc"))
        return [text_of(item) for item in page.data]


def text_of(item: Json) -> str:
    return "".join(part.get("text", "") for part in item.get("content") or [])


def answer_of(response: Json) -> str:
    return "".join(text_of(item) for item in response["output"] if item["type"] == "message")


Body = Callable[[Harness], Awaitable[None]]


@asynccontextmanager
async def open_harness(path: Path, *scripts: Script, **options: Any) -> AsyncIterator[Harness]:
    database = SqliteDatabase(str(path / "outlive.db"))
    try:
        yield Harness(database, scripts, **options)
    finally:
        await database.close()


def run_with_harness(path: Path, body: Body, *scripts: Script, **options: Any) -> None:
    """Run a scene on a fresh engine over the database in that folder."""

    async def go() -> None:
        async with asyncio.timeout(TIMEOUT), open_harness(path, *scripts, **options) as harness:
            await body(harness)

    asyncio.run(go())

"""The harness of the suites: tests are coroutines on an open storage, with ids and times of the harness."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from outlive.core.endings import TerminalStatus
from outlive.core.events import Draft, Json, number
from outlive.core.requests.create import CreateResponse, header
from outlive.ports.catalog import Paging
from outlive.ports.ledger import Admission, Admitted, AppendResult, Claim, Closing, Entry, Idempotency, Lease, Position
from tests.conformance.storages import Opener, RunOpener, RunStorage, Storage

WRITTEN, STALE = AppendResult.WRITTEN, AppendResult.STALE


def storage_test(test: Callable[[StorageHarness], Awaitable[None]]) -> Callable[[Opener], None]:
    """Make a test that gets a harness on a fresh database."""

    def run(opener: Opener) -> None:
        async def go() -> None:
            async with opener() as storage:
                await test(StorageHarness(storage))

        asyncio.run(go())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def run_storage_test(test: Callable[[RunStorage], Awaitable[None]]) -> Callable[[RunOpener], None]:
    """Make a test that gets the part of a storage that a running response uses."""

    def run(run_opener: RunOpener) -> None:
        async def go() -> None:
            async with run_opener() as storage:
                await test(storage)

        asyncio.run(go())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def message(item_id: str, text: str, role: str = "user") -> Json:
    kind = "input_text" if role == "user" else "output_text"
    return {
        "id": item_id,
        "type": "message",
        "role": role,
        "status": "completed",
        "content": [{"type": kind, "text": text}],
    }


def frames(first: int, count: int, type_: str = "response.output_text.delta") -> bytes:
    drafts = [Draft(type_, {"delta": f"{n}\n\n"}) for n in range(first, first + count)]
    return b"".join(number(drafts, first - 1))


def entry(lease: Lease, first: int, count: int = 1, at: float = 1.0) -> Entry:
    return Entry(lease, first, count, at, frames(first, count))


class StorageHarness:
    """Short calls for the steps of a test. Every step is a second later than the one before."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.ledger = storage.ledger
        self.now = 1000.0
        self._count = 0

    def new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count}"

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    # -- responses

    async def admit(
        self,
        text: str = "hello",
        *,
        owner: str = "ann",
        worker: str | None = "w1",
        conversation: str | None = None,
        parent: str | None = None,
        background: bool = False,
        items: list[Json] | None = None,
        key: str | None = None,
        digest: bytes = b"digest",
        retry_digest: bytes | None = None,
        large: bool = False,
        sealed: bytes | None = None,
        **fields: Any,
    ) -> tuple[str, Admitted]:
        given = items if items is not None else [message(self.new("msg"), text)]
        request = CreateResponse(
            model="m",
            input=given,
            given_ids=items is not None,
            background=background,
            conversation=conversation,
            previous_response_id=parent,
            **fields,
        )
        response_id, at = self.new("resp"), self.tick()
        status = "in_progress" if worker else "queued"
        response = header(request, response_id, int(at), "m", status)
        drafts = [
            Draft("response.created", {"response": response}),
            Draft("response.in_progress", {"response": response}),
        ]
        admission = Admission(
            response_id=response_id,
            owner=owner,
            at=at,
            request=request,
            status=status,
            frames=b"".join(number(drafts, -1)),
            count=2,
            worker=worker,
            idempotency=Idempotency(key, digest) if key is not None else None,
            retry_digest=retry_digest,
            size=1_000_000 if large else 0,
            sealed=sealed,
        )
        admitted = await self.ledger.admit(admission)
        if admitted.history is not None:
            assert admitted.position is not None
            position = admitted.position
            assert admitted.history == (await self.storage.history.before(position)).items
        return response_id, admitted

    async def start(self, text: str = "hello", **fields: Any) -> tuple[str, Lease]:
        response_id, admitted = await self.admit(text, **fields)
        assert admitted.lease is not None
        return response_id, admitted.lease

    async def close(
        self,
        lease: Lease,
        text: str | None = "answer",
        *,
        status: TerminalStatus = "completed",
        first: int = 2,
        turn: list[Json] | None = None,
    ) -> None:
        if turn is None:
            turn = [message(self.new("msg"), text, "assistant")] if text is not None else []
        at = self.tick()
        final: Json = {"id": lease.response_id, "status": status, "output": turn}
        frame = b"".join(number([Draft(f"response.{status}", {"response": final})], first - 1))
        await self.ledger.close(
            Closing(
                Entry(lease, first, 1, at, frame),
                status,
                msgspec.json.encode(final),
                turn,
                keep_turn=status != "failed",
            )
        )

    async def answer(self, text: str = "hello", answer: str | None = "answer", **fields: Any) -> str:
        """Run a whole response, from admission to its end. Returns its id."""
        status = fields.pop("status", "completed")
        response_id, lease = await self.start(text, **fields)
        await self.close(lease, answer, status=status)
        return response_id

    async def claim(self, limit: int = 100, busy: frozenset[str] = frozenset(), worker: str = "w2") -> list[Claim]:
        return await self.ledger.claim(worker, limit, busy)

    async def events(self, response_id: str) -> bytes:
        batch = await self.storage.journal.read(response_id, -1, 1 << 30)
        return batch.frames if batch is not None else b""

    # -- conversations

    async def converse(self, *texts: str, owner: str = "ann", key: str | None = None, digest: bytes = b"d") -> str:
        conversation: Json = {"id": self.new("conv"), "object": "conversation", "created_at": 1, "metadata": {"a": "b"}}
        items = [message(self.new("msg"), text) for text in texts]
        idempotency = Idempotency(key, digest) if key is not None else None
        return await self.storage.conversations.create(owner, conversation, items, self.tick(), idempotency)

    async def texts_of(self, conversation: str, owner: str = "ann") -> list[str]:
        page = await self.storage.catalog.items(owner, conversation, Paging(limit=10_000, order="asc"))
        return texts(page.data)

    async def history_of(self, position: Position | None) -> list[str]:
        assert position is not None
        return texts((await self.storage.history.before(position)).items)


def texts(items: list[Json]) -> list[str]:
    return ["".join(part["text"] for part in item["content"]) for item in items]

"""The engine as the wire sees it: its rooms, wired together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec

from outlive.core.errors import NotFound, StorageUnavailable
from outlive.core.ids import IdSource
from outlive.core.requests.limits import Limits
from outlive.engine.admission import Admitter
from outlive.engine.cluster.node import Node
from outlive.engine.delivery.live import LiveResponses
from outlive.engine.delivery.reader import Reader
from outlive.engine.ephemeral import EphemeralRuns
from outlive.engine.run.context_queries import ContextQueries
from outlive.engine.sweeper import Sweeper
from outlive.engine.worker import Worker
from outlive.ports.backend import Backend
from outlive.ports.catalog import Catalog
from outlive.ports.clock import Clock
from outlive.ports.conversations import Conversations
from outlive.ports.ledger import Ledger


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    backends: dict[str, Backend]
    route: Callable[[str], tuple[Backend, str]]
    door: Admitter
    contexts: ContextQueries
    worker: Worker
    fleeting: EphemeralRuns
    reader: Reader  # of stored responses
    fleeting_reader: Reader
    ledger: Ledger
    catalog: Catalog
    conversations: Conversations
    sweeper: Sweeper
    clock: Clock
    ids: IdSource
    limits: Limits
    is_healthy: Callable[[], Awaitable[bool]]
    abandon_after: float | None = None
    node: Node | None = None  # None: nobody else is at work on the same database

    async def tick(self, lives: tuple[LiveResponses, ...], seconds: float) -> None:
        """Now and then: let idle readers send their keep-alive, and end what nobody reads any more."""
        while True:
            await asyncio.sleep(seconds)
            for each in lives:
                each.wake_all()
            if self.abandon_after is not None:
                with contextlib.suppress(StorageUnavailable, NotFound):  # then a later round does it, or it was deleted
                    await self.worker.cancel_abandoned(self.abandon_after)

    async def delete(self, owner: str, response_id: str) -> None:
        """Delete a response; one that runs is cancelled first (D18)."""
        record = await self.catalog.response(owner, response_id)
        if record.snapshot is None:
            await self.worker.cancel(response_id)
        await self.ledger.delete(owner, response_id)
        self.sweeper.wake()

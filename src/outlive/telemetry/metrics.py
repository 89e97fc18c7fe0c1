"""Metrics in the Prometheus text format: counts of the engine and the state of the database, read at each scrape."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from outlive import __version__
from outlive.core.counts import SECONDS, Counts, Histogram
from outlive.core.errors import StorageUnavailable
from outlive.engine.engine import Engine
from outlive.ports.catalog import DatabaseState
from outlive.telemetry.names import Sample, Values

if TYPE_CHECKING:
    from outlive.telemetry.exposition import Exposition

# A database that takes longer to answer counts as down: the scrape itself must not time out.
DATABASE_SECONDS = 3.0
LAG_EVERY = 0.25


class Metrics:
    """Renders the metrics of one process."""

    def __init__(self, engine: Engine, *, lease_seconds: float, owners: bool) -> None:
        self._engine = engine
        self._lease_seconds = lease_seconds
        self._owners = owners
        self._lag = Histogram(SECONDS)
        self._state: DatabaseState | None = None
        self._exposition: Exposition | None = None

    async def run(self) -> None:
        """Measure the lag of the event loop until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_EVERY
            await asyncio.sleep(LAG_EVERY)
            self._lag.add(max(0.0, loop.time() - due))

    async def render(self) -> bytes:
        """Return all metrics as text."""
        try:
            async with asyncio.timeout(DATABASE_SECONDS):
                self._state = await self._engine.parts.storage.catalog.measure()
        except (StorageUnavailable, TimeoutError):
            self._state = None
        if self._exposition is None:
            # In a thread, so that no stream waits for the import.
            self._exposition = await asyncio.to_thread(self._make_exposition)
        return self._exposition.render()

    def _make_exposition(self) -> Exposition:
        from outlive.telemetry.exposition import Exposition

        return Exposition(self._collect)

    def _collect(self) -> Iterator[Sample]:
        for samples in (self._load(), _journal(self._counts), _responses(self._counts), self._database()):
            yield from samples

    @property
    def _counts(self) -> Counts:
        return self._engine.parts.services.counts

    def _load(self) -> Iterator[Sample]:
        parts, counts = self._engine.parts, self._counts
        yield "info", {(parts.worker.name, __version__): 1}
        yield "responses_running", parts.worker.slots.running
        yield "readers", parts.reader.count_readers()
        yield "draining", int(self._engine.is_draining)
        yield "event_loop_lag_seconds", self._lag
        if self._owners:
            yield "owner_responses_running", _by(parts.worker.slots.running_by_owner())
            ended: Counter[tuple[str, ...]] = Counter()
            for (status, _, owner), count in counts.ended.items():
                ended[owner, status] += count
            yield "owner_responses_ended_total", ended

    def _database(self) -> Iterator[Sample]:
        state = self._state
        yield "database_up", int(state is not None)
        if state is None:
            return
        oldest = state.oldest_queued_at
        yield "responses_queued", state.queued
        yield "queue_oldest_seconds", 0.0 if oldest is None else max(0.0, self._engine.now() - oldest)
        yield "database_bytes", state.size
        yield "database_connections", {(pool,): used for pool, (used, _) in state.connections.items()}
        yield "database_connections_max", {(pool,): most for pool, (_, most) in state.connections.items()}
        own = {self._engine.parts.worker.name: 0}
        yield "node_leases", _by(own | {node.name: node.leases for node in state.nodes})
        ages = {node.name: self._lease_seconds - node.expires_in for node in state.nodes if node.expires_in is not None}
        yield "node_heartbeat_age_seconds", _by({name: max(0.0, age) for name, age in ages.items()})


def _responses(counts: Counts) -> Iterator[Sample]:
    yield "responses_admitted_total", _by(counts.admitted)
    ended: Counter[tuple[str, ...]] = Counter()
    for (status, code, _), count in counts.ended.items():
        ended[status, code] += count
    yield "responses_ended_total", ended
    yield "tokens_total", counts.tokens
    yield "first_token_added_seconds", counts.first_output
    yield "retries_attached_total", counts.attached
    yield "resumes_total", counts.resumes
    yield "takeovers_total", counts.takeovers
    yield "continuations_total", _by(counts.continuations)
    yield "upstream_requests_total", counts.upstream_requests
    yield "tool_calls_total", _by(counts.tool_calls)


def _journal(counts: Counts) -> Iterator[Sample]:
    yield "events_total", counts.events
    yield "commit_seconds", counts.commit_seconds
    yield "commit_events", counts.commit_events
    yield "packed_responses_total", counts.packed_responses
    yield "packed_bytes_total", _by(counts.packed_bytes)
    yield "commits_failed_total", counts.commits_failed


def _by(values: Mapping[str, float]) -> Values:
    return {(label,): value for label, value in values.items()}

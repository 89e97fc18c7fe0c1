"""Metrics in the Prometheus text format: counts of the engine and the state of the database, read at each scrape."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from outlive import __version__
from outlive.core.counts import SECONDS, Histogram
from outlive.core.errors import StorageUnavailable
from outlive.engine.engine import Engine
from outlive.ports.catalog import DatabaseState

# A database that takes longer to answer counts as down: the scrape itself must not time out.
DATABASE_SECONDS = 3.0
LAG_EVERY = 0.25

PREFIX = "outlive_"

# A metric's value, its values by label or labels, or its histogram. (Any: the keys of a Mapping are invariant.)
Values: TypeAlias = Mapping[Any, float] | float | Histogram


class Metric(NamedTuple):
    """A metric; `docs/reference/metrics.md` lists the same."""

    type: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


METRICS: dict[str, Metric] = {
    # Load
    "responses_running": Metric("gauge", "Responses running in this process."),
    "responses_queued": Metric("gauge", "Responses in the queue, over all nodes."),
    "queue_oldest_seconds": Metric("gauge", "Age of the oldest queued response; 0 if none is queued."),
    "readers": Metric("gauge", "Connections that wait for events of responses running here or on other nodes."),
    "draining": Metric("gauge", "1 from the signal to stop on, else 0."),
    # Responses
    "responses_admitted_total": Metric("counter", "Responses accepted.", ("model",)),
    "responses_ended_total": Metric(
        "counter", "Responses that ended; code is the error's, or why it is incomplete.", ("status", "code")
    ),
    "tokens_total": Metric("counter", "Tokens that upstreams reported for ended responses.", ("model", "direction")),
    "first_token_added_seconds": Metric(
        "histogram",
        "Time that the server adds to the first token: from the request to the question, and from the answer's first "
        "byte until it is durable and shown.",
    ),
    "retries_attached_total": Metric("counter", "Repeated creates that were given the response of an earlier try."),
    "resumes_total": Metric("counter", "Streams of stored responses begun again or resumed."),
    "takeovers_total": Metric("counter", "Responses continued here after another worker, or an earlier process."),
    "continuations_total": Metric("counter", "Visible answers continued after a crash or a fault.", ("action",)),
    # The journal
    "events_total": Metric("counter", "Events made durable."),
    "commit_seconds": Metric("histogram", "Time of a group commit."),
    "commit_events": Metric("histogram", "Events in a group commit."),
    "commits_failed_total": Metric("counter", "Group commits that failed and were tried again."),
    "packed_responses_total": Metric("counter", "Responses whose events were compressed by this node."),
    "packed_bytes_total": Metric("counter", "Bytes of their events before and after that.", ("form",)),
    "unpacked_responses": Metric(
        "gauge", "Ended responses whose events are not compressed yet, over all nodes; at most 10,000 are counted."
    ),
    "unpacked_oldest_seconds": Metric("gauge", "Time since the first of them ended; 0 if there is none."),
    # Upstreams and tools
    "upstream_requests_total": Metric("counter", "Requests to upstreams by how they ended.", ("upstream", "outcome")),
    "tool_calls_total": Metric("counter", "Calls of the server's own tools.", ("outcome",)),
    # Webhooks
    "webhook_attempts_total": Metric("counter", "Attempts to deliver webhooks, by this process.", ("outcome",)),
    "webhooks_pending": Metric("gauge", "Webhooks that wait for their first or next attempt, over all nodes."),
    "webhook_oldest_seconds": Metric("gauge", "Age of the oldest webhook that waits; 0 if none does."),
    # The database and the nodes
    "database_up": Metric("gauge", "1 if the database answered this scrape, else 0."),
    "database_bytes": Metric("gauge", "Size of the database."),
    "database_connections": Metric("gauge", "Connections in use, by pool (Postgres).", ("pool",)),
    "database_connections_max": Metric("gauge", "Connections that a pool may open (Postgres).", ("pool",)),
    "node_leases": Metric("gauge", "Leases that a node holds.", ("node",)),
    "node_heartbeat_age_seconds": Metric("gauge", "Time since a node's last heartbeat (Postgres).", ("node",)),
    # The process
    "event_loop_lag_seconds": Metric("histogram", "Delay of a timer on the event loop, measured four times a second."),
    "info": Metric("gauge", "Always 1; the labels name this process.", ("node", "version")),
    # Only with the setting metrics_owners
    "owner_responses_running": Metric("gauge", "Responses of an owner running in this process.", ("owner",)),
    "owner_responses_ended_total": Metric("counter", "Responses of an owner that ended.", ("owner", "status")),
}


class Metrics:
    """Renders the metrics of one process."""

    def __init__(self, engine: Engine, *, lease_seconds: float, owners: bool) -> None:
        self._engine = engine
        self._lease_seconds = lease_seconds
        self._owners = owners
        self._lag = Histogram(SECONDS)
        self._state: DatabaseState | None = None
        self._generate: Callable[[], bytes] | None = None

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
                self._state = await self._engine.storage.catalog.measure()
        except (StorageUnavailable, TimeoutError):
            self._state = None
        if self._generate is None:
            # In a thread, so that no stream waits for the import.
            self._generate = await asyncio.to_thread(self._make_generate)
        return self._generate()

    def _make_generate(self) -> Callable[[], bytes]:
        """Import prometheus-client: that takes time and memory which a server without a Prometheus need not spend."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        registry, collector = CollectorRegistry(auto_describe=False), cast(Any, self)
        registry.register(collector)
        ProcessCollector(namespace=PREFIX.rstrip("_"), registry=registry)
        return partial(generate_latest, registry)

    def collect(self) -> Iterator[Any]:
        """Yield the families, for prometheus-client."""
        for samples in (self._counted(), self._database()):
            yield from (_make_family(name, values) for name, values in samples)

    def _counted(self) -> Iterator[tuple[str, Values]]:
        """Yield what this process counts: a field of `Counts` has the name of its metric, but for `_total`."""
        engine, counts = self._engine, self._engine.services.counts
        yield "info", {(engine.worker.name, __version__): 1}
        yield "responses_running", engine.worker.slots.running
        yield "readers", engine.reader.count_readers()
        yield "draining", int(engine.is_draining)
        yield "event_loop_lag_seconds", self._lag
        yield "webhook_attempts_total", engine.webhooks.attempts
        if self._owners:
            yield "owner_responses_running", engine.worker.slots.taken
        by_code: Counter[tuple[str, str]] = Counter()
        by_owner: Counter[tuple[str, str]] = Counter()
        for (status, code, owner), count in counts.ended.items():
            by_code[status, code] += count
            by_owner[owner, status] += count
        yield "responses_ended_total", by_code
        if self._owners:
            yield "owner_responses_ended_total", by_owner
        for name in METRICS:
            values = getattr(counts, name.removesuffix("_total"), None)
            if values is not None:
                yield name, values

    def _database(self) -> Iterator[tuple[str, Values]]:
        state, now = self._state, self._engine.now()
        yield "database_up", int(state is not None)
        if state is None:
            return
        yield "responses_queued", state.queued
        yield "queue_oldest_seconds", max(0.0, now - (state.oldest_queued_at or now))
        yield "webhooks_pending", state.webhooks
        yield "webhook_oldest_seconds", max(0.0, now - (state.oldest_webhook_at or now))
        yield "unpacked_responses", state.unpacked
        yield "unpacked_oldest_seconds", max(0.0, now - (state.oldest_unpacked_at or now))
        yield "database_bytes", state.size
        yield "database_connections", {pool: used for pool, (used, _) in state.connections.items()}
        yield "database_connections_max", {pool: most for pool, (_, most) in state.connections.items()}
        own = {self._engine.worker.name: 0}
        yield "node_leases", own | {node.name: node.leases for node in state.nodes}
        ages = {node.name: self._lease_seconds - node.expires_in for node in state.nodes if node.expires_in is not None}
        yield "node_heartbeat_age_seconds", {name: max(0.0, age) for name, age in ages.items()}


def _make_family(name: str, values: Values) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    described = METRICS[name]
    if isinstance(values, Histogram):
        # Each bucket of Prometheus counts all values up to its bound.
        buckets = zip([*map(str, values.bounds), "+Inf"], accumulate(values.counts), strict=True)
        histogram = HistogramMetricFamily(PREFIX + name, described.help)
        histogram.add_metric([], list(buckets), values.total)
        return histogram
    kind = CounterMetricFamily if described.type == "counter" else GaugeMetricFamily
    family = kind(PREFIX + name, described.help, labels=described.labels)
    for labels, value in (values if isinstance(values, Mapping) else {(): values}).items():
        family.add_metric([labels] if isinstance(labels, str) else labels, value)
    return family

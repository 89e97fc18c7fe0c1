"""The names of all metrics, each with its type, labels and meaning; `docs/reference/metrics.md` lists the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from outlive.core.counts import Histogram

PREFIX = "outlive_"

# Name, without the prefix, of the metrics that prometheus-client adds about the process.
PROCESS = "process_"


# Values by their labels. (Any: the keys of a Mapping are invariant.)
Values: TypeAlias = Mapping[Any, float]
# A metric's name, and its value, its values by labels, or its histogram.
Sample: TypeAlias = tuple[str, Values | float | Histogram]


class Metric(NamedTuple):
    """One metric."""

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
    # Upstreams and tools
    "upstream_requests_total": Metric("counter", "Requests to upstreams by how they ended.", ("upstream", "outcome")),
    "tool_calls_total": Metric("counter", "Calls of the server's own tools.", ("outcome",)),
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

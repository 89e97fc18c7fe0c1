"""Metrics of several nodes on one Postgres."""

from __future__ import annotations

from pathlib import Path

from tests.support.cluster import LEASE, Cluster
from tests.support.upstream import HANG, FakeUpstream, say
from tests.support.waiting import wait_until
from tests.telemetry.scrapes import scrape


def test_each_node_shows_the_leases_and_heartbeats_of_all_and_counts_its_takeovers(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    model = upstream.model([HANG], say("a"))
    with Cluster(tmp_path, upstream.url).start(2) as cluster:
        first, second = cluster.nodes
        response_id = first.client.submit(model)
        upstream.wait_call(model)
        before = scrape(second)
        assert len(before.labels("node_heartbeat_age_seconds")) == 2
        assert all(value < LEASE for (name, _), value in before.samples.items() if "heartbeat_age" in name)
        assert (before["node_leases"], before["responses_running"]) == (1, 0)
        assert before.get("database_connections_max", pool="read") == 4
        assert before["database_bytes"] > 0

        first.kill()
        second.client.follow(response_id).read_all()
        assert scrape(second)["takeovers_total"] == 1
        wait_until(lambda: scrape(second)["node_heartbeat_age_seconds"] > LEASE, "the dead node's heartbeat is old")

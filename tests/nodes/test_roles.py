"""Roles and limits over all nodes together: which nodes accept requests, which run responses, and how many."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from typer.testing import CliRunner

from outlive.cli import app
from tests.nodes.conftest import MakeCluster
from tests.support.http_client import text_of
from tests.support.upstream import FakeUpstream, Gate, ending, say, text
from tests.support.waiting import wait_until


def test_api_nodes_accept_requests_and_workers_run_them(make_cluster: MakeCluster, upstream: FakeUpstream) -> None:
    cluster = make_cluster("--max-waiting", "3")
    api, worker = cluster.add("--role", "api"), cluster.add("--role", "worker", "--max-running", "2")
    cluster.start()
    gate = Gate()
    with api.client.stream(upstream.model([text("Hi "), gate, text("there."), *ending()])) as stream:
        stream.read_type("response.output_text.delta")
        assert cluster.find_owner(stream.id) == str(worker.pid)
        gate.open()
        stream.read_all()
    assert stream.complete
    # A response that is not stored is in memory only, and so runs on the node that accepted it.
    assert text_of(api.client.create(upstream.model(say("Not kept.")), store=False).json()) == "Not kept."
    for path in ("/v1/responses", "/v1/models", "/v1/conversations"):
        refused = worker.client.get(path)
        assert (refused.status, refused.error["code"]) == (421, "misdirected_request")
    assert worker.client.get("/healthz").status == worker.client.ready_status() == 200

    # More responses than the worker has slots for are queued, and show their position.
    full = Gate()
    blocked = upstream.model([full, *say("done")])
    ids = [api.client.submit(blocked) for _ in range(2)]
    wait_until(lambda: len(upstream.calls(blocked)) == 2, "two responses are running")
    ids += [api.client.submit(blocked) for _ in range(3)]
    extensions = [api.client.retrieve(each).get("outlive") for each in ids]
    assert [each and each["queue"]["place"] for each in extensions] == [None, None, 1, 2, 3]
    too_many = api.client.create(blocked)
    assert (too_many.status, too_many.error["code"]) == (429, "rate_limit_exceeded")
    full.open()
    for each in ids:
        assert api.client.wait_ended(each)["status"] == "completed"
    cluster.check()


def test_an_owners_limits_hold_over_all_nodes(make_cluster: MakeCluster, upstream: FakeUpstream) -> None:
    cluster = make_cluster("--max-running-per-owner", "3", "--max-waiting-per-owner", "4").start(2)
    gate = Gate()
    model = upstream.model([gate, *say("done")])

    def create(number: int) -> int:
        return cluster[number % 2].client.create(model, background=True).status

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(create, range(16)))
    assert sorted(statuses) == [200] * 7 + [429] * 9
    assert cluster.sql("SELECT count(*) FILTER (WHERE worker IS NOT NULL), count(*) FROM outlive.leases") == "3|7"
    assert len(upstream.calls(model)) <= 3
    gate.open()
    cluster.check()
    assert len(upstream.calls(model)) == 7


def test_an_owners_policy_holds_over_all_nodes(make_cluster: MakeCluster, upstream: FakeUpstream) -> None:
    cluster = make_cluster()
    with (cluster.folder / "outlive.toml").open("a") as config:
        config.write('[prices."dear-model"]\ninput = 0\noutput = 500000\n')
    cluster.start(2)

    def set_policy(*changes: str) -> None:
        words = ["owners", "set", "local", *changes, "--database", cluster[0].database_url]
        assert CliRunner().invoke(app, words).exit_code == 0
        time.sleep(1.0)

    def create(model: str, count: int, **fields: Any) -> list[int]:
        with ThreadPoolExecutor(count) as pool:
            return sorted(pool.map(lambda n: cluster[n % 2].client.create(model, **fields).status, range(count)))

    set_policy("max_running=2", "max_waiting=3")
    gate = Gate()
    assert create(upstream.model([gate, *say("done")]), 12, background=True) == [200] * 5 + [429] * 7
    assert cluster.sql("SELECT count(*) FILTER (WHERE worker IS NOT NULL), count(*) FROM outlive.leases") == "2|5"
    gate.open()
    cluster.check()
    set_policy("max_running=", "max_waiting=", "requests_per_minute=7")
    time.sleep(max(0.0, time.time() % 60 - 50))  # not across two minutes
    assert create(upstream.model(say("done")), 16) == [200] * 7 + [429] * 9
    set_policy("requests_per_minute=", "budget_per_month=1")
    upstream.queue(say("done"), model="dear-model")
    assert create("dear-model", 1) == [200]
    wait_until(lambda: create("dear-model", 2) == [429] * 2, "both nodes know what was spent")

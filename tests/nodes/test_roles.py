"""Roles and limits: who takes requests, who runs what, and how much, over all nodes together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.crash.client import text_of, wait_until
from tests.nodes.conftest import MakeCrew
from tests.support.upstream import FakeUpstream, Gate, ending, say, text


def test_api_nodes_take_requests_and_workers_run_them(make_crew: MakeCrew, upstream: FakeUpstream) -> None:
    crew = make_crew(0, "--max-waiting", "3")
    api, worker = crew.add("--role", "api"), crew.add("--role", "worker", "--max-running", "2")
    crew.start()
    gate = Gate()
    with api.client.stream(upstream.model([text("Hi "), gate, text("there."), *ending()])) as stream:
        stream.read_type("response.output_text.delta")
        assert crew.holder(stream.id) == str(worker.pid)
        gate.open()
        stream.read_all()
    assert stream.whole
    # In memory, so where the request came in; and not without a model of its own.
    assert text_of(api.client.create(upstream.model(say("Not kept.")), store=False).body) == "Not kept."
    for path in ("/v1/responses", "/v1/models", "/v1/conversations"):
        refused = worker.client.ask("GET", path)
        assert (refused.status, refused.body["error"]["code"]) == (421, "misdirected_request")
    assert worker.client.ask("GET", "/healthz").status == worker.client.readyz() == 200

    # More than the worker has room for waits in line, and is told where it stands.
    full = Gate()
    blocked = upstream.model([full, *say("done")])
    ids = [api.client.start(blocked) for _ in range(2)]
    wait_until(lambda: len(upstream.calls(blocked)) == 2, "two run")
    ids += [api.client.start(blocked) for _ in range(3)]
    places = [api.client.get(each).get("outlive") for each in ids]
    assert [place and place["queue"]["place"] for place in places] == [None, None, 1, 2, 3]
    too_many = api.client.create(blocked)
    assert (too_many.status, too_many.body["error"]["code"]) == (429, "rate_limit_exceeded")
    full.open()
    for each in ids:
        assert api.client.wait_end(each)["status"] == "completed"
    crew.check()


def test_an_owners_limits_hold_over_all_nodes(make_crew: MakeCrew, upstream: FakeUpstream) -> None:
    crew = make_crew(2, "--max-running-per-owner", "3", "--max-waiting-per-owner", "4")
    crew.start()
    gate = Gate()
    model = upstream.model([gate, *say("done")])

    def create(number: int) -> int:
        return crew[number % 2].client.create(model, background=True).status

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(create, range(16)))
    assert sorted(statuses) == [200] * 7 + [429] * 9
    assert crew.sql("SELECT count(*) FILTER (WHERE worker IS NOT NULL), count(*) FROM outlive.leases") == "3|7"
    assert len(upstream.calls(model)) <= 3
    gate.open()
    crew.check()
    assert len(upstream.calls(model)) == 7

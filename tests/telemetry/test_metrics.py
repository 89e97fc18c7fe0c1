"""GET /metrics of a real server: what it counts, and who may read it."""

from __future__ import annotations

from http.client import HTTPConnection
from pathlib import Path

import pytest

from outlive.telemetry.metrics import METRICS, PREFIX
from tests.support.http_client import HttpClient
from tests.support.receiver import Receiver
from tests.support.server import OutliveServer, free_port
from tests.support.tool_calls import request_call
from tests.support.upstream import CUT, HANG, FakeUpstream, Gate, Refuse, ending, say, text
from tests.support.waiting import wait_until
from tests.telemetry.conftest import Serve
from tests.telemetry.scrapes import PROCESS, Scrape, scrape


def test_responses_are_counted_by_status_and_upstreams_by_outcome(serve: Serve, upstream: FakeUpstream) -> None:
    good, refused = upstream.model(say("a", "b")), upstream.model([Refuse(400)])
    cut = upstream.model([text("a"), CUT])
    server = serve()
    assert server.client.create(good).status == 200
    assert server.client.create(good, store=False).status == 200
    for model in (refused, cut):
        server.client.create(model)
    found = scrape(server)
    assert found["responses_admitted_total"] == 4
    assert found.get("responses_ended_total", status="completed", code="") == 2
    assert found.get("responses_ended_total", status="failed", code="invalid_prompt") == 1
    assert found.get("responses_ended_total", status="incomplete", code="interrupted") == 1
    (name,) = {labels["upstream"] for labels in found.labels("upstream_requests_total")}
    assert found.get("upstream_requests_total", upstream=name, outcome="ok") == 2
    assert found.get("upstream_requests_total", upstream=name, outcome="4xx") == 1
    assert found.get("upstream_requests_total", upstream=name, outcome="broken") == 1
    assert found.get("tokens_total", model="other", direction="input") == 10
    assert found["first_token_added_seconds_count"] == 3
    assert found["responses_running"] == 0


def test_events_and_commits_are_counted(serve: Serve, upstream: FakeUpstream) -> None:
    server, gate = serve(), Gate()
    with server.client.stream(upstream.model([text("a"), gate, *ending()])) as stream:
        stream.read_delta("a")  # committed before the end, which is a transaction of its own
        gate.open()
        stream.read_all()
    found = scrape(server)
    admitted = 2  # response.created and response.in_progress are part of the admission
    assert found["events_total"] == len(stream.frames) - admitted
    assert 0 < found["commit_events_sum"] < found["events_total"]
    assert 0 < found["commit_seconds_sum"] < 10 * found["commit_seconds_count"]
    assert found["commits_failed_total"] == 0


def test_a_queued_response_shows_with_its_age_and_a_resume_is_counted(serve: Serve, upstream: FakeUpstream) -> None:
    server, gate = serve("--max-running", "1"), Gate()
    model = upstream.model([text("a"), gate, *ending()])
    first, second = server.client.submit(model), server.client.submit(model)
    gate.wait_reached()
    with server.client.follow(first) as stream:
        stream.read_delta("a")
        found = scrape(server)
        assert (found["responses_running"], found["responses_queued"], found["readers"]) == (1, 1, 1)
        assert found["queue_oldest_seconds"] > 0
        assert found["node_leases"] == 1
        assert found["resumes_total"] == 1
        gate.open()
        stream.read_all()
    server.client.follow(second).read_all()
    after = scrape(server)
    assert (after["responses_queued"], after["queue_oldest_seconds"], after["takeovers_total"]) == (0, 0, 0)


def test_webhooks_are_counted_by_outcome_and_waiting_ones_show_with_their_age(
    serve: Serve, upstream: FakeUpstream
) -> None:
    server, model = serve("--webhook-private"), upstream.model(say("a"))
    with Receiver() as receiver:
        receiver.answers = [200, 410, 500]
        for _ in range(3):
            body = {"name": "mine", "url": receiver.url, "event_types": ["response.completed"]}
            assert server.client.post("/v1/webhook_endpoints", body).status == 200
        assert server.client.create(model).status == 200
        wait_until(lambda: len(receiver.received) >= 3, "three attempts")
        wait_until(lambda: scrape(server)["webhooks_pending"] == 1, "one is to be sent again")
    found = scrape(server)
    outcomes = {name: found.get("webhook_attempts_total", outcome=name) for name in ("delivered", "failed", "given_up")}
    assert outcomes == {"delivered": 1, "failed": 1, "given_up": 1}
    assert found["webhook_oldest_seconds"] > 0


def test_a_repeated_create_is_counted_as_attached(serve: Serve, upstream: FakeUpstream) -> None:
    server, model = serve(), upstream.model(say("a"))
    for _ in range(2):
        server.client.request("POST", "/v1/responses", {"model": model, "input": "x"}, **{"idempotency-key": "k"})
    found = scrape(server)
    assert (found["responses_admitted_total"], found["retries_attached_total"]) == (1, 1)


def test_a_run_that_is_recovered_after_a_kill_counts_as_a_takeover(serve: Serve, upstream: FakeUpstream) -> None:
    server, model = serve(), upstream.model([HANG], say("a"))
    response_id = server.client.submit(model)
    upstream.wait_call(model)
    server.kill()
    server.start()
    server.client.follow(response_id).read_all()
    assert scrape(server)["takeovers_total"] == 1


def test_tool_calls_continuations_and_packed_journals_are_counted(upstream: FakeUpstream, tmp_path: Path) -> None:
    config = tmp_path / "outlive.toml"
    config.write_text(f'[upstreams.scripted]\nurl = "{upstream.url}"\ncontinuation = "prefill"\n')
    (tmp_path / "my_tools.py").write_text('def add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n')
    model = upstream.model(request_call("add", a=2, b=3), [text("The "), CUT], say("sum"))
    flags = ("--config", str(config), "--tools", "my_tools", "--pack-after", "0.1")
    with OutliveServer(tmp_path, None, *flags) as server:
        made = server.client.create(model, tools=[{"type": "mcp", "server_label": "outlive"}]).json()
        assert made["status"] == "completed"
        wait_until(lambda: scrape(server)["packed_responses_total"] == 1, "its journal is packed")
        found = scrape(server)
    assert found.get("tool_calls_total", outcome="ok") == 1
    assert found.get("continuations_total", action="continue") == 1
    assert found.get("packed_bytes_total", form="before") > found.get("packed_bytes_total", form="after") > 0


def test_an_ended_response_shows_with_its_age_while_its_journal_is_not_packed(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    with OutliveServer(tmp_path, upstream.url, "--pack-after", "never") as server:
        before = scrape(server)
        assert (before["unpacked_responses"], before["unpacked_oldest_seconds"]) == (0, 0)
        server.client.create(upstream.model(say("a")))
        after = scrape(server)
        assert after["unpacked_responses"] == 1
        age = after["unpacked_oldest_seconds"]
        wait_until(lambda: scrape(server)["unpacked_oldest_seconds"] > age, "it gets older")
    with OutliveServer(tmp_path, upstream.url, "--pack-after", "0.1") as server:
        wait_until(lambda: scrape(server)["unpacked_responses"] == 0, "its journal is packed")
        assert scrape(server)["unpacked_oldest_seconds"] == 0


def test_labels_never_hold_what_a_client_sends(serve: Serve, upstream: FakeUpstream) -> None:
    server = serve("--api-key", "alice=secret-of-alice")
    client = HttpClient(server.port, "secret-of-alice")
    model = upstream.model(say("a"))
    response = client.create(model).json()
    body = server.client.get("/metrics").body.decode()
    for word in (model, response["id"], "alice", "secret-of-alice"):
        assert word not in body


def test_owners_show_only_with_the_setting(serve: Serve, upstream: FakeUpstream) -> None:
    server = serve("--api-key", "alice=secret-of-alice", "--metrics-owners")
    HttpClient(server.port, "secret-of-alice").create(upstream.model(say("a")))
    assert scrape(server).get("owner_responses_ended_total", owner="alice", status="completed") == 1


def test_every_metric_is_rendered_as_it_is_described(serve: Serve, upstream: FakeUpstream) -> None:
    server = serve("--metrics-owners")
    server.client.create(upstream.model(say("a")))
    types = scrape(server).types
    assert all(name.startswith(PREFIX) for name in types)
    own = {name.removeprefix(PREFIX): kind for name, kind in types.items()}
    rendered = {name: kind for name, kind in own.items() if not name.startswith(PROCESS)}
    described = {name: metric.type for name, metric in METRICS.items()}
    assert {name if name in METRICS else f"{name}_total": kind for name, kind in rendered.items()} == described


# -- access


def ask(server: OutliveServer, key: str | None = None, **headers: str) -> int:
    client = HttpClient(server.port, key)
    return client.get("/metrics", **headers).status


def test_metrics_are_for_this_machine_and_for_admins(serve: Serve) -> None:
    server = serve("--api-key", "alice=key-of-alice", "--api-key", "ops=key-of-ops", "--admin", "ops")
    assert ask(server) == 200
    elsewhere = {"x-forwarded-for": "203.0.113.7"}  # as a proxy on this machine passes a client's address on
    assert ask(server, **elsewhere) == 401
    assert ask(server, "key-of-alice", **elsewhere) == 403
    assert ask(server, "key-of-ops", **elsewhere) == 200


def test_a_web_page_cannot_read_the_metrics_by_a_name_that_resolves_here(serve: Serve) -> None:
    assert ask(serve(), host="evil.example") == 403


def test_an_admin_without_a_key_is_refused_at_start(tmp_path: Path) -> None:
    server = OutliveServer(tmp_path, "http://127.0.0.1:9/v1", "--admin", "ops").launch()
    assert server.process is not None and server.process.wait(30) == 2
    assert "--admin names 'ops', which has no key" in " ".join(server.log.split())


@pytest.mark.parametrize(("path", "status"), [("/metrics", 200), ("/v1/responses", 404)])
def test_the_metrics_port_serves_the_metrics_alone_and_needs_no_key(serve: Serve, path: str, status: int) -> None:
    port = free_port()
    serve("--api-key", "alice=key-of-alice", "--metrics-port", str(port))
    connection = HTTPConnection("127.0.0.1", port)

    def is_open() -> bool:
        try:
            connection.connect()
        except ConnectionRefusedError:
            return False
        return True

    wait_until(is_open, "the port is open")
    connection.request("GET", path, headers={"host": "prometheus.example"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == status
    assert status != 200 or Scrape(body.decode())["info"] == 1

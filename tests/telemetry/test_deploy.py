"""The dashboard and the alert rules in deploy/: every metric they name exists, and a real Prometheus can use them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlive.telemetry.metrics import METRICS, PREFIX
from tests.support.server import free_port
from tests.support.upstream import FakeUpstream, say
from tests.support.waiting import wait_until
from tests.telemetry.conftest import Serve
from tests.telemetry.scrapes import PROCESS, scrape

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
DASHBOARD = DEPLOY / "grafana" / "outlive.json"
RULES = DEPLOY / "prometheus" / "outlive-alerts.yml"
CONFIGURATION = DEPLOY / "prometheus" / "prometheus.yml"

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs Prometheus: apt-get install prometheus",
)


def expressions() -> list[str]:
    """All expressions of the dashboard."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def described() -> set[str]:
    """The names of all series of the described metrics."""
    parts = {"histogram": ("_bucket", "_sum", "_count")}
    return {f"{PREFIX}{name}{part}" for name, metric in METRICS.items() for part in parts.get(metric.type, ("",))}


@pytest.mark.parametrize("file", [DASHBOARD, RULES], ids=lambda file: str(file.name))
def test_every_metric_that_is_named_exists(file: Path, serve: Serve) -> None:
    named = set(re.findall(rf"\b{PREFIX}\w+", file.read_text()))
    of_process = {name for name in scrape(serve()).names if name.startswith(PREFIX + PROCESS)}
    assert len(named) > 5
    assert named - described() - of_process == set()


def test_the_dashboard_shows_every_metric_but_those_by_owner() -> None:
    shown = " ".join(expressions()) + DASHBOARD.read_text()
    missing = {name for name in METRICS if PREFIX + name not in shown}
    assert missing == {"draining", "owner_responses_running", "owner_responses_ended_total"}


def test_no_two_panels_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24 and not taken & cells
        taken |= cells


class Prometheus:
    """A running Prometheus, asked through its API."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.load(answer)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    def query(self, expression: str) -> list[Any]:
        answer = self.get("/api/v1/query", query=expression)
        assert answer["status"] == "success", answer
        found: list[Any] = answer["data"]["result"]
        return found


@pytest.fixture
def prometheus(tmp_path: Path, serve: Serve, upstream: FakeUpstream) -> Iterator[Prometheus]:
    """A Prometheus with the configuration of deploy/, which scrapes a server every second."""
    server = serve()
    server.client.create(upstream.model(say("a")))
    settings = CONFIGURATION.read_text().replace("127.0.0.1:7878", f"127.0.0.1:{server.port}").replace("15s", "1s")
    (tmp_path / "prometheus.yml").write_text(settings)
    shutil.copy(RULES, tmp_path)
    port = free_port()
    words = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/prometheus"]
    process = subprocess.Popen(
        [*words, f"--web.listen-address=127.0.0.1:{port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        running = Prometheus(port)
        wait_until(running.is_ready, "Prometheus is ready")
        yield running
    finally:
        process.kill()
        process.wait()


@needs_prometheus
def test_a_prometheus_scrapes_a_server_and_evaluates_dashboard_and_rules(prometheus: Prometheus) -> None:
    ended = 'outlive_responses_ended_total{status="completed"}'
    wait_until(lambda: [each["value"][1] for each in prometheus.query(ended)] == ["1"], "the end is scraped")
    for expression in expressions():
        prometheus.query(expression.replace("$instance", ".*").replace("$__rate_interval", "1m"))
    (group,) = prometheus.get("/api/v1/rules")["data"]["groups"]
    assert len(group["rules"]) == RULES.read_text().count("- alert:")
    (target,) = prometheus.get("/api/v1/targets")["data"]["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")


CASES = """
rule_files: [outlive-alerts.yml]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - {series: 'outlive_database_up{instance="a"}', values: "1 1 0 0 0 0 0 0 0 0"}
      - {series: 'outlive_queue_oldest_seconds{instance="a"}', values: "0+30x40"}
      - {series: 'outlive_node_heartbeat_age_seconds{instance="a", node="n"}', values: "2x40"}
      - {series: 'outlive_webhook_oldest_seconds{instance="a"}', values: "3600+30x40"}
    alert_rule_test:
      - {eval_time: 30s, alertname: OutliveDatabaseDown, exp_alerts: []}
      - eval_time: 2m
        alertname: OutliveDatabaseDown
        exp_alerts:
          - exp_labels: {severity: critical, instance: a}
            exp_annotations:
              summary: "The database of a does not answer: new requests get a 503, and streams wait."
      - eval_time: 5m
        alertname: OutliveQueueOld
        exp_alerts:
          - exp_labels: {severity: warning}
            exp_annotations:
              summary: "A response has been queued for 10m 0s; add nodes, or raise max_running."
      - {eval_time: 5m, alertname: OutliveNodeSilent, exp_alerts: []}
      - eval_time: 6m
        alertname: OutliveWebhooksWait
        exp_alerts:
          - exp_labels: {severity: warning}
            exp_annotations:
              summary: "A webhook has not been delivered for 1h 12m 0s; it is given up after 72 hours."
"""


@needs_prometheus
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    (tmp_path / "cases.yml").write_text(CASES)
    checked = subprocess.run(["promtool", "test", "rules", "cases.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr

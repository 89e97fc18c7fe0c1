"""Traces of a real server at a real OTLP collector: one trace per response, also across a crash and another node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.http_client import Json
from tests.support.mcp_server import McpServer
from tests.support.otlp import OtlpCollector
from tests.support.server import OutliveServer
from tests.support.tool_calls import request_call
from tests.support.upstream import HANG, FakeUpstream, Gate, Refuse, say, text
from tests.telemetry.conftest import Serve

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
CANARY = "canary-1c9d"
SERVER, CLIENT_KIND = 2, 3


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    with OtlpCollector() as running:
        yield running


@pytest.fixture
def server(serve: Serve, collector: OtlpCollector) -> OutliveServer:
    return serve(env=collector.env)


def create(server: OutliveServer, model: str, headers: dict[str, str], **body: object) -> Json:
    answer = server.client.request("POST", "/v1/responses", {"model": model, "input": CANARY, **body}, **headers)
    made: Json = answer.json()
    return made


def test_a_response_is_a_trace_of_its_own_with_the_calls_of_its_model(
    server: OutliveServer, upstream: FakeUpstream, collector: OtlpCollector
) -> None:
    model = upstream.model(say(CANARY, CANARY))
    made = create(server, model, {"x-request-id": "r-1"}, temperature=0.5, metadata={"a": CANARY})
    (root,), (call,) = collector.wait("response "), collector.wait("chat ")
    assert made["outlive"] == {"trace_id": root.trace_id}
    assert (root.name, root.kind, root.parent_id) == (f"response {model}", SERVER, "")
    assert root.attributes["gen_ai.response.id"] == made["id"]
    assert (root.attributes["outlive.status"], root.attributes["outlive.attempts"]) == ("completed", 1)
    assert root.attributes["outlive.request.id"] == "r-1"
    assert (root.resource["service.name"], "service.instance.id" in root.resource) == ("outlive", True)
    assert (call.name, call.kind) == (f"chat {model}", CLIENT_KIND)
    assert (call.trace_id, call.parent_id) == (root.trace_id, root.span_id)
    assert call.attributes | {"gen_ai.provider.name": ""} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "",
        "gen_ai.request.model": model,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.model": "upstream-model",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 0,
    }
    assert 0 < call.seconds <= root.seconds < 20
    assert upstream.calls(model)[0].headers["traceparent"] == f"00-{root.trace_id}-{call.span_id}-03"
    assert CANARY not in repr(collector.spans())


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"store": False}, {"background": True}])
def test_the_trace_of_a_client_goes_on_through_the_response_to_the_upstream(
    server: OutliveServer, upstream: FakeUpstream, collector: OtlpCollector, more: Json
) -> None:
    model = upstream.model(say("a"))
    server.client.post("/v1/responses", {"model": model, "input": "x", **more}, **CLIENT)
    (root,), (call,) = collector.wait("response "), collector.wait("chat ")
    assert (root.trace_id, root.parent_id) == (TRACE, PARENT)
    assert (call.trace_id, call.parent_id) == (TRACE, root.span_id)
    sent = upstream.calls(model)[0].headers
    assert sent["traceparent"] == f"00-{TRACE}-{call.span_id}-01" and sent["tracestate"] == "vendor=1"


def test_a_client_that_samples_nothing_gets_no_spans_and_its_trace_goes_on(
    server: OutliveServer, upstream: FakeUpstream, collector: OtlpCollector
) -> None:
    model = upstream.model(say("a"))
    create(server, model, {"traceparent": f"00-{TRACE}-{PARENT}-00"})
    create(server, model, {})  # exported, so that the one before would have been, too
    (root,) = collector.wait("response ")
    assert root.trace_id != TRACE
    trace_id, span_id, flags = upstream.calls(model)[0].headers["traceparent"].split("-")[1:]
    assert (trace_id, flags) == (TRACE, "00") and span_id != PARENT


def test_a_failure_shows_its_kind_and_not_its_message(
    server: OutliveServer, upstream: FakeUpstream, collector: OtlpCollector
) -> None:
    model = upstream.model([Refuse(400, {"error": {"message": CANARY, "type": CANARY}})])
    create(server, model, {})
    (root,), (call,) = collector.wait("response "), collector.wait("chat ")
    assert (root.failed, root.attributes["error.type"]) == (True, "invalid_prompt")
    assert (call.failed, call.attributes["error.type"]) == (True, "400")
    assert CANARY not in repr(collector.spans())


@pytest.mark.parametrize("headers", [{}, CLIENT])
def test_a_trace_goes_on_after_kill_9(
    server: OutliveServer, upstream: FakeUpstream, collector: OtlpCollector, headers: dict[str, str]
) -> None:
    model = upstream.model([Refuse(503)], [HANG], say("a"))
    made = create(server, model, headers, background=True)
    upstream.wait_call(model, 2)
    (first,) = collector.wait("chat ")  # by the process that is killed
    server.restart()
    (root,) = collector.wait("response ")
    calls = collector.wait("chat ", 2)
    assert made["outlive"]["trace_id"] == root.trace_id == (TRACE if headers else root.trace_id)
    assert {(call.trace_id, call.parent_id) for call in calls} == {(root.trace_id, root.span_id)}
    assert first.resource["service.instance.id"] != root.resource["service.instance.id"]
    assert root.parent_id == (PARENT if headers else "")
    assert root.attributes["outlive.attempts"] > 1


@pytest.mark.parametrize("headers", [{}, CLIENT])
def test_each_resume_is_a_span_with_a_link_to_the_response(
    server: OutliveServer, upstream: FakeUpstream, collector: OtlpCollector, headers: dict[str, str]
) -> None:
    gate = Gate()
    made = create(server, upstream.model([text("a"), gate, *say("b")]), headers, background=True)
    with server.client.follow(made["id"]) as stream:
        stream.read_delta("a")
    (left,) = collector.wait("resume_response")
    gate.open()
    path = f"/v1/responses/{made['id']}?stream=true&starting_after=2"
    server.client.open_stream("GET", path, traceparent=f"00-{'c' * 32}-{'d' * 16}-01").read_all()
    server.client.follow(made["id"]).read_all()  # after its end
    resumes, (root,) = collector.wait("resume_response", 3), collector.wait("response ")
    assert [span.links for span in resumes] == [[(root.trace_id, root.span_id)]] * 3
    assert (resumes[1].trace_id, resumes[1].parent_id) == ("c" * 32, "d" * 16)
    assert left.trace_id not in (root.trace_id, resumes[2].trace_id)


def test_tool_calls_are_spans_and_their_servers_get_the_trace(
    serve: Serve, upstream: FakeUpstream, collector: OtlpCollector, tmp_path: Path
) -> None:
    (tmp_path / "my_tools.py").write_text('def fail(why: str) -> str:\n    """Fail."""\n    raise ValueError(why)\n')
    with McpServer(tmp_path / "mcp") as mcp:
        server = serve("--tools", "my_tools", "--mcp-private", env=collector.env)
        model = upstream.model(request_call("add", a=2, b=3), request_call("fail", why=CANARY), say("a"))
        remote = {"type": "mcp", "server_label": "notes", "server_url": mcp.url, "require_approval": "never"}
        create(server, model, {}, tools=[remote, {"type": "mcp", "server_label": "outlive"}])
        (root,) = collector.wait("response ")
        add, fail = collector.wait("execute_tool ", 2)
        (called,) = mcp.calls_of("add")
    assert (add.trace_id, add.parent_id, add.failed) == (root.trace_id, root.span_id, False)
    assert add.attributes["gen_ai.tool.name"] == "add" and add.attributes["gen_ai.operation.name"] == "execute_tool"
    assert add.attributes["outlive.tool.server"] == "notes"
    assert called["traceparent"] == f"00-{root.trace_id}-{add.span_id}-03"
    assert called["headers"]["traceparent"].split("-")[1:3] == [root.trace_id, root.span_id]
    assert (fail.failed, CANARY in repr(collector.spans())) == (True, False)
    assert len(collector.spans("chat ")) == 3


def test_a_node_that_takes_a_response_over_goes_on_with_its_trace(
    upstream: FakeUpstream, collector: OtlpCollector, tmp_path: Path
) -> None:
    model = upstream.model([text("a"), HANG], say("b"))
    with Cluster(tmp_path, upstream.url, continuation="prefill") as cluster:
        for _ in range(2):
            cluster.add().env.update(collector.env)
        first, second = cluster.start().nodes
        made = create(first, model, CLIENT, background=True)
        upstream.wait_call(model)
        with first.client.follow(made["id"]) as stream:
            stream.read_delta("a")
        first.kill()
        assert second.client.wait_ended(made["id"])["status"] == "completed"
        (root,) = collector.wait("response ")
        (call,) = collector.wait("chat ")
    assert (root.trace_id, root.parent_id, call.parent_id) == (TRACE, PARENT, root.span_id)
    assert root.attributes["outlive.resumed_at"] and root.seconds > call.seconds


def test_a_collector_that_is_down_costs_nothing_but_the_spans(serve: Serve, upstream: FakeUpstream) -> None:
    server = serve(env={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "50"})
    assert create(server, upstream.model(say("a")), {})["status"] == "completed"
    assert server.terminate() == 0
    assert "Traceback" not in server.log


def test_a_server_without_an_endpoint_does_not_import_opentelemetry() -> None:
    code = "import sys, outlive.app; outlive.app._make_tracer('n'); print('opentelemetry.sdk' in sys.modules)"
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert shown.stdout == "False\n"

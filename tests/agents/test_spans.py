"""Spans of background calls, and what importing the package loads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from agents import Runner, TracingProcessor, set_trace_processors, set_tracing_disabled

from tests.agents.harness import connect, durable, make_agent
from tests.client.stub import Reply, Stub, response
from tests.support.proxy import Cut, Proxy
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, say


class Collector(TracingProcessor):
    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []

    def on_span_end(self, span: Any) -> None:
        if span.span_data.type == "custom" and span.span_data.name == "background response":
            self.spans.append(span.span_data.data)

    def on_trace_start(self, trace: Any) -> None: ...
    def on_trace_end(self, trace: Any) -> None: ...
    def on_span_start(self, span: Any) -> None: ...
    def shutdown(self) -> None: ...
    def force_flush(self) -> None: ...


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    set_tracing_disabled(False)  # an example that another test ran may have switched it off
    set_trace_processors([made])
    yield made
    set_trace_processors([])


def test_span_counts_polls(stub: Stub, collector: Collector) -> None:
    stub.script(
        Reply(response("queued"), openai_poll_after_ms="1"), Reply(response("in_progress"), openai_poll_after_ms="1")
    )
    stub.script(Reply(response("completed")))

    async def run() -> None:
        async with connect(stub.base_url) as client:
            await Runner.run(make_agent("m"), "Hello", run_config=durable(client))

    asyncio.run(run())
    assert collector.spans == [{"background": True, "response_id": "resp_1", "polls": 2, "resumes": 0}]


def test_span_counts_resumes(server: OutliveServer, upstream: FakeUpstream, collector: Collector) -> None:
    model = upstream.model(say("All", " well."))

    async def run(base_url: str) -> None:
        async with connect(base_url) as client:
            result = Runner.run_streamed(make_agent(model), "Hello", run_config=durable(client))
            async for _ in result.stream_events():
                pass

    with Proxy(server.port, Cut(frames=2), Cut(frames=1)) as proxy:
        asyncio.run(run(proxy.base_url))
    (span,) = collector.spans
    assert span["resumes"] == 2 and span["response_id"].startswith("resp_")


def test_import_loads_nothing_of_the_server() -> None:
    code = "import sys, outlive.agents; print(*[each for each in sys.modules if each.startswith('outlive.')])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "outlive.agents.runs" in loaded
    assert all(each.startswith(("outlive.agents", "outlive.client")) for each in loaded)

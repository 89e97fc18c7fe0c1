"""Cancelling the caller cancels the run on the server, unless `on_cancel` is `detach`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from agents import ModelSettings, ModelTimeoutError, Runner

from tests.agents.harness import connect, durable, list_responses, make_agent, wait_status
from tests.client.stub import Reply, Stub, event, response
from tests.support.proxy import Delay, Proxy
from tests.support.server import OutliveServer, search_path
from tests.support.upstream import FakeUpstream, Gate, say, text

SCRIPT = """
import asyncio, sys
from agents import Runner, RunConfig, set_tracing_disabled
from outlive.agents import DurableProvider
from tests.agents.harness import make_agent
from openai import AsyncOpenAI

async def poll(config):
    await Runner.run(make_agent(sys.argv[2]), "Hello", run_config=config)

async def stream(config):
    async for _ in Runner.run_streamed(make_agent(sys.argv[3]), "Hello", run_config=config).stream_events():
        pass

async def main():
    config = RunConfig(model_provider=DurableProvider(AsyncOpenAI(base_url=sys.argv[1], api_key="any")))
    await asyncio.gather(poll(config), stream(config))

set_tracing_disabled(True)
asyncio.run(main())
"""


async def _start(client: Any, agent: Any, streamed: bool) -> asyncio.Task[Any]:
    async def drain() -> None:
        async for _ in Runner.run_streamed(agent, "Hello", run_config=durable(client)).stream_events():
            pass

    if streamed:
        return asyncio.create_task(drain())
    return asyncio.create_task(Runner.run(agent, "Hello", run_config=durable(client)))


async def _cancel(task: asyncio.Task[Any]) -> float:
    """Cancel the task and return the seconds until it ended."""
    began = time.monotonic()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return time.monotonic() - began


@pytest.mark.parametrize("streamed", [False, True])
def test_cancelled_task_cancels_its_run(server: OutliveServer, upstream: FakeUpstream, streamed: bool) -> None:
    gate = Gate()
    model = upstream.model([text("Half"), gate])

    async def run() -> float:
        async with connect(server.base_url) as client:
            task = await _start(client, make_agent(model), streamed)
            await asyncio.to_thread(gate.wait_reached)
            await asyncio.to_thread(wait_status, server, model, "in_progress")
            return await _cancel(task)

    took = asyncio.run(run())
    wait_status(server, model, "cancelled")
    upstream.calls(model)[0].wait_disconnected()
    assert took < 0.5


def test_detached_run_completes_after_its_caller_was_cancelled(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Still here.")])

    async def run() -> None:
        async with connect(server.base_url) as client:
            task = await _start(client, make_agent(model, on_cancel="detach"), streamed=False)
            await asyncio.to_thread(gate.wait_reached)
            await _cancel(task)

    asyncio.run(run())
    gate.open()
    assert wait_status(server, model, "completed").output_text == "Still here."


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("loop_stays", [True, False])
def test_cancel_during_the_post_cancels_the_run(
    server: OutliveServer, upstream: FakeUpstream, streamed: bool, loop_stays: bool
) -> None:
    gate = Gate()
    model = upstream.model([gate])

    async def run(base_url: str) -> float:
        async with connect(base_url) as client:
            task = await _start(client, make_agent(model), streamed)
            await asyncio.to_thread(gate.wait_reached)  # running, but the answer to the POST is delayed
            took = await _cancel(task)
            if loop_stays:
                await asyncio.sleep(0.8)
            return took

    with Proxy(server.port, Delay(0.4)) as proxy:
        assert asyncio.run(run(proxy.base_url)) < 0.3
        wait_status(server, model, "cancelled")


@pytest.mark.parametrize("streamed", [False, True])
def test_cancel_during_the_post_sends_no_second_post_while_the_loop_runs(stub: Stub, streamed: bool) -> None:
    created = Reply(events=[event(0, "response.created")], hang="0.4")
    stub.script(created if streamed else Reply(response("queued"), hang="0.4"), Reply(response("cancelled")))

    async def run() -> None:
        async with connect(stub.base_url) as client:
            task = await _start(client, make_agent("m"), streamed)
            await asyncio.sleep(0.2)
            await _cancel(task)
            await asyncio.sleep(0.8)

    asyncio.run(run())
    assert stub.requests == ["POST /responses", "POST /responses/resp_1/cancel"]


def test_cancel_before_the_post_submits_nothing(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model()

    async def run() -> None:
        async with connect(server.base_url) as client:
            task = await _start(client, make_agent(model), streamed=False)
            await _cancel(task)

    asyncio.run(run())
    assert list_responses(server, model) == []


def test_model_timeout_cancels_the_run(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate])

    async def run() -> None:
        async with connect(server.base_url) as client:
            agent = make_agent(model, settings=ModelSettings(timeout=0.3))
            await Runner.run(agent, "Hello", run_config=durable(client))

    with pytest.raises(ModelTimeoutError):
        asyncio.run(run())
    wait_status(server, model, "cancelled")


def test_ctrl_c_cancels_every_run(server: OutliveServer, upstream: FakeUpstream) -> None:
    gates = [Gate(), Gate()]
    models = [upstream.model([text("Half"), gate]) for gate in gates]
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, server.base_url, *models],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONPATH": search_path(".")},
        stderr=subprocess.PIPE,
    )
    for gate, model in zip(gates, models, strict=True):
        gate.wait_reached()
        wait_status(server, model, "in_progress")
    began = time.monotonic()
    script.send_signal(signal.SIGINT)
    _, printed = script.communicate(timeout=60)
    assert script.returncode != 0 and b"KeyboardInterrupt" in printed
    assert time.monotonic() - began < 5
    for model in models:
        wait_status(server, model, "cancelled")


def test_cancelling_leaves_no_thread(server: OutliveServer) -> None:
    deadline = time.monotonic() + 3
    while any(each.name == "outlive-cancel" for each in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.02)

"""A stream of 200 events is cut at every point; the caller always gets the uninterrupted stream."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any, Literal, get_args

from openai import AsyncOpenAI, OpenAI

from outlive.client import RetryPolicy, StreamStats, stream
from tests.support.proxy import Cut, Proxy
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, say

EVENTS = 200
# Beyond ASCII, so that cuts fall into the middle of characters as well.
SCRIPT = say(*(f"wörd {number} … " for number in range(EVENTS - 9)))
HOWS: tuple[Literal["reset", "close", "clean"], ...] = get_args(Literal["reset", "close", "clean"])

Json = dict[str, Any]


def replay(server: OutliveServer, response_id: str) -> list[Json]:
    """Return the uninterrupted stream, as it is stored."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", f"/v1/responses/{response_id}?stream=true")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def cut_at(frames: int, turn: int) -> Cut:
    """Cut at the end of a frame, just after it, or deep in the next one, each in each of the three ways."""
    return Cut(frames, (0, 3, 101 + frames % 40)[(frames + turn) % 3], HOWS[(frames // 3 + turn) % 3])


def read_all(client: OpenAI, model: str, policy: RetryPolicy) -> tuple[list[Json], StreamStats]:
    stats = StreamStats()
    events = stream(client, model=model, input="Hi", retry_policy=policy, stats=stats)
    return [event.to_dict(mode="json") for event in events], stats


async def read_all_async(client: AsyncOpenAI, model: str, policy: RetryPolicy) -> tuple[list[Json], StreamStats]:
    stats = StreamStats()
    events = stream(client, model=model, input="Hi", retry_policy=policy, stats=stats)
    return [event.to_dict(mode="json") async for event in events], stats


def check_whole(server: OutliveServer, got: list[Json], stats: StreamStats) -> None:
    assert stats.response_id is not None and not stats.fell_back
    assert [event["sequence_number"] for event in got] == list(range(len(got)))
    assert got == replay(server, stats.response_id)
    assert got[-1]["type"] == "response.completed"


def test_sync_stream_cut_at_any_point_equals_the_uninterrupted_stream(
    client: OpenAI, server: OutliveServer, upstream: FakeUpstream, fast_policy: RetryPolicy
) -> None:
    model = upstream.model(SCRIPT)

    def check(frames: int) -> None:
        cut = cut_at(frames, turn=0)
        with Proxy(server.port, cut) as proxy:
            got, stats = read_all(client.with_options(base_url=proxy.base_url), model, fast_policy)
        check_whole(server, got, stats)
        assert len(got) == EVENTS
        assert stats.resumes + stats.resubmits == 1, cut

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(check, range(EVENTS)))
    assert len(upstream.calls(model)) == EVENTS


def test_async_stream_cut_at_any_point_equals_the_uninterrupted_stream(
    server: OutliveServer, upstream: FakeUpstream, fast_policy: RetryPolicy
) -> None:
    model = upstream.model(SCRIPT)

    async def check(client: AsyncOpenAI, some: range) -> None:
        for frames in some:
            cut = cut_at(frames, turn=1)
            with Proxy(server.port, cut) as proxy:
                got, stats = await read_all_async(client.with_options(base_url=proxy.base_url), model, fast_policy)
            await asyncio.to_thread(check_whole, server, got, stats)
            assert len(got) == EVENTS
            assert stats.resumes + stats.resubmits == 1, cut

    async def check_all() -> None:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            await asyncio.gather(*(check(client, range(start, EVENTS, 4)) for start in range(4)))

    asyncio.run(check_all())
    assert len(upstream.calls(model)) == EVENTS

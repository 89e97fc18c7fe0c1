"""For every cut point of a stream of 200 events, what the caller gets equals the uninterrupted stream."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any, Literal, get_args

import pytest
from openai import AsyncOpenAI, OpenAI

from outlive.client import Patience, Progress, stream
from tests.support.proxy import Cut, Proxies
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, say

EVENTS = 200
# Beyond ASCII, so that cuts fall into the middle of characters as well.
SCRIPT = say(*(f"wörd {number} … " for number in range(EVENTS - 9)))
HOWS: tuple[Literal["reset", "close", "clean"], ...] = get_args(Literal["reset", "close", "clean"])

Json = dict[str, Any]


def replay(server: OutliveServer, response_id: str) -> list[Json]:
    """The uninterrupted stream, byte for byte as it is stored."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request("GET", f"/v1/responses/{response_id}?stream=true")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def cut_at(frames: int, turn: int) -> Cut:
    """At the end of the frame, just into the next one, or deep in it, and each of them broken in each way."""
    return Cut(frames, (0, 3, 101 + frames % 40)[(frames + turn) % 3], HOWS[(frames // 3 + turn) % 3])


def read_all(client: OpenAI, model: str, patience: Patience) -> tuple[list[Json], Progress]:
    progress = Progress()
    events = stream(client, model=model, input="Hi", patience=patience, progress=progress)
    return [event.to_dict(mode="json") for event in events], progress


async def read_all_async(client: AsyncOpenAI, model: str, patience: Patience) -> tuple[list[Json], Progress]:
    progress = Progress()
    events = stream(client, model=model, input="Hi", patience=patience, progress=progress)
    return [event.to_dict(mode="json") async for event in events], progress


def check_whole(server: OutliveServer, got: list[Json], progress: Progress) -> None:
    assert progress.response_id is not None and not progress.fell_back
    assert [event["sequence_number"] for event in got] == list(range(len(got)))
    assert got == replay(server, progress.response_id)
    assert got[-1]["type"] == "response.completed"


@pytest.mark.timeout(120)
def test_whatever_the_cut_point_a_sync_caller_gets_the_uninterrupted_stream(
    client: OpenAI, server: OutliveServer, upstream: FakeUpstream, proxies: Proxies, quick: Patience
) -> None:
    model = upstream.model(SCRIPT)

    def check(frames: int) -> None:
        cut = cut_at(frames, turn=0)
        with proxies.to(server.port, cut) as proxy:
            got, progress = read_all(client.with_options(base_url=proxy.base_url), model, quick)
        check_whole(server, got, progress)
        assert len(got) == EVENTS
        assert progress.resumes + progress.resubmits == 1, cut

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(check, range(EVENTS)))
    assert len(upstream.calls(model)) == EVENTS


@pytest.mark.timeout(120)
def test_whatever_the_cut_point_an_async_caller_gets_the_uninterrupted_stream(
    server: OutliveServer, upstream: FakeUpstream, proxies: Proxies, quick: Patience
) -> None:
    model = upstream.model(SCRIPT)

    async def check(client: AsyncOpenAI, some: range) -> None:
        for frames in some:
            cut = cut_at(frames, turn=1)
            with await asyncio.to_thread(proxies.to, server.port, cut) as proxy:
                got, progress = await read_all_async(client.with_options(base_url=proxy.base_url), model, quick)
            await asyncio.to_thread(check_whole, server, got, progress)
            assert len(got) == EVENTS
            assert progress.resumes + progress.resubmits == 1, cut

    async def check_all() -> None:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            await asyncio.gather(*(check(client, range(start, EVENTS, 4)) for start in range(4)))

    asyncio.run(check_all())
    assert len(upstream.calls(model)) == EVENTS

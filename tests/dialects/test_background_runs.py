"""Runs in a Responses upstream's own background, over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from outlive.core.errors import LostRun, UpstreamFault
from outlive.core.events import Json
from outlive.dialects.responses import backend as background_runs
from outlive.dialects.responses.backend import ResponsesBackend
from outlive.dialects.transport.http1 import HttpPool
from outlive.ports.backend import BackgroundRuns, ModelCall, Upstream
from tests.dialects.playback import make_call
from tests.support.responses_upstream import ResponsesUpstream, say, say_with
from tests.support.scripting import CountingIds
from tests.support.upstream import CUT, HANG, Gate, Pause, Refuse, Whole

HELLO: Json = {"id": "msg_1", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}


@pytest.fixture(scope="module")
def server() -> Iterator[ResponsesUpstream]:
    with ResponsesUpstream() as running:
        yield running


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_runs, "_PAUSES", (0.0, 0.01, 0.01))
    monkeypatch.setattr(background_runs, "_DISMISS_PAUSES", (0.0, 0.01))


class Session:
    def __init__(self, server: ResponsesUpstream, **fields: Any) -> None:
        self.pool = HttpPool()
        upstream = Upstream(name="test", url=server.url, dialect="responses", reattach=True, **fields)
        self.backend = ResponsesBackend(upstream, self.pool, CountingIds())

    async def __aenter__(self) -> BackgroundRuns:
        assert self.backend.background_runs is not None
        return self.backend.background_runs

    async def __aexit__(self, *_: object) -> None:
        await self.backend.close()
        self.pool.close()
        await asyncio.sleep(0.01)  # aborted connections are gone only after a turn of the loop


def call_of(model: str) -> ModelCall:
    made = make_call(items=[HELLO])
    return ModelCall(model, made.request, made.items, response_id="resp_ours")


async def numbers(stream: AsyncGenerator[list[bytes], None]) -> list[int]:
    return [json.loads(chunk)["sequence_number"] async for chunks in stream for chunk in chunks]


def run_of(server: ResponsesUpstream, model: str) -> str:
    (run_id,) = (run.id for run in server.runs.values() if run.asked.body["model"] == model)
    return run_id


def test_a_run_is_submitted_to_the_background(server: ResponsesUpstream) -> None:
    model = server.model(say("a", "b"))

    async def main() -> list[int]:
        async with Session(server) as runs:
            return await numbers(runs.submit(call_of(model)))

    assert asyncio.run(main()) == list(range(len(say("a", "b"))))
    (asked,) = server.calls(model)
    assert (asked.body["background"], asked.body["store"], asked.body["stream"]) == (True, True, True)
    assert asked.headers["idempotency-key"] == "outlive-resp_ours"


def test_a_run_is_read_on_after_a_cut(server: ResponsesUpstream) -> None:
    gates = {n: Gate() for n in (1, 3)}
    model = server.model(say_with("a", "b", "c", "d", gates={1: gates[1], 2: CUT, 3: gates[3], 4: CUT}))

    async def main() -> list[int]:
        seen: list[int] = []
        async with Session(server) as runs:
            async for chunks in runs.submit(call_of(model)):
                seen += [json.loads(chunk)["sequence_number"] for chunk in chunks]
                # Bytes sent before a cut arrive before it.
                for n, gate in gates.items():
                    if any(f'"delta": "{"abcd"[n - 1]}"'.encode() in chunk for chunk in chunks):
                        gate.open()
        return seen

    assert asyncio.run(main()) == list(range(len(say("a", "b", "c", "d"))))
    assert len(server.calls(model)) == 1
    run_id = run_of(server, model)
    followed = [after for followed_id, after in server.followed if followed_id == run_id]
    assert len(followed) == 2
    assert all(after >= 4 for after in followed)


def test_a_run_is_followed_from_its_beginning(server: ResponsesUpstream) -> None:
    model = server.model(say("a"))

    async def main() -> tuple[list[int], str | None]:
        async with Session(server) as runs:
            run_id = None
            async with aclosing(runs.submit(call_of(model))) as stream:
                async for chunks in stream:
                    run_id = runs.read_id(chunks)
                    break
            assert run_id is not None
            return await numbers(runs.follow(run_id)), run_id

    seen, run_id = asyncio.run(main())
    assert seen == list(range(len(say("a"))))
    assert run_id == run_of(server, model)


def test_following_an_unknown_run_raises_lost_run(server: ResponsesUpstream) -> None:
    async def main() -> None:
        async with Session(server) as runs:
            await numbers(runs.follow("resp_nowhere"))

    with pytest.raises(LostRun):
        asyncio.run(main())


def test_a_run_that_vanishes_while_it_is_read_raises_lost_run(server: ResponsesUpstream) -> None:
    gate = Gate()
    model = server.model(say_with("a", "b", gates={1: gate, 2: CUT}))

    async def main() -> None:
        async with Session(server) as runs:
            async for chunks in runs.submit(call_of(model)):
                if any(b'"delta": "a"' in chunk for chunk in chunks):
                    server.lost.add(run_of(server, model))
                    gate.open()

    with pytest.raises(LostRun):
        asyncio.run(main())


def test_a_cut_before_the_runs_id_is_not_retried(server: ResponsesUpstream) -> None:
    model = server.model([CUT, Pause(0.05), *say("a")])

    async def main() -> None:
        async with Session(server) as runs:
            await numbers(runs.submit(call_of(model)))

    with pytest.raises(UpstreamFault, match="broke"):
        asyncio.run(main())
    assert len(server.calls(model)) == 1


def test_reading_fails_when_the_upstream_stays_unreachable(server: ResponsesUpstream) -> None:
    gate = Gate()
    model = server.model(say_with("a", "b", gates={1: gate, 2: HANG}))

    async def main() -> None:
        async with Session(server, silence_seconds=0.05) as runs:
            async for chunks in runs.submit(call_of(model)):
                if any(b'"delta": "a"' in chunk for chunk in chunks):
                    gate.open()

    with pytest.raises(UpstreamFault, match="silent"):
        asyncio.run(main())


def test_a_conflicting_idempotency_key_is_left_out(server: ResponsesUpstream) -> None:
    model = server.model([Refuse(409)], say("a"))

    async def main() -> list[int]:
        async with Session(server) as runs:
            return await numbers(runs.submit(call_of(model)))

    assert asyncio.run(main()) == list(range(len(say("a"))))
    assert ["idempotency-key" in asked.headers for asked in server.calls(model)] == [True, False]


# -- deletion


def test_a_finished_run_is_deleted(server: ResponsesUpstream) -> None:
    model = server.model(say("a"))

    async def main() -> str:
        async with Session(server) as runs:
            await numbers(runs.submit(call_of(model)))
            run_id = run_of(server, model)
            runs.dismiss(run_id, running=False)
            return run_id

    run_id = asyncio.run(main())
    assert run_id in server.deleted
    assert run_id not in server.cancelled


def test_a_running_run_is_cancelled_before_it_is_deleted(server: ResponsesUpstream) -> None:
    model = server.model(say_with("a", "b", gates={1: HANG}))

    async def main() -> str:
        async with Session(server) as runs:
            async with aclosing(runs.submit(call_of(model))) as stream:
                async for _ in stream:
                    break
            run_id = run_of(server, model)
            runs.dismiss(run_id, running=True)
            return run_id

    run_id = asyncio.run(main())
    assert run_id in server.cancelled
    assert run_id in server.deleted


def test_a_failed_deletion_is_logged_and_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with ResponsesUpstream() as gone:
        pass

    async def main() -> None:
        async with Session(gone) as runs:
            runs.dismiss("resp_1", running=True)

    asyncio.run(main())
    assert [vars(each)["upstream"] for each in caplog.records if "may remain" in each.getMessage()] == ["test"]
    assert "resp_1" not in caplog.text


def test_without_reattach_there_are_no_background_runs(server: ResponsesUpstream) -> None:
    model = server.model([Whole({"object": "response", "output": [], "status": "completed"})])

    async def main() -> None:
        pool = HttpPool()
        backend = ResponsesBackend(Upstream(name="t", url=server.url, dialect="responses"), pool, CountingIds())
        assert backend.background_runs is None
        async for _ in backend.stream(call_of(model)):
            pass
        await backend.close()
        pool.close()
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert "idempotency-key" not in server.calls(model)[0].headers

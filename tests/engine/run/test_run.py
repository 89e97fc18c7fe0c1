"""A run whose model answers in several steps by itself, such as an agent's: it goes on after any that is finished."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from outlive.core.errors import StorageUnavailable, UpstreamFault
from outlive.core.events import AnyDraft, Json
from outlive.core.recovery import MAX_ATTEMPTS
from outlive.core.toolcalls import calls
from outlive.core.toolcalls.calls import INTERRUPTED, ToolCall, ToolOutcome
from outlive.engine.delivery import live
from outlive.engine.delivery.committer import ENDINGS, Committer
from outlive.ports.backend import Ending, ModelCall
from outlive.ports.ledger import AppendResults, Closing, Entry
from outlive.storage.memory import MemoryJournal
from outlive.testing import Script, call_chunk, finish_chunk, reasoning_chunk, text_chunk, usage_chunk
from tests.dialects.upstream import serve
from tests.engine.tool_harness import NotingLedger, StubToolbox, ToolHarness, kinds, texts, told_to_model
from tests.engine.virtual_clock import run_virtually, turn


class NoTools(StubToolbox):
    def serves(self, request: Any) -> bool:
        return False


class AgentTranslator:
    """Every chunk is a step: a tool's name, whose call is made at once, or the last words."""

    def __init__(self, call: ModelCall) -> None:
        self._index = call.first

    def feed(self, chunk: bytes) -> list[AnyDraft]:
        item_id = f"mcp_{self._index}"
        call = ToolCall(item_id=item_id, output_index=self._index, label="agent", name=chunk.decode(), arguments="{}")
        self._index += 1
        if chunk == b"hang":
            return [*calls.announce(call), calls.begin(call)]
        return [*calls.announce(call), calls.begin(call), *calls.finish(call, ToolOutcome("ok"))]

    def end(self) -> tuple[list[AnyDraft], Ending]:
        return [], Ending("completed")


def make_desk(*scripts: Script) -> ToolHarness:
    harness = ToolHarness(NoTools(), *scripts, tools=[])
    harness.backend.stepwise = True
    harness.backend.translator = AgentTranslator  # type: ignore[assignment,method-assign]
    return harness


def test_it_is_asked_again_with_the_steps_that_are_finished() -> None:
    async def go() -> None:
        whole = make_desk([[b"one"], [b"two"]])
        await whole.run()
        done = [n for n, event in enumerate(whole.events()) if event["type"] == "response.output_item.done"]
        whole.cut(done[0])
        whole.backend.scripts = [[[b"two"]]]
        final = await whole.run()
        assert [item["name"] for item in final["output"]] == ["one", "two"]
        again = whole.backend.calls[-1]
        assert (again.first, told_to_model(again.items)) == (1, ["Hi", "one", "ok"])
        assert final["outlive"] == {"attempts": 2, "resumed_at": [done[0] + 1]}

    run_virtually(go())


def test_a_call_of_its_own_that_was_under_way_has_failed_and_it_is_told_so() -> None:
    async def go() -> None:
        harness = make_desk([[b"one"], [b"hang"], UpstreamFault("Gone.")], [[b"three"]])
        final = await harness.run()
        assert [item["status"] for item in final["output"]] == ["completed", "failed", "completed"]
        assert final["output"][1]["error"]["content"][0]["text"] == INTERRUPTED
        assert INTERRUPTED in told_to_model(harness.backend.calls[-1].items)[-1]

    run_virtually(go())


def test_what_it_said_is_durable_when_it_has_settled() -> None:
    async def go() -> None:
        harness = make_desk([[b"one"]])
        seen: list[Json] = []
        plain = harness.backend.stream

        async def stream(call: ModelCall, on_chunks: Any = None) -> Any:
            async for chunks in plain(call):
                yield chunks
                assert call.flush is not None
                await call.flush()
                seen.extend(harness.events())

        harness.backend.stream = stream  # type: ignore[method-assign]
        await harness.run()
        assert seen[-1]["type"] == "response.output_item.done"

    run_virtually(go())


class HeldLedger(NotingLedger):
    """Appends when it is let."""

    def __init__(self, journal: MemoryJournal) -> None:
        super().__init__(journal)
        self.free = asyncio.Event()

    def append(self, entries: list[Entry]) -> asyncio.Future[AppendResults]:
        async def go() -> AppendResults:
            await self.free.wait()
            return await super(HeldLedger, self).append(entries)

        return asyncio.ensure_future(go())


def test_what_cannot_be_committed_makes_the_upstream_wait_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    most, one_read = 64 * 1024, 256 * 1024
    monkeypatch.setattr(live, "PENDING_BYTES", most)
    pieces = [f"{n:04d}" + "y" * 16 * 1024 for n in range(100)]
    written = 0
    harness: ToolHarness

    async def reply(request: web.Request) -> web.StreamResponse:
        nonlocal written
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in [*map(text_chunk, pieces), finish_chunk(), usage_chunk()]:
            await response.write(b"data: %b\n\n" % chunk)
            written += 1
            while not (harness.live.in_flight or harness.live.fold.visible):  # so that all but the first is heard
                await asyncio.sleep(0)
        return response

    async def go() -> None:
        nonlocal harness
        harness = ToolHarness(NoTools(), tools=[])
        async with asyncio.timeout(20), serve(reply) as (backend, _):
            ledger = harness.ledger = HeldLedger(harness.journal)
            harness.lease = ledger.admit("resp_1", harness.journal.batches["resp_1"][0].frames, 2)
            harness.backend = backend  # type: ignore[assignment]
            harness.committer = Committer(ledger, harness.clock, 0.0)
            running = harness.start()
            while not harness.live.crowded:
                await asyncio.sleep(0)
            before = -1
            while before < written:  # until the network has it all, or holds no more
                before = written
                await asyncio.sleep(0.02)
            assert harness.live._pending_bytes < most + one_read + len(pieces[0]) * 2
            ledger.free.set()
            await running
            assert texts(harness.check()) == "".join(pieces)

    asyncio.run(go())


def test_so_many_end_at_once_and_the_others_wait_their_turn() -> None:
    async def go() -> None:
        desks = [ToolHarness(NoTools(), ANSWER, tools=[]) for _ in range(ENDINGS + 5)]
        begun: list[Closing] = []
        free = asyncio.Event()

        def hold(close: Callable[[Closing], asyncio.Future[None]]) -> Callable[[Closing], asyncio.Future[None]]:
            async def later(closing: Closing) -> None:
                begun.append(closing)
                await free.wait()
                await close(closing)

            return lambda closing: asyncio.ensure_future(later(closing))

        for harness in desks:
            harness.committer.ending = desks[0].committer.ending
            harness.ledger.close = hold(harness.ledger.close)  # type: ignore[method-assign,assignment]
        running = [harness.start() for harness in desks]
        await turn(100)
        assert len(begun) == ENDINGS
        free.set()
        await asyncio.gather(*running)
        assert [harness.check()["status"] for harness in desks] == ["completed"] * len(desks)

    run_virtually(go())


def test_ends_that_cannot_be_committed_keep_no_others_from_theirs() -> None:
    async def go() -> None:
        desks = [ToolHarness(NoTools(), ANSWER, tools=[]) for _ in range(ENDINGS + 1)]
        *stuck, last = desks

        def refuse(_: Closing) -> asyncio.Future[None]:
            refused = asyncio.get_running_loop().create_future()
            refused.set_exception(StorageUnavailable("close"))
            return refused

        for harness in desks:
            harness.committer.ending = last.committer.ending
        for harness in stuck:
            harness.ledger.close = refuse  # type: ignore[method-assign,assignment]
        running = [harness.start() for harness in desks]
        await running[-1]
        assert last.check()["status"] == "completed"
        assert not any(task.done() for task in running[:-1])
        for harness, task in zip(stuck, running, strict=False):
            del harness.ledger.close  # the storage is back
            await task
            assert harness.check()["status"] == "completed"

    run_virtually(go())


# -- thoughts


THINKING: list[bytes] = [reasoning_chunk("Hm, "), reasoning_chunk("well")]
ANSWER: list[bytes] = [text_chunk("18."), finish_chunk(), usage_chunk()]


def with_tools(*scripts: Script) -> ToolHarness:
    return ToolHarness(StubToolbox(), *scripts)


def test_a_thought_that_was_broken_off_is_thought_anew_where_there_are_tools() -> None:
    async def go() -> None:
        harness = with_tools([THINKING, UpstreamFault("Gone.")], [THINKING, ANSWER])
        final = await harness.run()
        assert [(item["type"], item["status"]) for item in final["output"]] == [
            ("reasoning", "incomplete"),
            ("reasoning", "completed"),
            ("message", "completed"),
        ]
        assert (final["status"], texts(final)) == ("completed", "18.")
        assert told_to_model(harness.backend.calls[-1].items) == ["Hi"]

    run_virtually(go())


def test_no_thought_is_thought_anew_for_ever() -> None:
    async def go() -> None:
        harness = with_tools([THINKING, UpstreamFault("Gone.")])
        final = await harness.run()
        assert (final["status"], kinds(final)) == ("incomplete", ["reasoning"] * MAX_ATTEMPTS)

    run_virtually(go())


@pytest.mark.parametrize("client_call", [True, False])
def test_other_things_that_are_half_shown_end_it(client_call: bool) -> None:
    async def go() -> None:
        half = call_chunk(0, "c", "shell", '{"a') if client_call else text_chunk("Half")
        harness = with_tools([[half], UpstreamFault("Gone.")], [ANSWER])
        final = await harness.run()
        assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "interrupted")

    run_virtually(go())

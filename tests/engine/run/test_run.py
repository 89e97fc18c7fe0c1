"""A run: asks its model again while nothing is visible, keeps its limits, and always comes to an end (D9, D10)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from outlive.core.endings import TerminalStatus
from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.engine.run import closer
from outlive.engine.run import run as run_module
from outlive.engine.run.run import MISTAKE, RETRIES, TOO_LONG, TOO_MUCH, Run
from outlive.ports.backend import ModelCall
from outlive.testing import Script, answer, finish_chunk, text_chunk, usage_chunk
from tests.dialects.upstream import serve
from tests.engine.harness import Harness, answer_of, run_with_harness, text_of
from tests.engine.tool_harness import NoTools, ToolHarness, texts
from tests.engine.virtual_clock import run_virtually, turn
from tests.support.scripting import Gate

BROKEN = UpstreamFault("The model's server went away.")
BUSY = UpstreamFault("Too many requests.", code="rate_limit_exceeded", status=429)
DONE: Script = [answer("Hello")]


def refused() -> UpstreamFault:
    return UpstreamFault("No such model.", code="invalid_prompt", status=404, retryable=False)


def busy_for(seconds: float) -> UpstreamFault:
    return UpstreamFault("Wait.", code="rate_limit_exceeded", status=429, retry_after=seconds)


# -- a good run


def test_an_answer_is_completed_with_its_usage_and_model(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer("Hi")
        assert (final["status"], answer_of(final), final["model"]) == ("completed", "Hello", "scripted")
        assert final["usage"]["output_tokens"] == 1
        assert final["completed_at"] == int(harness.clock.now())
        assert "outlive" not in final
        (call,) = harness.backend.calls
        assert [text_of(item) for item in call.items] == ["Hi"]

    run_with_harness(tmp_path, body, DONE)


def test_a_background_response_is_queued_before_it_is_in_progress(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer(background=True)
        assert (await harness.types(final["id"]))[:3] == ["created", "queued", "in_progress"]

    run_with_harness(tmp_path, body, DONE)


def test_a_response_without_generation_asks_no_model(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer(generate=False)
        assert (final["status"], final["output"], final["usage"]["total_tokens"]) == ("completed", [], 0)
        assert harness.backend.calls == []

    run_with_harness(tmp_path, body, DONE)


def test_a_conversation_gives_the_model_ended_turns_and_the_new_input_once(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        await harness.answer("one", conversation=conversation)
        await harness.answer("two", conversation=conversation)
        assert [text_of(item) for item in harness.backend.calls[1].items] == ["one", "Hello", "two"]
        assert await harness.texts_of(conversation) == ["one", "Hello", "two", "Hello"]

    run_with_harness(tmp_path, body, DONE)


def test_a_chain_gives_the_model_the_turns_before(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.answer("one")
        await harness.answer("two", previous_response_id=first["id"])
        assert [text_of(item) for item in harness.backend.calls[1].items] == ["one", "Hello", "two"]

    run_with_harness(tmp_path, body, DONE)


def test_an_answer_that_is_too_long_is_incomplete_and_its_turn_stays(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        final = await harness.answer("one", conversation=conversation)
        assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert await harness.texts_of(conversation) == ["one", "Hel"]

    run_with_harness(tmp_path, body, ["Hel", finish_chunk("length")])


# -- faults before anything is visible


def test_an_upstream_that_shows_nothing_is_asked_again(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("completed", "Hello")
        assert len(harness.backend.calls) == 3
        assert harness.clock.slept == [0.5, 1.0]
        assert final["outlive"] == {"attempts": 3, "resumed_at": []}

    run_with_harness(tmp_path, body, [BROKEN], [BUSY], DONE)


def test_an_upstream_that_never_answers_fails_the_response_with_its_own_reason(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        final = await harness.answer(conversation=conversation)
        assert final["status"] == "failed"
        assert final["error"] == {"code": "rate_limit_exceeded", "message": BUSY.message}
        assert len(harness.backend.calls) == RETRIES + 1
        assert harness.clock.slept == [0.5, 1.0, 2.0]
        assert await harness.texts_of(conversation) == []

    run_with_harness(tmp_path, body, [BUSY])


def test_a_fault_that_is_not_retryable_fails_at_once(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], final["error"]["code"]) == ("failed", "invalid_prompt")
        assert len(harness.backend.calls) == 1
        assert harness.clock.slept == []

    run_with_harness(tmp_path, body, [refused()])


def test_a_retry_waits_as_long_as_the_upstream_asks_for(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        assert (await harness.answer())["status"] == "completed"
        assert harness.clock.slept == [7.0, 0.0]

    run_with_harness(tmp_path, body, [busy_for(7.0)], [busy_for(0.0)], DONE)


def test_retries_take_a_minute_in_all_at_most(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert final["status"] == "failed"
        assert harness.clock.slept == [40.0]
        assert len(harness.backend.calls) == 2

    run_with_harness(tmp_path, body, [busy_for(40.0)])


def test_a_stream_that_ends_without_text_and_finish_is_retried(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert answer_of(final) == "Hello"
        assert len(harness.backend.calls) == 2

    run_with_harness(tmp_path, body, [], DONE)


def test_a_reader_gets_the_cause_of_a_failure(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        cursor = harness.reader.follow(accepted.response_id)
        while not cursor.ended:
            await cursor.read()
        assert cursor.cause is not None
        assert cursor.cause.status == 404

    run_with_harness(tmp_path, body, [refused()])


def test_a_context_that_the_upstream_cannot_be_sent_fails_as_a_bad_prompt(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        def refuse(call: ModelCall) -> Any:
            raise InvalidRequest("This upstream takes no images.")

        harness.backend.translator = refuse  # type: ignore[method-assign]
        final = await harness.answer()
        assert final["error"] == {"code": "invalid_prompt", "message": "This upstream takes no images."}

    run_with_harness(tmp_path, body, DONE)


def test_a_bug_in_a_run_ends_the_response(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(harness: Harness) -> None:
        def raise_bug(call: ModelCall) -> Any:
            raise RuntimeError("secret inside")

        harness.backend.translator = raise_bug  # type: ignore[method-assign]
        final = await harness.answer()
        assert final["error"] == {"code": "server_error", "message": MISTAKE}
        assert ("running response failed", final["id"]) in [
            (each.msg, vars(each).get("response_id")) for each in caplog.records
        ]

    run_with_harness(tmp_path, body, DONE)


# -- limits and losses


def test_an_answer_without_end_is_incomplete_and_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MAX_TEXT", 1000)

    async def body(harness: Harness) -> None:
        final = await harness.answer("Hi")
        assert (final["status"], final["incomplete_details"]["reason"]) == ("incomplete", "interrupted")
        assert TOO_MUCH in str(final["incomplete_details"])
        assert 1000 < len(answer_of(final)) < 1_000_000  # a megabyte may be under way to the journal
        assert len(harness.backend.calls) == 1

    run_with_harness(tmp_path, body, [text_chunk("x" * 100)] * 10_000)


@pytest.mark.parametrize(("shown", "status"), [([], "failed"), (["Hel"], "incomplete")])
def test_a_run_that_takes_too_long_is_ended(tmp_path: Path, shown: list[str], status: TerminalStatus) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert final["status"] == status
        assert TOO_LONG in str(final["error"] or final["incomplete_details"])
        assert final["outlive"] == {"reason": {"code": "deadline_exceeded", "retryable": False}}
        assert harness.backend.left == 1

    run_with_harness(tmp_path, body, [*shown, Gate()], run_seconds=0.05)


def test_a_run_whose_time_is_up_while_its_end_is_written_ends_as_completed(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        reached = harness.ledger.hold("close")
        accepted = await harness.create()
        await reached.wait()
        await asyncio.sleep(0.06)
        harness.ledger.let_pass("close")
        assert (await harness.end(accepted.response_id))["status"] == "completed"

    run_with_harness(tmp_path, body, DONE, run_seconds=0.05)


def test_a_run_whose_time_is_up_while_it_waits_for_other_endings_ends_as_completed(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        endings = harness.committer.endings = asyncio.Semaphore(0)
        accepted = await harness.create()
        await asyncio.sleep(0.06)
        endings.release()
        assert (await harness.end(accepted.response_id))["status"] == "completed"

    run_with_harness(tmp_path, body, DONE, run_seconds=0.05)


def test_a_run_that_lost_its_lease_stops_its_upstream_call_and_writes_nothing(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        claim = await harness.ledger.take_over(accepted.response_id, "another")
        assert claim is not None
        before = await harness.frames(accepted.response_id)
        gate.open()
        while harness.worker._running:
            await asyncio.sleep(0.001)
        assert harness.backend.left == 1
        assert await harness.frames(accepted.response_id) == before

    gate = Gate()
    run_with_harness(tmp_path, body, ["Hel", gate, "lo", Gate()])  # at the end the upstream is silent for ever


def test_a_run_that_is_lost_before_it_begins_asks_no_model() -> None:
    async def body() -> None:
        harness = ToolHarness(NoTools(), DONE, tools=[])
        running = harness.start()
        harness.live.lose()
        await running
        assert (harness.backend.calls, harness.batches()) == ([], [1])

    run_virtually(body())


# -- storage that is slow or down


class CountedScript(list[Any]):
    """A script that counts how many of its steps were played."""

    steps = 0

    def __iter__(self) -> Iterator[Any]:
        for step in super().__iter__():
            self.steps += 1
            yield step


@pytest.mark.parametrize("size", [1000, 300_000])
def test_the_end_of_a_long_answer_is_rendered_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    threads, render = [], closer._render

    def record(*args: Any) -> Any:
        threads.append(threading.get_ident())
        return render(*args)

    async def body(harness: Harness) -> None:
        final = await harness.end((await harness.create()).response_id)
        assert answer_of(final) == "x" * size

    monkeypatch.setattr(closer, "_render", record)
    run_with_harness(tmp_path, body, ["x" * size, finish_chunk()])
    assert (threads == [threading.get_ident()]) is (size < 256 * 1024)


def test_a_run_that_cannot_be_committed_stops_reading_its_upstream(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        reached = harness.ledger.hold("append")
        accepted = await harness.create()
        await reached.wait()
        await turn(200)
        assert 0 < script.steps < 12
        harness.ledger.let_pass("append")
        final = await harness.end(accepted.response_id)
        assert len(answer_of(final)) == 20 * 200_000

    script = CountedScript([*["x" * 200_000] * 20, finish_chunk()])
    run_with_harness(tmp_path, body, script)


def test_an_http_upstream_is_held_back_while_nothing_is_committed_and_no_text_is_lost() -> None:
    most, one_read = 64 * 1024, 256 * 1024
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
            # Until the first read is being committed, so that `on_chunks` takes all the others.
            while not (harness.live.pending.in_flight or harness.live.fold.visible):
                await asyncio.sleep(0)
        return response

    async def body() -> None:
        nonlocal harness
        harness = ToolHarness(NoTools(), tools=[])
        async with asyncio.timeout(20), serve(reply) as (backend, _):
            harness.backend = backend  # type: ignore[assignment]
            can_append = harness.ledger.hold("append")
            running = harness.start()
            harness.live.pending.most = most
            while harness.live.pending.size <= harness.live.pending.most:
                await asyncio.sleep(0)
            before = -1
            while before < written:  # until everything is sent, or the network's buffers are full
                before = written
                await asyncio.sleep(0.02)
            assert harness.live.pending.size < most + one_read + len(pieces[0]) * 2
            can_append.set()
            await running
            assert texts(harness.check()) == "".join(pieces)

    asyncio.run(body())


def test_a_history_that_cannot_be_read_for_a_while_delays_a_run_and_changes_nothing(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.answer()
        harness.history.failing = 3
        final = await harness.answer(previous_response_id=first["id"])
        assert final["status"] == "completed"

    run_with_harness(tmp_path, body, DONE)


def test_a_history_that_cannot_be_read_at_all_fails_the_response_with_the_reason(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.answer()
        await harness.answer(previous_response_id=first["id"])
        harness.history.failing = 1_000
        final = await harness.answer(previous_response_id=first["id"])  # a fork: its history is read by the run
        assert final["status"] == "failed"
        assert "database is unavailable" in final["error"]["message"]

    run_with_harness(tmp_path, body, DONE)


def test_a_ledger_that_fails_for_a_while_delays_a_run_and_changes_nothing(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        harness.ledger.failing = {"append": 2, "close": 3}
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("completed", "Hello there")

    run_with_harness(tmp_path, body, ["Hello", " there", finish_chunk()])


# -- releasing


def test_a_run_whose_model_is_no_longer_configured_can_be_neither_released_nor_resumed(tmp_path: Path) -> None:
    def refuse(model: str) -> Any:
        raise InvalidRequest("No such model.")

    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        live = harness.live.get(accepted.response_id)
        assert live is not None
        await live.flush()
        for services, expected in (
            (harness.services, True),
            (msgspec.structs.replace(harness.services, route=refuse), False),
        ):
            assert Run(services, live).can_release() is expected
            assert Run(services, live).can_resume() is expected

    gate = Gate()
    run_with_harness(tmp_path, body, ["Hel", gate, finish_chunk()], continuation="prefill")

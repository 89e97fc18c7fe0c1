"""A worker that drains releases at once what another can continue, lets the rest end, and interrupts what does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outlive.core.errors import ShuttingDown
from outlive.engine.delivery.reader import StreamInterrupted
from outlive.testing import finish_chunk, reasoning_chunk
from tests.engine.harness import Harness, answer_of, run_with_harness
from tests.engine.test_worker import DONE, gated, is_idle, is_shown
from tests.engine.virtual_clock import turn
from tests.support.scripting import Gate


def test_a_run_without_output_is_released_at_once_and_counts_no_attempt(tmp_path: Path) -> None:
    async def leave(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        cursor = harness.reader.follow(accepted.response_id)
        await cursor.read()
        reading = asyncio.create_task(cursor.read())
        await harness.engine.drain(60.0)
        with pytest.raises(StreamInterrupted):
            await reading
        assert await harness.show(accepted.response_id) is None
        with pytest.raises(ShuttingDown):
            await harness.create()
        assert harness.backend.left == 1

    async def after(harness: Harness) -> None:
        await harness.worker.recover()
        final = await harness.end("resp_2")
        assert final["status"] == "completed"
        assert "outlive" not in final

    gate, script = gated()
    run_with_harness(tmp_path, leave, script)
    run_with_harness(tmp_path, after, DONE)


def test_a_run_that_can_be_continued_is_released_with_its_output(tmp_path: Path) -> None:
    async def leave(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        await harness.engine.drain(60.0)
        assert await harness.show(accepted.response_id) is None
        assert (await harness.types(accepted.response_id)).count("output_text.delta") == 1

    async def after(harness: Harness) -> None:
        await harness.worker.recover()
        final = await harness.end("resp_2")
        assert (final["status"], answer_of(final)) == ("completed", "Hello")

    gate, script = gated("Hel")
    run_with_harness(tmp_path, leave, script, continuation="prefill")
    run_with_harness(tmp_path, after, ["lo", finish_chunk()], continuation="prefill")


def test_a_run_that_cannot_be_continued_may_end_within_the_grace(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        draining = asyncio.create_task(harness.engine.drain(60.0))
        await turn()
        gate.open()
        await draining
        final = await harness.end(accepted.response_id)
        assert (final["status"], answer_of(final)) == ("completed", "Hello")

    gate, script = gated("Hel")
    run_with_harness(tmp_path, body, script)


@pytest.mark.parametrize("grace", [60.0, 0.0])
def test_a_run_whose_answer_is_whole_ends_though_it_could_be_continued(grace: float, tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        gate = harness.committer.endings = asyncio.Semaphore(0)
        accepted = await harness.create()
        await is_shown(harness, accepted.response_id)
        await asyncio.sleep(0.05)
        draining = asyncio.create_task(harness.engine.drain(grace))
        await asyncio.sleep(0.05)
        gate.release()
        await draining
        final = await harness.end(accepted.response_id)
        assert (final["status"], answer_of(final)) == ("completed", "Hello")

    run_with_harness(tmp_path, body, ["Hel", "lo", finish_chunk()], continuation="prefill")


def test_a_run_that_does_not_end_within_the_grace_is_interrupted(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = [await harness.create() for _ in range(5)]
        for each in accepted:
            await is_shown(harness, each.response_id)
        await harness.engine.drain(0.01)
        assert harness.shutdown.interrupting
        for each in accepted:
            final = await harness.end(each.response_id)
            assert (final["status"], answer_of(final)) == ("incomplete", "Hel")
            assert "shut down" in final["incomplete_details"]["message"]
            assert final["outlive"]["reason"] == {"code": "shutdown", "retryable": True}
        await is_idle(harness)

    run_with_harness(tmp_path, body, ["Hel", Gate()])


def test_a_run_that_has_become_continuable_is_released_at_the_end_of_the_grace(tmp_path: Path) -> None:
    async def leave(harness: Harness) -> None:
        accepted = await harness.create()
        await thinking.reached.wait()
        draining = asyncio.create_task(harness.engine.drain(0.2))
        await turn()
        thinking.open()
        await draining
        assert await harness.show(accepted.response_id) is None

    async def after(harness: Harness) -> None:
        await harness.worker.recover()
        assert answer_of(await harness.end("resp_2")) == "Hello"

    thinking = Gate()
    run_with_harness(tmp_path, leave, [reasoning_chunk("Hm"), thinking, "Hel", Gate()], continuation="prefill")
    run_with_harness(tmp_path, after, ["lo", finish_chunk()], continuation="prefill")


def test_a_run_that_is_being_closed_when_the_server_leaves_ends_as_it_was_going_to(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        reached = harness.ledger.hold("close")
        accepted = await harness.create()
        await reached.wait()
        draining = asyncio.create_task(harness.engine.drain(0.01))
        await asyncio.sleep(0.05)
        harness.ledger.let_pass("close")
        await draining
        assert (await harness.end(accepted.response_id))["status"] == "completed"

    run_with_harness(tmp_path, body, DONE)


def test_a_storage_that_is_down_cannot_keep_the_server_from_leaving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlive.engine.worker.LAST_SECONDS", 0.05)

    async def leave(harness: Harness) -> None:
        shown = await harness.create()
        await is_shown(harness, shown.response_id)
        harness.clock.pause = 0.01
        harness.ledger.failing = {"close": 10**6, "append": 10**6, "release_leases": 10**6}
        await harness.engine.drain(0.01)
        assert harness.shutdown.interrupting
        assert await harness.show(shown.response_id) is None

    async def after(harness: Harness) -> None:
        await harness.worker.recover()
        assert (await harness.end("resp_2"))["status"] == "incomplete"

    _, script = gated("Hel")
    run_with_harness(tmp_path, leave, script)
    run_with_harness(tmp_path, after, DONE)

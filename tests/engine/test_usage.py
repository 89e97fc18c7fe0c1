"""Usage: one record for each stored response, right on every ending; of all others only sums."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from outlive.core.context.window import estimate_item, estimate_request
from outlive.core.errors import UpstreamFault
from outlive.core.usage import Price, PriceTable, Tokens, UsageSum
from outlive.engine.usage import make_report
from outlive.testing import Script, finish_chunk, usage_chunk
from tests.engine.harness import Harness, open_harness, run_with_harness
from tests.engine.virtual_clock import turn
from tests.support.scripting import Gate

BROKEN = UpstreamFault("The model's server went away.")
DONE: Script = ["Hello", finish_chunk(), usage_chunk(100, 7)]


async def records(harness: Harness) -> list[dict[str, Any]]:
    names = "response, owner, end_user, model, upstream, status, input_tokens, cached_tokens, output_tokens, "
    names += "reasoning_tokens, estimated_input, estimated_output, attempts, tool_calls, responses, ended_at"
    rows = await harness.database.fetch(f"SELECT {names} FROM usage ORDER BY key")
    return [dict(zip(names.split(", "), row, strict=True)) for row in rows]


def tokens(record: dict[str, Any]) -> tuple[int, int, int, int]:
    return (
        record["input_tokens"],
        record["output_tokens"],
        record["estimated_input"],
        record["estimated_output"],
    )


def test_a_completed_response_leaves_a_record_that_outlives_it(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer(owner="ann\x1fzoe")
        await harness.engine.delete("ann\x1fzoe", final["id"])
        await harness.sweeper.sweep()
        (record,) = await records(harness)
        assert record == {
            "response": final["id"],
            "owner": "ann",
            "end_user": "zoe",
            "model": "m",
            "upstream": "scripted",
            "status": "completed",
            "input_tokens": 100,
            "cached_tokens": 40,
            "output_tokens": 7,
            "reasoning_tokens": 3,
            "estimated_input": 0,
            "estimated_output": 0,
            "attempts": 1,
            "tool_calls": 0,
            "responses": 1,
            "ended_at": harness.clock.now(),
        }

    details = {"prompt_tokens_details": {"cached_tokens": 40}, "completion_tokens_details": {"reasoning_tokens": 3}}
    run_with_harness(tmp_path, body, ["Hello", finish_chunk(), usage_chunk(100, 7, **details)])


@pytest.mark.parametrize("broken", [[BROKEN], [usage_chunk(30, 1), BROKEN]])
def test_attempts_that_broke_count_if_their_usage_arrived(tmp_path: Path, broken: Script) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert final["usage"]["input_tokens"] == 100
        (record,) = await records(harness)
        arrived = len(broken) > 1
        assert tokens(record) == (130 if arrived else 100, 8 if arrived else 7, 0, 0)
        assert record["attempts"] == 2

    run_with_harness(tmp_path, body, broken, DONE)


def test_text_that_was_continued_is_estimated_by_its_deltas_and_its_input_by_its_bytes(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert final["usage"]["output_tokens"] == 2 + 7
        (record,) = await records(harness)
        first = harness.backend.calls[0]
        given = estimate_request(first.request, first.items)
        assert tokens(record) == (100 + given, 9, given, 2)

    run_with_harness(tmp_path, body, ["Hel", "lo", BROKEN], DONE, continuation="prefill")


def test_an_answer_without_usage_is_estimated(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer("What is the answer?")
        assert final["usage"] is None
        (record,) = await records(harness)
        given = estimate_request(harness.backend.calls[0].request, harness.backend.calls[0].items)
        written = sum(map(estimate_item, final["output"]))
        assert tokens(record) == (given, written, given, written) and given and written

    run_with_harness(tmp_path, body, ["A long answer.", finish_chunk()])


@pytest.mark.parametrize("reported", [True, False])
def test_a_cancelled_response_counts_what_was_reported_and_estimates_the_rest(tmp_path: Path, reported: bool) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        await harness.engine.cancel("ann", accepted.response_id)
        (record,) = await records(harness)
        assert record["status"] == "cancelled"
        call = harness.backend.calls[0]
        given = estimate_request(call.request, call.items)
        if reported:
            assert tokens(record) == (5, 1, 0, 0)
        else:
            assert tokens(record)[0] == tokens(record)[2] == given and tokens(record)[3] > 0

    gate = Gate()
    run_with_harness(tmp_path, body, ["Hello", *([usage_chunk(5, 1)] if reported else []), gate])


def test_a_queued_response_that_is_cancelled_used_nothing(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create(background=True)
        await harness.engine.cancel("ann", accepted.response_id)
        (record,) = await records(harness)
        assert (record["status"], *tokens(record)) == ("cancelled", 0, 0, 0, 0)

    run_with_harness(tmp_path, body, DONE, claims=False)


def test_a_failed_response_used_nothing_if_nothing_was_reported_or_shown(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        await harness.answer()
        (record,) = await records(harness)
        assert (record["status"], *tokens(record), record["attempts"]) == ("failed", 0, 0, 0, 0, 4)

    run_with_harness(tmp_path, body, [BROKEN])


async def show_and_die(tmp_path: Path, *texts: str) -> str:
    """Show these texts of a response, and stop without ending it."""
    gate = Gate()
    async with open_harness(tmp_path, [*texts, gate]) as harness:
        accepted = await harness.create()
        await gate.reached.wait()
        live = harness.live.get(accepted.response_id)
        assert live is not None
        await live.flush()
        harness.worker._running[accepted.response_id].task.cancel()
    return accepted.response_id


def test_an_interrupted_response_that_another_process_ends_is_estimated(tmp_path: Path) -> None:
    async def body() -> None:
        response_id = await show_and_die(tmp_path, "Hel")
        async with open_harness(tmp_path, DONE) as harness:
            await harness.worker.recover()
            final = await harness.end(response_id)
            (record,) = await records(harness)
            assert (final["status"], record["status"]) == ("incomplete", "incomplete")
            assert 0 < tokens(record)[0] == tokens(record)[2]
            assert 0 < tokens(record)[1] == tokens(record)[3]

    asyncio.run(body())


def test_the_input_of_an_attempt_is_estimated_if_its_process_died_and_another_continues(tmp_path: Path) -> None:
    async def body() -> None:
        response_id = await show_and_die(tmp_path, "Hel", "lo")
        async with open_harness(tmp_path, DONE, continuation="prefill") as harness:
            await harness.worker.recover()
            final = await harness.end(response_id)
            (record,) = await records(harness)
            call = harness.backend.calls[0]
            given = estimate_request(call.request, call.items)
            assert (final["status"], record["attempts"]) == ("completed", 2)
            assert tokens(record) == (100 + given, 9, given, 2)

    asyncio.run(body())


def test_usage_that_is_absurd_ends_the_response_all_the_same(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert final["status"] == "completed"
        (record,) = await records(harness)
        assert record["input_tokens"] == 1 << 40

    run_with_harness(tmp_path, body, ["Hello", finish_chunk(), usage_chunk(1 << 80, 7)])


def test_of_responses_that_are_not_stored_only_sums_are_kept(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        harness.clock.time = 86_400.0 * 20 + 5
        for owner in ("ann\x1fzoe", "ann", "bob"):
            accepted = await harness.create(owner=owner, store=False)
            await harness.reader.wait_end(accepted.response_id)
        left = await harness.create(store=False)
        await gate.reached.wait()
        harness.ephemeral.discard(left.response_id)
        await turn(20)
        assert await records(harness) == []
        await harness.engine.stop()
        await harness.engine.usage.write_sums()
        ann, bob = await records(harness)
        assert (ann["response"], ann["end_user"], ann["ended_at"]) == (None, None, 86_400.0 * 20)
        assert (ann["owner"], ann["model"], ann["responses"]) == ("ann", "m", 3)
        assert ann["output_tokens"] - ann["estimated_output"] == 14
        assert ann["estimated_output"] > 0
        assert (bob["owner"], bob["responses"], *tokens(bob)) == ("bob", 1, 100, 7, 0, 0)

    gate = Gate()
    run_with_harness(tmp_path, body, DONE, DONE, DONE, ["Hel", gate])


def test_sums_wait_for_a_storage_that_is_down(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create(store=False)
        await harness.reader.wait_end(accepted.response_id)
        meter = harness.engine.usage
        whole = harness.database._file
        whole.lost = True
        await meter.write_sums()
        whole.lost = False
        again = await harness.create(store=False)
        await harness.reader.wait_end(again.response_id)
        (row,) = await meter.report(["owner"], 0.0, 1e12)
        assert (row["owner"], row["responses"], row["input_tokens"]) == ("ann", 2, 200)

    run_with_harness(tmp_path, body, DONE)


def test_a_report_prices_each_model_and_names_those_without_a_price() -> None:
    rows = [
        UsageSum({"owner": "ann", "model": "a", "upstream": "x"}, Tokens(1_000_000, 400_000, 100_000), 1, 0),
        UsageSum({"owner": "ann", "model": "x/a", "upstream": "x"}, Tokens(output=1_000_000), 1, 0),
        UsageSum({"owner": "ann", "model": "b", "upstream": "x"}, Tokens(5), 1, 2),
    ]
    prices = PriceTable({"a": Price(input=2.0, output=10.0, cached_input=0.5)}, "EUR")
    (row,) = make_report(["owner"], rows, prices)
    assert row["cost"] == 0.6 * 2 + 0.4 * 0.5 + 0.1 * 10 + 10
    assert (row["currency"], row["unpriced_models"], row["responses"], row["tool_calls"]) == ("EUR", ["b"], 3, 2)

"""Every run comes to an end: completed, tried again, continued in place, cut off or failed (D9, D10)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from outlive.engine.run.runner import TOO_LONG

from outlive.core.endings import TerminalStatus
from outlive.core.errors import InvalidRequest, UpstreamFault
from outlive.core.events import Json
from outlive.engine.run.run import CUT_OFF, RESTARTED, RETRIES, TOO_OFTEN
from outlive.ports.backend import ModelCall
from outlive.testing import (
    Script,
    answer,
    call_chunk,
    error_chunk,
    finish_chunk,
    reasoning_chunk,
    text_chunk,
    usage_chunk,
)
from tests.engine.harness import Harness, answer_of, run_with_harness, text_of
from tests.engine.virtual_clock import turn
from tests.support.scripting import Gate

BROKEN = UpstreamFault("The model's server went away.")
BUSY = UpstreamFault("Too many requests.", code="rate_limit_exceeded", status=429)
DONE: Script = [answer("Hello")]


def refused() -> UpstreamFault:
    return UpstreamFault("No such model.", code="invalid_prompt", status=404, retryable=False)


def after(seconds: float) -> UpstreamFault:
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


def test_the_model_gets_ended_turns_and_the_new_input_once(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        await harness.answer("one", conversation=conversation)
        await harness.answer("two", conversation=conversation)
        assert [text_of(item) for item in harness.backend.calls[1].items] == ["one", "Hello", "two"]
        assert await harness.texts_of(conversation) == ["one", "Hello", "two", "Hello"]

    run_with_harness(tmp_path, body, DONE)


def test_a_chain_gives_the_model_what_came_before(tmp_path: Path) -> None:
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


# -- nothing visible yet


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


def test_what_cannot_be_retried_fails_at_once(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], final["error"]["code"]) == ("failed", "invalid_prompt")
        assert len(harness.backend.calls) == 1
        assert harness.clock.slept == []

    run_with_harness(tmp_path, body, [refused()])


def test_the_wait_that_an_upstream_asks_for_is_honoured(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        assert (await harness.answer())["status"] == "completed"
        assert harness.clock.slept == [7.0, 0.0]

    run_with_harness(tmp_path, body, [after(7.0)], [after(0.0)], DONE)


def test_retries_take_a_minute_in_all_at_most(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert final["status"] == "failed"
        assert harness.clock.slept == [40.0]
        assert len(harness.backend.calls) == 2

    run_with_harness(tmp_path, body, [after(40.0)])


def test_a_stream_that_ends_without_a_word_or_a_finish_is_broken(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert answer_of(final) == "Hello"
        assert len(harness.backend.calls) == 2

    run_with_harness(tmp_path, body, [], DONE)


def test_the_cause_of_a_failure_is_at_hand_for_whoever_waits(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        cursor = harness.reader.follow(accepted.response_id)
        while not cursor.ended:
            await cursor.read()
        assert cursor.cause is not None
        assert cursor.cause.status == 404

    run_with_harness(tmp_path, body, [refused()])


def test_a_request_that_the_upstream_cannot_be_sent_fails_as_a_bad_prompt(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        def refuse(call: ModelCall) -> Any:
            raise InvalidRequest("This upstream takes no images.")

        harness.backend.translator = refuse  # type: ignore[method-assign]
        final = await harness.answer()
        assert final["error"] == {"code": "invalid_prompt", "message": "This upstream takes no images."}

    run_with_harness(tmp_path, body, DONE)


# -- something visible


@pytest.mark.parametrize(
    "broken",
    [
        ["Hel", BROKEN],
        ["Hel"],
        ["Hel", error_chunk("out of memory")],
        [[text_chunk("Hel"), error_chunk("out of memory")]],
    ],
)
def test_what_was_shown_is_kept_when_the_upstream_cannot_continue(tmp_path: Path, broken: Script) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        final = await harness.answer("Hi", conversation=conversation)
        assert final["status"] == "incomplete"
        assert final["incomplete_details"]["reason"] == "interrupted"
        assert final["incomplete_details"]["message"].startswith(CUT_OFF)
        assert final["output"][0]["status"] == "incomplete"
        assert len(harness.backend.calls) == 1
        assert await harness.texts_of(conversation) == ["Hi", "Hel"]

    run_with_harness(tmp_path, body, broken)


@pytest.mark.parametrize("mode", ["prefill", "continue_final_message", "prefix"])
def test_a_text_goes_on_in_place_where_the_upstream_can(tmp_path: Path, mode: str) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("completed", "Hello there")
        types = await harness.types(final["id"])
        assert types.count("output_item.added") == 1
        joint = types.index("output_text.delta") + 2
        assert final["outlive"] == {"attempts": 2, "resumed_at": [joint]}
        resume = harness.backend.calls[1].resume
        assert resume is not None
        assert (resume.text, resume.deltas) == ("Hello", 2)
        assert harness.clock.slept == []

    run_with_harness(tmp_path, body, ["Hel", "lo", BROKEN], [" there", finish_chunk()], continuation=mode)


def test_a_run_may_be_joined_many_times_as_long_as_each_time_brings_something(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("completed", "abcdef.")
        assert len(final["outlive"]["resumed_at"]) == 6
        assert final["outlive"]["attempts"] == 7

    scripts: list[Script] = []
    for letter in "abcdef":
        scripts.append([letter, BROKEN])
    scripts.append([".", finish_chunk()])
    run_with_harness(tmp_path, body, *scripts, continuation="prefill")


def test_joints_that_bring_nothing_end_the_run(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("incomplete", "Hel")
        assert final["incomplete_details"]["reason"] == "interrupted"
        assert len(harness.backend.calls) == 4
        assert harness.clock.slept == [0.5, 1.0, 2.0]

    run_with_harness(tmp_path, body, ["Hel", BROKEN], [BROKEN], continuation="prefill")


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        ([reasoning_chunk("Hm"), BROKEN], {}),
        ([call_chunk(0, "call_a", "weather", "{"), BROKEN], {}),
        (["{", BROKEN], {"text": {"format": {"type": "json_object"}}}),
        (["Hel", BROKEN], {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}),
        (["Hel", refused()], {}),
    ],
)
def test_what_cannot_be_made_whole_is_not_continued(tmp_path: Path, script: Script, fields: Json) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer(**fields)
        assert final["status"] == "incomplete"
        assert len(harness.backend.calls) == 1

    run_with_harness(tmp_path, body, script, DONE, continuation="prefill")


def test_usage_of_a_continued_answer_adds_up(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert final["usage"]["output_tokens"] == 2 + 5

    script: Script = [" there", finish_chunk(), usage_chunk(3, 5)]
    run_with_harness(tmp_path, body, ["Hel", "lo", BROKEN], script, continuation="prefill")


# -- after the worker died


def test_a_run_that_was_visible_before_the_crash_is_continued_by_the_next_worker(tmp_path: Path) -> None:
    async def before(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        await harness.committer.flush(harness.live.get(accepted.response_id))  # type: ignore[arg-type]

    async def after_crash(harness: Harness) -> None:
        assert await harness.worker.recover() == 1
        final = await harness.end("resp_2")
        assert (final["status"], answer_of(final)) == ("completed", "Hello there")
        assert final["outlive"]["attempts"] == 2
        assert len(final["outlive"]["resumed_at"]) == 1

    gate = Gate()
    run_with_harness(tmp_path, before, ["Hel", "lo", gate], continuation="prefill")
    run_with_harness(tmp_path, after_crash, [" there", finish_chunk()], continuation="prefill")


def test_a_run_that_was_visible_before_the_crash_is_cut_off_where_it_cannot_go_on(tmp_path: Path) -> None:
    async def before(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        await harness.committer.flush(harness.live.get(accepted.response_id))  # type: ignore[arg-type]

    async def after_crash(harness: Harness) -> None:
        await harness.worker.recover()
        final = await harness.end("resp_2")
        assert (final["status"], answer_of(final)) == ("incomplete", "Hel")
        assert final["incomplete_details"] == {"reason": "interrupted", "message": f"{CUT_OFF} {RESTARTED}"}
        assert harness.backend.calls == []

    gate = Gate()
    run_with_harness(tmp_path, before, ["Hel", gate])
    run_with_harness(tmp_path, after_crash, DONE)


def test_a_run_that_showed_nothing_is_tried_three_times_in_all(tmp_path: Path) -> None:
    async def die(harness: Harness) -> None:
        await (harness.worker.recover() if started else harness.create())
        started.append(True)
        await gate.reached.wait()

    async def at_last(harness: Harness) -> None:
        await harness.worker.recover()
        final = await harness.end("resp_2")
        assert final["status"] == "failed"
        assert final["error"] == {"code": "server_error", "message": TOO_OFTEN}
        assert final["outlive"]["attempts"] == 3
        assert harness.backend.calls == []

    started: list[bool] = []
    for _ in range(3):
        gate = Gate()
        run_with_harness(tmp_path, die, [gate])
    run_with_harness(tmp_path, at_last, DONE)


# -- limits and losses


@pytest.mark.parametrize(("shown", "status"), [([], "failed"), (["Hel"], "incomplete")])
def test_a_run_that_takes_too_long_is_ended(tmp_path: Path, shown: list[str], status: TerminalStatus) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        assert final["status"] == status
        assert TOO_LONG in str(final["error"] or final["incomplete_details"])
        assert harness.backend.left == 1

    run_with_harness(tmp_path, body, [*shown, Gate()], run_seconds=0.05)


def test_a_run_whose_time_is_up_while_it_is_being_closed_ends_as_it_was_going_to(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        reached = harness.ledger.hold("close")
        accepted = await harness.create()
        await reached.wait()
        await asyncio.sleep(0.06)
        harness.ledger.let_pass("close")
        assert (await harness.end(accepted.response_id))["status"] == "completed"

    run_with_harness(tmp_path, body, DONE, run_seconds=0.05)


def test_a_run_whose_time_is_up_while_it_waits_to_be_closed_ends_as_it_was_going_to(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        gate = harness.worker._runner.committer.ending = asyncio.Semaphore(0)
        accepted = await harness.create()
        await asyncio.sleep(0.06)
        gate.release()
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


class Pulled(list[Any]):
    """A script that counts how far it was played."""

    steps = 0

    def __iter__(self) -> Iterator[Any]:
        for step in super().__iter__():
            self.steps += 1
            yield step


def test_a_run_that_cannot_be_committed_stops_reading_its_upstream(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        reached = harness.ledger.hold("append")
        accepted = await harness.create()
        await reached.wait()
        await turn(200)
        assert 0 < script.steps < 10
        harness.ledger.let_pass("append")
        final = await harness.end(accepted.response_id)
        assert len(answer_of(final)) == 20 * 300_000

    script = Pulled([*["x" * 300_000] * 20, finish_chunk()])
    run_with_harness(tmp_path, body, script)


def test_a_history_that_cannot_be_read_for_a_while_delays_a_run_and_changes_nothing(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.answer()
        harness.history.failing = 3
        final = await harness.answer(previous_response_id=first["id"])
        assert final["status"] == "completed"

    run_with_harness(tmp_path, body, DONE)


def test_a_history_that_cannot_be_read_at_all_ends_the_run_with_a_clear_error(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.answer()
        harness.history.failing = 1_000
        final = await harness.answer(previous_response_id=first["id"])
        assert final["status"] == "failed"
        assert "database is unavailable" in final["error"]["message"]

    run_with_harness(tmp_path, body, DONE)


def test_storage_that_fails_for_a_while_delays_a_run_and_changes_nothing(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        harness.ledger.failing = {"append": 2, "close": 3}
        final = await harness.answer()
        assert (final["status"], answer_of(final)) == ("completed", "Hello there")

    run_with_harness(tmp_path, body, ["Hello", " there", finish_chunk()])

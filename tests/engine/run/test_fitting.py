"""Fitting: a context above the threshold is compacted durably, and one above the model's window is truncated to it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlive.core.context.window import estimate_request
from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.engine.budget import ByteBudget
from outlive.engine.run import context
from outlive.engine.run.fitting import ANSWER_TOKENS
from outlive.ports.backend import ModelCall
from outlive.ports.catalog import Paging
from outlive.ports.database import LoadedItems
from outlive.ports.ledger import Position
from outlive.storage.sqlite import threads
from outlive.testing import Script, finish_chunk, text_chunk, usage_chunk
from tests.engine.harness import Harness, answer_of, run_with_harness, text_of
from tests.support.scripting import Gate

LONG = "word " * 400  # 500 tokens
MANAGED: Json = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}
SUMMARY: Script = [[text_chunk("THE SUMMARY"), finish_chunk(), usage_chunk(100, 10)]]
ANSWER: Script = [[text_chunk("Hello"), finish_chunk(), usage_chunk(7, 1)]]
TOO_LONG = UpstreamFault("It is too long.", code="invalid_prompt", status=400, retryable=False, too_long=True)
BROKEN = UpstreamFault("It broke.", retryable=False)


def context_texts(call: ModelCall) -> list[str]:
    return [text_of(item) for item in call.items]


async def make_chain(harness: Harness, turns: int = 3, **fields: Any) -> Json:
    """Make a chain of long turns. Returns the last response."""
    parent: Json = {}
    for n in range(turns):
        chained = {"previous_response_id": parent["id"]} if parent else {}
        parent = await harness.answer(f"{n} {LONG}", **chained, **fields)
    return parent


# -- compaction above a threshold


def test_a_context_far_below_the_threshold_is_neither_counted_nor_compacted(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        harness.backend.counter = fail_to_count
        final = await harness.answer("Hi", **MANAGED)
        assert [item["type"] for item in final["output"]] == ["message"]
        assert len(harness.backend.calls) == 1

    def fail_to_count(call: ModelCall) -> int:
        raise AssertionError("counted, though the estimate is far from the threshold")

    run_with_harness(tmp_path, body, ANSWER)


def test_a_context_above_the_threshold_is_compacted_before_the_answer(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 2)
        final = await harness.answer("last", previous_response_id=parent["id"], **MANAGED)
        assert [item["type"] for item in final["output"]] == ["compaction", "message"]
        assert (final["status"], answer_of(final)) == ("completed", "Hello")
        summarised, answered = harness.backend.calls[2:]
        assert context_texts(summarised)[:4] == [f"0 {LONG}", "Hello", f"1 {LONG}", "Hello"]
        assert "THE SUMMARY" in context_texts(answered)[-2]
        assert context_texts(answered)[-1] == "last"
        assert "Hello" not in context_texts(answered)
        assert answered.first == 1
        types = await harness.types(final["id"])
        assert types[2:6] == ["output_item.added", "compaction.compacting", "output_item.done", "output_item.added"]
        assert "outlive" not in final

    run_with_harness(tmp_path, body, ANSWER, ANSWER, SUMMARY, ANSWER)


def test_usage_includes_the_calls_that_compacted_the_context(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 2)
        final = await harness.answer("last", previous_response_id=parent["id"], **MANAGED)
        assert (final["usage"]["input_tokens"], final["usage"]["output_tokens"]) == (107, 11)
        assert final["usage"]["total_tokens"] == 118

    run_with_harness(tmp_path, body, ANSWER, ANSWER, SUMMARY, ANSWER)


@pytest.mark.parametrize("stored", [True, False])
def test_later_turns_get_the_summary_instead_of_the_items_before_it(tmp_path: Path, stored: bool) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 2)
        compacted = await harness.answer("then", previous_response_id=parent["id"], **MANAGED)
        accepted = await harness.create("later", previous_response_id=compacted["id"], store=stored)
        await harness.reader.wait_end(accepted.response_id)
        texts = context_texts(harness.backend.calls[4])
        assert not any(text.startswith("0 ") for text in texts)
        assert "THE SUMMARY" in texts[-4]
        assert texts[-3:] == ["then", "Hello", "later"]

    run_with_harness(tmp_path, body, ANSWER, ANSWER, SUMMARY, ANSWER)


def test_a_conversation_keeps_all_items_and_its_model_gets_the_summary(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        for text in (f"0 {LONG}", f"1 {LONG}"):
            await harness.answer(text, conversation=conversation)
        await harness.answer("then", conversation=conversation, **MANAGED)
        await harness.answer("later", conversation=conversation, **MANAGED)
        kept = await harness.texts_of(conversation)
        assert kept == [f"0 {LONG}", "Hello", f"1 {LONG}", "Hello", "then", "", "Hello", "later", "Hello"]
        assert context_texts(harness.backend.calls[-1])[-3:] == ["then", "Hello", "later"]
        assert len(harness.backend.calls) == 5  # four answers and one summary

    run_with_harness(tmp_path, body, ANSWER, ANSWER, SUMMARY, ANSWER)


def test_a_compaction_item_that_the_client_sends_back_replaces_the_items_before_it(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        history: list[Json] = [
            {"role": "user", "content": LONG},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": LONG},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "then"},
        ]
        accepted = await harness.create(history, store=False, **MANAGED)
        final = await harness.reader.wait_end(accepted.response_id)
        assert final is not None
        output = msgspec.json.decode(final)["output"]
        assert [item["type"] for item in output] == ["compaction", "message"]
        # The items before the compaction item may be left out now.
        second = await harness.create([*output, {"role": "user", "content": "later"}], store=False, **MANAGED)
        await harness.reader.wait_end(second.response_id)
        texts = context_texts(harness.backend.calls[-1])
        assert "THE SUMMARY" in texts[-4]
        assert texts[-3:] == ["then", "Hello", "later"]

    run_with_harness(tmp_path, body, SUMMARY, ANSWER)


def test_a_compaction_before_the_answer_keeps_the_last_call_and_its_output(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c1", "output": LONG}
        history = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "Hm."}, call, output]
        await harness.answer(
            [{"role": "user", "content": LONG}, {"role": "assistant", "content": "x"}, *history], **MANAGED
        )
        kinds = [item["type"] for item in harness.backend.calls[-1].items]
        assert kinds[-2:] == ["function_call", "function_call_output"]

    run_with_harness(tmp_path, body, SUMMARY, ANSWER)


def test_a_context_that_cannot_be_compacted_is_sent_as_it_is(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 2)
        final = await harness.answer("last", previous_response_id=parent["id"], **MANAGED)
        assert (final["status"], [item["type"] for item in final["output"]]) == ("completed", ["message"])
        assert context_texts(harness.backend.calls[-1]) == [f"0 {LONG}", "Hello", f"1 {LONG}", "Hello", "last"]

    run_with_harness(tmp_path, body, ANSWER, ANSWER, [BROKEN], ANSWER)


@pytest.mark.parametrize(("tokens", "compacted"), [(1001, True), (1000, False)])
def test_near_the_threshold_the_upstreams_count_decides(tmp_path: Path, tokens: int, compacted: bool) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 2)
        harness.backend.counter = lambda call: tokens
        final = await harness.answer("last", previous_response_id=parent["id"], **MANAGED)
        assert (final["output"][0]["type"] == "compaction") is compacted

    run_with_harness(tmp_path, body, ANSWER, ANSWER, SUMMARY if compacted else ANSWER, ANSWER)


def test_the_default_threshold_is_three_quarters_of_the_window(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 2)
        managed = {"context_management": [{"type": "compaction"}], "previous_response_id": parent["id"]}
        assert [item["type"] for item in (await harness.answer("one", **managed))["output"]] == ["message"]
        harness.backend.context_window = 1200
        assert [item["type"] for item in (await harness.answer("two", **managed))["output"]] == [
            "compaction",
            "message",
        ]

    run_with_harness(tmp_path, body, ANSWER, ANSWER, ANSWER, SUMMARY, ANSWER)


# -- crashes


def test_a_crash_during_the_summary_restarts_the_compaction(tmp_path: Path) -> None:
    async def before(harness: Harness) -> None:
        parent = await make_chain(harness, 2)
        accepted = await harness.create("last", previous_response_id=parent["id"], **MANAGED)
        begun.append(accepted.response_id)
        await gate.reached.wait()

    async def after(harness: Harness) -> None:
        assert await harness.worker.recover() == 1
        final = await harness.end(*begun)
        assert [item["type"] for item in final["output"]] == ["compaction", "message"]
        assert len(harness.backend.calls) == 2

    gate = Gate()
    begun: list[str] = []
    run_with_harness(tmp_path, before, ANSWER, ANSWER, ["THE SUM", gate])
    run_with_harness(tmp_path, after, SUMMARY, ANSWER)


def test_a_crash_after_the_compaction_continues_with_the_answer(tmp_path: Path) -> None:
    async def before(harness: Harness) -> None:
        parent = await make_chain(harness, 2)
        accepted = await harness.create("last", previous_response_id=parent["id"], **MANAGED)
        begun.append(accepted.response_id)
        await gate.reached.wait()

    async def after(harness: Harness) -> None:
        assert await harness.worker.recover() == 1
        final = await harness.end(*begun)
        assert (final["status"], [item["type"] for item in final["output"]]) == ("completed", ["compaction", "message"])
        (call,) = harness.backend.calls
        assert "THE SUMMARY" in context_texts(call)[-2]
        assert context_texts(call)[-1] == "last"
        # The usage before the crash counts, too.
        assert final["usage"]["input_tokens"] == 107

    gate = Gate()
    begun: list[str] = []
    run_with_harness(tmp_path, before, ANSWER, ANSWER, SUMMARY, [gate])
    run_with_harness(tmp_path, after, ANSWER)


def test_an_answer_cut_off_after_a_compaction_is_continued_in_place(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 2)
        final = await harness.answer("last", previous_response_id=parent["id"], **MANAGED)
        assert (final["status"], answer_of(final)) == ("completed", "Hello there")
        again = harness.backend.calls[-1]
        assert again.resume is not None and (again.resume.output_index, again.resume.text) == (1, "Hello")
        assert "THE SUMMARY" in context_texts(again)[-2]

    broken: Script = ["Hello", UpstreamFault("It broke.")]
    rest: Script = [" there", finish_chunk()]
    run_with_harness(tmp_path, body, ANSWER, ANSWER, SUMMARY, broken, rest, continuation="prefill")


# -- compaction on demand


def test_a_trigger_compacts_the_context_without_an_answer(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 2)
        trigger = [{"type": "compaction_trigger"}]
        final = await harness.answer(trigger, previous_response_id=parent["id"])
        assert (final["status"], [item["type"] for item in final["output"]]) == ("completed", ["compaction"])
        assert final["usage"]["input_tokens"] == 100
        await harness.answer("later", previous_response_id=final["id"])
        texts = context_texts(harness.backend.calls[-1])
        assert texts[0] == f"0 {LONG}"  # messages of the user stay, as far as there is room
        assert "THE SUMMARY" in texts[-2]
        assert texts[-1] == "later"

    run_with_harness(tmp_path, body, ANSWER, ANSWER, SUMMARY, ANSWER)


def test_a_trigger_adds_only_the_compaction_item_to_its_conversation(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        await harness.answer("one", conversation=conversation)
        await harness.answer([{"type": "compaction_trigger"}], conversation=conversation)
        page = await harness.catalog.items("ann", conversation, Paging(order="asc"))
        assert [item["type"] for item in page.data] == ["message", "message", "compaction"]

    run_with_harness(tmp_path, body, ANSWER, SUMMARY)


def test_a_trigger_without_a_summary_fails(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer([{"role": "user", "content": "one"}, {"type": "compaction_trigger"}])
        assert final["status"] == "failed"
        assert final["error"]["message"] == "It broke."

    run_with_harness(tmp_path, body, [BROKEN])


def test_a_trigger_keeps_a_call_that_has_no_output_yet(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
        given = [{"role": "user", "content": "one"}, call, {"type": "compaction_trigger"}]
        compacted = await harness.answer(given)
        output = {"type": "function_call_output", "call_id": "c1", "output": "42"}
        await harness.answer([output], previous_response_id=compacted["id"])
        sent = harness.backend.calls[-1].items
        assert [item["type"] for item in sent[-2:]] == ["function_call", "function_call_output"]
        assert sent[-1]["output"] == "42"

    run_with_harness(tmp_path, body, SUMMARY, ANSWER)


# -- truncation


def by_estimate(call: ModelCall) -> int:
    return estimate_request(call.request, call.items)


@pytest.mark.parametrize("counter", [None, by_estimate, lambda call: by_estimate(call) * 3 // 2])
def test_auto_truncation_leaves_out_the_oldest_turns(
    tmp_path: Path, counter: Callable[[ModelCall], int] | None
) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 6)
        harness.backend.context_window, harness.backend.counter = 2400, counter
        await harness.answer("last", previous_response_id=parent["id"], truncation="auto", instructions="Be kind.")
        call = harness.backend.calls[-1]
        count = counter or by_estimate
        assert count(call) <= 2400 - 2400 // 4
        assert context_texts(call)[-3:] == [f"5 {LONG}", "Hello", "last"]
        assert context_texts(call)[0].startswith(("3 ", "4 ", "5 "))
        assert call.request.instructions == "Be kind."

    run_with_harness(tmp_path, body, ANSWER)


def test_auto_truncation_leaves_out_nothing_if_the_context_fits_or_the_window_is_unknown(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 2)
        for window in (None, 100_000):
            harness.backend.context_window = window
            await harness.answer("last", previous_response_id=parent["id"], truncation="auto")
            assert len(harness.backend.calls[-1].items) == 5

    run_with_harness(tmp_path, body, ANSWER)


def test_auto_truncation_reserves_max_output_tokens_for_the_answer(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 6)
        harness.backend.context_window = 3100 + ANSWER_TOKENS
        await harness.answer("last", previous_response_id=parent["id"], truncation="auto", max_output_tokens=16)
        assert len(harness.backend.calls[-1].items) == 13  # all items
        harness.backend.context_window = 3100 + 16
        await harness.answer("last", previous_response_id=parent["id"], truncation="auto", max_output_tokens=16)
        assert len(harness.backend.calls[-1].items) == 13
        await harness.answer("last", previous_response_id=parent["id"], truncation="auto", max_output_tokens=600)
        assert len(harness.backend.calls[-1].items) < 13

    run_with_harness(tmp_path, body, ANSWER)


def test_auto_truncation_shortens_a_context_that_the_upstream_refused_as_too_long(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 6)
        final = await harness.answer("last", previous_response_id=parent["id"], truncation="auto")
        assert (final["status"], answer_of(final)) == ("completed", "Hello")
        lengths = [len(call.items) for call in harness.backend.calls[6:]]
        assert lengths[0] == 13
        assert lengths[0] > lengths[1] > lengths[2]
        assert context_texts(harness.backend.calls[-1])[-1] == "last"

    run_with_harness(tmp_path, body, *[ANSWER] * 6, [TOO_LONG], [TOO_LONG], ANSWER)


def test_an_input_too_long_by_itself_fails(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer(LONG, truncation="auto")
        assert (final["status"], final["error"]["code"]) == ("failed", "invalid_prompt")
        assert len(harness.backend.calls) == 1

    run_with_harness(tmp_path, body, [TOO_LONG])


def test_disabled_truncation_leaves_out_nothing(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 6)
        harness.backend.context_window = 1000
        final = await harness.answer("last", previous_response_id=parent["id"])
        assert (final["status"], final["error"]["code"]) == ("failed", "invalid_prompt")
        assert len(harness.backend.calls[-1].items) == 13

    run_with_harness(tmp_path, body, *[ANSWER] * 6, [TOO_LONG])


# -- histories over the budget


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Histories of at most 5,000 bytes, which two of the long turns have."""
    monkeypatch.setattr(context, "STEPS", (500, 1000, 5000))
    monkeypatch.setattr(threads, "NEAR_ITEMS", 0)


@pytest.mark.usefixtures("short")
def test_a_history_over_the_budget_fails_unless_it_may_be_shortened(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 4, truncation="auto")
        asked = len(harness.backend.calls)
        final = await harness.answer("next", previous_response_id=parent["id"])
        assert (final["status"], final["error"]["code"]) == ("failed", "invalid_prompt")
        assert "truncation" in final["error"]["message"]
        assert len(harness.backend.calls) == asked
        final = await harness.answer("next", previous_response_id=parent["id"], truncation="auto")
        assert final["status"] == "completed"
        sent = context_texts(harness.backend.calls[-1])
        assert (sent[-1], sent[0][0]) == ("next", "1")  # the first turn is left out

    run_with_harness(tmp_path, body, ANSWER)


@pytest.mark.usefixtures("short")
def test_a_refused_history_is_freed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Items(list[Json]):
        """A list that can be watched."""

    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 4, truncation="auto")
        held: list[weakref.ref[Items]] = []
        before = harness.services.history.before

        async def watch(position: Position, most: int) -> LoadedItems:
            loaded = await before(position, most)
            items = Items(loaded.items)
            held.append(weakref.ref(items))
            return LoadedItems(items, loaded.whole)

        monkeypatch.setattr(harness.services.history, "before", watch)
        gc.disable()
        try:
            accepted = await harness.create("next", previous_response_id=parent["id"])
            cursor = harness.reader.follow(accepted.response_id)
            await harness.end(accepted.response_id)
            while await cursor.read():
                pass
            assert cursor.cause is None or cursor.cause.__traceback__ is None
            assert [items() for items in held] == [None] * 3
        finally:
            gc.enable()

    run_with_harness(tmp_path, body, ANSWER)


@pytest.mark.usefixtures("short")
def test_a_history_over_the_budget_can_be_compacted_and_then_continued(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 4, truncation="auto")
        compacted = await harness.answer("next", previous_response_id=parent["id"], **MANAGED)
        assert [item["type"] for item in compacted["output"]] == ["compaction", "message"]
        final = await harness.answer("last", previous_response_id=compacted["id"])
        assert final["status"] == "completed"
        assert any("Hello" in text for text in context_texts(harness.backend.calls[-1]))

    run_with_harness(tmp_path, body, ANSWER)


@pytest.mark.usefixtures("short")
def test_long_histories_of_one_owner_are_held_one_after_the_other(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        parent = await make_chain(harness, 2)
        position = await harness.history.locate("ann", conversation=None, parent=parent["id"])
        assert position is not None
        budget, request = ByteBudget(5000), CreateResponse(model="m", input=[])
        items, room = await context.read_history(harness.history, position, budget, "ann", request)
        assert len(items) == 4
        other = asyncio.create_task(context.read_history(harness.history, position, budget, "ann", request))
        _, theirs = await context.read_history(harness.history, position, budget, "bob", request)
        assert theirs is not None and room is not None
        theirs.close()
        assert not other.done()
        room.close()
        assert len((await other)[0]) == 4

    run_with_harness(tmp_path, body, ANSWER)

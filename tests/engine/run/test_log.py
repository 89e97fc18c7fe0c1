"""The log of a run: events under the response's names, and a checkpoint that survives a storage that is down."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from outlive.core.errors import StaleFence
from outlive.core.events import AnyDraft, Channel, Delta, Draft, EventNames, Json
from outlive.core.grammar import REASONING_TEXT
from outlive.engine.run.log import RunLog
from outlive.engine.waiting import STORAGE_PAUSE
from outlive.ports.ledger import Checkpoint
from tests.engine.tool_harness import NoTools, ToolHarness
from tests.engine.virtual_clock import run_virtually, turn

ITEM: Json = {"id": "rs_1", "type": "reasoning", "summary": [], "content": [], "status": "in_progress"}
PLACE: Json = {"item_id": "rs_1", "output_index": 0, "content_index": 0}
CHANNEL = Channel(REASONING_TEXT, "rs_1", 0)


def reasoning() -> list[AnyDraft]:
    """Return the drafts of a reasoning item with a text of two deltas, without its end."""
    return [
        Draft("response.output_item.added", {"output_index": 0, "item": ITEM}),
        Draft("response.content_part.added", {**PLACE, "part": {"type": "reasoning_text", "text": ""}}),
        Delta(CHANNEL, "Hm, "),
        Delta(CHANNEL, "well"),
        Draft("response.reasoning_text.done", {**PLACE, "text": "Hm, well"}),
    ]


def make_log(event_names: EventNames = "openai") -> tuple[ToolHarness, RunLog]:
    harness = ToolHarness(NoTools(), tools=[])
    harness.request = msgspec.structs.replace(harness.request, event_names=event_names)
    harness.attempts = 1
    harness.revive()
    return harness, harness.log()


# -- emitting


def test_emitted_events_are_durable_after_a_flush() -> None:
    async def body() -> None:
        harness, log = make_log()
        before = log.fold.last
        log.emit(reasoning())
        assert not log.is_durable
        assert (log.fold.last, len(harness.events())) == (before, before + 1)
        await log.flush()
        assert log.is_durable
        assert (log.fold.last, len(harness.events())) == (before + 5, before + 6)

    run_virtually(body())


@pytest.mark.parametrize(
    ("event_names", "delta", "done"),
    [
        ("openai", "response.reasoning_text.delta", "response.reasoning_text.done"),
        ("open-responses", "response.reasoning.delta", "response.reasoning.done"),
    ],
)
def test_events_have_the_names_that_the_response_was_created_with(
    event_names: EventNames, delta: str, done: str
) -> None:
    async def body() -> None:
        harness, log = make_log(event_names)
        drafts = reasoning()
        log.emit(drafts[:3])
        log.emit(drafts[3:])
        await log.flush()
        assert harness.event_types()[-5:] == [
            "response.output_item.added",
            "response.content_part.added",
            delta,
            delta,
            done,
        ]
        assert log.fold.output[0]["content"][0]["text"] == "Hm, well"

    run_virtually(body())


def test_a_log_is_full_while_too_much_is_pending() -> None:
    async def body() -> None:
        harness, log = make_log()
        pending = harness.live.pending
        pending.most = 100
        assert not pending.is_full
        log.emit(reasoning())
        assert pending.is_full
        await log.flush()
        assert not pending.is_full

    run_virtually(body())


def test_a_lost_response_takes_no_more_events() -> None:
    async def body() -> None:
        harness, log = make_log()
        log.emit(reasoning()[:3])
        harness.live.lose()
        assert log.is_lost
        with pytest.raises(StaleFence):
            log.emit(reasoning()[3:])
        await log.flush()  # returns, though nothing will be durable
        await turn()
        assert "response.reasoning_text.done" not in harness.event_types()

    run_virtually(body())


# -- the checkpoint


def test_a_checkpoint_is_saved_with_all_changes_so_far() -> None:
    async def body() -> None:
        harness, log = make_log()
        assert log.checkpoint == Checkpoint()
        await log.save_checkpoint(steps=1, usage={"output_tokens": 3})
        await log.save_checkpoint(resumed_at=[4])
        expected = Checkpoint(steps=1, usage={"output_tokens": 3}, resumed_at=[4])
        assert harness.ledger.checkpoint == log.checkpoint == harness.live.checkpoint == expected

    run_virtually(body())


def test_saving_a_checkpoint_waits_for_a_storage_that_is_down() -> None:
    async def body() -> None:
        harness, log = make_log()
        harness.ledger.failing["save_checkpoint"] = 3
        began = harness.clock.monotonic()
        await log.save_checkpoint(steps=1)
        assert harness.clock.monotonic() - began == 3 * STORAGE_PAUSE
        assert harness.ledger.checkpoint.steps == 1

    run_virtually(body())


def test_saving_a_checkpoint_ends_when_the_response_is_lost() -> None:
    async def body() -> None:
        harness, log = make_log()
        harness.ledger.failing["save_checkpoint"] = 1_000_000
        saving = asyncio.ensure_future(log.save_checkpoint(steps=1))
        await turn()
        harness.live.lose()
        await saving
        harness.ledger.failing.clear()
        await log.save_checkpoint(steps=2)
        assert harness.ledger.checkpoint == Checkpoint()

    run_virtually(body())


# -- what a log shows of its response


def test_a_log_shows_the_claim_and_the_fold_of_its_response() -> None:
    async def body() -> None:
        harness, log = make_log()
        assert (log.response_id, log.claim, log.fold) == ("resp_1", harness.live.claim, harness.live.fold)
        assert not log.is_lost

    run_virtually(body())

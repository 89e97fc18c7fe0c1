"""What a run submits: events under the response's names, and a checkpoint that survives a storage that is down."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from outlive.core.errors import StaleFence
from outlive.core.events import AnyDraft, Channel, Delta, Draft, EventNames, Json
from outlive.core.grammar import REASONING_TEXT
from outlive.engine.delivery.live import LiveResponse
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


def make_harness(event_names: EventNames = "openai") -> tuple[ToolHarness, LiveResponse]:
    harness = ToolHarness(NoTools(), tools=[])
    harness.request = msgspec.structs.replace(harness.request, event_names=event_names)
    harness.attempts = 1
    return harness, harness.revive()


# -- emitting


def test_emitted_events_are_durable_after_a_flush() -> None:
    async def body() -> None:
        harness, live = make_harness()
        before = live.fold.last
        harness.committer.submit(live, reasoning())
        assert not live.is_durable
        assert (live.fold.last, len(harness.events())) == (before, before + 1)
        await live.flush()
        assert live.is_durable
        assert (live.fold.last, len(harness.events())) == (before + 5, before + 6)

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
        harness, live = make_harness(event_names)
        drafts = reasoning()
        harness.committer.submit(live, drafts[:3])
        harness.committer.submit(live, drafts[3:])
        await live.flush()
        assert harness.event_types()[-5:] == [
            "response.output_item.added",
            "response.content_part.added",
            delta,
            delta,
            done,
        ]
        assert live.fold.output[0]["content"][0]["text"] == "Hm, well"

    run_virtually(body())


def test_too_much_is_pending_until_it_is_durable() -> None:
    async def body() -> None:
        harness, live = make_harness()
        pending = live.pending
        pending.most = 100
        assert pending.size <= pending.most
        harness.committer.submit(live, reasoning())
        assert pending.size > pending.most
        await live.flush()
        assert pending.size <= pending.most

    run_virtually(body())


def test_a_lost_response_takes_no_more_events() -> None:
    async def body() -> None:
        harness, live = make_harness()
        harness.committer.submit(live, reasoning()[:3])
        live.lose()
        assert live.tail.lost
        with pytest.raises(StaleFence):
            harness.committer.submit(live, reasoning()[3:])
        await live.flush()  # returns, though nothing will be durable
        await turn()
        assert "response.reasoning_text.done" not in harness.event_types()

    run_virtually(body())


# -- the checkpoint


def test_a_checkpoint_is_saved_with_all_changes_so_far() -> None:
    async def body() -> None:
        harness, live = make_harness()
        assert live.checkpoint == Checkpoint()
        await harness.committer.save_checkpoint(live, steps=1, usage={"output_tokens": 3})
        await harness.committer.save_checkpoint(live, resumed_at=[4])
        expected = Checkpoint(steps=1, usage={"output_tokens": 3}, resumed_at=[4])
        assert harness.ledger.checkpoint == live.checkpoint == expected

    run_virtually(body())


def test_saving_a_checkpoint_waits_for_a_storage_that_is_down() -> None:
    async def body() -> None:
        harness, live = make_harness()
        harness.ledger.failing["save_checkpoint"] = 3
        began = harness.clock.monotonic()
        await harness.committer.save_checkpoint(live, steps=1)
        assert harness.clock.monotonic() - began == 3 * STORAGE_PAUSE
        assert harness.ledger.checkpoint.steps == 1

    run_virtually(body())


def test_saving_a_checkpoint_ends_when_the_response_is_lost() -> None:
    async def body() -> None:
        harness, live = make_harness()
        harness.ledger.failing["save_checkpoint"] = 1_000_000
        saving = asyncio.ensure_future(harness.committer.save_checkpoint(live, steps=1))
        await turn()
        live.lose()
        await saving
        harness.ledger.failing.clear()
        await harness.committer.save_checkpoint(live, steps=2)
        assert harness.ledger.checkpoint == Checkpoint()

    run_virtually(body())

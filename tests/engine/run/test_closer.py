"""The closer: every end has its terminal event, written once, under the lease, with what the response used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Literal

import msgspec
import pytest

from outlive.core.endings import TerminalStatus
from outlive.core.errors import InvalidRequest, StaleFence, UpstreamFault
from outlive.core.events import AnyDraft, Channel, Delta, Draft, Json
from outlive.core.grammar import OUTPUT_TEXT
from outlive.core.usage import NOTHING_USED
from outlive.engine.delivery.committer import ENDINGS
from outlive.engine.delivery.live import IllegalTransition, LiveResponse, State
from outlive.engine.run.closer import CUT_OFF, Closer
from outlive.ports.backend import Backend, Ending, ModelCall
from outlive.ports.ledger import Checkpoint
from outlive.testing import Script, finish_chunk, text_chunk, usage_chunk
from tests.engine.tool_harness import NoTools, ToolHarness, item_types, texts
from tests.engine.virtual_clock import run_virtually, turn

FAULT = UpstreamFault("The model's server went away.", code="server_error")
ANSWER: Script = [[text_chunk("18."), finish_chunk(), usage_chunk()]]
USAGE: Json = {**NOTHING_USED, "input_tokens": 5, "output_tokens": 3, "total_tokens": 8}
COMPLETED = Ending("completed", model="m-2026", service_tier="priority")


def make_harness(*scripts: Script, **options: Any) -> ToolHarness:
    return ToolHarness(NoTools(), *scripts, tools=[], **options)


def text_item(text: str, status: str) -> Json:
    part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    content = [part] if status == "completed" else []
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": content}


def open_text(text: str) -> list[AnyDraft]:
    """Return the drafts of a message whose text is growing."""
    place: Json = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return [
        Draft("response.output_item.added", {"output_index": 0, "item": text_item("", "in_progress")}),
        Draft("response.content_part.added", {**place, "part": part}),
        Delta(Channel(OUTPUT_TEXT, "msg_1", 0), text),
    ]


def close_text(text: str) -> list[AnyDraft]:
    """Return the drafts that finish the message of `open_text`."""
    place: Json = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    item = text_item(text, "completed")
    return [
        Draft("response.output_text.done", {**place, "text": text, "logprobs": []}),
        Draft("response.content_part.done", {**place, "part": item["content"][0]}),
        Draft("response.output_item.done", {"output_index": 0, "item": item}),
    ]


async def show(harness: ToolHarness, drafts: list[AnyDraft]) -> LiveResponse:
    """Revive the response with durable events in it."""
    live = harness.revive()
    harness.committer.submit(live, drafts)
    await live.flush()
    return live


# -- finish


def test_finish_ends_a_response_as_its_model_ended() -> None:
    async def body() -> None:
        harness = make_harness()
        live = await show(harness, open_text("Hello"))
        await harness.closer().finish(live, close_text("Hello"), COMPLETED, USAGE, 1)
        final = harness.check()
        assert (final["status"], texts(final)) == ("completed", "Hello")
        assert (final["model"], final["service_tier"], final["usage"]) == ("m-2026", "priority", USAGE)
        assert final["completed_at"] == int(harness.clock.now())
        assert "outlive" not in final
        assert live.state is State.ENDED
        assert live.tail.final is not None and msgspec.json.decode(live.tail.final) == final
        (closing,) = harness.ledger.closings
        assert (closing.status, closing.turn, closing.keep_turn) == ("completed", final["output"], True)

    run_virtually(body())


def test_finish_includes_events_that_are_not_durable_yet() -> None:
    async def body() -> None:
        harness = make_harness()
        live = harness.revive()
        harness.committer.submit(live, open_text("Hello"))
        await harness.closer().finish(live, close_text("Hello"), COMPLETED, None, 1)
        assert texts(harness.check()) == "Hello"

    run_virtually(body())


def test_finish_as_incomplete_has_the_reason_of_the_model() -> None:
    async def body() -> None:
        harness = make_harness()
        live = await show(harness, [*open_text("Hel"), *close_text("Hel")])
        await harness.closer().finish(live, [], Ending("incomplete", reason="max_output_tokens"), USAGE, 1)
        final = harness.check()
        assert (final["status"], final["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})

    run_virtually(body())


# -- fail and end


def test_fail_without_visible_output_ends_a_response_as_failed_with_the_cause() -> None:
    async def body() -> None:
        harness = make_harness()
        live = harness.revive()
        await harness.closer().fail(live, FAULT)
        final = harness.check()
        assert (final["status"], final["output"]) == ("failed", [])
        assert final["error"] == {"code": "server_error", "message": FAULT.message}
        assert live.tail.cause is FAULT
        assert [closing.keep_turn for closing in harness.ledger.closings] == [False]

    run_virtually(body())


def test_fail_with_visible_output_ends_a_response_as_incomplete() -> None:
    async def body() -> None:
        harness = make_harness()
        live = await show(harness, open_text("Hel"))
        await harness.closer().fail(live, FAULT)
        final = harness.check()
        assert (final["status"], final["error"], texts(final)) == ("incomplete", None, "Hel")
        assert final["incomplete_details"] == {"reason": "interrupted", "message": f"{CUT_OFF} {FAULT.message}"}
        assert final["output"][0]["status"] == "incomplete"
        assert live.tail.cause is None
        assert [closing.keep_turn for closing in harness.ledger.closings] == [True]

    run_virtually(body())


def test_fail_waits_for_pending_output_before_it_decides() -> None:
    async def body() -> None:
        harness = make_harness()
        can_append = harness.ledger.hold("append")
        live = harness.revive()
        harness.committer.submit(live, open_text("Hel"))
        failing = asyncio.ensure_future(harness.closer().fail(live, FAULT))
        await turn()
        assert (live.state, harness.ledger.closings) == (State.OPEN, [])
        can_append.set()
        await failing
        assert harness.check()["status"] == "incomplete"

    run_virtually(body())


def test_end_closes_open_items_as_incomplete() -> None:
    async def body() -> None:
        harness = make_harness()
        live = await show(harness, open_text("Hel"))
        await harness.closer().end(live, "cancelled")
        final = harness.check()
        assert (final["status"], final["error"], final["incomplete_details"]) == ("cancelled", None, None)
        assert (item_types(final), final["output"][0]["status"], texts(final)) == (["message"], "incomplete", "Hel")

    run_virtually(body())


def test_the_last_events_have_the_names_that_the_response_was_created_with() -> None:
    async def body() -> None:
        harness = make_harness()
        harness.request = msgspec.structs.replace(harness.request, event_names="open-responses")
        reasoning: Json = {"id": "rs_1", "type": "reasoning", "summary": [], "content": [], "status": "in_progress"}
        place: Json = {"item_id": "rs_1", "output_index": 0, "content_index": 0}
        live = await show(
            harness,
            [
                Draft("response.output_item.added", {"output_index": 0, "item": reasoning}),
                Draft("response.content_part.added", {**place, "part": {"type": "reasoning_text", "text": ""}}),
            ],
        )
        await harness.closer().end(live, "cancelled")
        assert "response.reasoning.done" in harness.event_types()
        assert "response.reasoning_text.done" not in harness.event_types()

    run_virtually(body())


# -- attempts


@pytest.mark.parametrize(
    ("claimed", "counted", "resumed_at", "outlive"),
    [
        (0, None, [], None),
        (1, None, [], None),
        (2, None, [], {"attempts": 2, "resumed_at": []}),
        (2, None, [4, 9], {"attempts": 3, "resumed_at": [4, 9]}),
        (1, 5, [4], {"attempts": 5, "resumed_at": [4]}),
        (3, 1, [], None),
    ],
)
def test_an_end_reports_attempts_and_resumptions(
    claimed: int, counted: int | None, resumed_at: list[int], outlive: Json | None
) -> None:
    async def body() -> None:
        harness = make_harness()
        harness.attempts = claimed
        harness.ledger.checkpoint = Checkpoint(resumed_at=resumed_at)
        await harness.closer().end(harness.revive(), "cancelled", attempts=counted)
        assert harness.check().get("outlive") == outlive
        if counted is not None:
            harness.cut(1)
            await harness.closer().finish(harness.revive(), [], COMPLETED, None, counted)
            assert harness.check().get("outlive") == outlive

    run_virtually(body())


# -- the upstream's own run


class StubBackgroundRuns:
    """Background runs of an upstream, of which a closer may only dismiss one."""

    def __init__(self) -> None:
        self.dismissed: list[tuple[str, bool]] = []

    def submit(self, call: ModelCall) -> AsyncGenerator[list[bytes], None]:
        raise NotImplementedError

    def follow(self, run_id: str) -> AsyncGenerator[list[bytes], None]:
        raise NotImplementedError

    def read_id(self, chunks: list[bytes]) -> str | None:
        raise NotImplementedError

    def dismiss(self, run_id: str, *, running: bool) -> None:
        self.dismissed.append((run_id, running))


def make_background(upstream: str | None = "run_1") -> tuple[ToolHarness, StubBackgroundRuns]:
    harness, runs = make_harness(), StubBackgroundRuns()
    harness.backend.background_runs = runs
    harness.ledger.checkpoint = Checkpoint(upstream=upstream)
    return harness, runs


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_finish_dismisses_the_upstreams_run_as_over(status: Literal["completed", "incomplete"]) -> None:
    async def body() -> None:
        harness, runs = make_background()
        await harness.closer().finish(harness.revive(), [], Ending(status), None, 1)
        assert runs.dismissed == [("run_1", False)]

    run_virtually(body())


@pytest.mark.parametrize("status", ["cancelled", "failed"])
def test_end_dismisses_the_upstreams_run_as_running(status: TerminalStatus) -> None:
    async def body() -> None:
        harness, runs = make_background()
        await harness.closer().end(harness.revive(), status)
        assert runs.dismissed == [("run_1", True)]

    run_virtually(body())


def test_fail_dismisses_the_upstreams_run_as_running() -> None:
    async def body() -> None:
        harness, runs = make_background()
        await harness.closer().fail(await show(harness, open_text("Hel")), FAULT)
        assert runs.dismissed == [("run_1", True)]

    run_virtually(body())


def test_the_upstreams_run_is_dismissed_once_the_end_is_durable() -> None:
    async def body() -> None:
        harness, runs = make_background()
        can_close = harness.ledger.hold("close")
        ending = asyncio.ensure_future(harness.closer().end(harness.revive(), "cancelled"))
        await turn()
        assert (len(harness.ledger.closings), runs.dismissed) == (1, [])
        can_close.set()
        await ending
        assert runs.dismissed == [("run_1", True)]

    run_virtually(body())


def test_no_run_is_dismissed_if_none_was_submitted_or_the_upstream_is_gone() -> None:
    def refuse(model: str) -> tuple[Backend, str]:
        raise InvalidRequest("No such model.")

    async def body() -> None:
        harness, runs = make_background(upstream=None)
        await harness.closer().end(harness.revive(), "cancelled")
        assert runs.dismissed == []

        harness, runs = make_background()
        await Closer(harness.committer, refuse, harness.clock).end(harness.revive(), "cancelled")
        assert (harness.check()["status"], runs.dismissed) == ("cancelled", [])

        harness, runs = make_background()
        harness.backend.background_runs = None
        await harness.closer().end(harness.revive(), "cancelled")
        assert (harness.check()["status"], runs.dismissed) == ("cancelled", [])

    run_virtually(body())


# -- a response that is lost, or has ended


async def close_each_way(harness: ToolHarness, live: LiveResponse, error: type[Exception]) -> None:
    closer = harness.closer()
    for closing in (
        closer.finish(live, [], COMPLETED, None, 1),
        closer.fail(live, FAULT),
        closer.end(live, "cancelled"),
    ):
        with pytest.raises(error):
            await closing


def test_a_lost_response_is_not_ended() -> None:
    async def body() -> None:
        harness, runs = make_background()
        live = harness.revive()
        live.lose()
        await close_each_way(harness, live, StaleFence)
        assert (live.state, harness.ledger.closings, runs.dismissed) == (State.LOST, [], [])

    run_virtually(body())


def test_a_response_that_has_ended_is_not_ended_again() -> None:
    async def body() -> None:
        harness = make_harness()
        live = harness.revive()
        await harness.closer().end(live, "cancelled")
        await close_each_way(harness, live, IllegalTransition)
        assert (live.state, len(harness.ledger.closings)) == (State.ENDED, 1)

    run_virtually(body())


def test_a_response_lost_while_it_waits_for_other_endings_is_not_ended() -> None:
    async def body() -> None:
        harness, runs = make_background()
        endings = harness.committer.endings = asyncio.Semaphore(0)
        live = harness.revive()
        ending = asyncio.ensure_future(harness.closer().end(live, "cancelled"))
        await turn()
        assert live.state is State.ENDING
        live.lose()
        endings.release()
        with pytest.raises(StaleFence):
            await ending
        assert (live.state, harness.ledger.closings, runs.dismissed) == (State.LOST, [], [])

    run_virtually(body())


def test_an_end_that_the_ledger_refuses_loses_the_response() -> None:
    async def body() -> None:
        harness, runs = make_background()
        live = harness.revive()
        harness.ledger.forget("resp_1")
        with pytest.raises(StaleFence):
            await harness.closer().end(live, "cancelled")
        assert (live.state, live.tail.lost, runs.dismissed) == (State.LOST, True, [])

    run_virtually(body())


# -- a run that is stopped while its response ends


def test_a_closing_stopped_while_it_waits_for_other_endings_reopens_the_response() -> None:
    async def body() -> None:
        harness = make_harness()
        endings = harness.committer.endings = asyncio.Semaphore(0)
        live = harness.revive()
        closer = harness.closer()
        finishing = asyncio.ensure_future(closer.finish(live, [], COMPLETED, None, 1))
        await turn()
        assert live.state is State.ENDING
        finishing.cancel()
        await asyncio.gather(finishing, return_exceptions=True)
        assert (live.state, harness.ledger.closings) == (State.OPEN, [])
        endings.release()
        await closer.end(live, "cancelled")
        assert (harness.check()["status"], live.state) == ("cancelled", State.ENDED)

    run_virtually(body())


def test_a_closing_stopped_while_a_commit_is_under_way_reopens_the_response() -> None:
    async def body() -> None:
        harness = make_harness()
        can_append = harness.ledger.hold("append")
        live = harness.revive()
        harness.committer.submit(live, open_text("Hel"))
        await turn()
        assert live.pending.in_flight
        finishing = asyncio.ensure_future(harness.closer().finish(live, close_text("Hel"), COMPLETED, None, 1))
        await turn()
        assert live.state is State.ENDING
        finishing.cancel()
        await asyncio.gather(finishing, return_exceptions=True)
        assert (live.state, harness.ledger.closings) == (State.OPEN, [])
        can_append.set()
        await harness.closer().end(live, "cancelled")
        assert (harness.check()["status"], harness.check()["output"][0]["status"]) == ("cancelled", "incomplete")

    run_virtually(body())


def test_a_closing_stopped_after_it_was_sent_ends_the_response() -> None:
    async def body() -> None:
        harness = make_harness()
        can_close = harness.ledger.hold("close")
        live = harness.revive()
        finishing = asyncio.ensure_future(harness.closer().finish(live, [], COMPLETED, None, 1))
        await turn()
        finishing.cancel()
        await asyncio.gather(finishing, return_exceptions=True)
        assert live.state is State.ENDING
        can_close.set()
        while not live.tail.ended:
            await live.tail.wait()
        assert (harness.check()["status"], live.state) == ("completed", State.ENDED)

    run_virtually(body())


# -- many ends at once


def test_a_limited_number_of_responses_ends_at_once() -> None:
    async def body() -> None:
        harnesses = [make_harness(ANSWER) for _ in range(ENDINGS + 5)]
        released = [harness.ledger.hold("close") for harness in harnesses]
        for harness in harnesses:
            harness.committer.endings = harnesses[0].committer.endings
        running = [harness.start() for harness in harnesses]
        await turn(100)
        assert sum(len(harness.ledger.closings) for harness in harnesses) == ENDINGS
        for event in released:
            event.set()
        await asyncio.gather(*running)
        assert [harness.check()["status"] for harness in harnesses] == ["completed"] * len(harnesses)

    run_virtually(body())


def test_ends_that_cannot_be_committed_do_not_block_others() -> None:
    async def body() -> None:
        harnesses = [make_harness(ANSWER) for _ in range(ENDINGS + 1)]
        *stuck, last = harnesses
        for harness in harnesses:
            harness.committer.endings = last.committer.endings
        for harness in stuck:
            harness.ledger.failing["close"] = 1_000_000
        running = [harness.start() for harness in harnesses]
        await running[-1]
        assert last.check()["status"] == "completed"
        assert not any(task.done() for task in running[:-1])
        for harness, task in zip(stuck, running, strict=False):
            harness.ledger.failing.clear()  # the storage is back
            await task
            assert harness.check()["status"] == "completed"

    run_virtually(body())

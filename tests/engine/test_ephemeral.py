"""Responses with `store: false` run the same way, in memory, and end with their connection (D4)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from outlive.core.errors import InvalidRequest, NotFound, UpstreamFault
from outlive.core.events import read_frame, split_frames
from outlive.engine.admission import Submission
from outlive.engine.delivery.committer import UNREAD_BYTES
from outlive.ports.catalog import NO_FILTERS, Paging
from outlive.ports.ledger import Memory
from outlive.testing import Script, answer
from tests.engine.harness import Harness, answer_of, run_with_harness, text_of
from tests.engine.virtual_clock import turn
from tests.support import grammar
from tests.support.scripting import Gate

DONE: Script = [answer("Hello")]


async def read_all(harness: Harness, response_id: str) -> list[Any]:
    cursor, frames = harness.reader.follow(response_id), b""
    while part := await cursor.read():
        frames += part
    cursor.close()
    return [read_frame(frame) for frame in split_frames(frames)]


def test_it_runs_like_any_other(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create("Hi", store=False)
        events = await read_all(harness, accepted.response_id)
        grammar.check(events)
        assert answer_of(events[-1]["response"]) == "Hello"
        assert events[-1]["response"]["store"] is False

    run_with_harness(tmp_path, body, DONE)


def test_nothing_of_it_is_found_in_the_database(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create("canary", store=False)
        await read_all(harness, accepted.response_id)
        for look in (
            harness.catalog.response("ann", accepted.response_id),
            harness.journal.read(accepted.response_id, -1, 1),
        ):
            with pytest.raises(NotFound):
                await look
        records, _ = await harness.catalog.responses("ann", Paging(), NO_FILTERS)
        assert records == []

    run_with_harness(tmp_path, body, [answer("canary")])
    for file in tmp_path.iterdir():
        assert b"canary" not in file.read_bytes()


def test_it_reads_history_but_takes_no_lock_and_leaves_no_turn(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        await harness.answer("one", conversation=conversation)
        running = await harness.create("two", conversation=conversation)
        await gate.reached.wait()
        aside = await harness.create("aside", conversation=conversation, store=False)
        await read_all(harness, aside.response_id)
        assert [text_of(item) for item in harness.backend.calls[-1].items] == ["one", "Hello", "aside"]
        gate.open()
        await harness.end(running.response_id)
        assert await harness.texts_of(conversation) == ["one", "Hello", "two", "Hello"]

    gate = Gate()
    run_with_harness(tmp_path, body, DONE, [gate, *DONE], DONE)


def test_the_end_of_its_connection_ends_the_upstream_call_and_leaves_nothing(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create(store=False)
        await gate.reached.wait()
        harness.ephemeral.discard(accepted.response_id)
        await turn(20)
        assert harness.backend.left == 1
        assert harness.live.get(accepted.response_id) is None
        assert harness.memory._fences == {}
        assert harness.memory._journal.batches == {}
        assert harness.ephemeral._tasks == {}
        assert harness.worker.slots.running == 0
        harness.ephemeral.discard(accepted.response_id)

    gate = Gate()
    run_with_harness(tmp_path, body, ["Hel", gate])


def test_it_waits_for_its_reader_and_forgets_what_was_read(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create(store=False)
        live = harness.live.get(accepted.response_id)
        assert live is not None
        await turn(200)
        assert UNREAD_BYTES // 2 < live.fold.size < 2 * UNREAD_BYTES
        cursor, frames = harness.reader.follow(accepted.response_id), b""
        while part := await cursor.read():
            frames += part
            held = sum(len(batch.frames) for batch in harness.memory._journal.batches[accepted.response_id])
            assert live.outcome is not None or held < 4 * UNREAD_BYTES
        events = [read_frame(frame) for frame in split_frames(frames)]
        grammar.check(events)
        assert answer_of(events[-1]["response"]) == "x" * 1000 * 1000

    run_with_harness(tmp_path, body, [*["x" * 1000] * 1000, answer("")])


def test_leaving_waits_for_it_a_while(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create(store=False)
        await gate.reached.wait()
        draining = asyncio.create_task(harness.engine.drain(60.0))
        await turn()
        assert not draining.done()
        gate.open()
        await draining
        assert (await read_all(harness, accepted.response_id))[-1]["type"] == "response.completed"
        harness.ephemeral.discard(accepted.response_id)
        await harness.engine.drain(60.0)

    gate = Gate()
    run_with_harness(tmp_path, body, [gate, *DONE])


def test_a_mistake_of_ours_ends_it_and_its_content_is_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(harness: Harness) -> None:
        def break_down(call: Any) -> Any:
            raise RuntimeError("a mistake")

        harness.backend.translator = break_down  # type: ignore[method-assign]
        accepted = await harness.create("canary", store=False)
        events = await read_all(harness, accepted.response_id)
        assert events[-1]["response"]["status"] == "failed"

    run_with_harness(tmp_path, body, DONE)
    assert "canary" not in caplog.text


# -- what a connection remembers of it


async def remember(harness: Harness, input: Any, memory: Memory | None = None, **fields: Any) -> Memory | None:
    body = {"model": "m", "input": input, "store": False, **fields}
    accepted = await harness.admitter.admit(Submission(owner="ann", body=body, memory=memory))
    await read_all(harness, accepted.response_id)
    try:
        return harness.ephemeral.remember(accepted.response_id)
    finally:
        harness.ephemeral.discard(accepted.response_id)


def test_the_next_turn_on_a_connection_is_given_the_remembered_items(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await remember(harness, "one")
        second = await remember(harness, "two", first, previous_response_id="resp_first")
        assert second is not None and second.position is None
        await remember(harness, "three", second, previous_response_id="resp_second")
        said = ["one", "Hello", "two", "Hello", "three"]
        assert [text_of(item) for item in harness.backend.calls[-1].items] == said

    run_with_harness(tmp_path, body, DONE)


def test_the_memory_of_a_connection_begins_where_the_storage_ends(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        stored = (await harness.answer("one"))["id"]
        second = await remember(harness, "two", previous_response_id=stored)
        assert second is not None and second.parent == stored
        assert [text_of(item) for item in second.items] == ["two", "Hello"]
        third = await remember(harness, "three", second, previous_response_id="resp_second")
        assert third is not None and (third.position, third.parent) == (second.position, stored)
        said = ["one", "Hello", "two", "Hello", "three"]
        assert [text_of(item) for item in harness.backend.calls[-1].items] == said
        await harness.engine.delete("ann", stored)
        with pytest.raises(InvalidRequest) as refused:
            await remember(harness, "four", third, previous_response_id="resp_third")
        assert refused.value.code == "previous_response_not_found"
        assert harness.worker.slots.running == 0

    run_with_harness(tmp_path, body, DONE)


def test_nothing_is_remembered_of_what_failed_or_has_not_ended(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        assert await remember(harness, "one") is None
        accepted = await harness.create(store=False)
        await gate.reached.wait()
        assert harness.ephemeral.remember(accepted.response_id) is None
        harness.ephemeral.discard(accepted.response_id)

    gate = Gate()
    run_with_harness(tmp_path, body, [UpstreamFault("no", retryable=False)], [gate])


def test_a_response_to_be_stored_cannot_continue_a_memory(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await remember(harness, "one")
        with pytest.raises(InvalidRequest) as refused:
            await remember(harness, "two", first, previous_response_id="resp_first", store=True)
        assert refused.value.code == "previous_response_not_found"
        records, _ = await harness.catalog.responses("ann", Paging(), NO_FILTERS)
        assert records == []

    run_with_harness(tmp_path, body, DONE)

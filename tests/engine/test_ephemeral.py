"""What is not stored runs the same way, in memory, and is gone with its connection (D4)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from outlive.core import status
from outlive.core.errors import InvalidRequest, NotFound, UpstreamFault
from outlive.core.events import read_frame, split_frames
from outlive.engine.admission import Submission
from outlive.ports.catalog import Paging
from outlive.ports.ledger import Memory
from outlive.testing import Script, answer
from tests.engine.rig import Rig, answer_of, play, text_of
from tests.engine.virtual import turn
from tests.support.scripting import Gate

DONE: Script = [answer("Hello")]


async def read_all(rig: Rig, response_id: str) -> list[Any]:
    cursor, frames = rig.fleeting_reader.follow(response_id), b""
    while part := await cursor.read():
        frames += part
    cursor.leave()
    return [read_frame(frame) for frame in split_frames(frames)]


def test_it_runs_like_any_other(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await rig.create("Hi", store=False)
        events = await read_all(rig, accepted.response_id)
        status.check(events)
        assert answer_of(events[-1]["response"]) == "Hello"
        assert events[-1]["response"]["store"] is False

    play(tmp_path, scene, DONE)


def test_nothing_of_it_is_found_in_the_database(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await rig.create("canary", store=False)
        await read_all(rig, accepted.response_id)
        for look in (rig.catalog.response("ann", accepted.response_id), rig.journal.read(accepted.response_id, -1, 1)):
            with pytest.raises(NotFound):
                await look
        records, _ = await rig.catalog.responses("ann", Paging(), statuses=[], conversation=None)
        assert records == []

    play(tmp_path, scene, [answer("canary")])
    for file in tmp_path.iterdir():
        assert b"canary" not in file.read_bytes()


def test_it_reads_history_but_takes_no_lock_and_leaves_no_turn(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        conversation = await rig.converse()
        await rig.answer("one", conversation=conversation)
        running = await rig.create("two", conversation=conversation)
        await gate.reached.wait()
        aside = await rig.create("aside", conversation=conversation, store=False)
        await read_all(rig, aside.response_id)
        assert [text_of(item) for item in rig.backend.calls[-1].items] == ["one", "Hello", "aside"]
        gate.open()
        await rig.end(running.response_id)
        assert await rig.texts_of(conversation) == ["one", "Hello", "two", "Hello"]

    gate = Gate()
    play(tmp_path, scene, DONE, [gate, *DONE], DONE)


def test_when_its_connection_goes_its_upstream_call_ends_and_nothing_is_left(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await rig.create(store=False)
        await gate.reached.wait()
        rig.fleeting.stop(accepted.response_id)
        await turn(20)
        assert rig.backend.left == 1
        assert rig.fleeting_lives.get(accepted.response_id) is None
        assert rig.memory._fences == {}
        assert rig.fleeting_reader.journal.batches == {}  # type: ignore[attr-defined]
        assert rig.fleeting._tasks == {}
        assert rig.worker.room.running == 0
        rig.fleeting.stop(accepted.response_id)

    gate = Gate()
    play(tmp_path, scene, ["Hel", gate])


def test_leaving_waits_for_it_a_while(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await rig.create(store=False)
        await gate.reached.wait()
        draining = asyncio.create_task(rig.fleeting.drain(60.0))
        await turn()
        assert not draining.done()
        gate.open()
        await draining
        assert (await read_all(rig, accepted.response_id))[-1]["type"] == "response.completed"
        rig.fleeting.stop(accepted.response_id)
        await rig.fleeting.drain(60.0)

    gate = Gate()
    play(tmp_path, scene, [gate, *DONE])


def test_a_mistake_of_ours_ends_it_and_its_content_is_in_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(rig: Rig) -> None:
        def break_down(call: Any) -> Any:
            raise RuntimeError("a mistake")

        rig.backend.translator = break_down  # type: ignore[method-assign]
        accepted = await rig.create("canary", store=False)
        events = await read_all(rig, accepted.response_id)
        assert events[-1]["response"]["status"] == "failed"

    play(tmp_path, scene, DONE)
    assert "canary" not in caplog.text


# -- what a connection remembers of it


async def remember(rig: Rig, input: Any, memory: Memory | None = None, **fields: Any) -> Memory | None:
    body = {"model": "m", "input": input, "store": False, **fields}
    accepted = await rig.door.admit(Submission(owner="ann", body=body, memory=memory))
    await read_all(rig, accepted.response_id)
    try:
        return rig.fleeting.remember(accepted.response_id)
    finally:
        rig.fleeting.stop(accepted.response_id)


def test_what_was_remembered_is_what_the_model_is_told_next(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await remember(rig, "one")
        second = await remember(rig, "two", first, previous_response_id="resp_first")
        assert second is not None and second.position is None
        await remember(rig, "three", second, previous_response_id="resp_second")
        said = ["one", "Hello", "two", "Hello", "three"]
        assert [text_of(item) for item in rig.backend.calls[-1].items] == said

    play(tmp_path, scene, DONE)


def test_what_it_remembers_begins_where_the_storage_ends(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        stored = (await rig.answer("one"))["id"]
        second = await remember(rig, "two", previous_response_id=stored)
        assert second is not None and second.parent == stored
        assert [text_of(item) for item in second.items] == ["two", "Hello"]
        third = await remember(rig, "three", second, previous_response_id="resp_second")
        assert third is not None and (third.position, third.parent) == (second.position, stored)
        said = ["one", "Hello", "two", "Hello", "three"]
        assert [text_of(item) for item in rig.backend.calls[-1].items] == said
        await rig.engine.delete("ann", stored)
        with pytest.raises(InvalidRequest) as refused:
            await remember(rig, "four", third, previous_response_id="resp_third")
        assert refused.value.code == "previous_response_not_found"
        assert rig.worker.room.running == 0

    play(tmp_path, scene, DONE)


def test_nothing_is_remembered_of_what_failed_or_has_not_ended(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        assert await remember(rig, "one") is None
        accepted = await rig.create(store=False)
        await gate.reached.wait()
        assert rig.fleeting.remember(accepted.response_id) is None
        rig.fleeting.stop(accepted.response_id)

    gate = Gate()
    play(tmp_path, scene, [UpstreamFault("no", retryable=False)], [gate])


def test_a_response_to_be_stored_cannot_continue_a_memory(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await remember(rig, "one")
        with pytest.raises(InvalidRequest) as refused:
            await remember(rig, "two", first, previous_response_id="resp_first", store=True)
        assert refused.value.code == "previous_response_not_found"
        records, _ = await rig.catalog.responses("ann", Paging(), statuses=[], conversation=None)
        assert records == []

    play(tmp_path, scene, DONE)

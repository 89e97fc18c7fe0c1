"""What is not stored runs the same way, in memory, and is gone with its connection (D4)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from outlive.adapters.backends.scripted import Gate, Script, answer
from outlive.core import status
from outlive.core.errors import NotFound
from outlive.core.events import read_frame, split_frames
from outlive.ports.catalog import Paging
from tests.engine.rig import Rig, answer_of, play, text_of
from tests.engine.virtual import turn

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
        assert rig.worker._taken.total() == 0
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

"""The sweeper forgets what is old and erases what was deleted, down to the bytes in the file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outlive.core.errors import NotFound, StorageUnavailable
from outlive.engine.sweeper import DAY, RetentionPolicy
from outlive.testing import Script, answer
from tests.engine.rig import Rig, play

DONE: Script = [answer("canary-out")]


def found_on_disk(folder: Path, text: str) -> bool:
    return any(text.encode() in file.read_bytes() for file in folder.iterdir())


def test_responses_are_kept_for_their_days_and_conversations_for_ever(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        conversation = await rig.converse()
        final = await rig.answer()
        rig.clock.time += 30 * DAY - 1
        await rig.sweeper.sweep()
        assert await rig.show(final["id"]) is not None
        rig.clock.time += 2
        await rig.sweeper.sweep()
        with pytest.raises(NotFound):
            await rig.show(final["id"])
        await rig.catalog.conversation("ann", conversation)

    play(tmp_path, scene, DONE)


def test_retention_is_a_setting(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        conversation = await rig.converse()
        final = await rig.answer()
        rig.clock.time += 1000 * DAY
        await rig.sweeper.sweep()
        assert await rig.show(final["id"]) is not None
        with pytest.raises(NotFound):
            await rig.catalog.conversation("ann", conversation)

    play(tmp_path, scene, DONE, retention=RetentionPolicy(response_days=None, conversation_days=7.0))


def test_what_was_deleted_is_in_no_file_any_more(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        final = await rig.answer("canary-in")
        assert found_on_disk(tmp_path, "canary-in")
        assert found_on_disk(tmp_path, "canary-out")
        await rig.engine.delete("ann", final["id"])
        await rig.sweeper.sweep()
        assert not found_on_disk(tmp_path, "canary")

    play(tmp_path, scene, DONE)


def test_a_deleted_item_is_in_no_file_any_more_either(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        conversation = await rig.converse()
        item = {"id": "msg_x", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "canary"}]}
        await rig.conversations.add_items("ann", conversation, [item], rig.clock.now(), None)
        await rig.sweeper.sweep()
        await rig.conversations.delete_item("ann", conversation, "msg_x")
        rig.sweeper.wake()
        await rig.sweeper.sweep()
        assert not found_on_disk(tmp_path, "canary")

    play(tmp_path, scene, DONE)


def test_what_could_not_be_scrubbed_is_scrubbed_next_time(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        final = await rig.answer()
        await rig.engine.delete("ann", final["id"])
        scrub, calls = rig.keeper.scrub, 0

        async def fail_once() -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise StorageUnavailable("checkpoint", "somebody is reading")
            await scrub()

        rig.keeper.scrub = fail_once  # type: ignore[method-assign]
        with pytest.raises(StorageUnavailable):
            await rig.sweeper.sweep()
        await rig.sweeper.sweep()
        assert not found_on_disk(tmp_path, "canary")
        await rig.sweeper.sweep()
        assert calls == 2

    play(tmp_path, scene, DONE)


def test_a_deletion_wakes_it(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        final = await rig.answer()
        sweeping = asyncio.create_task(rig.sweeper.run())
        await asyncio.sleep(0.01)
        await rig.engine.delete("ann", final["id"])
        while found_on_disk(tmp_path, "canary"):
            await asyncio.sleep(0.001)
        sweeping.cancel()

    play(tmp_path, scene, DONE)


def test_it_goes_on_after_the_storage_was_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(rig: Rig) -> None:
        final = await rig.answer()
        expire, calls = rig.keeper.expire, 0

        async def fail_once(**fields: object) -> int:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise StorageUnavailable("expire")
            return await expire(**fields)  # type: ignore[arg-type]

        rig.keeper.expire = fail_once  # type: ignore[method-assign]
        sweeping = asyncio.create_task(rig.sweeper.run())
        while calls == 0:
            await asyncio.sleep(0.001)
        await rig.engine.delete("ann", final["id"])
        while found_on_disk(tmp_path, "canary"):
            await asyncio.sleep(0.001)
        sweeping.cancel()

    play(tmp_path, scene, DONE)
    assert "sweeping has to wait" in caplog.text


def test_many_are_forgotten_in_one_round(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await asyncio.gather(*(rig.create() for _ in range(100)))
        accepted += await asyncio.gather(*(rig.create() for _ in range(30)))
        for each in accepted:
            await rig.reader.wait_end(each.response_id)
        rig.clock.time += 31 * DAY
        await rig.sweeper.sweep()
        with pytest.raises(NotFound):
            await rig.frames(accepted[-1].response_id)

    play(tmp_path, scene, DONE)

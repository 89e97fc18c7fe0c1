"""The sweeper forgets what is old and erases what was deleted, down to the bytes in the file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outlive.core.errors import NotFound, StorageUnavailable
from outlive.core.usage import DAY
from outlive.testing import Script, answer
from tests.engine.harness import Harness, run_with_harness

DONE: Script = [answer("canary-out")]


def found_on_disk(folder: Path, text: str) -> bool:
    return any(text.encode() in file.read_bytes() for file in folder.iterdir())


def test_responses_are_kept_for_their_days_and_conversations_for_ever(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        final = await harness.answer()
        harness.clock.time += 30 * DAY - 1
        await harness.sweeper.sweep()
        assert await harness.show(final["id"]) is not None
        harness.clock.time += 2
        await harness.sweeper.sweep()
        with pytest.raises(NotFound):
            await harness.show(final["id"])
        await harness.catalog.conversation("ann", conversation)

    run_with_harness(tmp_path, body, DONE)


def test_what_has_expired_is_erased_a_day_later(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        await harness.answer("canary-in")
        harness.clock.time += 30 * DAY + 1
        await harness.sweeper.sweep()
        harness.clock.time += DAY - 2
        await harness.sweeper.sweep()
        assert found_on_disk(tmp_path, "canary-in")
        harness.clock.time += 3
        await harness.sweeper.sweep()
        assert not found_on_disk(tmp_path, "canary")

    run_with_harness(tmp_path, body, DONE)


def test_a_clock_that_jumps_ahead_and_back_expires_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        for harness.clock.ahead in (32 * DAY, 0.0):
            await harness.sweeper.sweep()
            assert await harness.show(final["id"]) is not None

    run_with_harness(tmp_path, body, DONE)
    assert "the clock was changed by 2764800 s: nothing expires in this round" in caplog.text


def test_what_expired_while_the_clock_stayed_ahead_is_restored_when_it_is_right_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        harness.clock.ahead = 32 * DAY
        for _ in range(2):
            await harness.sweeper.sweep()
            harness.clock.time += 60
        with pytest.raises(NotFound):
            await harness.show(final["id"])
        harness.clock.ahead = 0.0
        await harness.sweeper.sweep()
        await harness.answer(previous_response_id=final["id"])

    run_with_harness(tmp_path, body, DONE, DONE)
    assert "restored 1 things" in caplog.text


def test_a_clock_that_is_corrected_to_the_second_delays_nothing(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        harness.clock.time += 31 * DAY
        harness.clock.ahead = -1.0
        await harness.sweeper.sweep()
        with pytest.raises(NotFound):
            await harness.show(final["id"])

    run_with_harness(tmp_path, body, DONE)


def test_retention_is_a_setting(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        final = await harness.answer()
        harness.clock.time += 1000 * DAY
        await harness.sweeper.sweep()
        assert await harness.show(final["id"]) is not None
        with pytest.raises(NotFound):
            await harness.catalog.conversation("ann", conversation)

    run_with_harness(tmp_path, body, DONE, days=(None, 7.0))


def test_deleted_content_is_in_no_file_any_more(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer("canary-in")
        assert found_on_disk(tmp_path, "canary-in")
        assert found_on_disk(tmp_path, "canary-out")
        await harness.engine.delete("ann", final["id"])
        await harness.sweeper.sweep()
        assert not found_on_disk(tmp_path, "canary")

    run_with_harness(tmp_path, body, DONE)


def test_a_deleted_item_is_in_no_file_any_more_either(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        item = {"id": "msg_x", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "canary"}]}
        await harness.conversations.add_items("ann", conversation, [item], harness.clock.now(), None)
        await harness.sweeper.sweep()
        await harness.conversations.delete_item("ann", conversation, "msg_x")
        harness.sweeper.wake()
        await harness.sweeper.sweep()
        assert not found_on_disk(tmp_path, "canary")

    run_with_harness(tmp_path, body, DONE)


def test_pages_that_could_not_be_scrubbed_are_scrubbed_next_time(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        await harness.engine.delete("ann", final["id"])
        scrub, calls = harness.retention.scrub, 0

        async def fail_once() -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise StorageUnavailable("checkpoint", "a reader holds it")
            await scrub()

        harness.retention.scrub = fail_once
        with pytest.raises(StorageUnavailable):
            await harness.sweeper.sweep()
        await harness.sweeper.sweep()
        assert not found_on_disk(tmp_path, "canary")
        await harness.sweeper.sweep()
        assert calls == 2

    run_with_harness(tmp_path, body, DONE)


def test_a_deletion_wakes_it(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        sweeping = asyncio.create_task(harness.sweeper.run())
        await asyncio.sleep(0.01)
        await harness.engine.delete("ann", final["id"])
        while found_on_disk(tmp_path, "canary"):
            await asyncio.sleep(0.001)
        sweeping.cancel()

    run_with_harness(tmp_path, body, DONE)


def test_it_goes_on_after_the_storage_was_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        expire, calls = harness.retention.expire, 0

        async def fail_once(**fields: object) -> int:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise StorageUnavailable("expire")
            return await expire(**fields)  # type: ignore[arg-type]

        harness.retention.expire = fail_once  # type: ignore[method-assign]
        sweeping = asyncio.create_task(harness.sweeper.run())
        while calls == 0:
            await asyncio.sleep(0.001)
        await harness.engine.delete("ann", final["id"])
        while found_on_disk(tmp_path, "canary"):
            await asyncio.sleep(0.001)
        sweeping.cancel()

    run_with_harness(tmp_path, body, DONE)
    assert "sweep failed" in caplog.text


def test_many_are_forgotten_in_one_round(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await asyncio.gather(*(harness.create() for _ in range(100)))
        accepted += await asyncio.gather(*(harness.create() for _ in range(30)))
        for each in accepted:
            await harness.reader.wait_end(each.response_id)
        harness.clock.time += 31 * DAY
        await harness.sweeper.sweep()
        for each in accepted:
            with pytest.raises(NotFound):
                await harness.show(each.response_id)

    run_with_harness(tmp_path, body, DONE)

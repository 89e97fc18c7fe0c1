"""The worker keeps to its limits, takes up what was left, ends what is cancelled, and leaves without a loss."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from outlive.core.errors import StorageUnavailable, TooMany
from outlive.engine.slots import Capacity
from outlive.ports.catalog import Paging
from outlive.testing import Script, answer, finish_chunk, role_chunk
from tests.engine.rig import Rig, answer_of, play
from tests.engine.virtual import turn
from tests.support.scripting import Gate

DONE: Script = [answer("Hello")]


def gated(*before: str) -> tuple[Gate, Script]:
    gate = Gate()
    return gate, [*before, gate, "lo", finish_chunk()]


async def is_idle(rig: Rig) -> None:
    """Wait until nothing runs, and see that every place was given back."""
    worker = rig.worker
    while worker._running or worker._cancelling or worker.room.running or worker.room.line:
        await asyncio.sleep(0.001)


async def is_shown(rig: Rig, response_id: str) -> None:
    """Wait until something of the answer is visible."""
    while (live := rig.lives.get(response_id)) is None or not live.fold.visible:
        await asyncio.sleep(0.001)


async def statuses(rig: Rig, owner: str = "ann") -> list[str]:
    records, _ = await rig.catalog.responses(owner, Paging(limit=100, order="asc"), statuses=[], conversation=None)
    return [record.status for record in records]


# -- limits


def test_what_has_no_room_waits_and_runs_when_there_is_some(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        ids = [(await rig.create(f"{n}")).response_id for n in range(4)]
        await gate.reached.wait()
        assert await statuses(rig) == ["in_progress", "queued", "queued", "queued"]
        assert await rig.types(ids[1]) == ["created"]
        gate.open()
        for response_id in ids:
            assert (await rig.end(response_id))["status"] == "completed"
        assert [call.items[0]["content"][0]["text"] for call in rig.backend.calls] == ["0", "1", "2", "3"]
        assert (await rig.types(ids[1]))[:2] == ["created", "in_progress"]
        await is_idle(rig)

    gate, script = gated("Hel")
    play(tmp_path, scene, script, capacity=Capacity(running=1, waiting=10))


def test_never_more_run_than_may(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(rig.worker._running))
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        accepted = await asyncio.gather(*(rig.create(owner=f"owner{n % 3}") for n in range(30)))
        for n, each in enumerate(accepted):
            assert (await rig.end(each.response_id, f"owner{n % 3}"))["status"] == "completed"
        watching.cancel()
        assert most <= 4
        await is_idle(rig)

    play(tmp_path, scene, DONE, capacity=Capacity(running=4, waiting=100, running_per_owner=2))


def test_too_many_waiting_are_refused_before_anything_is_stored(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        for _ in range(3):
            await rig.create()
        with pytest.raises(TooMany) as caught:
            await rig.create()
        assert caught.value.retry_after > 0
        assert len(await statuses(rig)) == 3
        gate.open()
        while "queued" in await statuses(rig):
            await asyncio.sleep(0.001)
        await is_idle(rig)
        await rig.answer()

    gate, script = gated()
    play(tmp_path, scene, script, capacity=Capacity(running=1, waiting=2))


def test_one_owner_cannot_take_all_the_room(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.create(owner="ann")
        second = await rig.create(owner="ann")
        with pytest.raises(TooMany):
            await rig.create(owner="ann")
        assert (await rig.answer(owner="bob"))["status"] == "completed"
        gate.open()
        for accepted in (first, second):
            await rig.end(accepted.response_id)
        await is_idle(rig)

    gate, script = gated()
    capacity = Capacity(running=10, waiting=10, running_per_owner=1, waiting_per_owner=1)
    play(tmp_path, scene, script, DONE, capacity=capacity)


def test_a_refused_admission_gives_its_place_back(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        for _ in range(3):
            with pytest.raises(Exception, match="not found"):
                await rig.create(previous_response_id="resp_none")
        rig.ledger.failing = {"admit": 1}
        with pytest.raises(StorageUnavailable):
            await rig.create()
        await is_idle(rig)
        await rig.answer()

    play(tmp_path, scene, DONE, capacity=Capacity(running=1, waiting=1))


def test_a_connection_that_dies_during_admission_gives_no_place_back_twice(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        reached = rig.ledger.hold("admit")
        admitting = asyncio.create_task(rig.create())
        await reached.wait()
        admitting.cancel()
        await turn()
        rig.ledger.let_go("admit")
        await gate.reached.wait()
        assert rig.worker.room.running == 1
        second = await rig.create()
        assert await statuses(rig) == ["in_progress", "queued"]
        gate.open()
        await rig.end(second.response_id)
        await is_idle(rig)

    gate, script = gated()
    play(tmp_path, scene, script, capacity=Capacity(running=1, waiting=1))


def test_what_is_admitted_to_wait_just_as_the_last_run_ends_does_not_wait_for_ever(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.create()
        await gate.reached.wait()
        reached = rig.ledger.hold("admit")
        admitting = asyncio.create_task(rig.create())
        await reached.wait()
        gate.open()
        await rig.end(first.response_id)
        while rig.worker._running:
            await asyncio.sleep(0.001)
        rig.ledger.let_go("admit")
        accepted = await admitting
        assert (await rig.end(accepted.response_id))["status"] == "completed"
        await is_idle(rig)

    gate, script = gated()
    play(tmp_path, scene, script, capacity=Capacity(running=1, waiting=1))


def test_a_claim_that_looked_too_early_is_made_again(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.create()
        await gate.reached.wait()
        admit, claimed = rig.ledger.hold("admit"), rig.ledger.hold("claimed")
        admitting = asyncio.create_task(rig.create())
        await admit.wait()
        gate.open()
        await rig.end(first.response_id)
        await claimed.wait()
        # The claim was made first, and found nothing; its answer comes after the admission's.
        rig.ledger.let_go("admit")
        accepted = await admitting
        rig.ledger.let_go("claimed")
        assert (await rig.end(accepted.response_id))["status"] == "completed"

    gate, script = gated()
    play(tmp_path, scene, script, capacity=Capacity(running=1, waiting=1))


def test_what_is_deleted_between_being_claimed_and_begun_does_not_keep_others_from_beginning(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        first = await rig.create()
        await gate.reached.wait()
        deleted, other = [(await rig.create()).response_id for _ in range(2)]
        claimed = rig.ledger.hold("claimed")
        rig.worker.room._capacity = Capacity(running=3, waiting=2)
        rig.worker.pump()
        await claimed.wait()
        await rig.engine.delete("ann", deleted)
        assert await rig.keeper.erase(10) == 1
        rig.ledger.let_go("claimed")
        gate.open()
        for response_id in (first.response_id, other):
            assert (await rig.end(response_id))["status"] == "completed"
        await is_idle(rig)
        assert len(rig.backend.calls) == 2

    gate, script = gated()
    play(tmp_path, scene, script, capacity=Capacity(running=1, waiting=2))


def test_foreground_goes_before_background(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        await rig.create("running")
        await gate.reached.wait()
        for n in range(2):
            await rig.create(f"background {n}", background=True)
        for n in range(2):
            await rig.create(f"foreground {n}")
        gate.open()
        while set(await statuses(rig)) != {"completed"}:
            await asyncio.sleep(0.001)
        order = [call.items[0]["content"][0]["text"] for call in rig.backend.calls]
        assert order == ["running", "foreground 0", "foreground 1", "background 0", "background 1"]

    gate, script = gated()
    play(tmp_path, scene, script, capacity=Capacity(running=1, waiting=10))


# -- recovery


def test_everything_that_was_left_is_taken_up_within_the_limits(tmp_path: Path) -> None:
    count = 60

    async def before(rig: Rig) -> None:
        await asyncio.gather(*(rig.create(f"{n}") for n in range(count)))

    async def after(rig: Rig) -> None:
        most = 0
        assert await rig.worker.recover() == count
        while set(await statuses(rig)) != {"completed"}:
            most = max(most, len(rig.worker._running))
            await asyncio.sleep(0)
        assert 0 < most <= 5
        await is_idle(rig)

    play(tmp_path, before, [Gate()], capacity=Capacity(running=100, waiting=100))
    play(tmp_path, after, DONE, capacity=Capacity(running=5, waiting=0))


def test_recovery_survives_a_storage_that_fails_meanwhile(tmp_path: Path) -> None:
    async def before(rig: Rig) -> None:
        for _ in range(3):
            await rig.create()

    async def after(rig: Rig) -> None:
        rig.ledger.failing = {"claim": 2}
        rig.journal.failing = 2
        await rig.worker.recover()
        while set(await statuses(rig)) != {"completed"}:
            await asyncio.sleep(0.001)
        await is_idle(rig)

    play(tmp_path, before, [Gate()])
    play(tmp_path, after, DONE)


def test_a_recovered_conversation_is_whole_and_unlocked(tmp_path: Path) -> None:
    held: dict[str, str] = {}

    async def before(rig: Rig) -> None:
        held["conversation"] = await rig.converse()
        await rig.create("one", conversation=held["conversation"])

    async def after(rig: Rig) -> None:
        await rig.worker.recover()
        while set(await statuses(rig)) != {"completed"}:
            await asyncio.sleep(0.001)
        rig.ids._count = 1000
        await rig.answer("two", conversation=held["conversation"])
        assert await rig.texts_of(held["conversation"]) == ["one", "Hello", "two", "Hello"]

    play(tmp_path, before, [Gate()])
    play(tmp_path, after, DONE)


def test_a_mistake_of_ours_does_not_leave_a_response_without_an_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(rig: Rig) -> None:
        def break_down(call: Any) -> Any:
            raise RuntimeError("a mistake")

        rig.backend.translator = break_down  # type: ignore[method-assign]
        final = await rig.answer()
        assert (final["status"], final["error"]["code"]) == ("failed", "server_error")
        assert "mistake" in final["error"]["message"]
        await is_idle(rig)

    play(tmp_path, scene, DONE)
    assert "a mistake" in caplog.text


# -- cancelling


def test_cancelling_ends_a_run_with_what_it_showed(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        conversation = await rig.converse()
        accepted = await rig.create("Hi", conversation=conversation)
        cursor = rig.reader.follow(accepted.response_id)
        await is_shown(rig, accepted.response_id)
        await rig.worker.cancel(accepted.response_id)
        final = await rig.end(accepted.response_id)
        assert (final["status"], answer_of(final)) == ("cancelled", "Hel")
        assert final["output"][0]["status"] == "incomplete"
        assert await rig.texts_of(conversation) == ["Hi", "Hel"]
        # Whoever was reading reads to the cancelled event.
        frames = b""
        while part := await cursor.read():
            frames += part
        assert frames == b"".join(await rig.frames(accepted.response_id))
        await is_idle(rig)
        assert rig.backend.left == 1
        assert len(rig.backend.calls) == 1

    _, script = gated("Hel")
    play(tmp_path, scene, script)


def test_what_waits_can_be_cancelled_and_frees_its_place_in_line(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        running = await rig.create()
        waiting = await rig.create()
        with pytest.raises(TooMany):
            await rig.create()
        await rig.worker.cancel(waiting.response_id)
        final = await rig.end(waiting.response_id)
        assert (final["status"], final["output"]) == ("cancelled", [])
        assert await rig.types(waiting.response_id) == ["created", "cancelled"]
        third = await rig.create()
        gate.open()
        for accepted in (running, third):
            assert (await rig.end(accepted.response_id))["status"] == "completed"
        await is_idle(rig)

    gate, script = gated()
    play(tmp_path, scene, script, capacity=Capacity(running=1, waiting=1))


def test_cancelling_what_has_ended_changes_nothing(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        final = await rig.answer()
        before = await rig.frames(final["id"])
        for _ in range(2):
            await rig.worker.cancel(final["id"])
        assert await rig.show(final["id"]) == final
        assert await rig.frames(final["id"]) == before

    play(tmp_path, scene, DONE)


def test_whoever_cancels_at_the_same_time_finds_it_ended(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await rig.create()
        await gate.reached.wait()

        async def cancel() -> None:
            await rig.worker.cancel(accepted.response_id)
            final = await rig.show(accepted.response_id)
            assert final is not None
            assert final["status"] == "cancelled"

        await asyncio.gather(*(cancel() for _ in range(5)))
        assert (await rig.types(accepted.response_id)).count("cancelled") == 1

    gate, script = gated("Hel")
    play(tmp_path, scene, script)


def test_a_cancel_goes_on_when_whoever_asked_for_it_is_gone(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await rig.create()
        await gate.reached.wait()
        reached = rig.ledger.hold("close")
        cancelling = asyncio.create_task(rig.worker.cancel(accepted.response_id))
        await reached.wait()
        cancelling.cancel()
        await turn()
        rig.ledger.let_go("close")
        assert (await rig.end(accepted.response_id))["status"] == "cancelled"

    gate, script = gated("Hel")
    play(tmp_path, scene, script)


def test_a_cancel_is_carried_out_although_the_storage_fails_meanwhile(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await rig.create()
        await gate.reached.wait()
        rig.ledger.failing = {"take_over": 1}
        with pytest.raises(StorageUnavailable):
            await rig.worker.cancel(accepted.response_id)
        assert await rig.show(accepted.response_id) is None
        rig.journal.failing = 2
        rig.ledger.failing = {"close": 2}
        await rig.worker.cancel(accepted.response_id)
        assert (await rig.end(accepted.response_id))["status"] == "cancelled"

    gate, script = gated("Hel")
    play(tmp_path, scene, script)


@pytest.mark.parametrize("seed", range(6))
def test_the_first_terminal_status_wins_whatever_the_interleaving(tmp_path: Path, seed: int) -> None:
    """Many runs, each cancelled once or twice at some moment between its first breath and after its end."""
    count = 25

    async def scene(rig: Rig) -> None:
        chance = random.Random(seed)
        conversations = [await rig.converse() for _ in range(count)]

        async def live_through(conversation: str) -> str:
            accepted = await rig.create("Hi", conversation=conversation)

            async def cancel() -> str:
                for _ in range(chance.randrange(60)):
                    await asyncio.sleep(0)
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 0.02)
                await rig.worker.cancel(accepted.response_id)
                final = await rig.show(accepted.response_id)
                assert final is not None
                return str(final["status"])

            seen = await asyncio.gather(*(cancel() for _ in range(chance.randrange(1, 3))))
            final = await rig.end(accepted.response_id)
            # Nobody was told anything but what it came to be.
            assert set(seen) == {final["status"]}
            assert final["status"] in ("completed", "cancelled")
            kept = await rig.texts_of(conversation)
            assert kept[0] == "Hi"
            assert "".join(kept[1:]) == answer_of(final)
            return str(final["status"])

        outcomes = await asyncio.gather(*(live_through(conversation) for conversation in conversations))
        assert set(outcomes) <= {"completed", "cancelled"}
        await is_idle(rig)
        # Every conversation is unlocked.
        for conversation in conversations[:3]:
            await rig.answer("again", conversation=conversation)

    play(
        tmp_path,
        scene,
        [role_chunk(), "Hel", "lo", " th", "ere", finish_chunk()],
        capacity=Capacity(running=10, waiting=50),
    )


def test_foreground_runs_that_nobody_reads_are_cancelled_after_a_while(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        read, unread = await rig.create(), await rig.create()
        background = await rig.create(background=True)
        cursor = rig.reader.follow(read.response_id)
        await cursor.read()
        rig.clock.time += 10
        await rig.worker.cancel_abandoned(10.0)
        assert set(await statuses(rig)) <= {"in_progress", "queued"}
        rig.clock.time += 1
        await rig.worker.cancel_abandoned(10.0)
        assert (await rig.end(unread.response_id))["status"] == "cancelled"
        cursor.leave()
        rig.clock.time += 11
        await rig.worker.cancel_abandoned(10.0)
        assert (await rig.end(read.response_id))["status"] == "cancelled"
        assert await rig.show(background.response_id) is None

    play(tmp_path, scene, [Gate()])

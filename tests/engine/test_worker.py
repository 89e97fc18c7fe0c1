"""The worker keeps to its limits, takes up what was left, ends what is cancelled, and leaves without a loss."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from outlive.core.errors import StorageUnavailable, TooMany
from outlive.engine.admission import Submission
from outlive.engine.slots import OWNER_INPUTS, SMALL_INPUT, Capacity
from outlive.ports.catalog import NO_FILTERS, Paging
from outlive.testing import Script, answer, finish_chunk, role_chunk
from tests.engine.harness import Harness, answer_of, run_with_harness
from tests.engine.virtual_clock import turn
from tests.support.scripting import Gate

DONE: Script = [answer("Hello")]


def gated(*before: str) -> tuple[Gate, Script]:
    gate = Gate()
    return gate, [*before, gate, "lo", finish_chunk()]


async def is_idle(harness: Harness) -> None:
    """Wait until nothing runs, and see that every place was given back."""
    worker = harness.worker
    while worker._running or worker._ending or worker.slots.running or worker.slots.queued:
        await asyncio.sleep(0.001)


async def is_shown(harness: Harness, response_id: str) -> None:
    """Wait until something of the answer is visible."""
    while (live := harness.live.get(response_id)) is None or not live.fold.visible:
        await asyncio.sleep(0.001)


async def statuses(harness: Harness, owner: str = "ann") -> list[str]:
    records, _ = await harness.catalog.responses(owner, Paging(limit=100, order="asc"), NO_FILTERS)
    return [record.status for record in records]


# -- limits


def test_a_response_without_a_slot_is_queued_and_runs_when_one_is_free(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        ids = [(await harness.create(f"{n}")).response_id for n in range(4)]
        await gate.reached.wait()
        assert await statuses(harness) == ["in_progress", "queued", "queued", "queued"]
        assert await harness.types(ids[1]) == ["created"]
        gate.open()
        for response_id in ids:
            assert (await harness.end(response_id))["status"] == "completed"
        assert [call.items[0]["content"][0]["text"] for call in harness.backend.calls] == ["0", "1", "2", "3"]
        assert (await harness.types(ids[1]))[:2] == ["created", "in_progress"]
        await is_idle(harness)

    gate, script = gated("Hel")
    run_with_harness(tmp_path, body, script, capacity=Capacity(running=1, queued=10))


def test_a_large_request_is_queued_until_the_owners_other_large_ones_have_ended(tmp_path: Path) -> None:
    async def create(harness: Harness, text: str, owner: str = "ann", **fields: Any) -> str:
        body = {"model": "m", "input": text, **fields}
        return (await harness.engine.admitter.admit(Submission(owner=owner, body=body, size=OWNER_INPUTS))).response_id

    async def body(harness: Harness) -> None:
        ids = [await create(harness, f"{n}" * SMALL_INPUT) for n in range(3)]
        await gate.reached.wait()
        assert await statuses(harness) == ["in_progress", "queued", "queued"]
        small, bobs = (await harness.create("small")).response_id, await create(harness, "large", "bob")
        with pytest.raises(TooMany):
            await create(harness, "not stored", store=False)
        assert await statuses(harness) == ["in_progress", "queued", "queued", "in_progress"]
        assert await statuses(harness, "bob") == ["in_progress"]
        gate.open()
        for response_id in (*ids, small):
            assert (await harness.end(response_id))["status"] == "completed"
        await harness.end(bobs, "bob")
        harness.ephemeral.discard(await create(harness, "not stored", store=False))
        await is_idle(harness)
        assert harness.worker.slots.take("ann", OWNER_INPUTS)

    gate, script = gated("Hel")
    run_with_harness(tmp_path, body, script)


def test_never_more_run_than_may(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, len(harness.worker._running))
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        accepted = await asyncio.gather(*(harness.create(owner=f"owner{n % 3}") for n in range(30)))
        for n, each in enumerate(accepted):
            assert (await harness.end(each.response_id, f"owner{n % 3}"))["status"] == "completed"
        watching.cancel()
        assert most <= 4
        await is_idle(harness)

    run_with_harness(tmp_path, body, DONE, capacity=Capacity(running=4, queued=100, running_per_owner=2))


def test_too_many_waiting_are_refused_before_anything_is_stored(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        for _ in range(3):
            await harness.create()
        with pytest.raises(TooMany) as caught:
            await harness.create()
        assert caught.value.retry_after
        assert len(await statuses(harness)) == 3
        gate.open()
        while "queued" in await statuses(harness):
            await asyncio.sleep(0.001)
        await is_idle(harness)
        await harness.answer()

    gate, script = gated()
    run_with_harness(tmp_path, body, script, capacity=Capacity(running=1, queued=2))


def test_one_owner_cannot_take_all_the_room(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.create(owner="ann")
        second = await harness.create(owner="ann")
        with pytest.raises(TooMany):
            await harness.create(owner="ann")
        assert (await harness.answer(owner="bob"))["status"] == "completed"
        gate.open()
        for accepted in (first, second):
            await harness.end(accepted.response_id)
        await is_idle(harness)

    gate, script = gated()
    capacity = Capacity(running=10, queued=10, running_per_owner=1, queued_per_owner=1)
    run_with_harness(tmp_path, body, script, DONE, capacity=capacity)


def test_a_refused_admission_gives_its_place_back(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        for _ in range(3):
            with pytest.raises(Exception, match="not found"):
                await harness.create(previous_response_id="resp_none")
        harness.ledger.failing = {"admit": 1}
        with pytest.raises(StorageUnavailable):
            await harness.create()
        await is_idle(harness)
        await harness.answer()

    run_with_harness(tmp_path, body, DONE, capacity=Capacity(running=1, queued=1))


def test_a_connection_that_dies_during_admission_gives_no_place_back_twice(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        reached = harness.ledger.hold("admit")
        admitting = asyncio.create_task(harness.create())
        await reached.wait()
        admitting.cancel()
        await turn()
        harness.ledger.let_pass("admit")
        await gate.reached.wait()
        assert harness.worker.slots.running == 1
        second = await harness.create()
        assert await statuses(harness) == ["in_progress", "queued"]
        gate.open()
        await harness.end(second.response_id)
        await is_idle(harness)

    gate, script = gated()
    run_with_harness(tmp_path, body, script, capacity=Capacity(running=1, queued=1))


def test_a_response_that_is_queued_as_the_last_run_ends_is_started(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.create()
        await gate.reached.wait()
        reached = harness.ledger.hold("admit")
        admitting = asyncio.create_task(harness.create())
        await reached.wait()
        gate.open()
        await harness.end(first.response_id)
        while harness.worker._running:
            await asyncio.sleep(0.001)
        harness.ledger.let_pass("admit")
        accepted = await admitting
        assert (await harness.end(accepted.response_id))["status"] == "completed"
        await is_idle(harness)

    gate, script = gated()
    run_with_harness(tmp_path, body, script, capacity=Capacity(running=1, queued=1))


def test_a_claim_that_looked_too_early_is_made_again(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.create()
        await gate.reached.wait()
        admit, claimed = harness.ledger.hold("admit"), harness.ledger.hold("claimed")
        admitting = asyncio.create_task(harness.create())
        await admit.wait()
        gate.open()
        await harness.end(first.response_id)
        await claimed.wait()
        # The claim was made first, and found nothing; its answer comes after the admission's.
        harness.ledger.let_pass("admit")
        accepted = await admitting
        harness.ledger.let_pass("claimed")
        assert (await harness.end(accepted.response_id))["status"] == "completed"

    gate, script = gated()
    run_with_harness(tmp_path, body, script, capacity=Capacity(running=1, queued=1))


def test_a_response_that_is_deleted_after_its_claim_does_not_keep_others_from_starting(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        first = await harness.create()
        await gate.reached.wait()
        deleted, other = [(await harness.create()).response_id for _ in range(2)]
        claimed = harness.ledger.hold("claimed")
        harness.worker.slots.capacity = Capacity(running=3, queued=2)
        harness.worker.fill_slots()
        await claimed.wait()
        await harness.engine.delete("ann", deleted)
        assert await harness.retention.erase(10) == 1
        harness.ledger.let_pass("claimed")
        gate.open()
        for response_id in (first.response_id, other):
            assert (await harness.end(response_id))["status"] == "completed"
        await is_idle(harness)
        assert len(harness.backend.calls) == 2

    gate, script = gated()
    run_with_harness(tmp_path, body, script, capacity=Capacity(running=1, queued=2))


def test_foreground_goes_before_background(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        await harness.create("running")
        await gate.reached.wait()
        for n in range(2):
            await harness.create(f"background {n}", background=True)
        for n in range(2):
            await harness.create(f"foreground {n}")
        gate.open()
        while set(await statuses(harness)) != {"completed"}:
            await asyncio.sleep(0.001)
        order = [call.items[0]["content"][0]["text"] for call in harness.backend.calls]
        assert order == ["running", "foreground 0", "foreground 1", "background 0", "background 1"]

    gate, script = gated()
    run_with_harness(tmp_path, body, script, capacity=Capacity(running=1, queued=10))


# -- recovery


def test_everything_that_was_left_is_taken_up_within_the_limits(tmp_path: Path) -> None:
    count = 60

    async def before(harness: Harness) -> None:
        await asyncio.gather(*(harness.create(f"{n}") for n in range(count)))

    async def after(harness: Harness) -> None:
        most = 0
        assert await harness.worker.recover() == count
        while set(await statuses(harness)) != {"completed"}:
            most = max(most, len(harness.worker._running))
            await asyncio.sleep(0)
        assert 0 < most <= 5
        await is_idle(harness)

    run_with_harness(tmp_path, before, [Gate()], capacity=Capacity(running=100, queued=100))
    run_with_harness(tmp_path, after, DONE, capacity=Capacity(running=5, queued=0))


def test_recovery_survives_a_storage_that_fails_meanwhile(tmp_path: Path) -> None:
    async def before(harness: Harness) -> None:
        for _ in range(3):
            await harness.create()

    async def after(harness: Harness) -> None:
        harness.ledger.failing = {"claim": 2}
        harness.journal.failing = 2
        await harness.worker.recover()
        while set(await statuses(harness)) != {"completed"}:
            await asyncio.sleep(0.001)
        await is_idle(harness)

    run_with_harness(tmp_path, before, [Gate()])
    run_with_harness(tmp_path, after, DONE)


def test_a_recovered_conversation_is_whole_and_unlocked(tmp_path: Path) -> None:
    held: dict[str, str] = {}

    async def before(harness: Harness) -> None:
        held["conversation"] = await harness.converse()
        await harness.create("one", conversation=held["conversation"])

    async def after(harness: Harness) -> None:
        await harness.worker.recover()
        while set(await statuses(harness)) != {"completed"}:
            await asyncio.sleep(0.001)
        harness.ids._count = 1000
        await harness.answer("two", conversation=held["conversation"])
        assert await harness.texts_of(held["conversation"]) == ["one", "Hello", "two", "Hello"]

    run_with_harness(tmp_path, before, [Gate()])
    run_with_harness(tmp_path, after, DONE)


def test_a_mistake_of_ours_does_not_leave_a_response_without_an_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(harness: Harness) -> None:
        def break_down(call: Any) -> Any:
            raise RuntimeError("a mistake")

        harness.backend.translator = break_down  # type: ignore[method-assign]
        final = await harness.answer()
        assert (final["status"], final["error"]["code"]) == ("failed", "server_error")
        assert "mistake" in final["error"]["message"]
        await is_idle(harness)

    run_with_harness(tmp_path, body, DONE)
    assert "a mistake" in caplog.text


# -- cancelling


def test_cancelling_ends_a_run_with_what_it_showed(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        accepted = await harness.create("Hi", conversation=conversation)
        cursor = harness.reader.follow(accepted.response_id)
        await is_shown(harness, accepted.response_id)
        await harness.worker.cancel(accepted.response_id)
        final = await harness.end(accepted.response_id)
        assert (final["status"], answer_of(final)) == ("cancelled", "Hel")
        assert final["output"][0]["status"] == "incomplete"
        assert await harness.texts_of(conversation) == ["Hi", "Hel"]
        # The reader gets everything up to the cancelled event.
        frames = b""
        while part := await cursor.read():
            frames += part
        assert frames == b"".join(await harness.frames(accepted.response_id))
        await is_idle(harness)
        assert harness.backend.left == 1
        assert len(harness.backend.calls) == 1

    _, script = gated("Hel")
    run_with_harness(tmp_path, body, script)


def test_a_queued_response_can_be_cancelled_and_frees_its_place_in_the_queue(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        running = await harness.create()
        waiting = await harness.create()
        with pytest.raises(TooMany):
            await harness.create()
        await harness.worker.cancel(waiting.response_id)
        final = await harness.end(waiting.response_id)
        assert (final["status"], final["output"]) == ("cancelled", [])
        assert await harness.types(waiting.response_id) == ["created", "cancelled"]
        third = await harness.create()
        gate.open()
        for accepted in (running, third):
            assert (await harness.end(accepted.response_id))["status"] == "completed"
        await is_idle(harness)

    gate, script = gated()
    run_with_harness(tmp_path, body, script, capacity=Capacity(running=1, queued=1))


def test_cancelling_what_has_ended_changes_nothing(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        final = await harness.answer()
        before = await harness.frames(final["id"])
        for _ in range(2):
            await harness.worker.cancel(final["id"])
        assert await harness.show(final["id"]) == final
        assert await harness.frames(final["id"]) == before

    run_with_harness(tmp_path, body, DONE)


def test_concurrent_cancels_return_the_ended_response(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()

        async def cancel() -> None:
            await harness.worker.cancel(accepted.response_id)
            final = await harness.show(accepted.response_id)
            assert final is not None
            assert final["status"] == "cancelled"

        await asyncio.gather(*(cancel() for _ in range(5)))
        assert (await harness.types(accepted.response_id)).count("cancelled") == 1

    gate, script = gated("Hel")
    run_with_harness(tmp_path, body, script)


def test_a_cancel_goes_on_when_its_client_is_gone(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        reached = harness.ledger.hold("close")
        cancelling = asyncio.create_task(harness.worker.cancel(accepted.response_id))
        await reached.wait()
        cancelling.cancel()
        await turn()
        harness.ledger.let_pass("close")
        assert (await harness.end(accepted.response_id))["status"] == "cancelled"

    gate, script = gated("Hel")
    run_with_harness(tmp_path, body, script)


def test_a_cancel_is_carried_out_although_the_storage_fails_meanwhile(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        await gate.reached.wait()
        harness.ledger.failing = {"take_over": 1}
        with pytest.raises(StorageUnavailable):
            await harness.worker.cancel(accepted.response_id)
        assert await harness.show(accepted.response_id) is None
        harness.journal.failing = 2
        harness.ledger.failing = {"close": 2}
        await harness.worker.cancel(accepted.response_id)
        assert (await harness.end(accepted.response_id))["status"] == "cancelled"

    gate, script = gated("Hel")
    run_with_harness(tmp_path, body, script)


@pytest.mark.parametrize("seed", range(6))
def test_the_first_terminal_status_wins_whatever_the_interleaving(tmp_path: Path, seed: int) -> None:
    """Many runs, each cancelled once or twice at some moment between its first breath and after its end."""
    count = 25

    async def body(harness: Harness) -> None:
        chance = random.Random(seed)
        conversations = [await harness.converse() for _ in range(count)]

        async def live_through(conversation: str) -> str:
            accepted = await harness.create("Hi", conversation=conversation)

            async def cancel() -> str:
                for _ in range(chance.randrange(60)):
                    await asyncio.sleep(0)
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 0.02)
                await harness.worker.cancel(accepted.response_id)
                final = await harness.show(accepted.response_id)
                assert final is not None
                return str(final["status"])

            seen = await asyncio.gather(*(cancel() for _ in range(chance.randrange(1, 3))))
            final = await harness.end(accepted.response_id)
            # Every cancel has returned the status with which it ended.
            assert set(seen) == {final["status"]}
            assert final["status"] in ("completed", "cancelled")
            kept = await harness.texts_of(conversation)
            assert kept[0] == "Hi"
            assert "".join(kept[1:]) == answer_of(final)
            return str(final["status"])

        outcomes = await asyncio.gather(*(live_through(conversation) for conversation in conversations))
        assert set(outcomes) <= {"completed", "cancelled"}
        await is_idle(harness)
        # Every conversation is unlocked.
        for conversation in conversations[:3]:
            await harness.answer("again", conversation=conversation)

    run_with_harness(
        tmp_path,
        body,
        [role_chunk(), "Hel", "lo", " th", "ere", finish_chunk()],
        capacity=Capacity(running=10, queued=50),
    )


def test_foreground_runs_without_a_reader_are_cancelled_after_a_while(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        read, unread = await harness.create(), await harness.create()
        background = await harness.create(background=True)
        cursor = harness.reader.follow(read.response_id)
        await cursor.read()
        harness.clock.time += 10
        await harness.worker.cancel_abandoned(10.0)
        assert set(await statuses(harness)) <= {"in_progress", "queued"}
        harness.clock.time += 1
        await harness.worker.cancel_abandoned(10.0)
        assert (await harness.end(unread.response_id))["status"] == "cancelled"
        cursor.close()
        harness.clock.time += 11
        await harness.worker.cancel_abandoned(10.0)
        assert (await harness.end(read.response_id))["status"] == "cancelled"
        assert await harness.show(background.response_id) is None

    run_with_harness(tmp_path, body, [Gate()])

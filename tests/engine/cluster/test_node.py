"""Several nodes on one database: any of them serves any response, and takes over from any that died."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from outlive.core.errors import Behind, MustWait, TooMany
from outlive.core.events import split_frames
from outlive.engine.slots import Capacity
from outlive.ports.bell import Ring
from outlive.ports.ledger import Admission, Admitted, AppendResults, Closing, Entry
from outlive.testing import Script, answer, finish_chunk, usage_chunk
from tests.engine.cluster_harness import poll_once, run_with_cluster
from tests.engine.harness import Harness, answer_of
from tests.support.scripting import Gate

DONE: list[Script] = [[answer("Hello")]]


def gated(*before: str) -> tuple[Gate, list[Script]]:
    """A script that says something, waits, and ends."""
    gate = Gate()
    return gate, [[*before, gate, "lo", finish_chunk(), usage_chunk()]]


async def read_all(harness: Harness, response_id: str) -> bytes:
    cursor, parts = harness.reader.follow(response_id), []
    try:
        while frames := await cursor.read():
            parts.append(frames)
    finally:
        cursor.leave()
    return b"".join(parts)


async def is_shown(harness: Harness, response_id: str, count: int = 5) -> None:
    while len(await harness.frames(response_id)) < count:
        await asyncio.sleep(0.001)


async def holder(harness: Harness, response_id: str) -> tuple[str | None, int, int]:
    """Who holds the lease, with which fence, at which attempt."""

    def work(db: sqlite3.Connection) -> Any:
        sql = "SELECT worker, fence, attempts FROM leases JOIN responses r ON r.key = response WHERE r.id = ?"
        return db.execute(sql, (response_id,)).fetchone()

    return await harness.database.read("look", work)


# -- any node serves any response


def test_what_runs_on_one_node_is_streamed_and_waited_for_on_others(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second, third = nodes
        accepted = await first.create()
        streaming = asyncio.create_task(read_all(second, accepted.response_id))
        waiting = asyncio.create_task(third.reader.wait_end(accepted.response_id, 30.0))
        await gate.reached.wait()
        await is_shown(first, accepted.response_id)
        assert (await third.reader.fold(accepted.response_id)).output[0]["content"][0]["text"] == "Hel"
        gate.open()
        final = await first.end(accepted.response_id)
        assert answer_of(final) == "Hello"
        assert split_frames(await streaming) == await first.frames(accepted.response_id)
        await waiting

    gate, script = gated("Hel")
    run_with_cluster(tmp_path, body, script, DONE, DONE)


def test_a_cancel_on_another_node_stops_the_run_at_once(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        accepted = await first.create()
        streaming = asyncio.create_task(read_all(first, accepted.response_id))
        await gate.reached.wait()
        await is_shown(first, accepted.response_id)
        await second.worker.cancel(accepted.response_id)
        final = await second.end(accepted.response_id)
        assert (final["status"], answer_of(final)) == ("cancelled", "Hel")
        while first.backend.left == 0:  # its upstream call was stopped, though it never said another word
            await asyncio.sleep(0.001)
        assert split_frames(await streaming) == await first.frames(accepted.response_id)
        assert first.worker.room.running == 0

    gate, script = gated("Hel")
    run_with_cluster(tmp_path, body, script, DONE)


def test_with_the_bell_dead_a_cancelled_run_is_stopped_by_the_next_round(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        assert first.bus is not None
        first.bus.cut = True
        accepted = await first.create()
        await gate.reached.wait()
        await second.worker.cancel(accepted.response_id)
        await asyncio.sleep(0.02)
        assert first.backend.left == 0
        await poll_once(first)
        while first.backend.left == 0:
            await asyncio.sleep(0.001)
        assert (await first.end(accepted.response_id))["status"] == "cancelled"

    gate, script = gated()
    run_with_cluster(tmp_path, body, script, DONE)


# -- taking over


@pytest.mark.parametrize("rung", [True, False])
def test_a_run_with_nothing_visible_is_run_again_elsewhere(tmp_path: Path, rung: bool) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second, third = nodes
        assert first.bus is not None
        first.bus.cut = not rung
        accepted = await first.create()
        await gate.reached.wait()
        streaming = asyncio.create_task(read_all(third, accepted.response_id))
        second.ledger.dead = {"node-0"}
        await poll_once(second)
        while (await second.catalog.status("ann", accepted.response_id)) != "completed":
            await asyncio.sleep(0.001)
        gate.open()  # the one that was thought dead goes on
        await poll_once(third)
        final = await second.end(accepted.response_id)
        assert (answer_of(final), final["outlive"]["attempts"]) == ("Hello", 2)
        assert split_frames(await streaming) == await second.frames(accepted.response_id)
        while first.worker.room.running:
            await asyncio.sleep(0.001)

    gate, script = gated()
    run_with_cluster(tmp_path, body, script, DONE, DONE)


def test_a_text_goes_on_in_place_on_another_node_for_the_same_reader(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second, third = nodes
        accepted = await first.create()
        streaming = asyncio.create_task(read_all(third, accepted.response_id))
        await gate.reached.wait()
        await is_shown(first, accepted.response_id)
        second.ledger.dead = {"node-0"}
        await poll_once(second)
        final = await second.end(accepted.response_id)
        assert (final["status"], answer_of(final)) == ("completed", "Hello")
        assert len(final["output"]) == 1
        assert final["outlive"] == {"attempts": 2, "resumed_at": [5]}
        assert split_frames(await streaming) == await second.frames(accepted.response_id)

    gate, script = gated("Hel")
    rest: list[Script] = [["lo", finish_chunk(), usage_chunk()]]
    run_with_cluster(tmp_path, body, script, rest, rest, continuation="prefill")


def test_a_text_that_cannot_go_on_ends_as_interrupted_elsewhere(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        accepted = await first.create()
        await gate.reached.wait()
        await is_shown(first, accepted.response_id)
        second.ledger.dead = {"node-0"}
        await poll_once(second)
        final = await second.end(accepted.response_id)
        assert final["status"] == "incomplete"
        assert final["incomplete_details"]["reason"] == "interrupted"
        assert answer_of(final) == "Hel"

    gate, script = gated("Hel")
    run_with_cluster(tmp_path, body, script, DONE)


def test_a_node_that_was_thought_dead_keeps_what_nobody_has_taken(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        accepted = await first.create()
        await gate.reached.wait()
        second.ledger.dead = {"node-0"}
        await second.ledger.free_dead_leases()
        assert (await holder(first, accepted.response_id))[0] is None
        await poll_once(first)
        assert await holder(first, accepted.response_id) == ("node-0", 1, 1)
        gate.open()
        final = await first.end(accepted.response_id)
        assert (answer_of(final), final.get("outlive")) == ("Hello", None)
        assert len(first.backend.calls) == 1

    gate, script = gated("Hel")
    run_with_cluster(tmp_path, body, script, DONE)


def test_a_node_that_was_thought_dead_drops_what_another_has_taken(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        assert first.bus is not None
        first.bus.cut = True
        accepted = await first.create()
        await gate.reached.wait()
        second.ledger.dead = {"node-0"}
        await poll_once(second)
        await other.reached.wait()
        await poll_once(first)
        while first.worker.room.running:
            await asyncio.sleep(0.001)
        assert first.backend.left == 1
        other.open()
        assert answer_of(await second.end(accepted.response_id)) == "lo"

    gate, script = gated()
    other, again = gated()
    run_with_cluster(tmp_path, body, script, again)


# -- who runs what


@pytest.mark.parametrize("rung", [True, False])
def test_a_node_that_takes_nothing_leaves_stored_responses_to_the_others(tmp_path: Path, rung: bool) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        assert first.bus is not None
        first.worker._takes = False
        first.bus.cut = not rung
        accepted = await first.create()
        streaming = asyncio.create_task(read_all(first, accepted.response_id))
        if not rung:
            await asyncio.sleep(0.02)
            assert not second.backend.calls
            await poll_once(second)
        final = await second.end(accepted.response_id)
        if not rung:
            await poll_once(first)
        assert answer_of(final) == "Hello"
        assert split_frames(await streaming) == await first.frames(accepted.response_id)
        assert not first.backend.calls

    run_with_cluster(tmp_path, body, DONE, DONE)


def test_a_node_that_takes_nothing_runs_what_is_not_stored(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        first.worker._takes = False
        accepted = await first.create(store=False)
        await first.reader.wait_end(accepted.response_id)
        first.ephemeral.stop(accepted.response_id)
        assert (len(first.backend.calls), len(second.backend.calls)) == (1, 0)

    run_with_cluster(tmp_path, body, DONE, DONE)


def test_a_full_node_leaves_what_waits_to_one_that_has_room(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        running = await first.create()
        await gate.reached.wait()
        waiting = await first.create()
        assert answer_of(await second.end(waiting.response_id)) == "Hello"
        gate.open()
        await first.end(running.response_id)

    gate, script = gated()
    run_with_cluster(tmp_path, body, script, DONE, capacity=Capacity(running=1, waiting=0))


def test_what_waits_is_taken_when_a_place_comes_free_anywhere(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        running = [await first.create(), await second.create()]
        for gate in gates:
            await gate.reached.wait()
        waiting = [await first.create() for _ in range(3)]
        for gate in gates:
            gate.open()
        for accepted in running + waiting:
            assert (await first.end(accepted.response_id))["status"] == "completed"

    gates, scripts = zip(*[gated() for _ in range(2)], strict=True)
    run_with_cluster(tmp_path, body, *[[*script, *DONE] for script in scripts], capacity=Capacity(running=1, waiting=0))


def test_an_owner_with_enough_running_elsewhere_has_to_wait(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        admit, asked = first.ledger.admit, []

        def refuse_to_run(admission: Admission) -> asyncio.Future[Admitted]:
            asked.append(admission.worker)
            if admission.worker is None:
                return admit(admission)
            refused: asyncio.Future[Admitted] = asyncio.get_running_loop().create_future()
            refused.set_exception(MustWait())
            return refused

        first.ledger.admit = refuse_to_run  # type: ignore[method-assign]
        accepted = await first.create(background=True)
        assert asked == ["node-0", None]
        assert (await first.events(accepted.response_id))[0]["response"]["status"] == "queued"
        assert answer_of(await second.end(accepted.response_id)) == "Hello"
        assert first.worker.room.running == 0

    run_with_cluster(tmp_path, body, DONE, DONE)


def test_a_limit_that_holds_for_all_nodes_is_told_to_the_caller(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        def refuse(admission: Admission) -> asyncio.Future[Admitted]:
            refused: asyncio.Future[Admitted] = asyncio.get_running_loop().create_future()
            refused.set_exception(TooMany.waiting(3) if admission.worker is None else MustWait())
            return refused

        (only,) = nodes
        only.ledger.admit = refuse  # type: ignore[method-assign]
        with pytest.raises(TooMany, match="3 responses are waiting"):
            await only.create()
        await asyncio.sleep(0)
        assert only.worker.room.running == 0

    run_with_cluster(tmp_path, body, DONE)


def test_a_node_that_leaves_hands_its_runs_to_the_others_at_once(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second, third = nodes
        silent, shown = await first.create(), await first.create()
        streams = [asyncio.create_task(read_all(third, each.response_id)) for each in (silent, shown)]
        await is_shown(first, shown.response_id)
        await first.worker.drain(10.0)
        for accepted, stream in zip((silent, shown), streams, strict=True):
            final = await second.end(accepted.response_id)
            assert final["status"] == "completed"
            assert split_frames(await stream) == await first.frames(accepted.response_id)
        # Nothing was lost by it, so no attempt was counted.
        assert (await second.end(silent.response_id)).get("outlive") is None

    rest: list[Script] = [["lo", finish_chunk(), usage_chunk()]]
    scripts: list[Script] = [[Gate()], ["Hel", Gate()]]
    run_with_cluster(tmp_path, body, scripts, rest, rest, continuation="prefill")


# -- what others read


def test_a_reader_on_another_node_keeps_a_run_from_being_abandoned(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        accepted = await first.create()
        await gate.reached.wait()
        streaming = asyncio.create_task(read_all(second, accepted.response_id))
        while not first.notifier or not len(first.notifier):
            await asyncio.sleep(0.001)
        first.clock.time += 100.0
        await first.worker.cancel_abandoned(5.0)
        assert (await first.catalog.status("ann", accepted.response_id)) == "in_progress"
        gate.open()
        await streaming

    gate, script = gated()
    run_with_cluster(tmp_path, body, script, DONE)


def test_a_silent_retry_on_another_node_finds_what_the_first_node_left_unanswered(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        accepted = await first.create(retry=0)
        # The connection is still there, on the first node: this is another client's.
        first.admitter.creates.add(accepted.response_id)
        other = await second.create(retry=1)
        assert other.response_id != accepted.response_id
        await second.ledger.mark_answered(other.response_id)
        first.admitter.creates.discard(accepted.response_id)
        assert (await second.create(retry=1)).response_id == accepted.response_id

    run_with_cluster(tmp_path, body, DONE, DONE)


# -- when the journal has lost something (a standby was promoted that had not heard of it)


class Forgetful:
    """Makes the journal of a response lose its last events once, and the ledger notice."""

    def __init__(self, harness: Harness, response_id: str, last: int) -> None:
        self._rig, self._id, self._last = harness, response_id, last
        self._append, self._close = harness.ledger.append, harness.ledger.close
        harness.ledger.append = self.append  # type: ignore[method-assign]
        harness.ledger.close = self.close  # type: ignore[method-assign]

    def append(self, entries: list[Entry]) -> asyncio.Future[AppendResults]:
        async def go() -> AppendResults:
            kept: AppendResults = []
            for entry in entries:
                if entry.first > await self.end() + 1:
                    kept.append(Behind(await self.end()))
                else:
                    kept += await self._append([entry])
            return kept

        return asyncio.ensure_future(go())

    def close(self, closing: Closing) -> asyncio.Future[None]:
        async def go() -> None:
            if closing.entry.first > await self.end() + 1:
                raise Behind(await self.end())
            await self._close(closing)

        return asyncio.ensure_future(go())

    async def end(self) -> int:
        return len(await self._rig.frames(self._id)) - 1

    async def lose(self) -> None:
        def work(db: sqlite3.Connection) -> None:
            sql = "DELETE FROM events WHERE first > ? AND response = (SELECT key FROM responses WHERE id = ?)"
            db.execute(sql, (self._last, self._id))

        await self._rig.database.write("forget", work)


@pytest.mark.parametrize("at_the_end", [True, False])
def test_events_that_the_journal_lost_are_appended_again(tmp_path: Path, at_the_end: bool) -> None:
    async def body(nodes: list[Harness]) -> None:
        (only,) = nodes
        accepted = await only.create()
        await gate.reached.wait()
        await is_shown(only, accepted.response_id)
        seen = await only.frames(accepted.response_id)
        forgetful = Forgetful(only, accepted.response_id, last=1)
        await forgetful.lose()
        assert await only.frames(accepted.response_id) == seen[:2]
        gate.open()
        if at_the_end:
            assert answer_of(await only.end(accepted.response_id)) == "Hello"
        await is_shown(only, accepted.response_id, len(seen) + 1)
        assert (await only.frames(accepted.response_id))[: len(seen)] == seen

    gate, script = gated("Hel")
    if not at_the_end:
        script = [["Hel", gate, "lo", Gate()]]
    run_with_cluster(tmp_path, body, script)


def test_a_response_whose_journal_lost_more_than_is_known_goes_on_from_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(nodes: list[Harness]) -> None:
        (only,) = nodes
        accepted = await only.create()
        for count, open_next in zip((20, 62, 104), (*gates, None), strict=True):
            await is_shown(only, accepted.response_id, count)
            if open_next is not None:
                open_next.open()
        forgetful = Forgetful(only, accepted.response_id, last=19)
        await forgetful.lose()
        gate.open()
        final = await only.end(accepted.response_id)
        assert final["status"] == "completed"
        assert answer_of(final) == "x" * 100 * 16 + "!"
        assert final["outlive"]["resumed_at"] == [20]

    gates, gate, text = (Gate(), Gate()), Gate(), "x" * 100
    texts: Script = [*[text] * 16, gates[0], *[text] * 42, gates[1], *[text] * 42, gate, "y", finish_chunk()]
    scripts: list[Script] = [texts, ["!", finish_chunk()]]
    run_with_cluster(tmp_path, body, scripts, continuation="prefill")
    assert "has lost events" in caplog.text


# -- the round itself


def test_a_line_that_was_down_is_made_up_for_at_once(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        assert first.bus is not None
        assert second.engine.node is not None
        first.worker._takes = False
        first.bus.cut = True
        accepted = await first.create()
        running = asyncio.create_task(second.engine.node.run())
        await asyncio.sleep(0)
        second.engine.node.on_chunks(Ring("missed"))
        assert answer_of(await second.end(accepted.response_id)) == "Hello"
        assert second.heartbeat.ticks
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_with_cluster(tmp_path, body, DONE, DONE)


def test_a_node_whose_heart_stopped_takes_nothing_before_it_knows_what_is_its_own(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        accepted = await first.create()
        await gate.reached.wait()
        # It was stopped for so long that its lease is freed; the others are full. Then it wakes up, and hears of that.
        first.heartbeat.beating = False
        second.ledger.dead = {"node-0"}
        await second.ledger.free_dead_leases()
        assert not first.worker.reserve("bob")
        first.worker.find_work()
        await asyncio.sleep(0.02)
        await first.worker.confirm()
        await second.ledger.free_dead_leases()  # for its heart did not beat yet when it asked
        first.heartbeat.beating = True
        first.worker.find_work()
        await asyncio.sleep(0.02)
        assert (await holder(first, accepted.response_id))[0] is None
        await poll_once(first)
        assert await holder(first, accepted.response_id) == ("node-0", 1, 1)
        gate.open()
        assert answer_of(await first.end(accepted.response_id)) == "Hello"
        assert len(first.backend.calls) == 1
        assert first.worker.reserve("bob")

    gate, script = gated("Hel")
    run_with_cluster(tmp_path, body, script, DONE)


def test_a_storage_that_is_down_does_not_end_the_rounds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(nodes: list[Harness]) -> None:
        (only,) = nodes
        node = only.engine.node
        assert node is not None
        only.ledger.failing = {"free_dead_leases": 2}
        running = asyncio.create_task(node.run())
        for _ in range(3):
            while only.ledger.failing["free_dead_leases"] == 2:
                await asyncio.sleep(0.001)
            node.on_chunks(Ring("missed"))
            await asyncio.sleep(0.01)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert only.heartbeat.ticks >= 1

    run_with_cluster(tmp_path, body, DONE)
    assert caplog.text.count("out of touch") == 1

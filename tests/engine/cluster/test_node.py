"""Several nodes on one database: each serves every response, and takes over from those that died."""

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
    """Return a script that streams some text, waits at a gate, and ends."""
    gate = Gate()
    return gate, [[*before, gate, "lo", finish_chunk(), usage_chunk()]]


async def read_all(harness: Harness, response_id: str) -> bytes:
    """Read a response to its end."""
    cursor, parts = harness.reader.follow(response_id), []
    try:
        while frames := await cursor.read():
            parts.append(frames)
    finally:
        cursor.close()
    return b"".join(parts)


async def wait_until_shown(harness: Harness, response_id: str, count: int = 5) -> None:
    while len(await harness.frames(response_id)) < count:
        await asyncio.sleep(0.001)


async def wait_until_subscribed(harness: Harness) -> None:
    """Wait until a node that reads a response has subscribed to this one, which runs it."""
    assert harness.notifier is not None
    while not harness.notifier._subscriptions:
        await asyncio.sleep(0.001)


async def find_holder(harness: Harness, response_id: str) -> tuple[str | None, int, int]:
    """Return the worker that holds the lease, its fence and its attempt."""

    def work(db: sqlite3.Connection) -> Any:
        sql = "SELECT worker, fence, attempts FROM leases JOIN responses r ON r.key = response WHERE r.id = ?"
        return db.execute(sql, (response_id,)).fetchone()

    return await harness.database.read("look", work)


# -- any node serves any response


def test_a_response_is_streamed_and_waited_for_on_other_nodes(tmp_path: Path) -> None:
    gate, script = gated("Hel")

    async def body(nodes: list[Harness]) -> None:
        first, second, third = nodes
        accepted = await first.create()
        streaming = asyncio.create_task(read_all(second, accepted.response_id))
        waiting = asyncio.create_task(third.reader.wait_end(accepted.response_id, 30.0))
        await gate.reached.wait()
        await wait_until_shown(first, accepted.response_id)
        assert (await third.reader.fold(accepted.response_id)).output[0]["content"][0]["text"] == "Hel"
        gate.open()
        final = await first.end(accepted.response_id)
        assert answer_of(final) == "Hello"
        assert split_frames(await streaming) == await first.frames(accepted.response_id)
        await waiting

    run_with_cluster(tmp_path, body, script, DONE, DONE)


def test_a_cancel_on_another_node_stops_the_run_at_once(tmp_path: Path) -> None:
    gate, script = gated("Hel")

    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        accepted = await first.create()
        streaming = asyncio.create_task(read_all(first, accepted.response_id))
        await gate.reached.wait()
        await wait_until_shown(first, accepted.response_id)
        await second.worker.cancel(accepted.response_id)
        final = await second.end(accepted.response_id)
        assert (final["status"], answer_of(final)) == ("cancelled", "Hel")
        while first.backend.left == 0:  # the call to a silent upstream is stopped, too
            await asyncio.sleep(0.001)
        assert split_frames(await streaming) == await first.frames(accepted.response_id)
        assert first.worker.slots.running == 0

    run_with_cluster(tmp_path, body, script, DONE)


def test_without_the_bell_a_cancelled_run_is_stopped_by_the_next_poll(tmp_path: Path) -> None:
    gate, script = gated()

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

    run_with_cluster(tmp_path, body, script, DONE)


def test_a_reader_subscribes_to_the_node_that_cancels_before_the_end(tmp_path: Path) -> None:
    gate, script = gated("Hel")

    async def body(nodes: list[Harness]) -> None:
        first, second, third = nodes
        accepted = await first.create()
        streaming = asyncio.create_task(read_all(third, accepted.response_id))
        await gate.reached.wait()
        await wait_until_subscribed(first)
        closing = second.ledger.hold("close")
        cancelling = asyncio.create_task(second.worker.cancel(accepted.response_id))
        await closing.wait()
        await wait_until_subscribed(second)
        second.ledger.let_pass("close")
        await cancelling
        assert split_frames(await streaming) == await second.frames(accepted.response_id)

    run_with_cluster(tmp_path, body, script, DONE, DONE)


# -- taking over from dead nodes


def test_a_reader_subscribes_to_the_node_that_takes_over_without_a_poll(tmp_path: Path) -> None:
    gate, script = gated("Hel")
    other, rest = gated()

    async def body(nodes: list[Harness]) -> None:
        first, second, third = nodes
        accepted = await first.create()
        streaming = asyncio.create_task(read_all(third, accepted.response_id))
        await gate.reached.wait()
        await wait_until_subscribed(first)
        second.ledger.dead = {"node-0"}
        await poll_once(second)
        await other.reached.wait()
        await wait_until_subscribed(second)
        other.open()
        assert answer_of(await second.end(accepted.response_id)) == "Hello"
        assert split_frames(await streaming) == await second.frames(accepted.response_id)

    run_with_cluster(tmp_path, body, script, rest, DONE, continuation="prefill")


@pytest.mark.parametrize("rung", [True, False])
def test_a_run_that_showed_nothing_is_started_again_on_another_node(tmp_path: Path, rung: bool) -> None:
    gate, script = gated()

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
        gate.open()  # the node that seemed dead goes on
        await poll_once(third)
        final = await second.end(accepted.response_id)
        assert (answer_of(final), final["outlive"]["attempts"]) == ("Hello", 2)
        assert split_frames(await streaming) == await second.frames(accepted.response_id)
        while first.worker.slots.running:
            await asyncio.sleep(0.001)

    run_with_cluster(tmp_path, body, script, DONE, DONE)


def test_a_text_is_continued_on_another_node_for_the_same_reader(tmp_path: Path) -> None:
    gate, script = gated("Hel")
    rest: list[Script] = [["lo", finish_chunk(), usage_chunk()]]

    async def body(nodes: list[Harness]) -> None:
        first, second, third = nodes
        accepted = await first.create()
        streaming = asyncio.create_task(read_all(third, accepted.response_id))
        await gate.reached.wait()
        await wait_until_shown(first, accepted.response_id)
        second.ledger.dead = {"node-0"}
        await poll_once(second)
        final = await second.end(accepted.response_id)
        assert (final["status"], answer_of(final)) == ("completed", "Hello")
        assert len(final["output"]) == 1
        assert final["outlive"] == {"attempts": 2, "resumed_at": [5]}
        await poll_once(third)
        assert split_frames(await streaming) == await second.frames(accepted.response_id)

    run_with_cluster(tmp_path, body, script, rest, rest, continuation="prefill")


def test_a_text_that_cannot_be_continued_ends_as_interrupted_on_another_node(tmp_path: Path) -> None:
    gate, script = gated("Hel")

    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        accepted = await first.create()
        await gate.reached.wait()
        await wait_until_shown(first, accepted.response_id)
        second.ledger.dead = {"node-0"}
        await poll_once(second)
        final = await second.end(accepted.response_id)
        assert final["status"] == "incomplete"
        assert final["incomplete_details"]["reason"] == "interrupted"
        assert answer_of(final) == "Hel"

    run_with_cluster(tmp_path, body, script, DONE)


def test_a_node_that_seemed_dead_keeps_a_run_that_no_other_node_has_taken(tmp_path: Path) -> None:
    gate, script = gated("Hel")

    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        accepted = await first.create()
        await gate.reached.wait()
        second.ledger.dead = {"node-0"}
        await second.ledger.free_dead_leases()
        assert (await find_holder(first, accepted.response_id))[0] is None
        await poll_once(first)
        assert await find_holder(first, accepted.response_id) == ("node-0", 1, 1)
        gate.open()
        final = await first.end(accepted.response_id)
        assert (answer_of(final), final.get("outlive")) == ("Hello", None)
        assert len(first.backend.calls) == 1

    run_with_cluster(tmp_path, body, script, DONE)


def test_a_node_that_seemed_dead_stops_a_run_that_another_node_has_taken(tmp_path: Path) -> None:
    gate, script = gated()
    other, again = gated()

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
        while first.worker.slots.running:
            await asyncio.sleep(0.001)
        assert first.backend.left == 1
        other.open()
        assert answer_of(await second.end(accepted.response_id)) == "lo"

    run_with_cluster(tmp_path, body, script, again)


# -- the node that runs a response


@pytest.mark.parametrize("rung", [True, False])
def test_a_node_that_claims_nothing_leaves_stored_responses_to_the_others(tmp_path: Path, rung: bool) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        assert first.bus is not None
        first.worker._claims = False
        first.bus.cut = not rung
        accepted = await first.create()
        streaming = asyncio.create_task(read_all(first, accepted.response_id))
        if not rung:
            await asyncio.sleep(0.02)
            assert not second.backend.calls
            await poll_once(second)
        final = await second.end(accepted.response_id)
        await poll_once(first)
        assert answer_of(final) == "Hello"
        assert split_frames(await streaming) == await first.frames(accepted.response_id)
        assert not first.backend.calls

    run_with_cluster(tmp_path, body, DONE, DONE)


def test_a_node_that_claims_nothing_runs_responses_that_are_not_stored(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        first.worker._claims = False
        accepted = await first.create(store=False)
        await first.reader.wait_end(accepted.response_id)
        first.ephemeral.discard(accepted.response_id)
        assert (len(first.backend.calls), len(second.backend.calls)) == (1, 0)

    run_with_cluster(tmp_path, body, DONE, DONE)


def test_a_full_node_leaves_queued_responses_to_one_with_a_free_slot(tmp_path: Path) -> None:
    gate, script = gated()

    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        running = await first.create()
        await gate.reached.wait()
        waiting = await first.create()
        assert answer_of(await second.end(waiting.response_id)) == "Hello"
        gate.open()
        await first.end(running.response_id)

    run_with_cluster(tmp_path, body, script, DONE, capacity=Capacity(running=1, queued=0))


def test_queued_responses_are_claimed_when_a_slot_is_released_on_any_node(tmp_path: Path) -> None:
    gates, scripts = zip(*[gated() for _ in range(2)], strict=True)

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

    run_with_cluster(tmp_path, body, *[[*script, *DONE] for script in scripts], capacity=Capacity(running=1, queued=0))


def test_a_response_is_queued_if_its_owner_has_enough_running_on_other_nodes(tmp_path: Path) -> None:
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
        assert first.worker.slots.running == 0

    run_with_cluster(tmp_path, body, DONE, DONE)


def test_a_limit_over_all_nodes_refuses_the_create(tmp_path: Path) -> None:
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
        assert only.worker.slots.running == 0

    run_with_cluster(tmp_path, body, DONE)


def test_a_draining_node_releases_its_runs_to_the_others_at_once(tmp_path: Path) -> None:
    gate = Gate()
    rest: list[Script] = [["lo", finish_chunk(), usage_chunk()]]
    scripts: list[Script] = [[gate], ["Hel", Gate()]]

    async def body(nodes: list[Harness]) -> None:
        first, second, third = nodes
        silent = await first.create()
        await gate.reached.wait()
        shown = await first.create()
        streams = [asyncio.create_task(read_all(third, each.response_id)) for each in (silent, shown)]
        await wait_until_shown(first, shown.response_id)
        await first.engine.drain(10.0)
        for accepted, stream in zip((silent, shown), streams, strict=True):
            final = await second.end(accepted.response_id)
            assert final["status"] == "completed"
            await poll_once(third)
            assert split_frames(await stream) == await first.frames(accepted.response_id)
        # Nothing was lost by it, so no attempt was counted.
        assert (await second.end(silent.response_id)).get("outlive") is None

    run_with_cluster(tmp_path, body, scripts, rest, rest, continuation="prefill")


# -- readers and clients of other nodes


def test_a_reader_on_another_node_keeps_a_run_from_being_abandoned(tmp_path: Path) -> None:
    gate, script = gated()

    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        accepted = await first.create()
        await gate.reached.wait()
        streaming = asyncio.create_task(read_all(second, accepted.response_id))
        while not first.notifier or not first.notifier._subscriptions:
            await asyncio.sleep(0.001)
        first.clock.time += 100.0
        await first.worker.cancel_abandoned(5.0)
        assert (await first.catalog.status("ann", accepted.response_id)) == "in_progress"
        gate.open()
        await streaming

    run_with_cluster(tmp_path, body, script, DONE)


def test_a_silent_retry_on_another_node_attaches_to_an_unanswered_response(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        accepted = await first.create(retry=0)
        # The first node still serves the connection of the create, so the retry must be another client's.
        first.creates.here.add(accepted.response_id)
        other = await second.create(retry=1)
        assert other.response_id != accepted.response_id
        await second.ledger.mark_answered(other.response_id)
        first.creates.here.discard(accepted.response_id)
        assert (await second.create(retry=1)).response_id == accepted.response_id

    run_with_cluster(tmp_path, body, DONE, DONE)


# -- a journal that has lost committed events (a standby was promoted that lacked them)


class LossyJournal:
    """Makes the journal of a response lose its last events, and the ledger notice it."""

    def __init__(self, harness: Harness, response_id: str, last: int) -> None:
        self._harness, self._id, self._last = harness, response_id, last
        self._append, self._close = harness.ledger.append, harness.ledger.close
        harness.ledger.append = self.append  # type: ignore[method-assign]
        harness.ledger.close = self.close  # type: ignore[method-assign]

    def append(self, entries: list[Entry]) -> asyncio.Future[AppendResults]:
        async def go() -> AppendResults:
            results: AppendResults = []
            for entry in entries:
                if entry.first > await self.end() + 1:
                    results.append(Behind(await self.end()))
                else:
                    results += await self._append([entry])
            return results

        return asyncio.ensure_future(go())

    def close(self, closing: Closing) -> asyncio.Future[None]:
        async def go() -> None:
            if closing.entry.first > await self.end() + 1:
                raise Behind(await self.end())
            await self._close(closing)

        return asyncio.ensure_future(go())

    async def end(self) -> int:
        return len(await self._harness.frames(self._id)) - 1

    async def lose(self) -> None:
        def work(db: sqlite3.Connection) -> None:
            sql = "DELETE FROM events WHERE first > ? AND response = (SELECT key FROM responses WHERE id = ?)"
            db.execute(sql, (self._last, self._id))

        await self._harness.database.write("forget", work)


@pytest.mark.parametrize("at_the_end", [True, False])
def test_events_that_the_journal_lost_are_appended_again(tmp_path: Path, at_the_end: bool) -> None:
    gate, script = gated("Hel")
    if not at_the_end:
        script = [["Hel", gate, "lo", Gate()]]

    async def body(nodes: list[Harness]) -> None:
        (only,) = nodes
        accepted = await only.create()
        await gate.reached.wait()
        await wait_until_shown(only, accepted.response_id)
        seen = await only.frames(accepted.response_id)
        lossy = LossyJournal(only, accepted.response_id, last=1)
        await lossy.lose()
        assert await only.frames(accepted.response_id) == seen[:2]
        gate.open()
        if at_the_end:
            assert answer_of(await only.end(accepted.response_id)) == "Hello"
        await wait_until_shown(only, accepted.response_id, len(seen) + 1)
        assert (await only.frames(accepted.response_id))[: len(seen)] == seen

    run_with_cluster(tmp_path, body, script)


def test_a_response_whose_lost_events_are_gone_is_continued_from_the_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gates, gate, text = (Gate(), Gate()), Gate(), "x" * 100
    texts: Script = [*[text] * 16, gates[0], *[text] * 42, gates[1], *[text] * 42, gate, "y", finish_chunk()]
    scripts: list[Script] = [texts, ["!", finish_chunk()]]

    async def body(nodes: list[Harness]) -> None:
        (only,) = nodes
        accepted = await only.create()
        for count, open_next in zip((20, 62, 104), (*gates, None), strict=True):
            await wait_until_shown(only, accepted.response_id, count)
            if open_next is not None:
                open_next.open()
        lossy = LossyJournal(only, accepted.response_id, last=19)
        await lossy.lose()
        gate.open()
        final = await only.end(accepted.response_id)
        assert final["status"] == "completed"
        assert answer_of(final) == "x" * 100 * 16 + "!"
        assert final["outlive"]["resumed_at"] == [20]

    run_with_cluster(tmp_path, body, scripts, continuation="prefill")
    assert "journal lost committed events" in caplog.text


# -- the polls themselves


def test_missed_rings_are_made_up_for_by_a_poll_at_once(tmp_path: Path) -> None:
    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        assert first.bus is not None
        assert second.node is not None
        first.worker._claims = False
        first.bus.cut = True
        accepted = await first.create()
        running = asyncio.create_task(second.node.run())
        await asyncio.sleep(0)
        second.node.on_ring(Ring("missed"))
        assert answer_of(await second.end(accepted.response_id)) == "Hello"
        assert second.heartbeat.ticks
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_with_cluster(tmp_path, body, DONE, DONE)


def test_a_node_without_a_heartbeat_claims_nothing_before_its_leases_are_confirmed(tmp_path: Path) -> None:
    gate, script = gated("Hel")

    async def body(nodes: list[Harness]) -> None:
        first, second = nodes
        accepted = await first.create()
        await gate.reached.wait()
        # It was stopped for so long that its lease was freed, and the others are full. Then it goes on, and polls.
        first.heartbeat.beating = False
        second.ledger.dead = {"node-0"}
        await second.ledger.free_dead_leases()
        assert not first.worker.reserve("bob")
        first.worker.find_work()
        await asyncio.sleep(0.02)
        await first.worker.confirm_leases()
        await second.ledger.free_dead_leases()  # its heart did not beat yet when it confirmed its leases
        first.heartbeat.beating = True
        first.worker.find_work()
        await asyncio.sleep(0.02)
        assert (await find_holder(first, accepted.response_id))[0] is None
        await poll_once(first)
        assert await find_holder(first, accepted.response_id) == ("node-0", 1, 1)
        gate.open()
        assert answer_of(await first.end(accepted.response_id)) == "Hello"
        assert len(first.backend.calls) == 1
        assert first.worker.reserve("bob")

    run_with_cluster(tmp_path, body, script, DONE)


def test_a_storage_that_is_down_does_not_end_the_polls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(nodes: list[Harness]) -> None:
        (only,) = nodes
        node = only.node
        assert node is not None
        only.ledger.failing = {"free_dead_leases": 2}
        running = asyncio.create_task(node.run())
        while only.ledger.failing["free_dead_leases"]:
            node.on_ring(Ring("missed"))
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert only.heartbeat.ticks >= 1

    run_with_cluster(tmp_path, body, DONE)
    assert caplog.text.count("cluster poll failed") == 1


def test_a_bug_in_a_poll_is_logged_and_polling_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body(nodes: list[Harness]) -> None:
        (only,) = nodes
        node = only.node
        assert node is not None
        polls = 0

        async def free_dead_leases() -> int:
            nonlocal polls
            polls += 1
            if polls == 1:
                raise RuntimeError("a mistake of ours")
            return 0

        only.ledger.free_dead_leases = free_dead_leases  # type: ignore[method-assign]
        running = asyncio.create_task(only.engine.run())
        while polls < 2:
            node.on_ring(Ring("missed"))
            await asyncio.sleep(0.001)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_with_cluster(tmp_path, body, DONE)
    assert "a mistake of ours" in caplog.text

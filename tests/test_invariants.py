"""Tests of the statements in ARCHITECTURE.md that always hold, each under the name that the page gives."""

from __future__ import annotations

import asyncio
import random
import re
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

from outlive.core.errors import StaleFence, UpstreamFault
from outlive.core.events import is_last, read_frame, split_frames
from outlive.core.owners import Policy
from outlive.engine.delivery.live import LiveResponses
from outlive.engine.delivery.reader import Cursor
from outlive.engine.delivery.tail import Tail
from outlive.ports.ledger import AppendResult, Checkpoint, Closing, Entry, Lease
from outlive.storage.packing import lengthen
from outlive.testing import (
    Script,
    answer,
    call_chunk,
    error_chunk,
    finish_chunk,
    reasoning_chunk,
    refusal_chunk,
    text_chunk,
    usage_chunk,
)
from tests.conformance.harness import frames as some_frames
from tests.engine.harness import Harness, answer_of, run_with_harness
from tests.engine.virtual_clock import turn
from tests.support.scripting import Gate

BROKEN = UpstreamFault("The model's server went away.")
# Everything a stream can hold, and characters that would break a careless frame.
RICH: Script = [
    reasoning_chunk("Hm\n\n"),
    [text_chunk("Hel\x00"), text_chunk("lo\r\n\n")],
    refusal_chunk("\N{PILE OF POO}"),
    call_chunk(0, "call_a", "weather", '{"city":'),
    call_chunk(1, "call_b", "weather", "{}"),
    call_chunk(0, arguments='"Bonn"}'),
    [finish_chunk("tool_calls"), usage_chunk(3, 9)],
]


async def read_on(cursor: Cursor) -> bytes:
    parts = []
    while frames := await cursor.read():
        parts.append(frames)
    cursor.close()
    return b"".join(parts)


def stored(folder: Path, response_id: str) -> bytes:
    """The journal of a response as another process finds it in the file at this moment."""
    with closing(sqlite3.connect(f"file:{folder / 'outlive.db'}?mode=ro", uri=True)) as db:
        rows = db.execute(
            "SELECT frames FROM events WHERE response = (SELECT key FROM responses WHERE id = ?) ORDER BY first",
            (response_id,),
        )
        return b"".join(lengthen(frames) for (frames,) in rows)


def dump(folder: Path) -> list[str]:
    """Everything that is in the file."""
    with closing(sqlite3.connect(f"file:{folder / 'outlive.db'}?mode=ro", uri=True)) as db:
        return list(db.iterdump())


def test_an_event_is_durable_before_any_client_sees_it(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        (mode,) = await harness.database.write("look", lambda db: db.execute("PRAGMA synchronous").fetchone())
        assert mode == 2  # FULL: a commit is on the disk, not on its way there

        async def follow(response_id: str) -> None:
            cursor, seen = harness.reader.follow(response_id), b""
            while frames := await cursor.read():
                seen += frames
                assert stored(tmp_path, response_id).startswith(seen)
                # What a GET shows is never ahead of the journal either.
                fold = await harness.reader.fold(response_id)
                assert fold.last < len(split_frames(stored(tmp_path, response_id)))
            assert is_last(seen)

        accepted = await asyncio.gather(*(harness.create(f"{n}") for n in range(8)))
        await asyncio.gather(*(follow(each.response_id) for each in accepted))
        for each in accepted:
            final = await harness.end(each.response_id)
            assert final["status"] == "completed"

    run_with_harness(tmp_path, body, [*RICH[:2], *["more"] * 30, *RICH[2:]], linger=0.005)


def test_sequence_numbers_have_no_gap_and_no_repeat_across_workers(tmp_path: Path) -> None:
    """Four workers, three of which die in mid-sentence, and a cancel at the end."""
    ids: list[str] = []

    async def live_and_die(harness: Harness, word: str) -> None:
        if not ids:
            ids.extend([(await harness.create(f"{n}")).response_id for n in range(3)])
        else:
            await harness.worker.recover()
        for response_id in ids:
            # What the workers before it said is there at once; this one must have said something too.
            while (live := harness.live.get(response_id)) is None or word not in str(live.fold.output):
                await asyncio.sleep(0.001)
            await live.flush()

    async def finish(harness: Harness) -> None:
        await harness.worker.recover()
        while harness.live.get(ids[0]) is None:
            await asyncio.sleep(0.001)
        await harness.worker.cancel(ids[0])
        gate.open()
        for response_id in ids:
            final = await harness.end(response_id)
            numbers = [event["sequence_number"] for event in await harness.events(response_id)]
            assert numbers == list(range(len(numbers)))
            assert final["outlive"]["attempts"] == 4
        assert answer_of(await harness.show(ids[1]) or {}) == "one two three four"

    for text in ("one ", "two ", "three "):
        run_with_harness(tmp_path, partial(live_and_die, word=text), [text, Gate()], continuation="prefill")
    gate = Gate()
    run_with_harness(tmp_path, finish, [gate, "four", finish_chunk()], continuation="prefill")


def test_a_stale_fence_can_write_nothing(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        accepted = await harness.create(conversation=conversation)
        await gate.reached.wait()
        live = harness.live.get(accepted.response_id)
        assert live is not None
        await live.flush()
        stale = live.lease
        claim = await harness.ledger.take_over(accepted.response_id, "another")
        assert claim is not None
        before = dump(tmp_path)
        await try_everything(harness, stale, live.tail.committed + 1)
        assert dump(tmp_path) == before
        # Nor does the worker that held it, when it wakes up.
        gate.open()
        while harness.worker._running:
            await asyncio.sleep(0.001)
        assert dump(tmp_path) == before

    gate = Gate()
    run_with_harness(tmp_path, body, ["Hel", gate, "lo", finish_chunk()])


async def try_everything(harness: Harness, stale: Lease, first: int) -> None:
    """Everything that a worker can do under a lease."""
    entry = Entry(stale, first, 1, 1.0, some_frames(first, 1))
    last = Entry(stale, first, 1, 1.0, some_frames(first, 1, "response.completed"))
    assert await harness.ledger.append([entry]) == [AppendResult.STALE]
    for keep_turn in (True, False):
        with pytest.raises(StaleFence):
            await harness.ledger.close(Closing(last, "completed", b"{}", [{"id": "x"}], keep_turn))
    await harness.ledger.save_checkpoint(stale, Checkpoint([first]))
    await harness.ledger.release_leases([stale])


async def tick(harness: Harness) -> None:
    while True:
        await asyncio.sleep(0.002)
        await harness.engine.tick_once()


def test_a_wake_up_may_be_lost_without_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of ten wake-ups never come; a reader finds out at the next tick, and misses nothing."""
    chance = random.Random(7)
    wake, notify = Tail.wake, LiveResponses.notify
    monkeypatch.setattr(Tail, "wake", lambda tail: wake(tail) if chance.random() < 0.1 else None)
    monkeypatch.setattr(LiveResponses, "notify", lambda live, key: notify(live, key) if chance.random() < 0.1 else None)

    async def body(harness: Harness) -> None:
        ticking = asyncio.create_task(tick(harness))
        accepted = await asyncio.gather(*(harness.create(f"{n}") for n in range(6)))
        streams = await asyncio.gather(*(read_on(harness.reader.follow(each.response_id)) for each in accepted))
        for each, streamed in zip(accepted, streams, strict=True):
            assert streamed == b"".join(await harness.frames(each.response_id))
            assert is_last(streamed)
        ticking.cancel()

    run_with_harness(tmp_path, body, RICH)


def test_a_replay_is_byte_identical_to_what_was_streamed(tmp_path: Path) -> None:
    streams: dict[str, bytes] = {}

    async def stream(harness: Harness) -> None:
        async def follow(response_id: str, cancel: bool = False) -> None:
            if cancel:
                while (live := harness.live.get(response_id)) is None or not live.fold.visible:
                    await asyncio.sleep(0.001)
                await harness.worker.cancel(response_id)
            streams[response_id] = await read_on(harness.reader.follow(response_id))

        for nth in range(5):
            accepted = await harness.create(f"{nth}", background=nth % 2 == 0)
            await follow(accepted.response_id, cancel=nth == 4)
        await replay(harness)

    async def replay(harness: Harness) -> None:
        for response_id, streamed in streams.items():
            frames = split_frames(streamed)
            assert is_last(streamed)
            for after in range(-1, len(frames)):
                assert await read_on(harness.reader.follow(response_id, after)) == b"".join(frames[after + 1 :])

    no_more = UpstreamFault("No.", retryable=False)
    run_with_harness(
        tmp_path, stream, RICH, ["Hel", BROKEN], [no_more], ["Hel", finish_chunk("length")], ["Hel", Gate()]
    )
    assert len(streams) == 5
    run_with_harness(tmp_path, replay, RICH)  # and after a restart


@pytest.mark.parametrize("status", ["completed", "incomplete", "failed", "cancelled"])
def test_after_a_terminal_event_nothing_follows(tmp_path: Path, status: str) -> None:
    scripts: dict[str, Script] = {
        "completed": ["Hel", finish_chunk()],
        "incomplete": ["Hel", error_chunk("broken")],
        "failed": [UpstreamFault("No.", retryable=False)],
        "cancelled": ["Hel", Gate(), "lo", finish_chunk()],
    }
    held: dict[str, Any] = {}

    async def body(harness: Harness) -> None:
        accepted = await harness.create()
        live = harness.live.get(accepted.response_id)
        assert live is not None
        if status == "cancelled":
            await harness.worker.cancel(accepted.response_id)
        final = await harness.end(accepted.response_id)
        assert final["status"] == status
        frames = await harness.frames(accepted.response_id)
        await try_everything(harness, live.lease, len(frames))
        await harness.worker.cancel(accepted.response_id)
        assert await harness.ledger.take_over(accepted.response_id, "another") is None
        await harness.sweeper.sweep()
        held.update(id=accepted.response_id, frames=frames, final=final)
        await still_the_same(harness)

    async def still_the_same(harness: Harness) -> None:
        assert await harness.worker.recover() == 0
        assert await harness.frames(held["id"]) == held["frames"]
        assert await harness.show(held["id"]) == held["final"]
        types = [read_frame(frame)["type"] for frame in held["frames"]]
        assert types.index(f"response.{status}") == len(types) - 1
        cursor = harness.reader.follow(held["id"], len(types) - 1)
        assert await cursor.read() == b""
        assert cursor.ended

    run_with_harness(tmp_path, body, scripts[status])
    run_with_harness(tmp_path, still_the_same, RICH)


def test_a_conversation_changes_only_at_admission_at_the_end_or_by_its_own_endpoints(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        conversation = await harness.converse()

        async def items() -> list[str]:
            return await harness.texts_of(conversation)

        # At admission, and not before: a refused one changes nothing.
        with pytest.raises(Exception, match="not found"):
            await harness.create("no", conversation=conversation, owner="bob")
        assert await items() == []
        accepted = await harness.create("one", conversation=conversation)
        assert await items() == ["one"]
        # Not while it runs, whatever happens around it.
        await gate.reached.wait()
        for _ in range(3):
            await harness.create("aside", conversation=conversation, store=False)
            await harness.answer("elsewhere")
            await harness.reader.fold(accepted.response_id)
            await harness.sweeper.sweep()
            await turn()
            assert await items() == ["one"]
        # At the end, together with the terminal event.
        cursor = harness.reader.follow(accepted.response_id)
        gate.open()
        while frames := await cursor.read():
            # The end may be committed after the frames were read, and before the items are.
            shown = await items()
            ended = is_last(frames) or await harness.catalog.status("ann", accepted.response_id) == "completed"
            assert shown == ["one", "Hello"] or (shown == ["one"] and not is_last(frames))
            assert ended or shown == ["one"]
        # A response that is deleted leaves it alone.
        await harness.engine.delete("ann", accepted.response_id)
        await harness.sweeper.sweep()
        assert await items() == ["one", "Hello"]
        # A failed turn is taken out by the transaction that fails it.
        harness.backend.scripts = [[UpstreamFault("No.", retryable=False)]]
        assert (await harness.answer("two", conversation=conversation))["status"] == "failed"
        assert await items() == ["one", "Hello"]
        # And by its own endpoints.
        (first, *_) = (await harness.history.before(await place(harness, conversation))).items[:1]
        await harness.conversations.delete_item("ann", conversation, first["id"])
        assert await items() == ["Hello"]

    async def place(harness: Harness, conversation: str) -> Any:
        found = await harness.history.locate("ann", conversation=conversation, parent=None)
        assert found is not None
        return found

    gate = Gate()
    run_with_harness(tmp_path, body, ["Hel", gate, "lo", finish_chunk()], [answer("x")])


@pytest.mark.parametrize("storage", ["allowed", "never"])
def test_store_false_leaves_no_byte_on_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, storage: Literal["allowed", "never"]
) -> None:
    """In every mode a canary goes in and comes out; then the files of the database, and the log, are searched. An owner
    with `storage = "never"` need not ask for it."""
    caplog.set_level("DEBUG", "outlive")
    canary = "canary-that-sang"

    async def body(harness: Harness) -> None:
        conversation = await harness.converse()
        parent = await harness.answer("before")
        before = dump(tmp_path)
        harness.engine.policies.active["ann"] = Policy(storage=storage)
        asked: dict[str, Any] = {"store": False} if storage == "allowed" else {}
        in_conversation = [{"conversation": conversation}] if storage == "allowed" else []
        for where in ({}, {"previous_response_id": parent["id"]}, *in_conversation):
            for stream in (False, True):
                for script in scripts:
                    harness.backend.scripts = [script]
                    accepted = await harness.create(
                        canary,
                        stream=stream,
                        instructions=canary,
                        metadata={"secret": canary},
                        tools=[{"type": "function", "name": "weather", "description": canary, "parameters": {}}],
                        **where,
                        **asked,
                    )
                    cursor = harness.reader.follow(accepted.response_id)
                    seen = await cursor.read()
                    if script[-1] is not gate:
                        seen += await read_on(cursor)
                    assert canary.encode() in seen
                    harness.ephemeral.discard(accepted.response_id)
        await turn(20)
        assert dump(tmp_path) == before

    gate = Gate()
    scripts: list[Script] = [
        [answer(canary)],
        [canary, BROKEN],
        [UpstreamFault("No.", retryable=False)],
        [call_chunk(0, "call_a", "weather", f'{{"city":"{canary}"}}'), finish_chunk("tool_calls")],
        [canary, gate],
    ]
    run_with_harness(tmp_path, body, [answer("after")])
    for file in tmp_path.iterdir():
        assert canary.encode() not in file.read_bytes(), file.name
    assert canary not in caplog.text


def test_the_architecture_prints_every_invariant_beside_its_test() -> None:
    text = (Path(__file__).parent.parent / "ARCHITECTURE.md").read_text()
    printed = set(re.findall(r"`(test_\w+)`", text))
    here = {name for name in globals() if name.startswith("test_")} - {
        "test_the_architecture_prints_every_invariant_beside_its_test"
    }
    assert printed == here

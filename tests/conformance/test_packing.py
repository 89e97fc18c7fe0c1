"""Packing: a replay gives the same bytes before, while and after a journal is packed, and what is deleted is gone."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.errors import NotFound
from outlive.core.events import Draft, number, split_frames
from outlive.ports import catalog
from outlive.ports.ledger import Entry
from outlive.storage.packing import BLOCK_BYTES, open_row, pack
from tests.conformance.harness import StorageHarness, entry, storage_test

PAGE = 64 * 1024


async def read_all(harness: StorageHarness, response_id: str, after: int = -1, page: int = PAGE) -> bytes:
    parts = []
    while (batch := await harness.storage.journal.read(response_id, after, page)) is not None and batch.frames:
        assert batch.first == after + 1
        assert batch.last - batch.first + 1 == len(split_frames(batch.frames))
        parts.append(batch.frames)
        after = batch.last
    return b"".join(parts)


async def write(harness: StorageHarness, flushes: int, count: int = 1) -> tuple[str, bytes]:
    """Write an ended response with so many flushes. Returns its id and its frames."""
    response_id, lease = await harness.start()
    for n in range(flushes):
        await harness.ledger.append([entry(lease, 2 + n * count, count, at=harness.now)])
    await harness.close(lease, first=2 + flushes * count)
    return response_id, await read_all(harness, response_id)


async def pack_all(harness: StorageHarness) -> int:
    """Pack everything that has ended, and delete the rows. Returns the number of packed responses."""
    before, responses = harness.tick(), 0
    while (packed := await harness.storage.packing.pack(before)).responses:
        assert 0 < packed.after < packed.before
        responses += packed.responses
    while await harness.storage.packing.release(before):
        pass
    return responses


async def count_rows(harness: StorageHarness, table: str) -> int:
    return (await harness.storage.inspector.rows())[table]


@storage_test
async def test_packed_journals_replay_the_same_bytes_from_any_event(harness: StorageHarness) -> None:
    written = [await write(harness, flushes, count) for flushes, count in ((0, 1), (3, 1), (40, 7), (1500, 1))]
    assert await pack_all(harness) == len(written)
    assert await count_rows(harness, "events") == 0
    for response_id, frames in written:
        assert await read_all(harness, response_id) == frames
        events = split_frames(frames)
        for after in {0, 1, len(events) // 2, len(events) - 2, len(events) - 1, len(events) + 5}:
            assert await read_all(harness, response_id, after, 1000) == b"".join(events[after + 1 :])
    many = await harness.storage.journal.read_many({response_id: 0 for response_id, _ in written}, PAGE)
    assert all(batch is not None and batch.first == 1 for batch in many.values())


@storage_test
async def test_packed_journals_keep_the_times_of_their_commits(harness: StorageHarness) -> None:
    response_id, lease = await harness.start()
    for n in range(4):
        await harness.ledger.append([entry(lease, 2 + n * 2, 2, at=harness.tick())])
    await harness.close(lease, first=10)
    plain = {after: await harness.storage.journal.read(response_id, after, PAGE) for after in (-1, 0, 4, 5, 9)}
    await pack_all(harness)
    for after, before in plain.items():
        packed = await harness.storage.journal.read(response_id, after, PAGE)
        assert packed is not None and before is not None
        assert [number for number, _ in packed.times] == [number for number, _ in before.times]
        assert [at for _, at in packed.times] == pytest.approx([at for _, at in before.times])


@storage_test
async def test_a_long_event_is_packed_and_replayed(harness: StorageHarness) -> None:
    response_id, lease = await harness.start()
    noise = random.Random(1).randbytes(1_000_000).hex()
    frames = b"".join(number([Draft("response.output_text.delta", {"delta": noise})], 1))
    await harness.ledger.append([Entry(lease, 2, 1, harness.tick(), frames)])
    await harness.close(lease, first=3)
    whole = await read_all(harness, response_id)
    assert await pack_all(harness) == 1
    assert await read_all(harness, response_id) == whole
    assert await read_all(harness, response_id, 2) == split_frames(whole)[3]


@storage_test
async def test_only_ended_responses_are_packed(harness: StorageHarness) -> None:
    await write(harness, 2)
    running, lease = await harness.start()
    await harness.ledger.append([entry(lease, 2)])
    rows = await count_rows(harness, "events")
    assert await pack_all(harness) == 1
    assert 0 < await count_rows(harness, "events") < rows
    assert len(split_frames(await read_all(harness, running))) == 3
    await harness.close(lease, first=3)
    assert await pack_all(harness) == 1
    assert len(split_frames(await read_all(harness, running))) == 4
    assert await pack_all(harness) == 0


@storage_test
async def test_responses_that_ended_just_now_are_not_packed(harness: StorageHarness) -> None:
    before = harness.tick()
    await write(harness, 2)
    assert (await harness.storage.packing.pack(before)).responses == 0


@storage_test
async def test_ended_responses_are_counted_until_they_are_packed_or_erased(harness: StorageHarness) -> None:
    async def measure() -> tuple[int, float | None]:
        state = await harness.storage.catalog.measure()
        return state.unpacked, state.oldest_unpacked_at

    await harness.start()  # still runs
    assert await measure() == (0, None)
    (first, _), (second, _) = [await write(harness, 2) for _ in range(2)]
    ended_at = (await harness.storage.catalog.runs([first]))[first].ended_at
    assert await measure() == (2, ended_at)
    await harness.ledger.delete("ann", second)
    await harness.storage.retention.erase(10)
    assert await measure() == (1, ended_at)
    await pack_all(harness)
    assert await measure() == (0, None)


@storage_test
async def test_no_more_unpacked_responses_are_counted_than_the_limit(harness: StorageHarness) -> None:
    for _ in range(3):
        await write(harness, 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(catalog, "MOST_UNPACKED", 2)
        assert (await harness.storage.catalog.measure()).unpacked == 2


@storage_test
async def test_replays_during_packing_give_the_same_bytes(harness: StorageHarness) -> None:
    written = [await write(harness, 120, 3) for _ in range(6)]
    done = asyncio.Event()

    async def replay() -> int:
        replays = 0
        while not done.is_set() or replays < 2:
            for response_id, frames in written:
                assert await read_all(harness, response_id, page=2000) == frames
            replays += 1
        return replays

    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(replay()) for _ in range(3)]
        assert await pack_all(harness) == len(written)
        done.set()
    assert all(reader.result() for reader in readers)


@storage_test
async def test_deleting_a_packed_response_erases_its_blocks(harness: StorageHarness) -> None:
    response_id, _ = await write(harness, 300)
    kept, frames = await write(harness, 3)
    await pack_all(harness)
    await harness.ledger.delete("ann", response_id)
    while await harness.storage.retention.erase(10):
        pass
    assert await count_rows(harness, "packs") == 1
    with pytest.raises(NotFound):
        await harness.storage.journal.read(response_id, -1, PAGE)
    assert await read_all(harness, kept) == frames


@storage_test
async def test_nothing_is_packed_while_a_node_is_alive_that_does_not_read_it(harness: StorageHarness) -> None:
    await write(harness, 2)
    if await harness.storage.inspector.set_alive("a node of an earlier version", True):
        assert await pack_all(harness) == 0
        await harness.storage.inspector.set_alive("a node of an earlier version", False)
    assert await pack_all(harness) == 1


# -- the form of a block


@given(
    rows=st.lists(st.tuples(st.integers(1, 5), st.floats(0, 10), st.binary(max_size=200)), min_size=1, max_size=40),
    scale=st.sampled_from([1, 500]),
)
def test_blocks_hold_every_byte_and_every_time(rows: list[tuple[int, float, bytes]], scale: int) -> None:
    first, at, flushes = 0, 1_700_000_000.0, []
    for count, pause, frames in rows:
        flushes.append((first, count, b"e" + frames * scale, at))
        first, at = first + count, at + pause
    blocks, size = pack(flushes)
    opened = [open_row(first, at, block) for first, _, block, at in blocks]
    assert b"".join(frames for frames, _ in opened) == b"".join(frames for _, _, frames, _ in flushes)
    assert size == sum(len(frames) for frames, _ in opened)
    times = [found for _, of_block in opened for found in of_block]
    assert [number for number, _ in times] == [first for first, _, _, _ in flushes]
    assert all(abs(found - at) < 0.001 for (_, found), (_, _, _, at) in zip(times, flushes, strict=True))
    longest = max(len(frames) for _, _, frames, _ in flushes)
    assert all(len(frames) < BLOCK_BYTES + longest for frames, _ in opened)

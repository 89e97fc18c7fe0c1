"""The part of a ledger that a running response uses, on every adapter, the one in memory included."""

from __future__ import annotations

import pytest

from outlive.core.errors import StaleFence
from outlive.core.events import split_frames
from outlive.ports.ledger import Checkpoint, Closing, Entry, Lease
from tests.conformance.harness import STALE, WRITTEN, entry, frames, run_storage_test
from tests.conformance.storages import RunStorage


def stale(lease: Lease) -> Lease:
    return Lease(lease.response_id, lease.key, lease.fence - 1)


def closing(lease: Lease, first: int) -> Closing:
    last = frames(first, 1, "response.completed")
    return Closing(Entry(lease, first, 1, 2.0, last), "completed", b"{}", [], keep_turn=True)


async def whole(storage: RunStorage, response_id: str) -> bytes:
    batch = await storage.journal.read(response_id, -1, 1 << 30)
    assert batch is not None
    return batch.frames


@run_storage_test
async def test_appended_frames_are_read_back_byte_for_byte(storage: RunStorage) -> None:
    lease = await storage.begin("resp_1", frames(0, 2), 2)
    assert await storage.ledger.append([entry(lease, 2, 3)]) == [WRITTEN]
    assert await storage.ledger.append([entry(lease, 5)]) == [WRITTEN]
    assert await whole(storage, "resp_1") == frames(0, 6)


@run_storage_test
async def test_one_append_carries_many_responses(storage: RunStorage) -> None:
    leases = [await storage.begin(f"resp_{n}", frames(0, 1), 1) for n in range(5)]
    assert await storage.ledger.append([entry(lease, 1, 2) for lease in leases]) == [WRITTEN] * 5
    for lease in leases:
        assert await whole(storage, lease.response_id) == frames(0, 3)


@run_storage_test
async def test_stale_fence_cannot_append(storage: RunStorage) -> None:
    lease = await storage.begin("resp_1", frames(0, 1), 1)
    assert await storage.ledger.append([entry(stale(lease), 1)]) == [STALE]
    assert await whole(storage, "resp_1") == frames(0, 1)


@run_storage_test
async def test_a_stale_responses_rows_are_dropped_without_failing_the_others(storage: RunStorage) -> None:
    good, bad, other = [await storage.begin(f"resp_{n}", frames(0, 1), 1) for n in range(3)]
    kept = await storage.ledger.append([entry(good, 1), entry(stale(bad), 1), entry(other, 1)])
    assert kept == [WRITTEN, STALE, WRITTEN]
    assert [len(split_frames(await whole(storage, f"resp_{n}"))) for n in range(3)] == [2, 1, 2]


@run_storage_test
async def test_stale_fence_cannot_close(storage: RunStorage) -> None:
    lease = await storage.begin("resp_1", frames(0, 1), 1)
    with pytest.raises(StaleFence):
        await storage.ledger.close(closing(stale(lease), 1))
    assert await whole(storage, "resp_1") == frames(0, 1)
    await storage.ledger.close(closing(lease, 1))


@run_storage_test
async def test_after_the_end_nothing_can_be_written(storage: RunStorage) -> None:
    lease = await storage.begin("resp_1", frames(0, 1), 1)
    await storage.ledger.close(closing(lease, 1))
    before = await whole(storage, "resp_1")
    assert await storage.ledger.append([entry(lease, 2)]) == [STALE]
    with pytest.raises(StaleFence):
        await storage.ledger.close(closing(lease, 2))
    assert await whole(storage, "resp_1") == before


@run_storage_test
async def test_saving_a_checkpoint_changes_nothing_else(storage: RunStorage) -> None:
    lease = await storage.begin("resp_1", frames(0, 1), 1)
    await storage.ledger.save_checkpoint(lease, Checkpoint([1]))
    assert await storage.ledger.append([entry(lease, 1)]) == [WRITTEN]

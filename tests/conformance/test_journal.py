"""The journal returns exactly the bytes that were written, from any number on, in pages of any size."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlive.core.errors import NotFound
from outlive.core.events import split_frames
from outlive.ports.ledger import Closing, Entry
from tests.conformance.harness import StorageHarness, entry, frames, run_storage_test, storage_test
from tests.conformance.storages import RunOpener, RunStorage


async def write(storage: RunStorage, response_id: str, batches: list[int], end: bool = False) -> bytes:
    """Write a journal with so many events per commit. Returns its bytes."""
    lease = await storage.begin(response_id, frames(0, 2), 2)
    first = 2
    for count in batches:
        await storage.ledger.append([entry(lease, first, count)])
        first += count
    written = frames(0, first)
    if end:
        last = frames(first, 1, "response.completed")
        await storage.ledger.close(Closing(Entry(lease, first, 1, 2.0, last), "completed", b"{}", [], keep_turn=True))
        written += last
    return written


async def read_all(storage: RunStorage, response_id: str, after: int, page: int) -> bytes:
    parts = []
    while (batch := await storage.journal.read(response_id, after, page)) is not None and batch.frames:
        assert batch.first == after + 1
        assert batch.last - batch.first + 1 == len(split_frames(batch.frames))
        parts.append(batch.frames)
        after = batch.last
    return b"".join(parts)


@given(
    batches=st.lists(st.integers(1, 7), max_size=12),
    cursors=st.lists(st.tuples(st.integers(-1, 90), st.integers(1, 4000)), min_size=1, max_size=8),
    end=st.booleans(),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pages_from_any_cursor_and_of_any_size_give_the_whole_journal(
    run_opener: RunOpener, batches: list[int], cursors: list[tuple[int, int]], end: bool
) -> None:
    async def go() -> None:
        async with run_opener() as storage:
            response_id = f"resp_{id(batches)}_{asyncio.get_running_loop().time()}"
            written = split_frames(await write(storage, response_id, batches, end))
            for after, page in cursors:
                assert await read_all(storage, response_id, after, page) == b"".join(written[after + 1 :])

    asyncio.run(go())


@run_storage_test
async def test_a_page_is_about_as_large_as_requested(storage: RunStorage) -> None:
    await write(storage, "resp_1", [5] * 40)
    batch = await storage.journal.read("resp_1", -1, 1000)
    assert batch is not None
    assert 1000 <= len(batch.frames) < 1000 + len(frames(100, 5))


@run_storage_test
async def test_reading_a_running_response_without_news_returns_none(storage: RunStorage) -> None:
    await write(storage, "resp_1", [3])
    assert await storage.journal.read("resp_1", 4, 1000) is None
    assert await storage.journal.read("resp_1", 400, 1000) is None


@run_storage_test
async def test_reading_past_the_end_returns_an_empty_batch(storage: RunStorage) -> None:
    await write(storage, "resp_1", [3], end=True)
    for after in (5, 6, 400):
        batch = await storage.journal.read("resp_1", after, 1000)
        assert batch is not None
        assert batch.frames == b""
        assert batch.last == after


@run_storage_test
async def test_an_unknown_response_has_no_journal(storage: RunStorage) -> None:
    with pytest.raises(NotFound):
        await storage.journal.read("resp_none", -1, 1000)


@run_storage_test
async def test_journals_do_not_mix(storage: RunStorage) -> None:
    one, two = await write(storage, "resp_1", [2, 1]), await write(storage, "resp_2", [4])
    assert await read_all(storage, "resp_1", -1, 100) == one
    assert await read_all(storage, "resp_2", -1, 100) == two


# -- several at once


@storage_test
async def test_reading_several_journals_returns_what_each_alone_returns(harness: StorageHarness) -> None:
    ids = []
    for count in (0, 3, 40):
        response_id, admitted = await harness.admit()
        assert admitted.lease is not None
        if count:
            await harness.ledger.append([entry(admitted.lease, 2, count)])
        ids.append(response_id)
    ended, admitted = await harness.admit()
    assert admitted.lease is not None
    await harness.close(admitted.lease)
    journal = harness.storage.journal
    for after in (-1, 0, 1, 4, 10, 1 << 53):
        for size in (1, 1000, 1 << 20):
            asked = dict.fromkeys([*ids, ended], after)
            alone = {each: await journal.read(each, after, size) for each in asked}
            expected = {each: batch for each, batch in alone.items() if batch is not None}
            assert await journal.read_many(asked, size) == expected


@storage_test
async def test_an_erased_journal_differs_from_one_with_nothing_new(harness: StorageHarness) -> None:
    running, _ = await harness.admit()
    assert await harness.storage.journal.read_many({"resp_none": 3, running: 1}, 1000) == {"resp_none": None}
    assert await harness.storage.journal.read_many({}, 1000) == {}


@storage_test
async def test_a_page_names_the_time_of_each_commit(harness: StorageHarness) -> None:
    response_id, lease = await harness.start()
    admitted = harness.now
    await harness.ledger.append([entry(lease, 2, 3, at=5000.25)])
    await harness.ledger.append([entry(lease, 5, 2, at=5001.5)])
    await harness.close(lease, first=7)
    journal = harness.storage.journal
    whole = await journal.read(response_id, -1, 1 << 20)
    assert whole is not None
    assert whole.times == [(0, admitted), (2, 5000.25), (5, 5001.5), (7, harness.now)]
    # From within a commit on, its time stands by the number at which the page begins.
    rest = await journal.read(response_id, 3, 1 << 20)
    assert rest is not None
    assert rest.times == [(4, 5000.25), (5, 5001.5), (7, harness.now)]

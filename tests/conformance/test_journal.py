"""The journal gives back the very bytes that were written, from any number on, in pages of any size."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlive.core.errors import NotFound
from outlive.core.events import split_frames
from outlive.ports.ledger import Closing, Entry
from tests.conformance.scenes import Book, entry, frames, run_scene, scene
from tests.conformance.storages import RunHome, RunOpener


async def write(home: RunHome, response_id: str, batches: list[int], end: bool = False) -> bytes:
    """A journal of these many events per commit; its bytes."""
    lease = await home.begin(response_id, frames(0, 2), 2)
    first = 2
    for count in batches:
        await home.ledger.append([entry(lease, first, count)])
        first += count
    written = frames(0, first)
    if end:
        last = frames(first, 1, "response.completed")
        await home.ledger.close(Closing(Entry(lease, first, 1, 2.0, last), "completed", b"{}", [], keep_turn=True))
        written += last
    return written


async def read_all(home: RunHome, response_id: str, after: int, page: int) -> bytes:
    parts = []
    while (batch := await home.journal.read(response_id, after, page)) is not None and batch.frames:
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
def test_from_any_cursor_in_any_page_size_the_whole_comes_out(
    run_opener: RunOpener, batches: list[int], cursors: list[tuple[int, int]], end: bool
) -> None:
    async def go() -> None:
        async with run_opener() as home:
            response_id = f"resp_{id(batches)}_{asyncio.get_running_loop().time()}"
            written = split_frames(await write(home, response_id, batches, end))
            for after, page in cursors:
                assert await read_all(home, response_id, after, page) == b"".join(written[after + 1 :])

    asyncio.run(go())


@run_scene
async def test_a_page_is_about_as_large_as_was_asked_for(home: RunHome) -> None:
    await write(home, "resp_1", [5] * 40)
    batch = await home.journal.read("resp_1", -1, 1000)
    assert batch is not None
    assert 1000 <= len(batch.frames) < 1000 + len(frames(100, 5))


@run_scene
async def test_nothing_new_is_none_while_it_runs(home: RunHome) -> None:
    await write(home, "resp_1", [3])
    assert await home.journal.read("resp_1", 4, 1000) is None
    assert await home.journal.read("resp_1", 400, 1000) is None


@run_scene
async def test_past_the_end_there_is_an_empty_batch(home: RunHome) -> None:
    await write(home, "resp_1", [3], end=True)
    for after in (5, 6, 400):
        batch = await home.journal.read("resp_1", after, 1000)
        assert batch is not None
        assert batch.frames == b""
        assert batch.last == after


@run_scene
async def test_an_unknown_response_has_no_journal(home: RunHome) -> None:
    with pytest.raises(NotFound):
        await home.journal.read("resp_none", -1, 1000)


@run_scene
async def test_journals_do_not_mix(home: RunHome) -> None:
    one, two = await write(home, "resp_1", [2, 1]), await write(home, "resp_2", [4])
    assert await read_all(home, "resp_1", -1, 100) == one
    assert await read_all(home, "resp_2", -1, 100) == two


# -- several at once


@scene
async def test_several_are_read_as_each_would_be_alone(book: Book) -> None:
    ids = []
    for count in (0, 3, 40):
        response_id, admitted = await book.admit()
        assert admitted.lease is not None
        if count:
            await book.ledger.append([entry(admitted.lease, 2, count)])
        ids.append(response_id)
    ended, admitted = await book.admit()
    assert admitted.lease is not None
    await book.close(admitted.lease)
    journal = book.home.journal
    for after in (-1, 0, 1, 4, 10, 1 << 53):
        for size in (1, 1000, 1 << 20):
            asked = dict.fromkeys([*ids, ended], after)
            alone = {each: await journal.read(each, after, size) for each in asked}
            expected = {each: batch for each, batch in alone.items() if batch is not None}
            assert await journal.read_many(asked, size) == expected


@scene
async def test_what_is_gone_is_told_apart_from_what_has_nothing_new(book: Book) -> None:
    running, _ = await book.admit()
    assert await book.home.journal.read_many({"resp_none": 3, running: 1}, 1000) == {"resp_none": None}
    assert await book.home.journal.read_many({}, 1000) == {}

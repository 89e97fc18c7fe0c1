"""The catalog finds one owner's things alone, page by page, in both directions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from outlive.core.errors import InvalidRequest, NotFound
from outlive.core.events import Json
from outlive.core.owners import join
from outlive.ports import catalog
from outlive.ports.catalog import NO_FILTERS, Filters, Page, Paging
from outlive.ports.ledger import Checkpoint
from tests.conformance.harness import StorageHarness, entry, message, storage_test, texts
from tests.conformance.storages import Opener


async def leaf(fetch: Callable[[Paging], Awaitable[Page]], limit: int, order: str) -> list[list[Json]]:
    """Read all pages of a list."""
    pages, after = [], None
    while True:
        page = await fetch(Paging(after, limit, order))
        pages.append(page.data)
        if not page.has_more:
            return pages
        after = page.data[-1]["id"]


async def assert_pages(fetch: Callable[[Paging], Awaitable[Page]], ids: list[str]) -> None:
    """Check that the list is `ids`, oldest first, in any page size and direction."""
    for limit in (1, 2, 3, len(ids), 100):
        for order, expected in (("asc", ids), ("desc", ids[::-1])):
            pages = await leaf(fetch, limit, order)
            assert [item["id"] for page in pages for item in page] == expected
            assert all(len(page) == limit for page in pages[:-1])
            assert len(pages[-1]) <= limit


# -- responses


async def list_responses(harness: StorageHarness, owner: str = "ann", **fields: object) -> list[str]:
    filters = msgspec.convert(fields, Filters)
    records, more = await harness.storage.catalog.responses(owner, Paging(limit=100), filters)
    assert not more
    return [record.response_id for record in records]


@storage_test
async def test_responses_page_both_ways(harness: StorageHarness) -> None:
    ids = [await harness.answer() for _ in range(7)]
    await harness.answer(owner="bob")

    async def fetch(paging: Paging) -> Page:
        records, more = await harness.storage.catalog.responses("ann", paging, NO_FILTERS)
        return Page([{"id": record.response_id} for record in records], more)

    await assert_pages(fetch, ids)


@storage_test
async def test_a_page_continues_after_a_deleted_cursor(harness: StorageHarness) -> None:
    ids = [await harness.answer() for _ in range(3)]
    await harness.ledger.delete("ann", ids[1])
    records, _ = await harness.storage.catalog.responses("ann", Paging(ids[1]), NO_FILTERS)
    assert [record.response_id for record in records] == [ids[0]]


@storage_test
async def test_a_cursor_of_another_owner_is_refused(harness: StorageHarness) -> None:
    theirs = await harness.answer(owner="bob")
    for after in (theirs, "resp_none"):
        with pytest.raises(InvalidRequest) as caught:
            await harness.storage.catalog.responses("ann", Paging(after), NO_FILTERS)
        assert caught.value.param == "after"
    records, _ = await harness.storage.catalog.responses("bob", Paging(theirs), NO_FILTERS)
    assert records == []


@storage_test
async def test_responses_are_listed_by_status_and_conversation(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    done = await harness.answer(conversation=conversation)
    running, _ = await harness.start(conversation=conversation)
    waiting, _ = await harness.admit(worker=None)
    cancelled = await harness.answer(status="cancelled")
    assert await list_responses(harness, statuses=["queued"]) == [waiting]
    assert await list_responses(harness, statuses=["in_progress", "queued"]) == [waiting, running]
    assert await list_responses(harness, statuses=["completed", "cancelled"]) == [cancelled, done]
    assert await list_responses(harness, conversation=conversation) == [running, done]
    assert await list_responses(harness, conversation=conversation, statuses=["in_progress"]) == [running]
    assert await list_responses(harness, conversation="conv_none") == []


@storage_test
async def test_a_claimed_response_is_listed_as_running(harness: StorageHarness) -> None:
    waiting, _ = await harness.admit(worker=None)
    await harness.claim()
    assert await list_responses(harness, statuses=["in_progress"]) == [waiting]


@storage_test
async def test_owners_see_nothing_of_each_other(harness: StorageHarness) -> None:
    conversation = await harness.converse("Hi")
    response_id = await harness.answer(conversation=conversation)
    catalog = harness.storage.catalog
    assert await catalog.status("bob", response_id) is None
    assert await list_responses(harness, "bob") == []
    assert (await catalog.conversations("bob", Paging())).data == []
    for look in (
        lambda: catalog.response("bob", response_id),
        lambda: catalog.input_items("bob", response_id, Paging()),
        lambda: catalog.conversation("bob", conversation),
        lambda: catalog.items("bob", conversation, Paging()),
        lambda: catalog.item("bob", conversation, "msg_2"),
        lambda: harness.admit(owner="bob", conversation=conversation),
    ):
        with pytest.raises(NotFound):
            await look()


@storage_test
async def test_unknown_deleted_and_foreign_responses_all_read_as_not_found(harness: StorageHarness) -> None:
    mine, theirs = await harness.answer(), await harness.answer(owner="bob")
    await harness.ledger.delete("ann", mine)
    messages = []
    for response_id in (mine, theirs, "resp_none"):
        with pytest.raises(NotFound) as caught:
            await harness.storage.catalog.response("ann", response_id)
        messages.append(caught.value.message.replace(response_id, "ID"))
    assert len(set(messages)) == 1


@storage_test
async def test_a_response_has_its_snapshot_once_it_has_ended(harness: StorageHarness) -> None:
    response_id, lease = await harness.start()
    await harness.ledger.append([entry(lease, 2)])
    assert (await harness.storage.catalog.response("ann", response_id)).snapshot is None
    assert await harness.storage.catalog.status("ann", response_id) == "in_progress"
    await harness.close(lease, "Hello", first=3)
    record = await harness.storage.catalog.response("ann", response_id)
    assert record.snapshot is not None and b"Hello" in record.snapshot
    assert await harness.storage.catalog.status("ann", response_id) == "completed"


@storage_test
async def test_input_items_are_the_responses_own_and_page_both_ways(harness: StorageHarness) -> None:
    parent = await harness.answer("before")
    items = [message(f"in_{n}", str(n)) for n in range(5)]
    response_id = await harness.answer(items=items, parent=parent)
    await harness.answer("after", parent=response_id)
    await assert_pages(
        lambda paging: harness.storage.catalog.input_items("ann", response_id, paging), [item["id"] for item in items]
    )


# -- conversations


@storage_test
async def test_conversations_page_both_ways(harness: StorageHarness) -> None:
    ids = [await harness.converse() for _ in range(5)]
    await harness.converse(owner="bob")
    await assert_pages(lambda paging: harness.storage.catalog.conversations("ann", paging), ids)


@storage_test
async def test_items_page_both_ways_over_holes_and_running_turns(harness: StorageHarness) -> None:
    conversation = await harness.converse("a", "b", "c")
    await harness.storage.conversations.delete_item("ann", conversation, "msg_3")
    await harness.answer("d", "e", conversation=conversation)
    await harness.start("f", conversation=conversation)
    whole = await harness.storage.catalog.items("ann", conversation, Paging(limit=100, order="asc"))
    assert texts(whole.data) == ["a", "c", "d", "e", "f"]
    await assert_pages(
        lambda paging: harness.storage.catalog.items("ann", conversation, paging), [item["id"] for item in whole.data]
    )


@storage_test
async def test_one_item_is_found_by_its_id_within_its_conversation_only(harness: StorageHarness) -> None:
    one, two = await harness.converse("Hi"), await harness.converse()
    (item,) = (await harness.storage.catalog.items("ann", one, Paging())).data
    assert await harness.storage.catalog.item("ann", one, item["id"]) == item
    with pytest.raises(NotFound):
        await harness.storage.catalog.item("ann", two, item["id"])


@storage_test
async def test_keys_are_found_for_their_owner_and_kind(harness: StorageHarness) -> None:
    response_id, _ = await harness.admit(key="k", digest=b"d")
    catalog = harness.storage.catalog
    assert await catalog.idempotent("ann", "response", "k") == (b"d", response_id)
    assert await catalog.idempotent("ann", "conversation", "k") is None
    assert await catalog.idempotent("bob", "response", "k") is None


# -- items by their ids alone


@storage_test
async def test_items_are_found_by_their_ids_in_any_response_or_conversation(harness: StorageHarness) -> None:
    conversation = await harness.converse("said")
    await harness.answer("asked", "answered", conversation=conversation)
    alone = [message("msg_alone", "alone")]
    await harness.answer(items=alone)
    listed = (await harness.storage.catalog.items("ann", conversation, Paging(order="asc"))).data
    ids = [item["id"] for item in (*listed, *alone)]
    found = await harness.storage.catalog.stored_items("ann", [*ids, "msg_none"])
    assert found == {item["id"]: item for item in (*listed, *alone)}


@storage_test
async def test_items_of_another_owner_are_not_found_by_their_ids(harness: StorageHarness) -> None:
    await harness.answer(items=[message("msg_a", "hers")])
    await harness.answer(items=[message("msg_b", "his")], owner="bob")
    conversation = await harness.converse("his", owner="bob")
    (put,) = (await harness.storage.catalog.items("bob", conversation, Paging())).data
    assert list(await harness.storage.catalog.stored_items("ann", ["msg_a", "msg_b", put["id"]])) == ["msg_a"]


@storage_test
async def test_the_newest_of_items_with_one_id_is_found(harness: StorageHarness) -> None:
    await harness.answer(items=[message("msg_a", "first")])
    await harness.answer(items=[message("msg_a", "second")])
    await harness.answer(items=[message("msg_a", "another's")], owner="bob")
    assert texts(list((await harness.storage.catalog.stored_items("ann", ["msg_a"])).values())) == ["second"]


@storage_test
async def test_items_of_deleted_responses_are_found_only_in_conversations(harness: StorageHarness) -> None:
    gone = await harness.answer(items=[message("msg_gone", "gone")])
    conversation = await harness.converse()
    kept = await harness.answer(items=[message("msg_kept", "kept")], conversation=conversation)
    for response_id in (gone, kept):
        await harness.ledger.delete("ann", response_id)
    find = harness.storage.catalog.stored_items
    assert list(await find("ann", ["msg_gone", "msg_kept"])) == ["msg_kept"]
    while await harness.storage.retention.erase(10):
        pass
    assert list(await find("ann", ["msg_gone", "msg_kept"])) == ["msg_kept"]
    await harness.storage.conversations.delete("ann", conversation)
    assert await find("ann", ["msg_kept"]) == {}


@storage_test
async def test_an_item_of_a_large_request_is_found_by_its_id(harness: StorageHarness) -> None:
    items = [message(f"msg_{n}", "x" * 50_000) for n in range(10)]
    await harness.answer(items=items, large=True)
    assert await harness.storage.catalog.stored_items("ann", ["msg_7"]) == {"msg_7": items[7]}


# -- the queue


@storage_test
async def test_queued_responses_have_a_place_in_the_queue_and_foreground_comes_first(harness: StorageHarness) -> None:
    first, _ = await harness.admit(worker=None, background=True)
    second, _ = await harness.admit(worker=None, background=True, owner="bob")
    front, _ = await harness.admit(worker=None)
    running, _ = await harness.admit()
    queue = harness.storage.catalog.queue
    assert await queue([first, second, front, running, "resp_none"]) == {front: 1, first: 2, second: 3}
    assert await queue([second]) == {second: 3}
    assert await queue([]) == {}
    assert [claim.lease.response_id for claim in await harness.claim(1)] == [front]
    assert await queue([first, second, front]) == {first: 1, second: 2}


# -- budgets


def test_a_page_of_long_items_is_short_and_says_that_there_are_more(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "PAGE_BYTES", 2500)

    async def body() -> None:
        async with opener() as storage:
            harness = StorageHarness(storage)
            conversation = await harness.converse(*(str(n) * 1000 for n in range(7)))
            for order in ("asc", "desc"):
                pages = await leaf(lambda paging: storage.catalog.items("ann", conversation, paging), 100, order)
                assert [len(page) for page in pages] == [3, 3, 1]

    asyncio.run(body())


def test_references_to_long_items_are_refused(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MAX_REFERENCED", 2500)

    async def body() -> None:
        async with opener() as storage:
            harness = StorageHarness(storage)
            await harness.answer(items=[message(f"msg_{n}", str(n) * 1000) for n in "abcd"])
            assert len(await storage.catalog.stored_items("ann", ["msg_a", "msg_b"])) == 2
            with pytest.raises(InvalidRequest) as caught:
                await storage.catalog.stored_items("ann", ["msg_a", "msg_b", "msg_c"])
            assert caught.value.param == "input"

    asyncio.run(body())


@storage_test
async def test_a_list_leaves_out_long_final_objects(harness: StorageHarness) -> None:
    await harness.answer(answer="x" * 70_000)
    await harness.answer()
    records, _ = await harness.storage.catalog.responses("ann", Paging(), NO_FILTERS)
    assert [(record.status, record.snapshot is None) for record in records] == [
        ("completed", False),
        ("completed", True),
    ]


@storage_test
async def test_runs_name_the_nodes_that_took_a_response_and_when(harness: StorageHarness) -> None:
    before = time.time()
    response_id, admitted = await harness.admit(worker="w1")
    waiting, _ = await harness.admit(worker=None)
    lease = admitted.lease
    assert lease is not None
    await harness.ledger.append([entry(lease, 2, 3)])
    (claim,) = await harness.claim(worker="w2")
    assert claim.lease.response_id == waiting
    taken = await harness.ledger.take_over(response_id, "w3")
    assert taken is not None
    await harness.ledger.save_checkpoint(taken.lease, Checkpoint(resumed_at=[4]))
    runs = await harness.storage.catalog.runs([response_id, waiting, "resp_none"])
    assert set(runs) == {response_id, waiting}
    running, begun = runs[response_id], runs[waiting]
    assert [(node, counted) for _, node, counted in running.taken] == [("w1", 1), ("w3", 0)]
    assert running.taken[0][0] == running.created_at
    assert [(node, counted) for _, node, counted in begun.taken] == [("w2", 1)]
    assert before - 1 <= begun.taken[0][0] <= time.time() + 1
    assert (running.node, running.attempts, running.resumed_at, running.ended_at) == ("w3", 1, [4], None)
    await harness.close(taken.lease, first=5)
    (ended,) = (await harness.storage.catalog.runs([response_id])).values()
    assert (ended.node, ended.events, ended.ended_at) == (None, 6, harness.now)
    assert ended.taken == running.taken


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_filtered_list_is_read_in_pieces(opener: Opener, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setattr(catalog, "PIECE_ROWS", 3)

    @storage_test
    async def test(harness: StorageHarness) -> None:
        made = [await harness.answer(metadata={"n": str(number % 5)}) for number in range(30)]
        wanted = made[2::5] if order == "asc" else made[2::5][::-1]
        read, found = count_reads(harness, monkeypatch), list[str]()
        paging = Paging(limit=2, order=order)
        while True:
            page, more = await harness.storage.catalog.responses("ann", paging, Filters(metadata={"n": "2"}))
            found += [record.response_id for record in page]
            if not more:
                break
            paging = Paging(found[-1], 2, order)
        assert found == wanted
        assert max(read) <= 3  # rows of one statement

    test(opener)


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_a_list_of_a_time_reads_no_further(opener: Opener, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setattr(catalog, "PIECE_ROWS", 2)

    @storage_test
    async def test(harness: StorageHarness) -> None:
        made = []
        for _ in range(20):
            harness.now += catalog.CLOCK_TOLERANCE
            made.append((await harness.answer(), harness.now))
        (third, at) = made[2 if order == "asc" else -3]
        read = count_reads(harness, monkeypatch)
        filters = Filters(created_after=int(at) - 100, created_before=int(at) + 100)
        page, more = await harness.storage.catalog.responses("ann", Paging(order=order), filters)
        assert ([record.response_id for record in page], more) == ([third], False)
        assert sum(read) < 10

    test(opener)


def count_reads(harness: StorageHarness, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of rows of each statement of the catalog."""
    database: Any = harness.storage.catalog._database
    fetch, read = database.fetch, list[int]()

    async def counting(*given: Any, **parts: str) -> list[Any]:
        rows: list[Any] = await fetch(*given, **parts)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(database, "fetch", counting)
    return read


@storage_test
async def test_a_wide_list_has_an_owners_end_users_or_all_owners(harness: StorageHarness) -> None:
    owners = ["app", join("app", "user-1"), "app2", join("app", "user-2")]
    made = [(await harness.start(owner=owner))[0] for owner in owners]
    found = harness.storage.catalog

    async def listed(owner: str, paging: Paging) -> list[tuple[str, str]]:
        records, _ = await found.responses(owner, paging, Filters(statuses=["in_progress"]))
        return [(record.response_id, record.owner) for record in records]

    everything = list(zip(made, owners, strict=True))
    assert await listed("", Paging(order="asc", wide=True)) == everything
    assert await listed("app", Paging(order="asc", wide=True)) == [everything[0], everything[1], everything[3]]
    assert await listed("app", Paging(made[1], order="asc", wide=True)) == [everything[3]]
    assert await listed("app", Paging()) == [everything[0]]
    assert [await found.find_owner(each) for each in (made[1], "resp_none")] == [owners[1], None]
    page = await found.conversations("app", Paging(wide=True))
    assert page.data == []

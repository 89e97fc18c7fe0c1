"""Finding things: one owner's things alone, page by page, in both directions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from outlive.core.errors import InvalidRequest, NotFound
from outlive.core.events import Json
from outlive.ports.catalog import Page, Paging
from tests.conformance.scenes import Book, entry, message, scene, texts


async def leaf(fetch: Callable[[Paging], Awaitable[Page]], limit: int, order: str) -> list[list[Json]]:
    """All the pages of a list."""
    pages, after = [], None
    while True:
        page = await fetch(Paging(after, limit, order))
        pages.append(page.data)
        if not page.has_more:
            return pages
        after = page.data[-1]["id"]


async def assert_pages(fetch: Callable[[Paging], Awaitable[Page]], ids: list[str]) -> None:
    """The list is `ids`, oldest first, whatever the page size and direction."""
    for limit in (1, 2, 3, len(ids), 100):
        for order, expected in (("asc", ids), ("desc", ids[::-1])):
            pages = await leaf(fetch, limit, order)
            assert [item["id"] for page in pages for item in page] == expected
            assert all(len(page) == limit for page in pages[:-1])
            assert len(pages[-1]) <= limit


# -- responses


async def list_responses(book: Book, owner: str = "ann", **fields: object) -> list[str]:
    statuses, conversation = fields.get("statuses", []), fields.get("conversation")
    assert isinstance(statuses, list)
    assert conversation is None or isinstance(conversation, str)
    records, more = await book.home.catalog.responses(
        owner, Paging(limit=100), statuses=statuses, conversation=conversation
    )
    assert not more
    return [record.response_id for record in records]


@scene
async def test_responses_page_both_ways(book: Book) -> None:
    ids = [await book.answer() for _ in range(7)]
    await book.answer(owner="bob")

    async def fetch(paging: Paging) -> Page:
        records, more = await book.home.catalog.responses("ann", paging, statuses=[], conversation=None)
        return Page([{"id": record.response_id} for record in records], more)

    await assert_pages(fetch, ids)


@scene
async def test_a_page_goes_on_after_what_was_deleted_meanwhile(book: Book) -> None:
    ids = [await book.answer() for _ in range(3)]
    await book.ledger.delete("ann", ids[1])
    records, _ = await book.home.catalog.responses("ann", Paging(ids[1]), statuses=[], conversation=None)
    assert [record.response_id for record in records] == [ids[0]]


@scene
async def test_a_cursor_of_anothers_is_no_cursor(book: Book) -> None:
    theirs = await book.answer(owner="bob")
    for after in (theirs, "resp_none"):
        with pytest.raises(InvalidRequest) as caught:
            await book.home.catalog.responses("ann", Paging(after), statuses=[], conversation=None)
        assert caught.value.param == "after"
    records, _ = await book.home.catalog.responses("bob", Paging(theirs), statuses=[], conversation=None)
    assert records == []


@scene
async def test_responses_are_listed_by_status_and_conversation(book: Book) -> None:
    conversation = await book.converse()
    done = await book.answer(conversation=conversation)
    running, _ = await book.start(conversation=conversation)
    waiting, _ = await book.admit(worker=None)
    cancelled = await book.answer(status="cancelled")
    assert await list_responses(book, statuses=["queued"]) == [waiting]
    assert await list_responses(book, statuses=["in_progress", "queued"]) == [waiting, running]
    assert await list_responses(book, statuses=["completed", "cancelled"]) == [cancelled, done]
    assert await list_responses(book, conversation=conversation) == [running, done]
    assert await list_responses(book, conversation=conversation, statuses=["in_progress"]) == [running]
    assert await list_responses(book, conversation="conv_none") == []


@scene
async def test_a_claimed_response_is_listed_as_running(book: Book) -> None:
    waiting, _ = await book.admit(worker=None)
    await book.claim()
    assert await list_responses(book, statuses=["in_progress"]) == [waiting]


@scene
async def test_owners_see_nothing_of_each_other(book: Book) -> None:
    conversation = await book.converse("Hi")
    response_id = await book.answer(conversation=conversation)
    catalog = book.home.catalog
    assert await catalog.status("bob", response_id) is None
    assert await list_responses(book, "bob") == []
    assert (await catalog.conversations("bob", Paging())).data == []
    for look in (
        lambda: catalog.response("bob", response_id),
        lambda: catalog.input_items("bob", response_id, Paging()),
        lambda: catalog.conversation("bob", conversation),
        lambda: catalog.items("bob", conversation, Paging()),
        lambda: catalog.item("bob", conversation, "msg_2"),
        lambda: book.admit(owner="bob", conversation=conversation),
    ):
        with pytest.raises(NotFound):
            await look()


@scene
async def test_what_is_unknown_hidden_or_anothers_reads_the_same(book: Book) -> None:
    mine, theirs = await book.answer(), await book.answer(owner="bob")
    await book.ledger.delete("ann", mine)
    messages = []
    for response_id in (mine, theirs, "resp_none"):
        with pytest.raises(NotFound) as caught:
            await book.home.catalog.response("ann", response_id)
        messages.append(caught.value.message.replace(response_id, "ID"))
    assert len(set(messages)) == 1


@scene
async def test_a_response_has_its_snapshot_once_it_has_ended(book: Book) -> None:
    response_id, lease = await book.start()
    await book.ledger.append([entry(lease, 2)])
    assert (await book.home.catalog.response("ann", response_id)).snapshot is None
    assert await book.home.catalog.status("ann", response_id) == "in_progress"
    await book.close(lease, "Hello", first=3)
    record = await book.home.catalog.response("ann", response_id)
    assert record.snapshot is not None and b"Hello" in record.snapshot
    assert await book.home.catalog.status("ann", response_id) == "completed"


@scene
async def test_input_items_are_the_responses_own_and_page_both_ways(book: Book) -> None:
    parent = await book.answer("before")
    items = [message(f"in_{n}", str(n)) for n in range(5)]
    response_id = await book.answer(items=items, parent=parent)
    await book.answer("after", parent=response_id)
    await assert_pages(
        lambda paging: book.home.catalog.input_items("ann", response_id, paging), [item["id"] for item in items]
    )


# -- conversations


@scene
async def test_conversations_page_both_ways(book: Book) -> None:
    ids = [await book.converse() for _ in range(5)]
    await book.converse(owner="bob")
    await assert_pages(lambda paging: book.home.catalog.conversations("ann", paging), ids)


@scene
async def test_items_page_both_ways_over_holes_and_running_turns(book: Book) -> None:
    conversation = await book.converse("a", "b", "c")
    await book.home.conversations.delete_item("ann", conversation, "msg_3")
    await book.answer("d", "e", conversation=conversation)
    await book.start("f", conversation=conversation)
    whole = await book.home.catalog.items("ann", conversation, Paging(limit=100, order="asc"))
    assert texts(whole.data) == ["a", "c", "d", "e", "f"]
    await assert_pages(
        lambda paging: book.home.catalog.items("ann", conversation, paging), [item["id"] for item in whole.data]
    )


@scene
async def test_one_item_is_found_by_its_id_within_its_conversation_only(book: Book) -> None:
    one, two = await book.converse("Hi"), await book.converse()
    (item,) = (await book.home.catalog.items("ann", one, Paging())).data
    assert await book.home.catalog.item("ann", one, item["id"]) == item
    with pytest.raises(NotFound):
        await book.home.catalog.item("ann", two, item["id"])


@scene
async def test_keys_are_found_for_their_owner_and_kind(book: Book) -> None:
    response_id, _ = await book.admit(key="k", digest=b"d")
    catalog = book.home.catalog
    assert await catalog.idempotent("ann", "response", "k") == (b"d", response_id)
    assert await catalog.idempotent("ann", "conversation", "k") is None
    assert await catalog.idempotent("bob", "response", "k") is None


# -- items by their ids alone


@scene
async def test_items_are_found_by_their_ids_alone_wherever_they_lie(book: Book) -> None:
    conversation = await book.converse("said")
    await book.answer("asked", "answered", conversation=conversation)
    alone = [message("msg_alone", "alone")]
    await book.answer(items=alone)
    listed = (await book.home.catalog.items("ann", conversation, Paging(order="asc"))).data
    ids = [item["id"] for item in (*listed, *alone)]
    found = await book.home.catalog.stored_items("ann", [*ids, "msg_none"])
    assert found == {item["id"]: item for item in (*listed, *alone)}


@scene
async def test_items_of_another_are_not_found_by_their_ids(book: Book) -> None:
    await book.answer(items=[message("msg_a", "hers")])
    await book.answer(items=[message("msg_b", "his")], owner="bob")
    conversation = await book.converse("his", owner="bob")
    (put,) = (await book.home.catalog.items("bob", conversation, Paging())).data
    assert list(await book.home.catalog.stored_items("ann", ["msg_a", "msg_b", put["id"]])) == ["msg_a"]


@scene
async def test_of_items_with_one_id_the_newest_is_found(book: Book) -> None:
    await book.answer(items=[message("msg_a", "first")])
    await book.answer(items=[message("msg_a", "second")])
    await book.answer(items=[message("msg_a", "another's")], owner="bob")
    assert texts(list((await book.home.catalog.stored_items("ann", ["msg_a"])).values())) == ["second"]


@scene
async def test_items_of_what_was_deleted_are_not_found_unless_a_conversation_has_them(book: Book) -> None:
    gone = await book.answer(items=[message("msg_gone", "gone")])
    conversation = await book.converse()
    kept = await book.answer(items=[message("msg_kept", "kept")], conversation=conversation)
    for response_id in (gone, kept):
        await book.ledger.delete("ann", response_id)
    find = book.home.catalog.stored_items
    assert list(await find("ann", ["msg_gone", "msg_kept"])) == ["msg_kept"]
    while await book.home.retention.erase(10):
        pass
    assert list(await find("ann", ["msg_gone", "msg_kept"])) == ["msg_kept"]
    await book.home.conversations.delete("ann", conversation)
    assert await find("ann", ["msg_kept"]) == {}


@scene
async def test_an_item_of_a_large_request_is_found_by_its_id(book: Book) -> None:
    items = [message(f"msg_{n}", "x" * 50_000) for n in range(10)]
    await book.answer(items=items, large=True)
    assert await book.home.catalog.stored_items("ann", ["msg_7"]) == {"msg_7": items[7]}


# -- the line


@scene
async def test_who_waits_has_a_place_in_line_and_foreground_comes_first(book: Book) -> None:
    first, _ = await book.admit(worker=None, background=True)
    second, _ = await book.admit(worker=None, background=True, owner="bob")
    front, _ = await book.admit(worker=None)
    running, _ = await book.admit()
    queue = book.home.catalog.queue
    assert await queue([first, second, front, running, "resp_none"]) == {front: 1, first: 2, second: 3}
    assert await queue([second]) == {second: 3}
    assert await queue([]) == {}
    assert [claim.lease.response_id for claim in await book.claim(1)] == [front]
    assert await queue([first, second, front]) == {first: 1, second: 2}

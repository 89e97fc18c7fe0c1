"""Forgetting: by last use, when nothing needs it any more, and then without a trace."""

from __future__ import annotations

import pytest

from outlive.core.errors import InvalidRequest, NotFound
from outlive.ports.catalog import Paging
from outlive.ports.ledger import Idempotency
from tests.conformance.scenes import Book, entry, message, scene

LONG = 1200  # events


async def erase_all(book: Book) -> int:
    gone = 0
    while count := await book.home.retention.erase(2):
        gone += count
    return gone


async def expire(book: Book, responses: float | None = None, conversations: float | None = None) -> int:
    return await book.home.retention.expire(responses_before=responses, conversations_before=conversations, limit=100)


async def assert_empty(book: Book) -> None:
    assert {name: count for name, count in (await book.home.inspector.rows()).items() if count} == {}


async def is_there(book: Book, response_id: str) -> bool:
    try:
        await book.home.catalog.response("ann", response_id)
    except NotFound:
        return False
    return True


# -- expiring


@scene
async def test_what_was_not_used_for_long_expires(book: Book) -> None:
    old = await book.answer()
    middle = book.tick()
    young = await book.answer()
    assert await expire(book, responses=middle) == 1
    assert not await is_there(book, old)
    assert await is_there(book, young)
    assert await expire(book, responses=middle) == 0


@scene
async def test_for_ever_is_for_ever(book: Book) -> None:
    response_id, conversation = await book.answer(), await book.converse()
    assert await expire(book) == 0
    assert await is_there(book, response_id)
    await book.home.catalog.conversation("ann", conversation)


@scene
async def test_what_runs_or_waits_never_expires(book: Book) -> None:
    running, _ = await book.start()
    waiting, _ = await book.admit(worker=None)
    assert await expire(book, responses=book.tick()) == 0
    assert await is_there(book, running)
    assert await is_there(book, waiting)


@scene
async def test_being_a_parent_renews_a_whole_chain(book: Book) -> None:
    one = await book.answer("one")
    two = await book.answer("two", parent=one)
    fork = await book.answer("fork", parent=one)
    lonely = await book.answer("lonely")
    middle = book.tick()
    await book.answer("three", parent=two)
    assert await expire(book, responses=middle) == 1
    assert not await is_there(book, lonely)
    for response_id in (one, two, fork):
        assert await is_there(book, response_id)


@scene
async def test_being_a_parent_renews_a_response_that_a_conversation_holds(book: Book) -> None:
    one = await book.answer("one", conversation=await book.converse())
    middle = book.tick()
    two = await book.answer("two", parent=one)
    assert await expire(book, responses=middle) == 0
    await book.admit("three", parent=two)


@scene
async def test_a_chain_that_nobody_goes_on_with_expires_as_a_whole(book: Book) -> None:
    one = await book.answer("one")
    two = await book.answer("two", parent=one)
    await book.answer("fork", parent=one)
    assert await expire(book, responses=book.tick()) == 3
    with pytest.raises(InvalidRequest) as caught:
        await book.admit(parent=two)
    assert caught.value.code == "previous_response_not_found"


@scene
async def test_an_unused_conversation_expires(book: Book) -> None:
    old = await book.converse("old")
    middle = book.tick()
    young = await book.converse("young")
    assert await expire(book, conversations=middle) == 1
    with pytest.raises(NotFound):
        await book.home.catalog.conversation("ann", old)
    await book.home.catalog.conversation("ann", young)


@scene
async def test_a_turn_or_an_item_renews_a_conversation(book: Book) -> None:
    with_turn, with_item = await book.converse(), await book.converse()
    middle = book.tick()
    await book.answer(conversation=with_turn)
    await book.home.conversations.add_items("ann", with_item, [message("msg_a", "x")], book.tick(), None)
    assert await expire(book, conversations=middle) == 0


@scene
async def test_a_conversation_with_a_run_in_it_does_not_expire(book: Book) -> None:
    conversation = await book.converse()
    await book.start(conversation=conversation)
    assert await expire(book, conversations=book.tick()) == 0


@scene
async def test_a_conversation_keeps_its_items_when_its_responses_expire(book: Book) -> None:
    conversation = await book.converse("before")
    await book.answer("Hi", conversation=conversation)
    assert await expire(book, responses=book.tick()) == 1
    assert await erase_all(book) == 1
    assert await book.texts_of(conversation) == ["before", "Hi", "answer"]
    _, admitted = await book.admit(conversation=conversation)
    assert await book.history_of(admitted.position) == ["before", "Hi", "answer"]


@scene
async def test_expiring_goes_in_batches(book: Book) -> None:
    for _ in range(5):
        await book.answer()
    expire_some = book.home.retention.expire
    now = book.tick()
    counts = [await expire_some(responses_before=now, conversations_before=None, limit=2) for _ in range(4)]
    assert counts == [2, 2, 1, 0]


# -- erasing


@scene
async def test_nothing_is_left_of_a_deleted_response(book: Book) -> None:
    response_id = await book.answer("canary-in", "canary-out", key="k", retry_digest=b"d", instructions="canary")
    await book.ledger.delete("ann", response_id)
    assert await erase_all(book) == 1
    await assert_empty(book)
    with pytest.raises(NotFound):
        await book.events(response_id)


@scene
async def test_a_long_journal_is_erased_in_parts_and_never_read_with_a_gap(book: Book) -> None:
    response_id, lease = await book.start()
    await book.ledger.append([entry(lease, n) for n in range(2, LONG)])
    await book.close(lease, first=LONG)
    await book.ledger.delete("ann", response_id)
    assert await book.home.retention.erase(100) > 0
    with pytest.raises(NotFound):
        await book.events(response_id)
    assert await book.home.journal.read(response_id, LONG, 1000) is not None  # who is at its end, is at its end
    assert await erase_all(book) > 0
    await assert_empty(book)
    with pytest.raises(NotFound):
        await book.home.journal.read(response_id, LONG, 1000)


@scene
async def test_what_is_not_hidden_is_not_erased(book: Book) -> None:
    await book.answer()
    await book.converse("Hi")
    before = await book.home.inspector.rows()
    assert await erase_all(book) == 0
    assert await book.home.inspector.rows() == before


@scene
async def test_nothing_is_left_of_a_family_of_forks(book: Book) -> None:
    one = await book.answer("one")
    two = await book.answer("two", parent=one)
    fork = await book.answer("fork", parent=one)
    of_fork = await book.answer("of fork", parent=fork)
    again = await book.answer("again", parent=fork)
    failed = await book.answer("failed", None, parent=two, status="failed")
    for response_id in (fork, one, again, two, failed, of_fork):
        await book.ledger.delete("ann", response_id)
        await erase_all(book)
    await assert_empty(book)


@scene
async def test_erasing_waits_for_the_unfinished_runs_of_a_chain(book: Book) -> None:
    one = await book.answer("one")
    two, _ = await book.start("two", parent=one)
    await book.ledger.delete("ann", one)
    assert await erase_all(book) == 0
    claim = await book.ledger.take_over(two, "w2")
    assert claim is not None
    assert await book.history_of(claim.position) == ["one", "answer"]
    await book.close(claim.lease)
    assert await erase_all(book) == 1
    assert await is_there(book, two)


@scene
async def test_erasing_waits_for_an_unfinished_fork(book: Book) -> None:
    one = await book.answer("one")
    await book.answer("two", parent=one)
    await book.admit("fork", parent=one, worker=None)
    await book.ledger.delete("ann", one)
    assert await erase_all(book) == 0
    (claim,) = await book.claim()
    assert await book.history_of(claim.position) == ["one", "answer"]


@scene
async def test_a_run_elsewhere_holds_nothing_up(book: Book) -> None:
    await book.start()
    await book.ledger.delete("ann", await book.answer())
    assert await erase_all(book) == 1


@scene
async def test_items_in_a_conversation_stay_when_their_response_is_deleted(book: Book) -> None:
    conversation = await book.converse("before")
    response_id = await book.answer("Hi", conversation=conversation)
    await book.ledger.delete("ann", response_id)
    assert await erase_all(book) == 1
    assert await book.texts_of(conversation) == ["before", "Hi", "answer"]


@scene
async def test_a_later_response_does_not_inherit_what_stayed_in_a_conversation(book: Book) -> None:
    conversation = await book.converse("before")
    await book.ledger.delete("ann", await book.answer("Hi", conversation=conversation))
    await erase_all(book)
    await book.ledger.delete("ann", await book.answer("other"))
    await erase_all(book)
    assert await book.texts_of(conversation) == ["before", "Hi", "answer"]
    still_there = await book.answer("another")
    await book.home.conversations.delete("ann", conversation)
    await erase_all(book)
    assert not await book.home.inspector.contains("before")
    assert not await book.home.inspector.contains("Hi")
    assert await is_there(book, still_there)


@scene
async def test_nothing_is_left_of_a_deleted_conversation_and_its_responses(book: Book) -> None:
    conversation = await book.converse("before", key="k")
    await book.home.conversations.add_items("ann", conversation, [message("msg_a", "x")], 1.0, Idempotency("k", b"d"))
    responses = [await book.answer(f"{n}", conversation=conversation) for n in range(3)]
    responses.append(await book.answer("failed", None, conversation=conversation, status="failed"))
    responses.append(await book.answer("fork", parent=responses[0]))
    await book.home.conversations.delete("ann", conversation)
    await erase_all(book)
    for response_id in responses:
        await book.ledger.delete("ann", response_id)
        await erase_all(book)
    await book.home.retention.forget_keys(book.tick())
    await assert_empty(book)


@scene
async def test_a_deleted_conversation_leaves_its_responses_their_own_items(book: Book) -> None:
    conversation = await book.converse("before")
    response_id = await book.answer("Hi", conversation=conversation)
    await book.home.conversations.delete("ann", conversation)
    await erase_all(book)
    page = await book.home.catalog.input_items("ann", response_id, Paging())
    assert page.data[0]["content"][0]["text"] == "Hi"
    assert not await book.home.inspector.contains("before")


@scene
async def test_erasing_a_conversation_waits_for_the_run_in_it(book: Book) -> None:
    conversation = await book.converse("before")
    response_id, _ = await book.start("Hi", conversation=conversation)
    await book.home.conversations.delete("ann", conversation)
    assert await erase_all(book) == 0
    claim = await book.ledger.take_over(response_id, "w2")
    assert claim is not None
    assert await book.history_of(claim.position) == ["before"]
    await book.close(claim.lease)
    assert await erase_all(book) == 1
    assert not await book.home.inspector.contains("before")


@scene
async def test_a_response_that_added_no_item_is_erased_like_any_other(book: Book) -> None:
    """Its thread may be gone before it is."""
    one = await book.answer("one", None, status="cancelled")
    two = await book.answer(items=[], answer=None, parent=one, status="cancelled")
    await book.ledger.delete("ann", one)
    await erase_all(book)
    stranger = await book.answer("a secret", owner="bob")
    with pytest.raises(InvalidRequest):
        await book.admit(parent=two)
    page = await book.home.catalog.input_items("ann", two, Paging())
    assert page.data == []
    await book.ledger.delete("ann", two)
    await book.ledger.delete("bob", stranger)
    await erase_all(book)
    await assert_empty(book)


@scene
async def test_an_empty_conversation_outlives_its_forks(book: Book) -> None:
    conversation = await book.converse("one")
    first = await book.answer("two", None, conversation=conversation, status="cancelled")
    fork = await book.answer("fork", parent=first)
    for item_id in [item["id"] for item in (await book.home.catalog.items("ann", conversation, Paging())).data]:
        await book.home.conversations.delete_item("ann", conversation, item_id)
    for response_id in (first, fork):
        await book.ledger.delete("ann", response_id)
    await erase_all(book)
    await book.answer("still here", conversation=conversation)
    assert await book.texts_of(conversation) == ["still here", "answer"]


@scene
async def test_old_keys_are_forgotten_but_not_those_of_responses(book: Book) -> None:
    response_id, _ = await book.admit(key="k")
    await book.converse(key="k")
    await book.admit(retry_digest=b"d")
    await book.home.retention.forget_keys(book.tick())
    rows = await book.home.inspector.rows()
    assert (rows["idempotency"], rows["unanswered"]) == (1, 0)
    _, again = await book.admit(key="k")
    assert again.attached == response_id

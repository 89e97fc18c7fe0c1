"""Conversations through their own endpoints."""

from __future__ import annotations

import asyncio

import pytest

from outlive.core.errors import Conflict, ConversationLocked, NotFound
from outlive.core.events import Json
from outlive.ports.catalog import Paging
from outlive.ports.ledger import Idempotency
from tests.conformance.scenes import Book, message, scene, texts


async def add(
    book: Book, conversation: str, *items: Json, owner: str = "ann", key: str | None = None, digest: bytes = b"d"
) -> list[Json]:
    idempotency = Idempotency(key, digest) if key is not None else None
    return await book.home.conversations.add_items(owner, conversation, list(items), book.tick(), idempotency)


@scene
async def test_a_conversation_is_created_with_its_items_and_metadata(book: Book) -> None:
    conversation = await book.converse("one", "two")
    assert await book.texts_of(conversation) == ["one", "two"]
    found = await book.home.catalog.conversation("ann", conversation)
    assert found == {
        "id": conversation,
        "object": "conversation",
        "created_at": int(book.now),
        "metadata": {"a": "b"},
    }


@scene
async def test_updating_replaces_the_metadata(book: Book) -> None:
    conversation = await book.converse()
    updated = await book.home.conversations.update("ann", conversation, {"c": "d"})
    assert updated["metadata"] == {"c": "d"}
    assert await book.home.catalog.conversation("ann", conversation) == updated


@scene
async def test_items_are_added_at_the_end_and_given_back(book: Book) -> None:
    conversation = await book.converse("one")
    added = await add(book, conversation, message("msg_a", "two"), message("msg_b", "three"))
    assert texts(added) == ["two", "three"]
    assert await book.texts_of(conversation) == ["one", "two", "three"]


@scene
async def test_an_item_that_is_there_already_is_left_as_it_is(book: Book) -> None:
    conversation = await book.converse()
    await add(book, conversation, message("msg_a", "first"))
    added = await add(book, conversation, message("msg_a", "second"), message("msg_b", "new"))
    assert texts(added) == ["first", "new"]
    assert await book.texts_of(conversation) == ["first", "new"]


@scene
async def test_ids_are_unique_within_one_conversation_only(book: Book) -> None:
    one, two = await book.converse(), await book.converse()
    for conversation in (one, two):
        await add(book, conversation, message("msg_a", conversation))
    assert await book.texts_of(one) == [one]
    assert await book.texts_of(two) == [two]


@scene
async def test_items_added_at_once_are_all_there(book: Book) -> None:
    conversation = await book.converse()
    await asyncio.gather(*(add(book, conversation, message(f"msg_{n}", str(n))) for n in range(10)))
    assert sorted(await book.texts_of(conversation), key=int) == [str(n) for n in range(10)]


@scene
async def test_a_deleted_item_is_gone_and_the_rest_stays_in_order(book: Book) -> None:
    conversation = await book.converse("one", "two", "three")
    back = await book.home.conversations.delete_item("ann", conversation, "msg_3")
    assert back["id"] == conversation
    assert await book.texts_of(conversation) == ["one", "three"]
    with pytest.raises(NotFound):
        await book.home.conversations.delete_item("ann", conversation, "msg_3")
    await add(book, conversation, message("msg_z", "four"))
    assert await book.texts_of(conversation) == ["one", "three", "four"]


@scene
async def test_a_deleted_conversation_is_gone_for_every_endpoint(book: Book) -> None:
    conversation = await book.converse("one")
    port = book.home.conversations
    await port.delete("ann", conversation)
    for act in (
        lambda: port.delete("ann", conversation),
        lambda: port.update("ann", conversation, {}),
        lambda: add(book, conversation, message("msg_a", "x")),
        lambda: port.delete_item("ann", conversation, "msg_2"),
        lambda: book.home.catalog.conversation("ann", conversation),
        lambda: book.home.catalog.items("ann", conversation, Paging()),
        lambda: book.admit(conversation=conversation),
    ):
        with pytest.raises(NotFound):
            await act()


@scene
async def test_owners_cannot_change_each_others(book: Book) -> None:
    conversation = await book.converse("one")
    port = book.home.conversations
    for act in (
        lambda: port.delete("bob", conversation),
        lambda: port.update("bob", conversation, {}),
        lambda: add(book, conversation, message("msg_a", "x"), owner="bob"),
        lambda: port.delete_item("bob", conversation, "msg_2"),
    ):
        with pytest.raises(NotFound):
            await act()
    assert await book.texts_of(conversation) == ["one"]


@scene
async def test_a_repeated_creation_gives_the_same_conversation(book: Book) -> None:
    first = await book.converse("one", key="k")
    assert await book.converse("one", key="k") == first
    with pytest.raises(Conflict):
        await book.converse("two", key="k", digest=b"other")
    assert await book.converse("one", key="k", owner="bob") != first


@scene
async def test_a_key_whose_conversation_was_deleted_starts_anew(book: Book) -> None:
    first = await book.converse("one", key="k")
    await book.home.conversations.delete("ann", first)
    assert await book.converse("one", key="k") != first


@scene
async def test_repeated_items_are_added_once_even_with_new_ids(book: Book) -> None:
    conversation = await book.converse()
    first = await add(book, conversation, message("msg_a", "one"), key="k")
    again = await add(book, conversation, message("msg_b", "one"), key="k")
    assert again == first
    assert await book.texts_of(conversation) == ["one"]
    with pytest.raises(Conflict):
        await add(book, conversation, message("msg_c", "two"), key="k", digest=b"other")


@scene
async def test_a_repeat_of_items_is_answered_while_the_conversation_is_locked(book: Book) -> None:
    conversation = await book.converse()
    first = await add(book, conversation, message("msg_a", "one"), key="k")
    await book.start("running", conversation=conversation)
    assert await add(book, conversation, message("msg_b", "one"), key="k") == first
    with pytest.raises(ConversationLocked):
        await add(book, conversation, message("msg_c", "two"))


@scene
async def test_deleting_a_conversation_does_not_need_its_lock(book: Book) -> None:
    conversation = await book.converse()
    response_id, lease = await book.start(conversation=conversation)
    await book.home.conversations.delete("ann", conversation)
    await book.close(lease)
    assert (await book.home.catalog.response("ann", response_id)).status == "completed"

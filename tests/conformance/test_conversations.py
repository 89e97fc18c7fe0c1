"""Conversations through their own endpoints."""

from __future__ import annotations

import asyncio

import pytest

from outlive.core.errors import Conflict, ConversationLocked, NotFound
from outlive.core.events import Json
from outlive.ports.catalog import Paging
from outlive.ports.ledger import Idempotency
from tests.conformance.harness import StorageHarness, message, storage_test, texts


async def add(
    harness: StorageHarness,
    conversation: str,
    *items: Json,
    owner: str = "ann",
    key: str | None = None,
    digest: bytes = b"d",
) -> list[Json]:
    idempotency = Idempotency(key, digest) if key is not None else None
    return await harness.storage.conversations.add_items(owner, conversation, list(items), harness.tick(), idempotency)


@storage_test
async def test_a_conversation_is_created_with_its_items_and_metadata(harness: StorageHarness) -> None:
    conversation = await harness.converse("one", "two")
    assert await harness.texts_of(conversation) == ["one", "two"]
    found = await harness.storage.catalog.conversation("ann", conversation)
    assert found == {
        "id": conversation,
        "object": "conversation",
        "created_at": int(harness.now),
        "metadata": {"a": "b"},
    }


@storage_test
async def test_updating_replaces_the_metadata(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    updated = await harness.storage.conversations.update("ann", conversation, {"c": "d"})
    assert updated["metadata"] == {"c": "d"}
    assert await harness.storage.catalog.conversation("ann", conversation) == updated


@storage_test
async def test_items_are_added_at_the_end_and_given_back(harness: StorageHarness) -> None:
    conversation = await harness.converse("one")
    added = await add(harness, conversation, message("msg_a", "two"), message("msg_b", "three"))
    assert texts(added) == ["two", "three"]
    assert await harness.texts_of(conversation) == ["one", "two", "three"]


@storage_test
async def test_adding_an_existing_item_leaves_it_unchanged(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    await add(harness, conversation, message("msg_a", "first"))
    added = await add(harness, conversation, message("msg_a", "second"), message("msg_b", "new"))
    assert texts(added) == ["first", "new"]
    assert await harness.texts_of(conversation) == ["first", "new"]


@storage_test
async def test_ids_are_unique_within_one_conversation_only(harness: StorageHarness) -> None:
    one, two = await harness.converse(), await harness.converse()
    for conversation in (one, two):
        await add(harness, conversation, message("msg_a", conversation))
    assert await harness.texts_of(one) == [one]
    assert await harness.texts_of(two) == [two]


@storage_test
async def test_items_added_at_once_are_all_there(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    await asyncio.gather(*(add(harness, conversation, message(f"msg_{n}", str(n))) for n in range(10)))
    assert sorted(await harness.texts_of(conversation), key=int) == [str(n) for n in range(10)]


@storage_test
async def test_a_deleted_item_is_gone_and_the_rest_stays_in_order(harness: StorageHarness) -> None:
    conversation = await harness.converse("one", "two", "three")
    back = await harness.storage.conversations.delete_item("ann", conversation, "msg_3")
    assert back["id"] == conversation
    assert await harness.texts_of(conversation) == ["one", "three"]
    with pytest.raises(NotFound):
        await harness.storage.conversations.delete_item("ann", conversation, "msg_3")
    await add(harness, conversation, message("msg_z", "four"))
    assert await harness.texts_of(conversation) == ["one", "three", "four"]


@storage_test
async def test_a_deleted_conversation_is_gone_for_every_endpoint(harness: StorageHarness) -> None:
    conversation = await harness.converse("one")
    port = harness.storage.conversations
    await port.delete("ann", conversation)
    for act in (
        lambda: port.delete("ann", conversation),
        lambda: port.update("ann", conversation, {}),
        lambda: add(harness, conversation, message("msg_a", "x")),
        lambda: port.delete_item("ann", conversation, "msg_2"),
        lambda: harness.storage.catalog.conversation("ann", conversation),
        lambda: harness.storage.catalog.items("ann", conversation, Paging()),
        lambda: harness.admit(conversation=conversation),
    ):
        with pytest.raises(NotFound):
            await act()


@storage_test
async def test_owners_cannot_change_conversations_of_each_other(harness: StorageHarness) -> None:
    conversation = await harness.converse("one")
    port = harness.storage.conversations
    for act in (
        lambda: port.delete("bob", conversation),
        lambda: port.update("bob", conversation, {}),
        lambda: add(harness, conversation, message("msg_a", "x"), owner="bob"),
        lambda: port.delete_item("bob", conversation, "msg_2"),
    ):
        with pytest.raises(NotFound):
            await act()
    assert await harness.texts_of(conversation) == ["one"]


@storage_test
async def test_a_repeated_create_returns_the_same_conversation(harness: StorageHarness) -> None:
    first = await harness.converse("one", key="k")
    assert await harness.converse("one", key="k") == first
    with pytest.raises(Conflict):
        await harness.converse("two", key="k", digest=b"other")
    assert await harness.converse("one", key="k", owner="bob") != first


@storage_test
async def test_a_key_of_a_deleted_conversation_can_be_used_again(harness: StorageHarness) -> None:
    first = await harness.converse("one", key="k")
    await harness.storage.conversations.delete("ann", first)
    assert await harness.converse("one", key="k") != first


@storage_test
async def test_repeated_items_are_added_once_even_with_new_ids(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    first = await add(harness, conversation, message("msg_a", "one"), key="k")
    again = await add(harness, conversation, message("msg_b", "one"), key="k")
    assert again == first
    assert await harness.texts_of(conversation) == ["one"]
    with pytest.raises(Conflict):
        await add(harness, conversation, message("msg_c", "two"), key="k", digest=b"other")


@storage_test
async def test_a_repeat_of_items_is_answered_while_the_conversation_is_locked(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    first = await add(harness, conversation, message("msg_a", "one"), key="k")
    await harness.start("running", conversation=conversation)
    assert await add(harness, conversation, message("msg_b", "one"), key="k") == first
    with pytest.raises(ConversationLocked):
        await add(harness, conversation, message("msg_c", "two"))


@storage_test
async def test_deleting_a_conversation_does_not_need_its_lock(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    response_id, lease = await harness.start(conversation=conversation)
    await harness.storage.conversations.delete("ann", conversation)
    await harness.close(lease)
    assert (await harness.storage.catalog.response("ann", response_id)).status == "completed"

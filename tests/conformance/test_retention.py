"""Retention: things expire by last use, and are erased without a trace once nothing needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from outlive.core.errors import InvalidRequest, NotFound
from outlive.ports import retention
from outlive.ports.catalog import Paging
from outlive.ports.ledger import Idempotency
from tests.conformance.harness import StorageHarness, entry, message, storage_test

LONG = 1200  # events


async def erase_all(harness: StorageHarness) -> int:
    gone = 0
    while count := await harness.storage.retention.erase(2):
        gone += count
    return gone


@contextmanager
def short_steps() -> Iterator[None]:
    """Let each transaction that erases end after its first statement."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "STEP_SECONDS", 0.0)
        yield


async def expire(harness: StorageHarness, responses: float | None = None, conversations: float | None = None) -> int:
    return await harness.storage.retention.expire(
        responses_before=responses, conversations_before=conversations, at=harness.tick(), limit=100
    )


async def delete_expired(harness: StorageHarness) -> int:
    return await harness.storage.retention.delete_expired(harness.tick(), 100)


async def assert_empty(harness: StorageHarness) -> None:
    assert {name: count for name, count in (await harness.storage.inspector.rows()).items() if count} == {}


async def is_there(harness: StorageHarness, response_id: str) -> bool:
    try:
        await harness.storage.catalog.response("ann", response_id)
    except NotFound:
        return False
    return True


# -- expiring


@storage_test
async def test_long_unused_responses_expire(harness: StorageHarness) -> None:
    old = await harness.answer()
    middle = harness.tick()
    young = await harness.answer()
    assert await expire(harness, responses=middle) == 1
    assert not await is_there(harness, old)
    assert await is_there(harness, young)
    assert await expire(harness, responses=middle) == 0


@storage_test
async def test_a_response_with_its_own_time_expires_by_that_and_not_by_the_settings(harness: StorageHarness) -> None:
    second = 1.0 / 86_400
    brief = await harness.answer(outlive={"expires_after_days": 20 * second})
    parent = await harness.answer(outlive={"expires_after_days": 60 * second})
    long = await harness.answer(outlive={"expires_after_days": 100.0})
    running, _ = await harness.start(outlive={"expires_after_days": second})
    harness.now += 30
    assert await expire(harness) == 1
    assert not await is_there(harness, brief)
    child = await harness.answer(parent=parent)  # renews its parent
    harness.now += 30
    assert await expire(harness, responses=harness.tick()) == 1
    assert [await is_there(harness, each) for each in (parent, long, running, child)] == [True, True, True, False]
    harness.now += 60
    assert await expire(harness) == 1
    assert [await is_there(harness, each) for each in (parent, long, running)] == [False, True, True]


@storage_test
async def test_nothing_expires_without_a_retention_time(harness: StorageHarness) -> None:
    response_id, conversation = await harness.answer(), await harness.converse()
    assert await expire(harness) == 0
    assert await is_there(harness, response_id)
    await harness.storage.catalog.conversation("ann", conversation)


@storage_test
async def test_running_and_queued_responses_never_expire(harness: StorageHarness) -> None:
    running, _ = await harness.start()
    waiting, _ = await harness.admit(worker=None)
    assert await expire(harness, responses=harness.tick()) == 0
    assert await is_there(harness, running)
    assert await is_there(harness, waiting)


@storage_test
async def test_being_a_parent_renews_a_whole_chain(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    two = await harness.answer("two", parent=one)
    fork = await harness.answer("fork", parent=one)
    lonely = await harness.answer("lonely")
    middle = harness.tick()
    await harness.answer("three", parent=two)
    assert await expire(harness, responses=middle) == 1
    assert not await is_there(harness, lonely)
    for response_id in (one, two, fork):
        assert await is_there(harness, response_id)


@storage_test
async def test_being_a_parent_renews_a_response_that_a_conversation_holds(harness: StorageHarness) -> None:
    one = await harness.answer("one", conversation=await harness.converse())
    middle = harness.tick()
    two = await harness.answer("two", parent=one)
    assert await expire(harness, responses=middle) == 0
    await harness.admit("three", parent=two)


@storage_test
async def test_a_chain_without_new_turns_expires_as_a_whole(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    two = await harness.answer("two", parent=one)
    await harness.answer("fork", parent=one)
    assert await expire(harness, responses=harness.tick()) == 3
    with pytest.raises(InvalidRequest) as caught:
        await harness.admit(parent=two)
    assert caught.value.code == "previous_response_not_found"


@storage_test
async def test_an_unused_conversation_expires(harness: StorageHarness) -> None:
    old = await harness.converse("old")
    middle = harness.tick()
    young = await harness.converse("young")
    assert await expire(harness, conversations=middle) == 1
    with pytest.raises(NotFound):
        await harness.storage.catalog.conversation("ann", old)
    await harness.storage.catalog.conversation("ann", young)


@storage_test
async def test_a_turn_or_an_item_renews_a_conversation(harness: StorageHarness) -> None:
    with_turn, with_item = await harness.converse(), await harness.converse()
    middle = harness.tick()
    await harness.answer(conversation=with_turn)
    await harness.storage.conversations.add_items("ann", with_item, [message("msg_a", "x")], harness.tick(), None)
    assert await expire(harness, conversations=middle) == 0


@storage_test
async def test_a_conversation_with_a_run_in_it_does_not_expire(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    await harness.start(conversation=conversation)
    assert await expire(harness, conversations=harness.tick()) == 0


@storage_test
async def test_a_conversation_keeps_its_items_when_its_responses_expire(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    await harness.answer("Hi", conversation=conversation)
    assert await expire(harness, responses=harness.tick()) == 1
    assert await delete_expired(harness) == 1
    assert await erase_all(harness) == 1
    assert await harness.texts_of(conversation) == ["before", "Hi", "answer"]
    _, admitted = await harness.admit(conversation=conversation)
    assert await harness.history_of(admitted.position) == ["before", "Hi", "answer"]


@storage_test
async def test_expiring_goes_in_batches(harness: StorageHarness) -> None:
    for _ in range(5):
        await harness.answer()
    expire_some = harness.storage.retention.expire
    now = harness.tick()
    counts = [await expire_some(responses_before=now, conversations_before=None, at=now, limit=2) for _ in range(4)]
    assert counts == [2, 2, 1, 0]


@storage_test
async def test_what_has_expired_is_erased_only_after_it_was_deleted(harness: StorageHarness) -> None:
    await harness.answer("one")
    await harness.converse("two")
    now = harness.tick()
    assert await expire(harness, responses=now, conversations=now) == 2
    assert await erase_all(harness) == 0
    assert await harness.storage.retention.delete_expired(now, 100) == 0
    assert await delete_expired(harness) == 2
    assert await delete_expired(harness) == 0
    assert await erase_all(harness) == 2
    await assert_empty(harness)


@storage_test
async def test_what_expired_by_a_wrong_clock_is_restored_with_its_chains(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    two = await harness.answer("two", parent=one)
    fork = await harness.answer("fork", parent=one)
    conversation = await harness.converse("before")
    turn = await harness.answer("Hi", conversation=conversation)
    now = harness.tick()
    assert await expire(harness, responses=now, conversations=now) == 5
    assert not await is_there(harness, two)
    assert await harness.storage.retention.restore(harness.tick(), 100) == 0  # these expired before
    assert [await harness.storage.retention.restore(now, limit) for limit in (2, 2, 2)] == [3, 2, 0]
    for response_id in (one, two, fork, turn):
        assert await is_there(harness, response_id)
    for parent in (two, fork):
        _, admitted = await harness.admit(parent=parent)
        assert (await harness.history_of(admitted.position))[:2] == ["one", "answer"]
    assert await harness.texts_of(conversation) == ["before", "Hi", "answer"]
    assert await delete_expired(harness) == 0


@storage_test
async def test_no_chain_continues_past_an_expired_ancestor_whether_or_not_it_is_erased(
    harness: StorageHarness,
) -> None:
    one = await harness.answer("one")
    two, lease = await harness.start("two", parent=one)
    assert await expire(harness, responses=harness.tick()) == 1
    await harness.close(lease)
    for step in (delete_expired, erase_all, erase_all):
        with pytest.raises(InvalidRequest) as caught:
            await harness.admit(parent=two)
        assert caught.value.code == "previous_response_not_found"
        await step(harness)
    assert await harness.storage.retention.restore(0.0, 100) == 0
    with pytest.raises(InvalidRequest):
        await harness.admit(parent=two)


# -- erasing


@storage_test
async def test_nothing_is_left_of_a_deleted_response(harness: StorageHarness) -> None:
    response_id = await harness.answer("canary-in", "canary-out", key="k", retry_digest=b"d", instructions="canary")
    await harness.ledger.delete("ann", response_id)
    assert await erase_all(harness) == 1
    await assert_empty(harness)
    with pytest.raises(NotFound):
        await harness.events(response_id)


@storage_test
async def test_a_long_journal_is_erased_in_parts_and_never_read_with_a_gap(harness: StorageHarness) -> None:
    response_id, lease = await harness.start()
    await harness.ledger.append([entry(lease, n) for n in range(2, LONG)])
    await harness.close(lease, first=LONG)
    await harness.ledger.delete("ann", response_id)
    with short_steps():
        assert await harness.storage.retention.erase(100) > 0
    with pytest.raises(NotFound):
        await harness.events(response_id)
    assert await harness.storage.journal.read(response_id, LONG, 1000) is not None  # a reader at its end stays there
    assert await erase_all(harness) > 0
    await assert_empty(harness)
    with pytest.raises(NotFound):
        await harness.storage.journal.read(response_id, LONG, 1000)


@storage_test
async def test_many_items_are_erased_in_parts(harness: StorageHarness) -> None:
    conversation_id = await harness.converse(*(f"Line {n}" for n in range(50)))
    response_id, lease = await harness.start()
    await harness.close(lease, turn=[message(f"msg_{n}", f"Page {n}", "assistant") for n in range(50)])
    await harness.ledger.delete("ann", response_id)
    await harness.storage.conversations.delete("ann", conversation_id)
    left = []
    with short_steps():
        while await harness.storage.retention.erase(100):
            left.append((await harness.storage.inspector.rows())["items"])
    assert left == [81, 61, 50, 30, 10, 0]
    await assert_empty(harness)


@storage_test
async def test_a_step_of_erasing_goes_on_where_the_one_before_stopped(harness: StorageHarness) -> None:
    conversation_id = await harness.converse()
    response_id, lease = await harness.start(conversation=conversation_id)
    await harness.close(lease, turn=[message(f"msg_{n}", f"Page {n}", "assistant") for n in range(2000)])
    loose = [message(f"loose_{n}", f"Line {n}") for n in range(50)]
    await harness.storage.conversations.add_items("ann", conversation_id, loose, harness.tick(), None)
    await harness.storage.conversations.delete("ann", conversation_id)
    await harness.storage.inspector.update_statistics()
    left, work = [], []
    with short_steps():
        for _ in range(3):
            work.append(await harness.storage.inspector.work_of(lambda: harness.storage.retention.erase(100)))
            left.append((await harness.storage.inspector.rows())["items"])
    assert left == [2031, 2011, 2001]  # those of the response stay
    assert max(work[1:]) < work[0] / 4
    assert (await harness.storage.inspector.rows())["conversations"] == 0
    await harness.ledger.delete("ann", response_id)
    await erase_all(harness)
    await assert_empty(harness)


@storage_test
async def test_only_deleted_responses_are_erased(harness: StorageHarness) -> None:
    await harness.answer()
    await harness.converse("Hi")
    before = await harness.storage.inspector.rows()
    assert await erase_all(harness) == 0
    assert await harness.storage.inspector.rows() == before


@storage_test
async def test_nothing_is_left_of_a_family_of_forks(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    two = await harness.answer("two", parent=one)
    fork = await harness.answer("fork", parent=one)
    of_fork = await harness.answer("of fork", parent=fork)
    again = await harness.answer("again", parent=fork)
    failed = await harness.answer("failed", None, parent=two, status="failed")
    for response_id in (fork, one, again, two, failed, of_fork):
        await harness.ledger.delete("ann", response_id)
        await erase_all(harness)
    await assert_empty(harness)


@storage_test
async def test_erasing_waits_for_the_unfinished_runs_of_a_chain(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    two, _ = await harness.start("two", parent=one)
    await harness.ledger.delete("ann", one)
    assert await erase_all(harness) == 0
    claim = await harness.ledger.take_over(two, "w2")
    assert claim is not None
    assert await harness.history_of(claim.position) == ["one", "answer"]
    await harness.close(claim.lease)
    assert await erase_all(harness) == 1
    assert await is_there(harness, two)


@storage_test
async def test_erasing_waits_for_an_unfinished_fork(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    await harness.answer("two", parent=one)
    await harness.admit("fork", parent=one, worker=None)
    await harness.ledger.delete("ann", one)
    assert await erase_all(harness) == 0
    (claim,) = await harness.claim()
    assert await harness.history_of(claim.position) == ["one", "answer"]


@storage_test
async def test_a_run_in_another_chain_does_not_delay_erasing(harness: StorageHarness) -> None:
    await harness.start()
    await harness.ledger.delete("ann", await harness.answer())
    assert await erase_all(harness) == 1


@storage_test
async def test_items_in_a_conversation_stay_when_their_response_is_deleted(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    response_id = await harness.answer("Hi", conversation=conversation)
    await harness.ledger.delete("ann", response_id)
    assert await erase_all(harness) == 1
    assert await harness.texts_of(conversation) == ["before", "Hi", "answer"]


@storage_test
async def test_a_later_response_does_not_inherit_what_stayed_in_a_conversation(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    await harness.ledger.delete("ann", await harness.answer("Hi", conversation=conversation))
    await erase_all(harness)
    await harness.ledger.delete("ann", await harness.answer("other"))
    await erase_all(harness)
    assert await harness.texts_of(conversation) == ["before", "Hi", "answer"]
    still_there = await harness.answer("another")
    await harness.storage.conversations.delete("ann", conversation)
    await erase_all(harness)
    assert not await harness.storage.inspector.contains("before")
    assert not await harness.storage.inspector.contains("Hi")
    assert await is_there(harness, still_there)


@storage_test
async def test_nothing_is_left_of_a_deleted_conversation_and_its_responses(harness: StorageHarness) -> None:
    conversation = await harness.converse("before", key="k")
    await harness.storage.conversations.add_items(
        "ann", conversation, [message("msg_a", "x")], 1.0, Idempotency("k", b"d")
    )
    responses = [await harness.answer(f"{n}", conversation=conversation) for n in range(3)]
    responses.append(await harness.answer("failed", None, conversation=conversation, status="failed"))
    responses.append(await harness.answer("fork", parent=responses[0]))
    await harness.storage.conversations.delete("ann", conversation)
    await erase_all(harness)
    for response_id in responses:
        await harness.ledger.delete("ann", response_id)
        await erase_all(harness)
    await harness.storage.retention.forget_keys(harness.tick())
    await assert_empty(harness)


@storage_test
async def test_a_deleted_conversation_leaves_its_responses_their_own_items(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    response_id = await harness.answer("Hi", conversation=conversation)
    await harness.storage.conversations.delete("ann", conversation)
    await erase_all(harness)
    page = await harness.storage.catalog.input_items("ann", response_id, Paging())
    assert page.data[0]["content"][0]["text"] == "Hi"
    assert not await harness.storage.inspector.contains("before")


@storage_test
async def test_erasing_a_conversation_waits_for_the_run_in_it(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    response_id, _ = await harness.start("Hi", conversation=conversation)
    await harness.storage.conversations.delete("ann", conversation)
    assert await erase_all(harness) == 0
    claim = await harness.ledger.take_over(response_id, "w2")
    assert claim is not None
    assert await harness.history_of(claim.position) == ["before"]
    await harness.close(claim.lease)
    assert await erase_all(harness) == 1
    assert not await harness.storage.inspector.contains("before")


@storage_test
async def test_a_response_that_added_no_item_is_erased_like_any_other(harness: StorageHarness) -> None:
    """Its thread may be erased before it is."""
    one = await harness.answer("one", None, status="cancelled")
    two = await harness.answer(items=[], answer=None, parent=one, status="cancelled")
    await harness.ledger.delete("ann", one)
    await erase_all(harness)
    stranger = await harness.answer("a secret", owner="bob")
    with pytest.raises(InvalidRequest):
        await harness.admit(parent=two)
    page = await harness.storage.catalog.input_items("ann", two, Paging())
    assert page.data == []
    await harness.ledger.delete("ann", two)
    await harness.ledger.delete("bob", stranger)
    await erase_all(harness)
    await assert_empty(harness)


@storage_test
async def test_an_empty_conversation_outlives_its_forks(harness: StorageHarness) -> None:
    conversation = await harness.converse("one")
    first = await harness.answer("two", None, conversation=conversation, status="cancelled")
    fork = await harness.answer("fork", parent=first)
    for item_id in [item["id"] for item in (await harness.storage.catalog.items("ann", conversation, Paging())).data]:
        await harness.storage.conversations.delete_item("ann", conversation, item_id)
    for response_id in (first, fork):
        await harness.ledger.delete("ann", response_id)
    await erase_all(harness)
    await harness.answer("still here", conversation=conversation)
    assert await harness.texts_of(conversation) == ["still here", "answer"]


@storage_test
async def test_old_keys_are_erased_except_those_of_responses(harness: StorageHarness) -> None:
    response_id, _ = await harness.admit(key="k")
    await harness.converse(key="k")
    await harness.admit(retry_digest=b"d")
    await harness.storage.retention.forget_keys(harness.tick())
    rows = await harness.storage.inspector.rows()
    assert (rows["idempotency"], rows["unanswered"]) == (1, 0)
    _, again = await harness.admit(key="k")
    assert again.attached == response_id

"""The ledger: every change of a stored response is one transaction, under a fence, or does not happen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlive.core.errors import Conflict, ConversationLocked, InvalidRequest, NotFound, StaleFence
from outlive.core.events import Json, is_last, split_frames
from outlive.ports.catalog import Paging
from outlive.ports.ledger import CLAIM_BYTES, Checkpoint, Position
from tests.conformance.harness import STALE, WRITTEN, StorageHarness, entry, message, storage_test
from tests.conformance.storages import Opener

# -- admission


@storage_test
async def test_an_admitted_response_is_found_with_its_input_and_first_events(harness: StorageHarness) -> None:
    response_id, lease = await harness.start("Hi")
    record = await harness.storage.catalog.response("ann", response_id)
    assert (record.status, record.snapshot) == ("in_progress", None)
    assert len(split_frames(await harness.events(response_id))) == 2
    page = await harness.storage.catalog.input_items("ann", response_id, Paging())
    assert [item["content"][0]["text"] for item in page.data] == ["Hi"]
    assert lease.fence == 1


@storage_test
async def test_a_response_without_a_worker_is_queued(harness: StorageHarness) -> None:
    response_id, admitted = await harness.admit(worker=None)
    assert admitted.lease is None
    assert await harness.ledger.count_queued() == {"ann": 1}
    assert (await harness.storage.catalog.response("ann", response_id)).status == "queued"


@storage_test
async def test_a_refused_admission_writes_nothing(harness: StorageHarness) -> None:
    before = await harness.storage.inspector.rows()
    with pytest.raises(InvalidRequest):
        await harness.admit(parent="resp_none")
    with pytest.raises(NotFound):
        await harness.admit(conversation="conv_none", key="k")
    assert await harness.storage.inspector.rows() == before


@storage_test
async def test_items_keep_unknown_fields(harness: StorageHarness) -> None:
    odd = message("msg_odd", "Hi\x00\n\N{PILE OF POO}") | {"x_vendor": {"deep": [1, None, "\u2028"]}}
    response_id, _ = await harness.start(items=[odd])
    page = await harness.storage.catalog.input_items("ann", response_id, Paging())
    assert page.data == [odd]
    claim = await harness.ledger.take_over(response_id, "w2")
    assert claim is not None
    assert claim.request.input == [odd]


# -- claims and fences


@storage_test
async def test_a_claim_brings_everything_a_worker_needs(harness: StorageHarness) -> None:
    response_id, _ = await harness.admit(
        "Hi", worker=None, background=True, instructions="Be brief.", metadata={"a": "b"}
    )
    (claim,) = await harness.claim()
    assert claim.lease.response_id == response_id
    assert (claim.owner, claim.attempts, claim.checkpoint, claim.background) == ("ann", 1, Checkpoint(), True)
    assert claim.request.instructions == "Be brief."
    assert claim.request.metadata == {"a": "b"}
    assert [item["content"][0]["text"] for item in claim.request.input] == ["Hi"]
    assert (await harness.storage.catalog.response("ann", response_id)).status == "in_progress"
    assert await harness.claim() == []


@storage_test
async def test_claims_take_foreground_first_then_the_oldest(harness: StorageHarness) -> None:
    first, _ = await harness.admit(worker=None, background=True)
    second, _ = await harness.admit(worker=None)
    third, _ = await harness.admit(worker=None, background=True)
    fourth, _ = await harness.admit(worker=None)
    claimed = [claim.lease.response_id for n in range(4) for claim in await harness.claim(1)]
    assert claimed == [second, fourth, first, third]


@storage_test
async def test_a_claim_takes_nothing_behind_a_large_request(harness: StorageHarness) -> None:
    ids = []
    for n, size in enumerate((1, CLAIM_BYTES, 1, 1)):
        items = [message(f"msg_{n}", "x" * size)]
        ids.append((await harness.admit(items=items, worker=None, large=size == CLAIM_BYTES))[0])
    first, second = await harness.claim(), await harness.claim()
    assert [claim.lease.response_id for claim in first] == ids[:2]
    assert [claim.lease.response_id for claim in second] == ids[2:]
    assert [claim.size > CLAIM_BYTES for claim in first + second] == [False, True, False, False]


@storage_test
async def test_owners_at_their_limit_are_skipped(harness: StorageHarness) -> None:
    await harness.admit(worker=None, owner="ann")
    bobs, _ = await harness.admit(worker=None, owner="bob")
    assert [claim.lease.response_id for claim in await harness.claim(busy=frozenset({"ann"}))] == [bobs]
    assert await harness.ledger.count_queued() == {"ann": 1}
    assert [claim.owner for claim in await harness.claim()] == ["ann"]


@storage_test
async def test_no_response_is_claimed_twice(harness: StorageHarness) -> None:
    for _ in range(20):
        await harness.admit(worker=None)
    claims = await asyncio.gather(*(harness.claim(3, worker=f"w{n}") for n in range(10)))
    ids = [claim.lease.response_id for some in claims for claim in some]
    assert len(ids) == len(set(ids)) == 20


@storage_test
async def test_attempts_are_counted_when_claimed(harness: StorageHarness) -> None:
    await harness.admit(worker=None)
    for attempt in (1, 2, 3):
        (claim,) = await harness.claim()
        assert claim.attempts == attempt
        await harness.ledger.free_dead_leases()


@storage_test
async def test_taking_the_lease_at_admission_counts_as_an_attempt(harness: StorageHarness) -> None:
    await harness.start()
    await harness.ledger.free_dead_leases()
    (claim,) = await harness.claim()
    assert claim.attempts == 2


@storage_test
async def test_a_released_run_counts_no_attempt(harness: StorageHarness) -> None:
    _, lease = await harness.start()
    await harness.ledger.release_leases([lease])
    (claim,) = await harness.claim()
    assert claim.attempts == 1
    assert claim.lease.fence == lease.fence + 1


@storage_test
async def test_a_stale_lease_cannot_release_the_lease_of_another_worker(harness: StorageHarness) -> None:
    response_id, lease = await harness.start()
    claim = await harness.ledger.take_over(response_id, "w2")
    assert claim is not None
    await harness.ledger.release_leases([lease])
    assert await harness.claim() == []
    assert await harness.ledger.append([entry(claim.lease, 2)]) == [WRITTEN]


@storage_test
async def test_takeover_raises_the_fence_and_counts_no_attempt(harness: StorageHarness) -> None:
    response_id, lease = await harness.start()
    claim = await harness.ledger.take_over(response_id, "w2")
    assert claim is not None
    assert claim.lease.fence == lease.fence + 1
    assert (claim.attempts, claim.was_queued) == (1, False)
    assert await harness.ledger.append([entry(lease, 2), entry(claim.lease, 2)]) == [STALE, WRITTEN]


@storage_test
async def test_takeover_reports_whether_the_response_was_queued(harness: StorageHarness) -> None:
    response_id, _ = await harness.admit(worker=None)
    first = await harness.ledger.take_over(response_id, "w2")
    second = await harness.ledger.take_over(response_id, "w2")
    assert first is not None and second is not None
    assert (first.was_queued, second.was_queued) == (True, False)
    assert await harness.ledger.count_queued() == {}


@storage_test
async def test_an_ended_response_cannot_be_taken_over(harness: StorageHarness) -> None:
    response_id = await harness.answer()
    assert await harness.ledger.take_over(response_id, "w2") is None
    assert await harness.ledger.take_over("resp_none", "w2") is None


@storage_test
async def test_a_checkpoint_is_kept_for_the_next_worker(harness: StorageHarness) -> None:
    response_id, lease = await harness.start()
    await harness.ledger.save_checkpoint(lease, Checkpoint([4, 9], "resp_there"))
    claim = await harness.ledger.take_over(response_id, "w2")
    assert claim is not None
    assert claim.checkpoint == Checkpoint([4, 9], "resp_there")
    await harness.ledger.save_checkpoint(lease, Checkpoint([99]))
    again = await harness.ledger.take_over(response_id, "w3")
    assert again is not None
    assert again.checkpoint == claim.checkpoint


@storage_test
async def test_a_checkpoint_keeps_all_its_fields(harness: StorageHarness) -> None:
    response_id, lease = await harness.start()
    ignored: list[tuple[int, Json]] = [(2, {"id": "mcp_2", "type": "mcp_call"})]
    notes = Checkpoint([4], usage={"output_tokens": 5}, steps=3, repeats={"mcp_1": 2}, ignored=ignored)
    await harness.ledger.save_checkpoint(lease, notes)
    claim = await harness.ledger.take_over(response_id, "w2")
    assert claim is not None
    assert claim.checkpoint == notes


@pytest.mark.parametrize("taken", [True, False])
def test_sealed_secrets_are_kept_for_every_worker_that_runs_the_response(opener: Opener, taken: bool) -> None:
    @storage_test
    async def run(harness: StorageHarness) -> None:
        sealed, plain = b"\x00sealed\xff", None
        for given in (sealed, plain):
            response_id, _ = await harness.admit(worker="w1" if taken else None, sealed=given)
            claim = await harness.ledger.take_over(response_id, "w2")
            assert claim is not None
            assert claim.sealed == given
            assert claim.request.secrets == {}
            await harness.ledger.release_leases([claim.lease])
            (again,) = await harness.claim(worker="w3")
            assert again.sealed == given
            await harness.close(again.lease)

    run(opener)


@storage_test
async def test_a_raised_fence_shuts_out_the_previous_holder(harness: StorageHarness) -> None:
    response_id, lease = await harness.start()
    await harness.ledger.append([entry(lease, 2)])
    claim = await harness.ledger.take_over(response_id, "w2")
    assert claim is not None
    with pytest.raises(StaleFence):
        await harness.close(lease, first=3)
    await harness.close(claim.lease, first=3)
    events = await harness.events(response_id)
    assert len(split_frames(events)) == 4
    assert is_last(events)


@storage_test
async def test_a_stale_lease_cannot_write_to_a_later_response(harness: StorageHarness) -> None:
    """Keys of erased responses are never used again."""
    gone, lease = await harness.start()
    await harness.close(lease)
    await harness.ledger.delete("ann", gone)
    assert await harness.storage.retention.erase(10) == 1
    later, _ = await harness.start()
    assert await harness.ledger.append([entry(lease, 2)]) == [STALE]
    assert len(split_frames(await harness.events(later))) == 2


@storage_test
async def test_queued_responses_are_found_when_their_deadline_has_passed(harness: StorageHarness) -> None:
    for deadline in (None, 300.0):
        await harness.admit(worker=None, deadline=deadline)
    late, _ = await harness.admit(worker=None, deadline=200.0, large=True)
    first, _ = await harness.admit(worker=None, deadline=100.0)
    running, lease = await harness.start(deadline=50.0)
    find = harness.ledger.find_overdue
    assert [await find(at, 9) for at in (99.9, 100.0, 250.0)] == [[], [first], [first, late]]
    assert await find(250.0, 1) == [first]
    await harness.ledger.release_leases([lease])  # it is queued again, with the deadline that it had
    assert await find(100.0, 9) == [running, first]
    await harness.ledger.take_over(first, "w2")
    assert await find(100.0, 9) == [running]


# -- ending


@storage_test
async def test_close_writes_everything_in_one_transaction(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    response_id, lease = await harness.start("Hi", conversation=conversation)
    await harness.close(lease, "Hello")
    record = await harness.storage.catalog.response("ann", response_id)
    assert record.status == "completed"
    assert record.snapshot is not None and b"Hello" in record.snapshot
    assert is_last(await harness.events(response_id))
    assert await harness.texts_of(conversation) == ["Hi", "Hello"]
    assert await harness.ledger.count_queued() == {}
    await harness.start(conversation=conversation)  # not locked any more


@storage_test
async def test_a_refused_close_changes_nothing(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    response_id, lease = await harness.start("Hi", conversation=conversation)
    claim = await harness.ledger.take_over(response_id, "w2")
    assert claim is not None
    with pytest.raises(StaleFence):
        await harness.close(lease, "Hello")
    assert (await harness.storage.catalog.response("ann", response_id)).snapshot is None
    assert await harness.texts_of(conversation) == ["Hi"]
    with pytest.raises(ConversationLocked):
        await harness.admit(conversation=conversation)


@storage_test
async def test_the_first_close_wins(harness: StorageHarness) -> None:
    response_id, lease = await harness.start()
    results = await asyncio.gather(
        harness.close(lease, status="completed"), harness.close(lease, status="cancelled"), return_exceptions=True
    )
    assert results[0] is None
    assert isinstance(results[1], StaleFence)
    assert (await harness.storage.catalog.response("ann", response_id)).status == "completed"
    assert len(split_frames(await harness.events(response_id))) == 3


# -- conversations and their lock


@storage_test
async def test_input_is_in_the_conversation_from_admission_on(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    await harness.start("Hi", conversation=conversation)
    assert await harness.texts_of(conversation) == ["before", "Hi"]


@storage_test
async def test_a_second_run_in_a_conversation_is_refused(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    running, lease = await harness.start(conversation=conversation)
    with pytest.raises(ConversationLocked, match=running):
        await harness.admit(conversation=conversation)
    with pytest.raises(ConversationLocked, match=running):
        await harness.storage.conversations.add_items("ann", conversation, [message("msg_x", "x")], 1.0, None)
    with pytest.raises(ConversationLocked, match=running):
        await harness.storage.conversations.delete_item("ann", conversation, "msg_x")
    await harness.close(lease)
    await harness.admit(conversation=conversation)


@storage_test
async def test_concurrent_runs_lock_a_conversation_once(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    results = await asyncio.gather(
        *(harness.admit(conversation=conversation) for _ in range(8)), return_exceptions=True
    )
    assert sum(isinstance(result, ConversationLocked) for result in results) == 7


@storage_test
async def test_neither_takeover_nor_freeing_unlocks_a_conversation(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    response_id, lease = await harness.start(conversation=conversation)
    await harness.ledger.take_over(response_id, "w2")
    await harness.ledger.release_leases([lease])
    await harness.ledger.free_dead_leases()
    with pytest.raises(ConversationLocked):
        await harness.admit(conversation=conversation)


@pytest.mark.parametrize("status", ["completed", "incomplete", "cancelled"])
def test_a_completed_turn_stays_in_its_conversation(opener, status) -> None:
    @storage_test
    async def run(harness: StorageHarness) -> None:
        conversation = await harness.converse("before")
        await harness.answer("Hi", "Hel", conversation=conversation, status=status)
        assert await harness.texts_of(conversation) == ["before", "Hi", "Hel"]

    run(opener)


@storage_test
async def test_a_failed_turn_moves_out_of_its_conversation(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    failed = await harness.answer("Hi", None, conversation=conversation, status="failed")
    assert await harness.texts_of(conversation) == ["before"]
    page = await harness.storage.catalog.input_items("ann", failed, Paging())
    assert [item["content"][0]["text"] for item in page.data] == ["Hi"]
    # A retry does not double the message, and finds the position free.
    _, admitted = await harness.admit("Hi again", conversation=conversation)
    assert await harness.history_of(admitted.position) == ["before"]
    assert await harness.texts_of(conversation) == ["before", "Hi again"]


@storage_test
async def test_a_failed_turn_frees_its_position_in_the_chain(harness: StorageHarness) -> None:
    parent = await harness.answer("one", "1")
    failed, first = await harness.admit("two", parent=parent)
    assert first.lease is not None
    await harness.close(first.lease, None, status="failed")
    with pytest.raises(InvalidRequest, match="failed"):
        await harness.admit(parent=failed)
    _, admitted = await harness.admit("three", parent=parent)
    assert admitted.position == first.position  # and so the chain stays in one segment
    assert await harness.history_of(admitted.position) == ["one", "1"]
    page = await harness.storage.catalog.input_items("ann", failed, Paging())
    assert [item["content"][0]["text"] for item in page.data] == ["two"]


@storage_test
async def test_a_deleted_conversation_gets_no_turn_but_its_response_ends(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    response_id, lease = await harness.start("Hi", conversation=conversation)
    await harness.storage.conversations.delete("ann", conversation)
    await harness.close(lease, "nobody sees this")
    record = await harness.storage.catalog.response("ann", response_id)
    assert record.status == "completed"
    assert record.snapshot is not None and b"nobody sees this" in record.snapshot


# -- chains


@storage_test
async def test_continuing_stays_in_the_thread_and_forking_leaves_it(harness: StorageHarness) -> None:
    one = await harness.answer("one", "1")
    _, next_one = await harness.admit("two", parent=one)
    _, fork = await harness.admit("other two", parent=one)
    assert next_one.position is not None and fork.position is not None
    assert fork.position.thread != next_one.position.thread
    assert await harness.history_of(next_one.position) == await harness.history_of(fork.position) == ["one", "1"]


@storage_test
async def test_a_response_in_a_conversation_is_continued_by_a_fork(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    one = await harness.answer("one", "1", conversation=conversation)
    _, admitted = await harness.admit("aside", parent=one)
    assert await harness.history_of(admitted.position) == ["before", "one", "1"]
    assert await harness.texts_of(conversation) == ["before", "one", "1"]
    await harness.answer("two", "2", conversation=conversation)
    assert await harness.texts_of(conversation) == ["before", "one", "1", "two", "2"]


@pytest.mark.parametrize(("status", "code"), [(None, "response_not_finished"), ("failed", "previous_response_failed")])
def test_an_unfinished_or_failed_parent_is_refused(opener, status, code) -> None:
    @storage_test
    async def run(harness: StorageHarness) -> None:
        parent, lease = await harness.start()
        if status is not None:
            await harness.close(lease, None, status=status)
        with pytest.raises(InvalidRequest) as caught:
            await harness.admit(parent=parent)
        assert (caught.value.code, caught.value.param) == (code, "previous_response_id")

    run(opener)


@pytest.mark.parametrize("status", ["incomplete", "cancelled"])
def test_an_incomplete_response_can_be_continued(opener, status) -> None:
    @storage_test
    async def run(harness: StorageHarness) -> None:
        parent = await harness.answer("one", "hal", status=status)
        _, admitted = await harness.admit("two", parent=parent)
        assert await harness.history_of(admitted.position) == ["one", "hal"]

    run(opener)


@storage_test
async def test_a_response_of_another_owner_cannot_be_continued(harness: StorageHarness) -> None:
    parent = await harness.answer(owner="ann")
    with pytest.raises(InvalidRequest) as caught:
        await harness.admit(owner="bob", parent=parent)
    assert caught.value.code == "previous_response_not_found"


@storage_test
async def test_a_deleted_ancestor_breaks_the_chain_below_it_only(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    two = await harness.answer("two", parent=one)
    three = await harness.answer("three", parent=two)
    await harness.ledger.delete("ann", two)
    for parent in (two, three):
        with pytest.raises(InvalidRequest) as caught:
            await harness.admit(parent=parent)
        assert caught.value.code == "previous_response_not_found"
    _, admitted = await harness.admit("again", parent=one)
    assert await harness.history_of(admitted.position) == ["one", "answer"]


@storage_test
async def test_a_deleted_ancestor_of_a_fork_breaks_the_fork(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    await harness.answer("two", parent=one)
    fork = await harness.answer("fork", parent=one)
    await harness.ledger.delete("ann", one)
    for step in ("deleted", "erased"):
        with pytest.raises(InvalidRequest) as caught:
            await harness.admit(parent=fork)
        assert caught.value.code == "previous_response_not_found", step
        await harness.storage.retention.erase(10)


# -- repeats


@storage_test
async def test_the_same_key_and_body_attach_to_the_same_response(harness: StorageHarness) -> None:
    first, _ = await harness.admit(key="k")
    before = await harness.storage.inspector.rows()
    _, again = await harness.admit(key="k")
    assert (again.attached, again.lease, again.position) == (first, None, None)
    assert await harness.storage.inspector.rows() == before


@storage_test
async def test_concurrent_repeats_admit_one_response(harness: StorageHarness) -> None:
    results = await asyncio.gather(*(harness.admit(key="k") for _ in range(8)))
    made = [response_id for response_id, admitted in results if admitted.lease is not None]
    attached = {admitted.attached for _, admitted in results if admitted.lease is None}
    assert len(made) == 1
    assert attached == set(made)


@storage_test
async def test_the_same_key_with_another_body_is_a_conflict(harness: StorageHarness) -> None:
    await harness.admit(key="k", digest=b"one")
    with pytest.raises(Conflict):
        await harness.admit(key="k", digest=b"two")


@storage_test
async def test_two_owners_may_use_the_same_idempotency_key(harness: StorageHarness) -> None:
    await harness.admit(key="k", owner="ann")
    _, bobs = await harness.admit(key="k", owner="bob", digest=b"other")
    assert bobs.lease is not None


@storage_test
async def test_a_key_of_a_failed_or_deleted_response_can_be_used_again(harness: StorageHarness) -> None:
    await harness.answer("Hi", None, key="k", status="failed")
    second, lease = await harness.start(key="k", digest=b"other body")
    await harness.close(lease)
    await harness.ledger.delete("ann", second)
    _, third = await harness.admit(key="k")
    assert third.lease is not None


@storage_test
async def test_a_repeated_admission_is_found_before_the_lock_is_checked(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    first, _ = await harness.admit(conversation=conversation, key="k")
    _, again = await harness.admit(conversation=conversation, key="k")
    assert again.attached == first


@storage_test
async def test_a_silent_retry_finds_unanswered_responses(harness: StorageHarness) -> None:
    first, _ = await harness.admit(retry_digest=b"body")
    second, _ = await harness.admit(retry_digest=b"body")
    await harness.admit(retry_digest=b"other body")
    await harness.admit(retry_digest=b"body", owner="bob")
    unanswered = harness.storage.catalog.unanswered
    assert await unanswered("ann", b"body", 0.0) == [second, first]
    assert await unanswered("ann", b"body", harness.now + 1) == []
    await harness.ledger.mark_answered(second)
    assert await unanswered("ann", b"body", 0.0) == [first]


@storage_test
async def test_a_silent_retry_finds_no_failed_or_deleted_response(harness: StorageHarness) -> None:
    await harness.answer(retry_digest=b"body", status="failed")
    await harness.ledger.delete("ann", await harness.answer(retry_digest=b"body"))
    assert await harness.storage.catalog.unanswered("ann", b"body", 0.0) == []


@storage_test
async def test_a_repeated_item_is_stored_once(harness: StorageHarness) -> None:
    conversation = await harness.converse()
    item = message("msg_same", "same")
    await harness.answer("x", items=[item], conversation=conversation)
    _, admitted = await harness.admit(items=[item, message("msg_new", "new")], conversation=conversation)
    assert await harness.texts_of(conversation) == ["same", "answer", "new"]
    assert await harness.history_of(admitted.position) == ["same", "answer"]


@storage_test
async def test_a_repeated_item_of_an_ancestor_thread_is_stored_once(harness: StorageHarness) -> None:
    item = message("msg_same", "same")
    one = await harness.answer(items=[item])
    await harness.answer(parent=one)
    fork, _ = await harness.admit(items=[item, message("msg_new", "new")], parent=one)
    page = await harness.storage.catalog.input_items("ann", fork, Paging())
    assert [item["id"] for item in page.data] == ["msg_new"]


@storage_test
async def test_an_item_of_a_sibling_or_behind_the_fork_is_new(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    two = await harness.answer(items=[message("msg_a", "a")], parent=one)
    await harness.answer(items=[message("msg_b", "b")], parent=two)
    fork = await harness.answer(items=[message("msg_c", "c")], parent=two)
    response_id, _ = await harness.admit(items=[message(f"msg_{each}", each) for each in "abcd"], parent=fork)
    page = await harness.storage.catalog.input_items("ann", response_id, Paging(order="asc"))
    assert [item["id"] for item in page.data] == ["msg_b", "msg_d"]


@pytest.mark.parametrize("shape", ["many forks", "ids that end alike"])
def test_the_work_of_items_with_ids_grows_with_their_number_alone(shape: str, opener: Opener) -> None:
    """Not with forks times items, nor with items that have similar ids times items."""

    async def measure(count: int) -> int:
        async with opener() as storage:
            harness = StorageHarness(storage)
            harness._count = count * 1000
            parent = await harness.answer()
            if shape == "many forks":
                for _ in range(count):
                    parent = await harness.answer(parent=parent, items=[])
                items = [message(f"msg_{count}_{number}", "x") for number in range(40)]
            else:
                ids = [f"msg_{count}_{number:03}" + "e" * 48 for number in range(count)]
                parent = await harness.answer(items=[message(each, "x") for each in ids], parent=parent)
                items = [message(each, "x") for each in ids[:20]]
            return await storage.inspector.work_of(lambda: harness.admit(items=items, parent=parent))

    few, many = asyncio.run(measure(10)), asyncio.run(measure(160))
    # For each fork that the lineage is longer there are some 70 steps, and none for each pair of a fork and an item.
    assert many < few + 150 * 100


# -- deleting


@storage_test
async def test_only_the_owner_can_delete_a_response_and_only_once(harness: StorageHarness) -> None:
    response_id = await harness.answer()
    with pytest.raises(NotFound):
        await harness.ledger.delete("bob", response_id)
    await harness.ledger.delete("ann", response_id)
    with pytest.raises(NotFound):
        await harness.storage.catalog.response("ann", response_id)
    with pytest.raises(NotFound):
        await harness.ledger.delete("ann", response_id)


@storage_test
async def test_a_running_response_cannot_be_deleted(harness: StorageHarness) -> None:
    response_id, _ = await harness.start()
    with pytest.raises(StaleFence):
        await harness.ledger.delete("ann", response_id)
    assert (await harness.storage.catalog.response("ann", response_id)).status == "in_progress"


# -- restart


def test_everything_is_there_when_the_database_is_opened_again(opener) -> None:
    seen: dict[str, Any] = {}

    @storage_test
    async def before(harness: StorageHarness) -> None:
        conversation = await harness.converse("before")
        seen["done"] = await harness.answer("one", conversation=conversation)
        seen["running"], lease = await harness.start("two", conversation=conversation)
        await harness.ledger.append([entry(lease, 2, 3)])
        seen["events"] = await harness.events(seen["running"])
        seen["conversation"] = conversation

    @storage_test
    async def after(harness: StorageHarness) -> None:
        assert await harness.events(seen["running"]) == seen["events"]
        assert await harness.texts_of(seen["conversation"]) == ["before", "one", "answer", "two"]
        assert await harness.ledger.count_queued() == {}
        await harness.ledger.free_dead_leases()
        assert await harness.ledger.count_queued() == {"ann": 1}
        (claim,) = await harness.claim()
        assert claim.lease.response_id == seen["running"]
        assert claim.attempts == 2
        assert isinstance(claim.position, Position)
        await harness.close(claim.lease, first=5)

    before(opener)
    after(opener)


# -- large inputs


@storage_test
async def test_a_large_admission_stores_what_a_small_one_stores(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    items = [message(f"big_{n}", f"{n}" * 200_000) for n in range(4)]
    response_id, admitted = await harness.admit(items=items, conversation=conversation, large=True)
    assert admitted.lease is not None
    page = await harness.storage.catalog.input_items("ann", response_id, Paging(order="asc"))
    assert page.data == items
    claim = await harness.ledger.take_over(response_id, "w2")
    assert claim is not None
    assert claim.request.input == items
    await harness.close(claim.lease)
    _, after = await harness.admit("next", conversation=conversation)
    assert after.position is not None
    assert (await harness.storage.history.before(after.position)).items[1:5] == items


@storage_test
async def test_a_large_admission_that_is_refused_or_repeated_leaves_nothing(harness: StorageHarness) -> None:
    first, _ = await harness.admit(items=[message("big_1", "x" * 300_000)], key="k", large=True)
    before = await harness.storage.inspector.rows()
    _, again = await harness.admit(items=[message("big_2", "x" * 300_000)], key="k", large=True)
    assert again.attached == first
    with pytest.raises(NotFound):
        await harness.admit(items=[message("big_3", "x" * 300_000)], conversation="conv_none", large=True)
    assert await harness.storage.inspector.rows() == before


@storage_test
async def test_nothing_is_left_of_a_large_response(harness: StorageHarness) -> None:
    response_id, lease = await harness.start(items=[message("big_1", "canary" * 50_000)], large=True)
    await harness.close(lease)
    await harness.ledger.delete("ann", response_id)
    while await harness.storage.retention.erase(10):
        pass
    assert {name: count for name, count in (await harness.storage.inspector.rows()).items() if count} == {}


# -- confirming leases


@storage_test
async def test_confirming_leases_reports_the_lost_ones(harness: StorageHarness) -> None:
    leases = []
    for _ in range(4):
        _, admitted = await harness.admit()
        assert admitted.lease is not None
        leases.append(admitted.lease)
    await harness.ledger.take_over(leases[1].response_id, "w2")
    await harness.close(leases[2])
    assert await harness.ledger.confirm_leases("w1", leases) == [True, False, False, True]
    assert await harness.ledger.confirm_leases("w1", []) == []


@storage_test
async def test_confirming_a_freed_and_unclaimed_lease_gives_it_back(harness: StorageHarness) -> None:
    leases = []
    for _ in range(2):
        _, admitted = await harness.admit()
        assert admitted.lease is not None
        leases.append(admitted.lease)
    assert await harness.ledger.free_dead_leases() == 2
    assert await harness.ledger.free_dead_leases() == 0
    (claim,) = await harness.claim(1)
    assert claim.lease.response_id == leases[0].response_id
    assert await harness.ledger.confirm_leases("w1", leases) == [False, True]
    assert await harness.claim() == []
    assert await harness.ledger.append([entry(leases[0], 2), entry(leases[1], 2)]) == [STALE, WRITTEN]


@storage_test
async def test_a_freed_lease_stays_valid_until_another_worker_claims_it(harness: StorageHarness) -> None:
    _, admitted = await harness.admit()
    assert admitted.lease is not None
    await harness.ledger.free_dead_leases()
    assert await harness.ledger.append([entry(admitted.lease, 2)]) == [WRITTEN]
    (claim,) = await harness.claim()
    assert claim.attempts == 2
    assert await harness.ledger.append([entry(admitted.lease, 3)]) == [STALE]

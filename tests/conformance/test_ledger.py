"""The ledger: every change of a stored response is one transaction, under a fence, or does not happen."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outlive.core.errors import Conflict, ConversationLocked, InvalidRequest, NotFound, StaleFence
from outlive.core.events import is_last, split_frames
from outlive.ports.catalog import Paging
from outlive.ports.ledger import Checkpoint, Position
from tests.conformance.scenes import STALE, WRITTEN, Book, entry, message, scene
from tests.conformance.storages import Opener

# -- admission


@scene
async def test_an_admitted_response_is_found_with_its_input_and_first_events(book: Book) -> None:
    response_id, lease = await book.start("Hi")
    record = await book.home.catalog.response("ann", response_id)
    assert (record.status, record.snapshot) == ("in_progress", None)
    assert len(split_frames(await book.events(response_id))) == 2
    page = await book.home.catalog.input_items("ann", response_id, Paging())
    assert [item["content"][0]["text"] for item in page.data] == ["Hi"]
    assert lease.fence == 1


@scene
async def test_a_response_without_a_worker_waits(book: Book) -> None:
    response_id, admitted = await book.admit(worker=None)
    assert admitted.lease is None
    assert await book.ledger.count_queued() == {"ann": 1}
    assert (await book.home.catalog.response("ann", response_id)).status == "queued"


@scene
async def test_a_refused_admission_writes_nothing(book: Book) -> None:
    before = await book.home.inspector.rows()
    with pytest.raises(InvalidRequest):
        await book.admit(parent="resp_none")
    with pytest.raises(NotFound):
        await book.admit(conversation="conv_none", key="k")
    assert await book.home.inspector.rows() == before


@scene
async def test_items_keep_fields_that_nobody_knows(book: Book) -> None:
    odd = message("msg_odd", "Hi\x00\n\N{PILE OF POO}") | {"x_vendor": {"deep": [1, None, "\u2028"]}}
    response_id, _ = await book.start(items=[odd])
    page = await book.home.catalog.input_items("ann", response_id, Paging())
    assert page.data == [odd]
    claim = await book.ledger.take_over(response_id, "w2")
    assert claim is not None
    assert claim.request.input == [odd]


# -- claims and fences


@scene
async def test_a_claim_brings_everything_a_worker_needs(book: Book) -> None:
    response_id, _ = await book.admit("Hi", worker=None, background=True, instructions="Be brief.", metadata={"a": "b"})
    (claim,) = await book.claim()
    assert claim.lease.response_id == response_id
    assert (claim.owner, claim.attempts, claim.checkpoint, claim.background) == ("ann", 1, Checkpoint(), True)
    assert claim.request.instructions == "Be brief."
    assert claim.request.metadata == {"a": "b"}
    assert [item["content"][0]["text"] for item in claim.request.input] == ["Hi"]
    assert (await book.home.catalog.response("ann", response_id)).status == "in_progress"
    assert await book.claim() == []


@scene
async def test_foreground_goes_before_background_then_the_oldest(book: Book) -> None:
    first, _ = await book.admit(worker=None, background=True)
    second, _ = await book.admit(worker=None)
    third, _ = await book.admit(worker=None, background=True)
    fourth, _ = await book.admit(worker=None)
    claimed = [claim.lease.response_id for n in range(4) for claim in await book.claim(1)]
    assert claimed == [second, fourth, first, third]


@scene
async def test_owners_at_their_limit_are_skipped(book: Book) -> None:
    await book.admit(worker=None, owner="ann")
    bobs, _ = await book.admit(worker=None, owner="bob")
    assert [claim.lease.response_id for claim in await book.claim(busy=frozenset({"ann"}))] == [bobs]
    assert await book.ledger.count_queued() == {"ann": 1}
    assert [claim.owner for claim in await book.claim()] == ["ann"]


@scene
async def test_no_response_is_claimed_twice(book: Book) -> None:
    for _ in range(20):
        await book.admit(worker=None)
    claims = await asyncio.gather(*(book.claim(3, worker=f"w{n}") for n in range(10)))
    ids = [claim.lease.response_id for some in claims for claim in some]
    assert len(ids) == len(set(ids)) == 20


@scene
async def test_attempts_are_counted_when_claimed(book: Book) -> None:
    await book.admit(worker=None)
    for attempt in (1, 2, 3):
        (claim,) = await book.claim()
        assert claim.attempts == attempt
        await book.ledger.free_dead_leases()


@scene
async def test_taking_the_lease_at_admission_counts_as_an_attempt(book: Book) -> None:
    await book.start()
    await book.ledger.free_dead_leases()
    (claim,) = await book.claim()
    assert claim.attempts == 2


@scene
async def test_a_run_handed_back_counts_no_attempt(book: Book) -> None:
    _, lease = await book.start()
    await book.ledger.release_leases([lease])
    (claim,) = await book.claim()
    assert claim.attempts == 1
    assert claim.lease.fence == lease.fence + 1


@scene
async def test_a_stale_lease_cannot_hand_back_what_is_anothers(book: Book) -> None:
    response_id, lease = await book.start()
    claim = await book.ledger.take_over(response_id, "w2")
    assert claim is not None
    await book.ledger.release_leases([lease])
    assert await book.claim() == []
    assert await book.ledger.append([entry(claim.lease, 2)]) == [WRITTEN]


@scene
async def test_seizing_raises_the_fence_and_counts_no_attempt(book: Book) -> None:
    response_id, lease = await book.start()
    claim = await book.ledger.take_over(response_id, "w2")
    assert claim is not None
    assert claim.lease.fence == lease.fence + 1
    assert (claim.attempts, claim.was_queued) == (1, False)
    assert await book.ledger.append([entry(lease, 2), entry(claim.lease, 2)]) == [STALE, WRITTEN]


@scene
async def test_seizing_tells_whether_the_response_was_waiting(book: Book) -> None:
    response_id, _ = await book.admit(worker=None)
    first = await book.ledger.take_over(response_id, "w2")
    second = await book.ledger.take_over(response_id, "w2")
    assert first is not None and second is not None
    assert (first.was_queued, second.was_queued) == (True, False)
    assert await book.ledger.count_queued() == {}


@scene
async def test_what_has_ended_cannot_be_seized(book: Book) -> None:
    response_id = await book.answer()
    assert await book.ledger.take_over(response_id, "w2") is None
    assert await book.ledger.take_over("resp_none", "w2") is None


@scene
async def test_notes_are_kept_for_the_next_worker(book: Book) -> None:
    response_id, lease = await book.start()
    await book.ledger.save_checkpoint(lease, Checkpoint([4, 9], "resp_there"))
    claim = await book.ledger.take_over(response_id, "w2")
    assert claim is not None
    assert claim.checkpoint == Checkpoint([4, 9], "resp_there")
    await book.ledger.save_checkpoint(lease, Checkpoint([99]))
    again = await book.ledger.take_over(response_id, "w3")
    assert again is not None
    assert again.checkpoint == claim.checkpoint


@scene
async def test_all_that_a_run_of_several_steps_notes_is_kept(book: Book) -> None:
    response_id, lease = await book.start()
    notes = Checkpoint([4], usage={"output_tokens": 5}, steps=3, repeats={"mcp_1": 2})
    await book.ledger.save_checkpoint(lease, notes)
    claim = await book.ledger.take_over(response_id, "w2")
    assert claim is not None
    assert claim.checkpoint == notes


@pytest.mark.parametrize("taken", [True, False])
def test_sealed_secrets_are_kept_for_whoever_runs_the_response(opener: Opener, taken: bool) -> None:
    @scene
    async def play(book: Book) -> None:
        sealed, plain = b"\x00sealed\xff", None
        for given in (sealed, plain):
            response_id, _ = await book.admit(worker="w1" if taken else None, sealed=given)
            claim = await book.ledger.take_over(response_id, "w2")
            assert claim is not None
            assert claim.sealed == given
            assert claim.request.secrets == {}
            await book.ledger.release_leases([claim.lease])
            (again,) = await book.claim(worker="w3")
            assert again.sealed == given
            await book.close(again.lease)

    play(opener)


@scene
async def test_a_raised_fence_shuts_out_whoever_held_it_before(book: Book) -> None:
    response_id, lease = await book.start()
    await book.ledger.append([entry(lease, 2)])
    claim = await book.ledger.take_over(response_id, "w2")
    assert claim is not None
    with pytest.raises(StaleFence):
        await book.close(lease, first=3)
    await book.close(claim.lease, first=3)
    events = await book.events(response_id)
    assert len(split_frames(events)) == 4
    assert is_last(events)


@scene
async def test_a_stale_fence_is_stale_also_for_a_response_that_came_later(book: Book) -> None:
    """The keys of what is erased are not given out again."""
    gone, lease = await book.start()
    await book.close(lease)
    await book.ledger.delete("ann", gone)
    assert await book.home.retention.erase(10) == 1
    later, _ = await book.start()
    assert await book.ledger.append([entry(lease, 2)]) == [STALE]
    assert len(split_frames(await book.events(later))) == 2


# -- ending


@scene
async def test_closing_is_one_change_with_everything_in_it(book: Book) -> None:
    conversation = await book.converse()
    response_id, lease = await book.start("Hi", conversation=conversation)
    await book.close(lease, "Hello")
    record = await book.home.catalog.response("ann", response_id)
    assert record.status == "completed"
    assert record.snapshot is not None and b"Hello" in record.snapshot
    assert is_last(await book.events(response_id))
    assert await book.texts_of(conversation) == ["Hi", "Hello"]
    assert await book.ledger.count_queued() == {}
    await book.start(conversation=conversation)  # not locked any more


@scene
async def test_a_refused_close_changes_nothing(book: Book) -> None:
    conversation = await book.converse()
    response_id, lease = await book.start("Hi", conversation=conversation)
    claim = await book.ledger.take_over(response_id, "w2")
    assert claim is not None
    with pytest.raises(StaleFence):
        await book.close(lease, "Hello")
    assert (await book.home.catalog.response("ann", response_id)).snapshot is None
    assert await book.texts_of(conversation) == ["Hi"]
    with pytest.raises(ConversationLocked):
        await book.admit(conversation=conversation)


@scene
async def test_the_first_close_wins(book: Book) -> None:
    response_id, lease = await book.start()
    results = await asyncio.gather(
        book.close(lease, status="completed"), book.close(lease, status="cancelled"), return_exceptions=True
    )
    assert results[0] is None
    assert isinstance(results[1], StaleFence)
    assert (await book.home.catalog.response("ann", response_id)).status == "completed"
    assert len(split_frames(await book.events(response_id))) == 3


# -- conversations and their lock


@scene
async def test_the_question_is_in_the_conversation_from_admission_on(book: Book) -> None:
    conversation = await book.converse("before")
    await book.start("Hi", conversation=conversation)
    assert await book.texts_of(conversation) == ["before", "Hi"]


@scene
async def test_a_second_run_in_a_conversation_is_locked_out(book: Book) -> None:
    conversation = await book.converse()
    running, lease = await book.start(conversation=conversation)
    with pytest.raises(ConversationLocked, match=running):
        await book.admit(conversation=conversation)
    with pytest.raises(ConversationLocked, match=running):
        await book.home.conversations.add_items("ann", conversation, [message("msg_x", "x")], 1.0, None)
    with pytest.raises(ConversationLocked, match=running):
        await book.home.conversations.delete_item("ann", conversation, "msg_x")
    await book.close(lease)
    await book.admit(conversation=conversation)


@scene
async def test_of_many_runs_at_once_one_gets_the_conversation(book: Book) -> None:
    conversation = await book.converse()
    results = await asyncio.gather(*(book.admit(conversation=conversation) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(result, ConversationLocked) for result in results) == 7


@scene
async def test_neither_seizing_nor_freeing_unlocks_a_conversation(book: Book) -> None:
    conversation = await book.converse()
    response_id, lease = await book.start(conversation=conversation)
    await book.ledger.take_over(response_id, "w2")
    await book.ledger.release_leases([lease])
    await book.ledger.free_dead_leases()
    with pytest.raises(ConversationLocked):
        await book.admit(conversation=conversation)


@pytest.mark.parametrize("status", ["completed", "incomplete", "cancelled"])
def test_a_turn_stays(opener, status) -> None:
    @scene
    async def play(book: Book) -> None:
        conversation = await book.converse("before")
        await book.answer("Hi", "Hel", conversation=conversation, status=status)
        assert await book.texts_of(conversation) == ["before", "Hi", "Hel"]

    play(opener)


@scene
async def test_a_failed_turn_is_taken_out_again(book: Book) -> None:
    conversation = await book.converse("before")
    failed = await book.answer("Hi", None, conversation=conversation, status="failed")
    assert await book.texts_of(conversation) == ["before"]
    page = await book.home.catalog.input_items("ann", failed, Paging())
    assert [item["content"][0]["text"] for item in page.data] == ["Hi"]
    # Whoever tries again does not double the message, and finds the place free.
    _, admitted = await book.admit("Hi again", conversation=conversation)
    assert await book.history_of(admitted.position) == ["before"]
    assert await book.texts_of(conversation) == ["before", "Hi again"]


@scene
async def test_a_failed_turn_of_a_chain_gives_its_place_back(book: Book) -> None:
    parent = await book.answer("one", "1")
    failed, first = await book.admit("two", parent=parent)
    assert first.lease is not None
    await book.close(first.lease, None, status="failed")
    with pytest.raises(InvalidRequest, match="failed"):
        await book.admit(parent=failed)
    _, admitted = await book.admit("three", parent=parent)
    assert admitted.position == first.position  # and so the chain stays in one segment
    assert await book.history_of(admitted.position) == ["one", "1"]
    page = await book.home.catalog.input_items("ann", failed, Paging())
    assert [item["content"][0]["text"] for item in page.data] == ["two"]


@scene
async def test_a_deleted_conversation_gets_no_turn_but_its_response_ends(book: Book) -> None:
    conversation = await book.converse("before")
    response_id, lease = await book.start("Hi", conversation=conversation)
    await book.home.conversations.delete("ann", conversation)
    await book.close(lease, "nobody sees this")
    record = await book.home.catalog.response("ann", response_id)
    assert record.status == "completed"
    assert record.snapshot is not None and b"nobody sees this" in record.snapshot


# -- chains


@scene
async def test_continuing_stays_in_the_thread_and_forking_leaves_it(book: Book) -> None:
    one = await book.answer("one", "1")
    _, next_one = await book.admit("two", parent=one)
    _, fork = await book.admit("other two", parent=one)
    assert next_one.position is not None and fork.position is not None
    assert fork.position.thread != next_one.position.thread
    assert await book.history_of(next_one.position) == await book.history_of(fork.position) == ["one", "1"]


@scene
async def test_a_response_in_a_conversation_is_continued_by_a_fork(book: Book) -> None:
    conversation = await book.converse("before")
    one = await book.answer("one", "1", conversation=conversation)
    _, admitted = await book.admit("aside", parent=one)
    assert await book.history_of(admitted.position) == ["before", "one", "1"]
    assert await book.texts_of(conversation) == ["before", "one", "1"]
    await book.answer("two", "2", conversation=conversation)
    assert await book.texts_of(conversation) == ["before", "one", "1", "two", "2"]


@pytest.mark.parametrize(("status", "code"), [(None, "response_not_finished"), ("failed", "previous_response_failed")])
def test_a_parent_must_have_ended_well(opener, status, code) -> None:
    @scene
    async def play(book: Book) -> None:
        parent, lease = await book.start()
        if status is not None:
            await book.close(lease, None, status=status)
        with pytest.raises(InvalidRequest) as caught:
            await book.admit(parent=parent)
        assert (caught.value.code, caught.value.param) == (code, "previous_response_id")

    play(opener)


@pytest.mark.parametrize("status", ["incomplete", "cancelled"])
def test_a_parent_may_have_been_cut_off(opener, status) -> None:
    @scene
    async def play(book: Book) -> None:
        parent = await book.answer("one", "hal", status=status)
        _, admitted = await book.admit("two", parent=parent)
        assert await book.history_of(admitted.position) == ["one", "hal"]

    play(opener)


@scene
async def test_anothers_response_is_no_parent(book: Book) -> None:
    parent = await book.answer(owner="ann")
    with pytest.raises(InvalidRequest) as caught:
        await book.admit(owner="bob", parent=parent)
    assert caught.value.code == "previous_response_not_found"


@scene
async def test_a_deleted_ancestor_breaks_the_chain_below_it_only(book: Book) -> None:
    one = await book.answer("one")
    two = await book.answer("two", parent=one)
    three = await book.answer("three", parent=two)
    await book.ledger.delete("ann", two)
    for parent in (two, three):
        with pytest.raises(InvalidRequest) as caught:
            await book.admit(parent=parent)
        assert caught.value.code == "previous_response_not_found"
    _, admitted = await book.admit("again", parent=one)
    assert await book.history_of(admitted.position) == ["one", "answer"]


@scene
async def test_a_deleted_ancestor_of_a_fork_breaks_the_fork(book: Book) -> None:
    one = await book.answer("one")
    await book.answer("two", parent=one)
    fork = await book.answer("fork", parent=one)
    await book.ledger.delete("ann", one)
    for step in ("hidden", "erased"):
        with pytest.raises(InvalidRequest) as caught:
            await book.admit(parent=fork)
        assert caught.value.code == "previous_response_not_found", step
        await book.home.retention.erase(10)


# -- repeats


@scene
async def test_the_same_key_and_body_attach_to_the_same_response(book: Book) -> None:
    first, _ = await book.admit(key="k")
    before = await book.home.inspector.rows()
    _, again = await book.admit(key="k")
    assert (again.attached, again.lease, again.position) == (first, None, None)
    assert await book.home.inspector.rows() == before


@scene
async def test_of_many_repeats_at_once_one_is_admitted(book: Book) -> None:
    results = await asyncio.gather(*(book.admit(key="k") for _ in range(8)))
    made = [response_id for response_id, admitted in results if admitted.lease is not None]
    attached = {admitted.attached for _, admitted in results if admitted.lease is None}
    assert len(made) == 1
    assert attached == set(made)


@scene
async def test_the_same_key_with_another_body_is_a_conflict(book: Book) -> None:
    await book.admit(key="k", digest=b"one")
    with pytest.raises(Conflict):
        await book.admit(key="k", digest=b"two")


@scene
async def test_a_key_is_its_owners_own(book: Book) -> None:
    await book.admit(key="k", owner="ann")
    _, bobs = await book.admit(key="k", owner="bob", digest=b"other")
    assert bobs.lease is not None


@scene
async def test_a_key_whose_response_failed_or_is_gone_starts_anew(book: Book) -> None:
    await book.answer("Hi", None, key="k", status="failed")
    second, lease = await book.start(key="k", digest=b"other body")
    await book.close(lease)
    await book.ledger.delete("ann", second)
    _, third = await book.admit(key="k")
    assert third.lease is not None


@scene
async def test_a_repeat_is_found_before_the_lock(book: Book) -> None:
    conversation = await book.converse()
    first, _ = await book.admit(conversation=conversation, key="k")
    _, again = await book.admit(conversation=conversation, key="k")
    assert again.attached == first


@scene
async def test_a_silent_retry_finds_what_was_not_answered(book: Book) -> None:
    first, _ = await book.admit(retry_digest=b"body")
    second, _ = await book.admit(retry_digest=b"body")
    await book.admit(retry_digest=b"other body")
    await book.admit(retry_digest=b"body", owner="bob")
    unanswered = book.home.catalog.unanswered
    assert await unanswered("ann", b"body", 0.0) == [second, first]
    assert await unanswered("ann", b"body", book.now + 1) == []
    await book.ledger.mark_answered(second)
    assert await unanswered("ann", b"body", 0.0) == [first]


@scene
async def test_a_silent_retry_does_not_find_what_failed_or_was_deleted(book: Book) -> None:
    await book.answer(retry_digest=b"body", status="failed")
    await book.ledger.delete("ann", await book.answer(retry_digest=b"body"))
    assert await book.home.catalog.unanswered("ann", b"body", 0.0) == []


@scene
async def test_an_item_sent_again_is_not_there_twice(book: Book) -> None:
    conversation = await book.converse()
    item = message("msg_same", "same")
    await book.answer("x", items=[item], conversation=conversation)
    _, admitted = await book.admit(items=[item, message("msg_new", "new")], conversation=conversation)
    assert await book.texts_of(conversation) == ["same", "answer", "new"]
    assert await book.history_of(admitted.position) == ["same", "answer"]


@scene
async def test_an_item_of_an_ancestor_thread_sent_again_is_not_there_twice(book: Book) -> None:
    item = message("msg_same", "same")
    one = await book.answer(items=[item])
    await book.answer(parent=one)
    fork, _ = await book.admit(items=[item, message("msg_new", "new")], parent=one)
    page = await book.home.catalog.input_items("ann", fork, Paging())
    assert [item["id"] for item in page.data] == ["msg_new"]


# -- deleting


@scene
async def test_hiding_is_for_the_owner_alone_and_once(book: Book) -> None:
    response_id = await book.answer()
    with pytest.raises(NotFound):
        await book.ledger.delete("bob", response_id)
    await book.ledger.delete("ann", response_id)
    with pytest.raises(NotFound):
        await book.home.catalog.response("ann", response_id)
    with pytest.raises(NotFound):
        await book.ledger.delete("ann", response_id)


@scene
async def test_what_runs_cannot_be_hidden(book: Book) -> None:
    response_id, _ = await book.start()
    with pytest.raises(StaleFence):
        await book.ledger.delete("ann", response_id)
    assert (await book.home.catalog.response("ann", response_id)).status == "in_progress"


# -- starting again


def test_everything_is_there_when_the_database_is_opened_again(opener) -> None:
    seen: dict[str, Any] = {}

    @scene
    async def before(book: Book) -> None:
        conversation = await book.converse("before")
        seen["done"] = await book.answer("one", conversation=conversation)
        seen["running"], lease = await book.start("two", conversation=conversation)
        await book.ledger.append([entry(lease, 2, 3)])
        seen["events"] = await book.events(seen["running"])
        seen["conversation"] = conversation

    @scene
    async def after(book: Book) -> None:
        assert await book.events(seen["running"]) == seen["events"]
        assert await book.texts_of(seen["conversation"]) == ["before", "one", "answer", "two"]
        assert await book.ledger.count_queued() == {}
        await book.ledger.free_dead_leases()
        assert await book.ledger.count_queued() == {"ann": 1}
        (claim,) = await book.claim()
        assert claim.lease.response_id == seen["running"]
        assert claim.attempts == 2
        assert isinstance(claim.position, Position)
        await book.close(claim.lease, first=5)

    before(opener)
    after(opener)


# -- large inputs are admitted like any other


@scene
async def test_a_large_admission_is_an_admission_like_any_other(book: Book) -> None:
    conversation = await book.converse("before")
    items = [message(f"big_{n}", f"{n}" * 200_000) for n in range(4)]
    response_id, admitted = await book.admit(items=items, conversation=conversation, large=True)
    assert admitted.lease is not None
    page = await book.home.catalog.input_items("ann", response_id, Paging(order="asc"))
    assert page.data == items
    claim = await book.ledger.take_over(response_id, "w2")
    assert claim is not None
    assert claim.request.input == items
    await book.close(claim.lease)
    _, after = await book.admit("next", conversation=conversation)
    assert after.position is not None
    assert (await book.home.history.before(after.position))[1:5] == items


@scene
async def test_a_large_admission_that_is_refused_or_repeated_leaves_nothing(book: Book) -> None:
    first, _ = await book.admit(items=[message("big_1", "x" * 300_000)], key="k", large=True)
    before = await book.home.inspector.rows()
    _, again = await book.admit(items=[message("big_2", "x" * 300_000)], key="k", large=True)
    assert again.attached == first
    with pytest.raises(NotFound):
        await book.admit(items=[message("big_3", "x" * 300_000)], conversation="conv_none", large=True)
    assert await book.home.inspector.rows() == before


@scene
async def test_nothing_is_left_of_a_large_response(book: Book) -> None:
    response_id, lease = await book.start(items=[message("big_1", "canary" * 50_000)], large=True)
    await book.close(lease)
    await book.ledger.delete("ann", response_id)
    await book.home.retention.erase(10)
    assert {name: count for name, count in (await book.home.inspector.rows()).items() if count} == {}


# -- holding on to leases


@scene
async def test_a_worker_learns_which_of_its_leases_it_has_lost(book: Book) -> None:
    leases = []
    for _ in range(4):
        _, admitted = await book.admit()
        assert admitted.lease is not None
        leases.append(admitted.lease)
    await book.ledger.take_over(leases[1].response_id, "w2")
    await book.close(leases[2])
    assert await book.ledger.confirm_leases("w1", leases) == [True, False, False, True]
    assert await book.ledger.confirm_leases("w1", []) == []


@scene
async def test_a_lease_that_was_freed_and_not_claimed_is_its_workers_again(book: Book) -> None:
    leases = []
    for _ in range(2):
        _, admitted = await book.admit()
        assert admitted.lease is not None
        leases.append(admitted.lease)
    assert await book.ledger.free_dead_leases() == 2
    assert await book.ledger.free_dead_leases() == 0
    (claim,) = await book.claim(1)
    assert claim.lease.response_id == leases[0].response_id
    assert await book.ledger.confirm_leases("w1", leases) == [False, True]
    assert await book.claim() == []
    assert await book.ledger.append([entry(leases[0], 2), entry(leases[1], 2)]) == [STALE, WRITTEN]


@scene
async def test_a_lease_that_was_freed_still_counts_until_somebody_takes_it(book: Book) -> None:
    _, admitted = await book.admit()
    assert admitted.lease is not None
    await book.ledger.free_dead_leases()
    assert await book.ledger.append([entry(admitted.lease, 2)]) == [WRITTEN]
    (claim,) = await book.claim()
    assert claim.attempts == 2
    assert await book.ledger.append([entry(admitted.lease, 3)]) == [STALE]

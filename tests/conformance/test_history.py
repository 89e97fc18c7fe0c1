"""History: all ended turns before a position, once each, read as one range per segment."""

from __future__ import annotations

import asyncio

import pytest

from outlive.core.errors import InvalidRequest, NotFound
from outlive.storage.sqlite.ledger import SqliteLedger
from outlive.storage.sqlite.threads import NEAR_ITEMS
from tests.conformance.harness import StorageHarness, message, storage_test, texts

TURNS = 1000


def alternate(*questions: str) -> list[str]:
    return [text for question in questions for text in (question, "answer")]


@storage_test
async def test_a_first_response_has_no_history(harness: StorageHarness) -> None:
    _, admitted = await harness.admit("Hi")
    assert await harness.history_of(admitted.position) == []


@storage_test
async def test_own_input_is_not_in_the_history(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    _, admitted = await harness.admit("Hi", conversation=conversation)
    assert await harness.history_of(admitted.position) == ["before"]


@storage_test
async def test_a_chain_is_read_oldest_first(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    two = await harness.answer("two", parent=one)
    _, admitted = await harness.admit("three", parent=two)
    assert await harness.history_of(admitted.position) == alternate("one", "two")


@storage_test
async def test_forks_of_forks_each_have_their_own_history(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    two = await harness.answer("two", parent=one)
    fork = await harness.answer("fork", parent=one)
    _, of_two = await harness.admit("three", parent=two)
    _, of_fork = await harness.admit("fork three", parent=fork)
    again = await harness.answer("again", parent=fork)
    _, of_again = await harness.admit("more", parent=again)
    assert await harness.history_of(of_two.position) == alternate("one", "two")
    assert await harness.history_of(of_fork.position) == alternate("one", "fork")
    assert await harness.history_of(of_again.position) == alternate("one", "fork", "again")


@storage_test
async def test_a_response_without_input_gets_a_fork_of_its_own(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    silent, lease = await harness.start(parent=one, items=[])
    other, other_lease = await harness.start("two", parent=one)
    await harness.close(lease, "from nothing")
    await harness.close(other_lease)
    _, after_silent = await harness.admit(parent=silent)
    _, after_other = await harness.admit(parent=other)
    assert await harness.history_of(after_silent.position) == [*alternate("one"), "from nothing"]
    assert await harness.history_of(after_other.position) == alternate("one", "two")


@storage_test
async def test_a_later_turn_does_not_change_the_history_at_an_earlier_position(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    _, admitted = await harness.admit("one", conversation=conversation)
    assert admitted.lease is not None
    await harness.close(admitted.lease)
    await harness.answer("two", conversation=conversation)
    assert await harness.history_of(admitted.position) == ["before"]


@storage_test
async def test_history_skips_a_deleted_item(harness: StorageHarness) -> None:
    conversation = await harness.converse("one", "two", "three")
    await harness.storage.conversations.delete_item("ann", conversation, "msg_3")
    _, admitted = await harness.admit("Hi", conversation=conversation)
    assert await harness.history_of(admitted.position) == ["one", "three"]


@storage_test
async def test_a_failed_turn_is_in_no_history(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    await harness.answer("Hi", None, conversation=conversation, status="failed")
    await harness.answer("two", conversation=conversation)
    _, admitted = await harness.admit("three", conversation=conversation)
    assert await harness.history_of(admitted.position) == ["before", "two", "answer"]


# -- reading for responses that are not stored


@storage_test
async def test_an_unstored_response_never_sees_an_unfinished_turn(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    _, lease = await harness.start("running", conversation=conversation)
    locate = harness.storage.history.locate
    assert await harness.history_of(await locate("ann", conversation=conversation, parent=None)) == ["before"]
    await harness.close(lease)
    position = await locate("ann", conversation=conversation, parent=None)
    assert await harness.history_of(position) == ["before", "running", "answer"]


@storage_test
async def test_an_unstored_response_reads_a_chain_from_its_end_or_from_a_fork(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    locate = harness.storage.history.locate
    assert await harness.history_of(await locate("ann", conversation=None, parent=one)) == alternate("one")
    two = await harness.answer("two", parent=one)
    assert await harness.history_of(await locate("ann", conversation=None, parent=one)) == alternate("one")
    assert await harness.history_of(await locate("ann", conversation=None, parent=two)) == alternate("one", "two")
    assert await locate("ann", conversation=None, parent=None) is None


@storage_test
async def test_locating_takes_no_lock_and_writes_nothing(harness: StorageHarness) -> None:
    conversation = await harness.converse("before")
    before = await harness.storage.inspector.rows()
    await harness.storage.history.locate("ann", conversation=conversation, parent=None)
    assert await harness.storage.inspector.rows() == before
    await harness.admit(conversation=conversation)


@storage_test
async def test_locating_refuses_what_an_admission_refuses(harness: StorageHarness) -> None:
    locate = harness.storage.history.locate
    running, _ = await harness.start()
    theirs = await harness.answer(owner="bob")
    with pytest.raises(NotFound):
        await locate("ann", conversation="conv_none", parent=None)
    for parent, code in ((running, "response_not_finished"), (theirs, "previous_response_not_found")):
        with pytest.raises(InvalidRequest) as caught:
            await locate("ann", conversation=None, parent=parent)
        assert caught.value.code == code


# -- budgets


@storage_test
async def test_of_a_long_history_only_the_newest_items_are_read(harness: StorageHarness) -> None:
    one = await harness.answer("1" * 1000)
    await harness.answer(parent=one)
    fork = await harness.answer("2" * 1000, parent=one)
    _, admitted = await harness.admit("Hi", parent=await harness.answer("3" * 1000, parent=fork))
    assert admitted.position is not None
    for most, first, whole in ((500, "3", False), (1500, "2", False), (2900, "1", False), (9000, "1", True)):
        loaded = await harness.storage.history.before(admitted.position, most)
        found = texts(loaded.items)
        assert (found[0][0], loaded.whole) == (first, whole)
        assert found == alternate(*("123"[n] * 1000 for n in range("123".index(first), 3)))


@storage_test
async def test_a_history_with_wide_characters_counts_as_it_is_decoded(harness: StorageHarness) -> None:
    """Each character of such a text takes four bytes."""
    one = await harness.answer("1" * 1000 + "\N{GRINNING FACE}")
    _, admitted = await harness.admit("Hi", parent=await harness.answer("2" * 1000, parent=one))
    assert admitted.position is not None
    for most, whole in ((4500, False), (12_000, True)):
        assert (await harness.storage.history.before(admitted.position, most)).whole is whole


# -- cost


@storage_test
async def test_a_thousand_turns_are_one_segment_read_by_one_indexed_range(harness: StorageHarness) -> None:
    """In a conversation and in a chain alike; and the thousandth turn costs what the hundredth costs."""
    conversation = await harness.converse()
    parent: str | None = None
    early, late = range(100, 110), range(TURNS - 10, TURNS)
    prices: dict[int, int] = {}

    async def add_turn() -> None:
        nonlocal parent
        in_chain = harness.answer(f"{turn}", parent=parent)
        parent, _ = await asyncio.gather(in_chain, harness.answer(f"{turn}", conversation=conversation))

    for turn in range(TURNS):
        if turn in (early.start, late.start):
            # Postgres plans by its last count of the tables. If that was of a few rows, some plans scan whole tables
            # until the next count. Its own count comes at any time, so both prices are measured right after one.
            await harness.storage.inspector.update_statistics()
        if turn in early or turn in late:
            prices[turn] = await harness.storage.inspector.work_of(add_turn)
        else:
            await add_turn()
    # Of the lowest: on each connection the first turn after a count includes the work of planning.
    assert min(prices[turn] for turn in late) <= min(prices[turn] for turn in early) * 1.1, prices

    _, in_chain = await harness.admit(parent=parent)
    _, in_conversation = await harness.admit(conversation=conversation)
    for position in (in_chain.position, in_conversation.position):
        assert position is not None
        assert await harness.history_of(position) == alternate(*map(str, range(TURNS)))
        assert await harness.storage.inspector.history_ranges(position) == 1


@storage_test
async def test_only_a_fork_adds_a_segment(harness: StorageHarness) -> None:
    one = await harness.answer("one")
    await harness.answer("two", parent=one)
    fork = await harness.answer("fork", parent=one)
    _, admitted = await harness.admit(parent=fork)
    assert admitted.position is not None
    assert await harness.storage.inspector.history_ranges(admitted.position) == 2


@storage_test
async def test_only_output_of_the_owners_responses_is_found_as_output(harness: StorageHarness) -> None:
    conversation = await harness.converse("put there")
    first = await harness.answer("one", conversation=conversation)
    _, admitted = await harness.admit("two", parent=first)
    assert admitted.position is not None
    past = (await harness.storage.history.before(admitted.position)).items
    ids = [item["id"] for item in past]
    assert len(ids) == 3
    assert await harness.storage.history.find_outputs("ann", ids) == past[2:]
    assert await harness.storage.history.find_outputs("bob", ids) == []


@storage_test
async def test_a_short_history_comes_with_the_admission_on_sqlite(harness: StorageHarness) -> None:
    # What it holds is compared with the history by `StorageHarness.admit`.
    comes = isinstance(harness.ledger, SqliteLedger)
    conversation = await harness.converse("before")
    one = await harness.answer("one", conversation=conversation)
    _, admitted = await harness.admit("two", conversation=conversation)
    assert (admitted.history is not None) == comes
    _, forked = await harness.admit("fork", parent=one)  # its history is in two threads
    assert forked.history is None
    chain = await harness.answer("one")
    for _ in range(NEAR_ITEMS // 2 - 1):
        chain = await harness.answer("more", parent=chain)
    last = await harness.answer("twenty items before", parent=chain)
    _, after = await harness.admit("too many", parent=last)
    assert after.history is None


@storage_test
async def test_a_long_history_does_not_come_with_the_admission(harness: StorageHarness) -> None:
    for sizes in ([5_000], [100, 5_000, 100]):
        items = [message(harness.new("msg"), "x" * size) for size in sizes]
        response_id, lease = await harness.start(items=items)
        await harness.close(lease)
        _, admitted = await harness.admit("next", parent=response_id)
        assert admitted.history is None
        assert len(await harness.history_of(admitted.position)) == len(sizes) + 1


@storage_test
async def test_staged_items_do_not_come_with_an_admission(harness: StorageHarness) -> None:
    response_id, lease = await harness.start("staged", large=True)
    await harness.close(lease)
    _, admitted = await harness.admit("next", parent=response_id)
    assert admitted.history is None or not isinstance(harness.ledger, SqliteLedger)
    assert await harness.history_of(admitted.position) == ["staged", "answer"]

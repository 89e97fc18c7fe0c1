"""What a model is given: all ended turns before a place, once each, read as one range per segment."""

from __future__ import annotations

import asyncio

import pytest

from outlive.core.errors import InvalidRequest, NotFound
from tests.conformance.scenes import Book, scene

TURNS = 1000


def alternate(*questions: str) -> list[str]:
    return [text for question in questions for text in (question, "answer")]


@scene
async def test_a_first_response_has_no_history(book: Book) -> None:
    _, admitted = await book.admit("Hi")
    assert await book.history_of(admitted.position) == []


@scene
async def test_the_runs_own_input_is_not_in_its_history(book: Book) -> None:
    conversation = await book.converse("before")
    _, admitted = await book.admit("Hi", conversation=conversation)
    assert await book.history_of(admitted.position) == ["before"]


@scene
async def test_a_chain_is_read_oldest_first(book: Book) -> None:
    one = await book.answer("one")
    two = await book.answer("two", parent=one)
    _, admitted = await book.admit("three", parent=two)
    assert await book.history_of(admitted.position) == alternate("one", "two")


@scene
async def test_forks_of_forks_have_each_their_own_history(book: Book) -> None:
    one = await book.answer("one")
    two = await book.answer("two", parent=one)
    fork = await book.answer("fork", parent=one)
    _, of_two = await book.admit("three", parent=two)
    _, of_fork = await book.admit("fork three", parent=fork)
    again = await book.answer("again", parent=fork)
    _, of_again = await book.admit("more", parent=again)
    assert await book.history_of(of_two.position) == alternate("one", "two")
    assert await book.history_of(of_fork.position) == alternate("one", "fork")
    assert await book.history_of(of_again.position) == alternate("one", "fork", "again")


@scene
async def test_a_response_without_input_shares_its_place_in_a_chain_with_nobody(book: Book) -> None:
    one = await book.answer("one")
    silent, lease = await book.start(parent=one, items=[])
    other, other_lease = await book.start("two", parent=one)
    await book.close(lease, "from nothing")
    await book.close(other_lease)
    _, after_silent = await book.admit(parent=silent)
    _, after_other = await book.admit(parent=other)
    assert await book.history_of(after_silent.position) == [*alternate("one"), "from nothing"]
    assert await book.history_of(after_other.position) == alternate("one", "two")


@scene
async def test_a_later_turn_does_not_change_an_earlier_place(book: Book) -> None:
    conversation = await book.converse("before")
    _, admitted = await book.admit("one", conversation=conversation)
    assert admitted.lease is not None
    await book.close(admitted.lease)
    await book.answer("two", conversation=conversation)
    assert await book.history_of(admitted.position) == ["before"]


@scene
async def test_a_deleted_item_is_a_hole_that_history_reads_over(book: Book) -> None:
    conversation = await book.converse("one", "two", "three")
    await book.home.conversations.delete_item("ann", conversation, "msg_3")
    _, admitted = await book.admit("Hi", conversation=conversation)
    assert await book.history_of(admitted.position) == ["one", "three"]


@scene
async def test_a_failed_turn_is_nobodys_history(book: Book) -> None:
    conversation = await book.converse("before")
    await book.answer("Hi", None, conversation=conversation, status="failed")
    await book.answer("two", conversation=conversation)
    _, admitted = await book.admit("three", conversation=conversation)
    assert await book.history_of(admitted.position) == ["before", "two", "answer"]


# -- reading without being stored


@scene
async def test_what_is_not_stored_never_sees_a_turn_that_has_not_ended(book: Book) -> None:
    conversation = await book.converse("before")
    _, lease = await book.start("running", conversation=conversation)
    locate = book.home.history.locate
    assert await book.history_of(await locate("ann", conversation=conversation, parent=None)) == ["before"]
    await book.close(lease)
    position = await locate("ann", conversation=conversation, parent=None)
    assert await book.history_of(position) == ["before", "running", "answer"]


@scene
async def test_what_is_not_stored_reads_a_chain_wherever_it_would_continue_or_fork(book: Book) -> None:
    one = await book.answer("one")
    locate = book.home.history.locate
    assert await book.history_of(await locate("ann", conversation=None, parent=one)) == alternate("one")
    two = await book.answer("two", parent=one)
    assert await book.history_of(await locate("ann", conversation=None, parent=one)) == alternate("one")
    assert await book.history_of(await locate("ann", conversation=None, parent=two)) == alternate("one", "two")
    assert await locate("ann", conversation=None, parent=None) is None


@scene
async def test_locating_takes_no_lock_and_writes_nothing(book: Book) -> None:
    conversation = await book.converse("before")
    before = await book.home.inspector.rows()
    await book.home.history.locate("ann", conversation=conversation, parent=None)
    assert await book.home.inspector.rows() == before
    await book.admit(conversation=conversation)


@scene
async def test_locating_refuses_what_an_admission_refuses(book: Book) -> None:
    locate = book.home.history.locate
    running, _ = await book.start()
    theirs = await book.answer(owner="bob")
    with pytest.raises(NotFound):
        await locate("ann", conversation="conv_none", parent=None)
    for parent, code in ((running, "response_not_finished"), (theirs, "previous_response_not_found")):
        with pytest.raises(InvalidRequest) as caught:
            await locate("ann", conversation=None, parent=parent)
        assert caught.value.code == code


# -- what it costs


@scene
async def test_a_thousand_turns_are_one_segment_read_by_one_indexed_range(book: Book) -> None:
    """In a conversation and in a chain alike; and the thousandth turn costs what the hundredth costs."""
    conversation = await book.converse()
    parent: str | None = None
    early, late = range(100, 110), range(TURNS - 10, TURNS)
    prices: dict[int, int] = {}

    async def add_turn() -> None:
        nonlocal parent
        in_chain = book.answer(f"{turn}", parent=parent)
        parent, _ = await asyncio.gather(in_chain, book.answer(f"{turn}", conversation=conversation))

    for turn in range(TURNS):
        if turn in (early.start, late.start):
            # Postgres plans by its last count of the tables. If that was of a few rows, some plans scan whole tables
            # until the next count. Its own count comes at any time, so both prices are measured right after one.
            await book.home.inspector.update_statistics()
        if turn in early or turn in late:
            prices[turn] = await book.home.inspector.work_of(add_turn)
        else:
            await add_turn()
    # Of the lowest: on each connection the first turn after a count includes the work of planning.
    assert min(prices[turn] for turn in late) <= min(prices[turn] for turn in early) * 1.1, prices

    _, in_chain = await book.admit(parent=parent)
    _, in_conversation = await book.admit(conversation=conversation)
    for position in (in_chain.position, in_conversation.position):
        assert position is not None
        assert await book.history_of(position) == alternate(*map(str, range(TURNS)))
        assert await book.home.inspector.history_ranges(position) == 1


@scene
async def test_only_a_fork_adds_a_segment(book: Book) -> None:
    one = await book.answer("one")
    await book.answer("two", parent=one)
    fork = await book.answer("fork", parent=one)
    _, admitted = await book.admit(parent=fork)
    assert admitted.position is not None
    assert await book.home.inspector.history_ranges(admitted.position) == 2

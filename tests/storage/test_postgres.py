"""What only a database that nodes share can do: locks against other nodes, lost lines, and certainty after them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from outlive.core.errors import Behind, ConversationLocked, MustWait, StaleFence, StorageUnavailable, TooMany
from outlive.core.events import split_frames
from outlive.ports.catalog import Paging
from outlive.ports.ledger import Entry, Lease, Quota
from outlive.storage.postgres import connection as postgres
from outlive.storage.postgres.admissions import LATE_SECONDS
from outlive.storage.postgres.connection import SQL
from outlive.storage.postgres.ledger import PostgresLedger
from tests.conformance.scenes import STALE, WRITTEN, Book, entry, frames, message
from tests.conformance.storages import Storage, open_postgres
from tests.support.postgres import DATABASES
from tests.support.proxy import Proxy


def play(test: Callable[[Any], Awaitable[None]]) -> Callable[[], None]:
    """A test on a fresh database, with a limit of its own."""

    def run() -> None:
        async def go() -> None:
            async with asyncio.timeout(30):
                await test(DATABASES.borrow(test.__name__))

        asyncio.run(go())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def books(*homes: Storage) -> list[Book]:
    """One book for each node, whose ids do not meet."""
    made = [Book(home) for home in homes]
    for number, book in enumerate(made):
        book._count = 1000 * number
    return made


def append_arguments(*entries: Entry) -> list[Any]:
    rows = [(e.lease.key, e.lease.fence, e.first, e.count, e.at, e.frames) for e in entries]
    return [*map(list, zip(*rows, strict=True)), None]


async def is_waiting(task: asyncio.Future[Any], seconds: float = 0.3) -> bool:
    done, _ = await asyncio.wait([task], timeout=seconds)
    return not done


# -- the fence


@play
async def test_a_seizure_during_an_uncommitted_append_waits_for_it(url: str) -> None:
    async with open_postgres(url) as home:
        book = Book(home)
        response_id, lease = await book.start()
        other = await postgres.connect(url)
        append = other.transaction()
        await append.start()
        assert await other.fetchval(SQL["append_events"], *append_arguments(entry(lease, 2))) is None
        seizing = asyncio.create_task(home.ledger.take_over(response_id, "w2"))
        assert await is_waiting(seizing)
        await append.commit()
        claim = await seizing
        await other.close()
        assert claim is not None
        assert len(split_frames(await book.events(response_id))) == 3  # all of it was there when the fence was raised
        assert await home.ledger.append([entry(lease, 3)]) == [STALE]


@play
async def test_a_claim_during_an_uncommitted_append_does_not_get_the_response(url: str) -> None:
    """Its worker was taken for dead, but something that it sent is still under way."""
    async with open_postgres(url) as home:
        book = Book(home)
        response_id, lease = await book.start()
        await home.ledger.free_dead_leases()
        other = await postgres.connect(url)
        append = other.transaction()
        await append.start()
        await other.fetchval(SQL["append_events"], *append_arguments(entry(lease, 2)))
        assert await book.claim() == []
        await append.commit()
        await other.close()
        (claim,) = await book.claim()
        assert claim.lease.fence == lease.fence + 1
        assert len(split_frames(await book.events(response_id))) == 3


@play
async def test_an_append_during_an_uncommitted_seizure_waits_and_is_stale_then(url: str) -> None:
    """The check of the fence alone, without the lock, would let it through."""
    async with open_postgres(url) as home:
        book = Book(home)
        stale_id, stale = await book.start()
        good_id, good = await book.start()
        other = await postgres.connect(url)
        seizure = other.transaction()
        await seizure.start()
        await other.fetchrow(SQL["find_running"], stale_id)
        await other.fetch(SQL["take_leases"], "w2", 0, [stale.key])
        appending = asyncio.ensure_future(home.ledger.append([entry(stale, 2), entry(good, 2)]))
        assert await is_waiting(appending)
        await seizure.commit()
        await other.close()
        assert await appending == [STALE, WRITTEN]
        assert len(split_frames(await book.events(stale_id))) == 2
        assert len(split_frames(await book.events(good_id))) == 3


@play
async def test_a_lease_that_another_holds_is_stale_even_with_the_same_fence(url: str) -> None:
    """A promoted standby may have lost a claim; then two nodes were given the same fence."""
    async with open_postgres(url) as home:
        book = Book(home)
        response_id, lease = await book.start(worker="w1")
        database = await postgres.PostgresDatabase.open(url)
        mine, theirs = PostgresLedger(database, "w1"), PostgresLedger(database, "w2")
        assert await theirs.append([entry(lease, 2)]) == [STALE]
        with pytest.raises(StaleFence):
            await Book(msgspec.structs.replace(home, ledger=theirs)).close(lease)
        assert await mine.append([entry(lease, 2)]) == [WRITTEN]
        await home.ledger.free_dead_leases()
        assert await mine.append([entry(lease, 3)]) == [WRITTEN]  # nobody has taken it yet
        await database.close()
        assert len(split_frames(await book.events(response_id))) == 4


# -- several nodes


@play
async def test_of_two_nodes_one_gets_the_conversation(url: str) -> None:
    async with open_postgres(url) as one, open_postgres(url) as two:
        nodes = books(one, two)
        conversation = await nodes[0].converse()
        for turn in range(10):
            # Without input nothing of theirs can collide but the lock itself.
            given: dict[str, Any] = {"items": []} if turn % 2 else {}
            work = [book.start(conversation=conversation, **given) for book in nodes for _ in range(4)]
            results = await asyncio.gather(*work, return_exceptions=True)
            started = [result for result in results if isinstance(result, tuple)]
            assert len(started) == 1
            assert sum(isinstance(result, ConversationLocked) for result in results) == 7
            await nodes[0].close(started[0][1])
        assert len(await nodes[0].texts_of(conversation)) == 15


@play
async def test_an_admission_to_a_conversation_waits_for_one_that_is_not_committed_yet(url: str) -> None:
    async with open_postgres(url) as home:
        book = Book(home)
        conversation = await book.converse()
        running, lease = await book.start()
        other = await postgres.connect(url)
        admission = other.transaction()
        await admission.start()
        await other.execute("SELECT admit_all('{}', '{}', $1, '{}', '{0,NULL,0}')", [conversation])  # its locks alone
        await other.execute("UPDATE conversations SET running = $1 WHERE id = $2", lease.key, conversation)
        # Without input nothing of theirs could collide but the lock itself.
        admitting = asyncio.create_task(book.admit(conversation=conversation, items=[]))
        assert await is_waiting(admitting)
        await admission.commit()
        await other.close()
        with pytest.raises(ConversationLocked, match=running):
            await admitting


@play
async def test_of_many_repeats_on_two_nodes_one_is_admitted(url: str) -> None:
    async with open_postgres(url) as one, open_postgres(url) as two:
        nodes = books(one, two)
        for number in range(10):
            work = [book.admit(key=f"k{number}") for book in nodes for _ in range(4)]
            results = await asyncio.gather(*work)
            made = [response_id for response_id, admitted in results if admitted.lease is not None]
            assert len(made) == 1
            assert {admitted.attached for _, admitted in results if admitted.lease is None} == set(made)


@play
async def test_of_many_that_continue_one_response_one_stays_in_its_thread(url: str) -> None:
    async with open_postgres(url) as one, open_postgres(url) as two:
        nodes = books(one, two)
        parent = await nodes[0].answer("one")
        work = [book.admit(f"{n}", parent=parent) for book in nodes for n in range(4)]
        places = [admitted.position for _, admitted in await asyncio.gather(*work)]
        assert len({place.thread for place in places if place is not None}) == 8
        for place in places:
            assert await nodes[0].history_of(place) == ["one", "answer"]


@play
async def test_nodes_that_mix_everything_never_wait_for_each_other_for_ever(url: str) -> None:
    """Batches of admissions and endings in the same few conversations and chains, with sweepers in between."""
    async with open_postgres(url) as one, open_postgres(url) as two:
        nodes = books(one, two)
        conversations = [await nodes[0].converse() for _ in range(4)]
        parents = [await nodes[0].answer(f"{n}") for n in range(4)]

        async def talk(book: Book, number: int) -> int:
            done = 0
            for turn in range(6):
                pick = (number + turn) % 4
                where = {"conversation": conversations[pick]} if number % 2 else {"parent": parents[pick]}
                try:
                    _, lease = await book.start(key=f"{number % 3}-{turn}-{id(book)}-{number}", **where)
                except ConversationLocked:
                    continue
                await book.close(lease, status="failed" if turn % 3 == 0 else "completed")
                done += 1
            return done

        async def sweep(home: Storage) -> None:
            for _ in range(15):
                await home.retention.expire(responses_before=1.0, conversations_before=1.0, limit=10)
                await home.retention.erase(10)

        work = [talk(book, number) for book in nodes for number in range(8)]
        results = await asyncio.gather(*work, sweep(one), sweep(two))
        assert sum(count for count in results if count) > 48  # every chain's, and some conversations'


@play
async def test_sweepers_of_two_nodes_erase_everything_once(url: str) -> None:
    async with open_postgres(url) as one, open_postgres(url) as two:
        nodes = books(one, two)
        for _ in range(30):
            await nodes[0].ledger.delete("ann", await nodes[0].answer())

        async def erase(home: Storage) -> int:
            gone = 0
            while count := await home.retention.erase(5):
                gone += count
            return gone

        await asyncio.gather(erase(one), erase(two))
        while await one.retention.erase(5):
            pass
        assert sum((await one.inspector.rows()).values()) == 0


@play
async def test_erasing_waits_for_an_admission_that_is_not_committed_yet(url: str) -> None:
    """It has looked at its chain already, and found it whole."""
    async with open_postgres(url) as home:
        book = Book(home)
        parent = await book.answer("one")
        other = await postgres.connect(url)
        admission = other.transaction()
        await admission.start()
        await other.execute("SELECT admit_all('{}', '{}', '{}', $1, '{0,0,0}')", [parent])  # its locks alone
        hiding = asyncio.create_task(home.ledger.delete("ann", parent))
        assert await is_waiting(hiding)
        await admission.rollback()
        await other.close()
        await hiding
        assert await home.retention.erase(10) == 1


# -- quotas


@play
async def test_an_owners_quota_of_running_responses_holds_on_all_nodes_together(url: str) -> None:
    quota = Quota(queued=100, running_per_owner=3)
    async with open_postgres(url, quota) as one, open_postgres(url, quota) as two:
        nodes = books(one, two)
        work = [book.start() for book in nodes for _ in range(5)]
        results = await asyncio.gather(*work, return_exceptions=True)
        leases = [result[1] for result in results if isinstance(result, tuple)]
        assert len(leases) == 3
        assert sum(isinstance(result, MustWait) for result in results) == 7
        await nodes[0].start(owner="bob")
        for book in nodes:
            await book.admit(worker=None)
        assert await nodes[0].claim() == []
        await nodes[1].close(leases[0])
        claims = await asyncio.gather(*(book.claim() for book in nodes))
        assert sum(map(len, claims)) == 1


@play
async def test_no_more_may_wait_than_the_quota_says(url: str) -> None:
    async with open_postgres(url, Quota(queued=3, queued_per_owner=2)) as home:
        book = Book(home)
        await book.admit(worker=None)
        await book.admit(worker=None)
        with pytest.raises(TooMany, match="of your"):
            await book.admit(worker=None)
        await book.admit(worker=None, owner="bob")
        with pytest.raises(TooMany, match="3 responses"):
            await book.admit(worker=None, owner="carl")
        await book.start()  # what need not wait is no concern of it


@play
async def test_of_many_at_once_no_more_wait_than_the_quota_says(url: str) -> None:
    for limit in (0, 5):
        async with open_postgres(url, Quota(queued=limit)) as one, open_postgres(url, Quota(queued=limit)) as two:
            work = [book.admit(worker=None) for book in books(one, two) for _ in range(10)]
            results = await asyncio.gather(*work, return_exceptions=True)
            assert sum(isinstance(result, TooMany) for result in results) == 20 - limit
            assert sum((await one.ledger.count_queued()).values()) == limit


# -- lost lines


def lost(test: Callable[[Book, Proxy, postgres.PostgresDatabase], Awaitable[None]]) -> Callable[[], None]:
    """A test whose book writes over a line that can be cut."""

    async def with_line(url: str) -> None:
        with Proxy(DATABASES.server.port) as proxy:
            proxied = proxy.redirect(url)
            async with open_postgres(proxied) as home:
                book = Book(home)
                await book.answer()  # its statements are prepared, and its connections open
                await book.claim()
                await test(book, proxy, home.inspector.database)  # type: ignore[attr-defined]

    with_line.__name__, with_line.__doc__ = test.__name__, test.__doc__
    return play(with_line)


@lost
async def test_an_admission_that_may_have_been_repeated_by_now_is_refused(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    async with asyncio.timeout(20):
        proxy.freeze()
        silent = asyncio.create_task(book.admit("Hi", retry_digest=b"body"))
        await asyncio.sleep(0.1)
        behind = asyncio.create_task(book.admit("Ho", retry_digest=b"other"))  # waits for the same line
        keyed = asyncio.create_task(book.admit("He", key="k1", retry_digest=b"keyed"))
        await asyncio.sleep(LATE_SECONDS + 0.2)
        proxy.thaw()
        for late in (silent, behind):
            with pytest.raises(StorageUnavailable):
                await late
        await keyed  # its key would have told
        assert await book.home.catalog.unanswered("ann", b"body", 0.0) == []
        await book.admit("Hi", retry_digest=b"body")


@lost
async def test_a_database_whose_clock_was_set_refuses_once_at_most(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    assert database.clock_offset is not None
    database.clock_offset -= 3600
    with pytest.raises(StorageUnavailable):
        await book.admit("Hi", retry_digest=b"body")
    await book.admit("Hi", retry_digest=b"body")


@lost
async def test_an_admission_whose_answer_was_lost_is_found_again(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    proxy.drop_answer()
    response_id, admitted = await book.admit("Hi")
    assert proxy.dropped.is_set()
    assert admitted.lease is not None and admitted.position is not None
    assert await book.ledger.append([entry(admitted.lease, 2)]) == [WRITTEN]
    assert len(split_frames(await book.events(response_id))) == 3


@lost
async def test_an_admission_that_was_cut_off_before_its_commit_was_not_made(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    """It is still waiting for a lock when its line is lost: it may not come through after we have looked."""
    before = await book.home.inspector.rows()
    conversation = await book.converse()
    other = await postgres.connect(database.dsn.replace(f":{proxy.port}/", f":{DATABASES.server.port}/"))
    holding = other.transaction()
    await holding.start()
    await other.execute(SQL["lock_conversation"], conversation, "ann")
    admitting = asyncio.create_task(book.admit(conversation=conversation))
    assert await is_waiting(admitting)
    proxy.cut()
    with pytest.raises(StorageUnavailable):
        await admitting
    await holding.rollback()
    await other.close()
    after = await book.home.inspector.rows()
    assert after["responses"] == before["responses"]
    assert after["leases"] == before["leases"]


@lost
async def test_a_large_admission_whose_answer_was_lost_is_found_again(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    await book.admit("x" * 300_000, large=True)
    drop_commit(proxy)
    response_id, admitted = await book.admit("y" * 900_000, large=True)
    assert proxy.dropped.is_set()
    assert admitted.lease is not None
    assert await book.ledger.append([entry(admitted.lease, 2)]) == [WRITTEN]
    page = await book.home.catalog.input_items("ann", response_id, Paging())
    assert len(page.data[0]["content"][0]["text"]) == 900_000
    assert (await book.home.inspector.rows())["stash"] == 0


@lost
async def test_a_claim_whose_answer_was_lost_is_found_again(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    for _ in range(3):
        await book.admit(worker=None)
    await book.claim(1)
    drop_commit(proxy)
    claims = await book.claim(2)
    assert proxy.dropped.is_set()
    assert len(claims) == 2
    assert await book.ledger.append([entry(claim.lease, 2) for claim in claims]) == [WRITTEN, WRITTEN]
    assert await book.ledger.count_queued() == {}


@lost
async def test_a_seizure_whose_answer_was_lost_is_found_again(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    first, _ = await book.start()
    await book.ledger.take_over(first, "w3")
    response_id, _ = await book.start()
    drop_commit(proxy)
    claim = await book.ledger.take_over(response_id, "w3")
    assert proxy.dropped.is_set()
    assert claim is not None
    assert await book.ledger.append([entry(claim.lease, 2)]) == [WRITTEN]


@lost
async def test_items_whose_answer_was_lost_are_not_added_twice(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    drop_commit(proxy)
    conversation = await book.converse("one")
    assert proxy.dropped.is_set()
    drop_commit(proxy)
    added = await book.home.conversations.add_items("ann", conversation, [message("msg_a", "two")], 1.0, None)
    assert proxy.dropped.is_set()
    assert [item["id"] for item in added] == ["msg_a"]
    assert await book.texts_of(conversation) == ["one", "two"]


@play
async def test_appends_do_not_wait_for_those_who_wait_for_a_conversation(url: str) -> None:
    async with open_postgres(url) as home:
        book = Book(home)
        conversation = await book.converse()
        _, lease = await book.start()
        other = await postgres.connect(url)
        holding = other.transaction()
        await holding.start()
        await other.execute(SQL["lock_conversation"], conversation, "ann")
        add = home.conversations.add_items
        adding = [asyncio.create_task(add("ann", conversation, [message(f"m{n}", "x")], 1.0, None)) for n in range(8)]
        assert await is_waiting(adding[0])
        async with asyncio.timeout(5):
            assert await home.ledger.append([entry(lease, 2)]) == [WRITTEN]
            await book.close(lease, first=3)
            await book.start()
        await holding.rollback()
        await other.close()
        await asyncio.gather(*adding)


def drop_commit(proxy: Proxy) -> None:
    """Lose the answer to the first COMMIT; what comes before it in the transaction is answered."""
    proxy.drop_answer(to=b"COMMIT")


@lost
async def test_an_append_whose_answer_was_lost_is_made_again_and_there_once(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    response_id, lease = await book.start()
    other_id, other = await book.start()
    await book.ledger.append([entry(lease, 2)])
    proxy.drop_answer()
    with pytest.raises(StorageUnavailable):
        await book.ledger.append([entry(lease, 3, 2), entry(other, 2)])
    assert proxy.dropped.is_set()
    # More has gathered meanwhile.
    assert await book.ledger.append([entry(lease, 3, 5), entry(other, 2)]) == [WRITTEN, WRITTEN]
    assert await book.events(response_id) == await whole(book, response_id, 8)
    assert len(split_frames(await book.events(other_id))) == 3


async def whole(book: Book, response_id: str, count: int) -> bytes:
    """The journal as it ought to be: what it was admitted with, and then every number once."""
    batch = await book.home.journal.read(response_id, -1, 1)
    assert batch is not None
    return batch.frames + frames(2, count - 2)


@lost
async def test_a_long_append_whose_answer_was_lost_leaves_no_row_of_its_own(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    """Cut up differently the second time."""
    response_id, lease = await book.start()
    await book.ledger.append([entry(lease, 2)])
    proxy.drop_answer()
    with pytest.raises(StorageUnavailable):
        await book.ledger.append([entry(lease, 3, 3000)])
    assert await book.ledger.append([entry(lease, 3, 4000)]) == [WRITTEN]
    assert await book.events(response_id) == await whole(book, response_id, 4003)


@lost
async def test_an_append_whose_answer_was_lost_may_be_made_again_by_the_closing(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    response_id, lease = await book.start()
    await book.ledger.append([entry(lease, 2)])
    proxy.drop_answer()
    with pytest.raises(StorageUnavailable):
        await book.ledger.append([entry(lease, 3, 2)])
    await book.close(lease, first=3)
    assert len(split_frames(await book.events(response_id))) == 4


@lost
async def test_a_closing_whose_answer_was_lost_succeeds_when_it_is_tried_again(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    response_id, lease = await book.start()
    at, count = book.now, book._count
    proxy.drop_answer()
    with pytest.raises(StorageUnavailable):
        await book.close(lease)
    assert proxy.dropped.is_set()
    book.now, book._count = at, count  # the very same
    await book.close(lease)
    assert len(split_frames(await book.events(response_id))) == 3
    with pytest.raises(StaleFence):
        await book.close(lease)  # another is not


@lost
async def test_what_is_down_is_unavailable_at_once_and_back_when_it_is_back(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    response_id, lease = await book.start()
    proxy.block()
    with pytest.raises(StorageUnavailable):
        await book.ledger.append([entry(lease, 2)])
    with pytest.raises(StorageUnavailable):
        await book.admit()
    with pytest.raises(StorageUnavailable):
        await book.events(response_id)
    assert not await database.probe()
    proxy.unblock()
    assert await database.probe()
    assert await book.ledger.append([entry(lease, 2)]) == [WRITTEN]
    await book.close(lease, first=3)


# -- a promoted standby that had not heard of everything


@lost
async def test_a_journal_that_is_behind_is_told_from_one_that_is_whole(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    response_id, lease = await book.start()
    whole_id, other = await book.start()
    await book.ledger.append([entry(lease, 2, 3), entry(other, 2, 3)])
    await forget(database, "DELETE FROM events WHERE response = $1 AND first >= 2", lease.key)
    proxy.cut()
    with pytest.raises(StorageUnavailable):
        await book.ledger.append([entry(lease, 5), entry(other, 5)])
    kept = await book.ledger.append([entry(lease, 5), entry(other, 5)])
    assert isinstance(kept[0], Behind) and kept[0].last == 1
    assert kept[1] is WRITTEN
    with pytest.raises(Behind):
        await book.close(lease, first=5)
    assert await book.ledger.append([entry(lease, 2, 3)]) == [WRITTEN]
    assert await book.ledger.append([entry(lease, 5)]) == [WRITTEN]
    assert len(split_frames(await book.events(response_id))) == len(split_frames(await book.events(whole_id))) == 6


@lost
async def test_a_response_that_was_lost_is_not_mistaken_for_the_one_that_has_its_key_now(
    book: Book, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    lost_id, lease = await book.start()
    other_id, other = await book.start()
    mistaken = Lease(lost_id, other.key, other.fence)
    proxy.cut()
    with pytest.raises(StorageUnavailable):
        await book.ledger.append([entry(lease, 2)])
    (kept,) = await book.ledger.append([entry(mistaken, 2)])
    assert kept is not WRITTEN
    with pytest.raises(StaleFence):
        await book.close(mistaken)
    assert len(split_frames(await book.events(other_id))) == 2


async def forget(database: postgres.PostgresDatabase, statement: str, key: int) -> None:
    await database.write("forget", lambda db: db.execute(statement, key))

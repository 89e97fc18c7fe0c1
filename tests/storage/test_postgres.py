"""Postgres with several nodes: locks against other nodes, lost connections, and certain outcomes after them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from outlive.core.errors import Behind, ConversationLocked, MustWait, StaleFence, StorageUnavailable, TooMany
from outlive.core.events import split_frames
from outlive.core.owners import Policy, join
from outlive.ports.catalog import Paging
from outlive.ports.database import lock_key
from outlive.ports.ledger import Entry, Lease, Quota
from outlive.storage.postgres import connection as postgres
from outlive.storage.postgres.ledger import LATE_SECONDS, PostgresLedger
from outlive.storage.postgres.schema import SQL
from tests.conformance.harness import STALE, WRITTEN, StorageHarness, entry, frames, message
from tests.conformance.storages import PostgresInspector, Storage, open_postgres
from tests.support.postgres import DATABASES
from tests.support.proxy import Proxy


def postgres_test(test: Callable[[Any], Awaitable[None]]) -> Callable[[], None]:
    """Make a test on a fresh database, with a time limit."""

    def run() -> None:
        async def go() -> None:
            async with asyncio.timeout(30):
                await test(DATABASES.borrow(test.__name__))

        asyncio.run(go())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def harnesses(*storages: Storage) -> list[StorageHarness]:
    """Make one harness for each node, with ids that do not collide."""
    made = [StorageHarness(storage) for storage in storages]
    for number, harness in enumerate(made):
        harness._count = 1000 * number
    return made


def append_arguments(*entries: Entry) -> list[Any]:
    rows = [(e.lease.key, e.lease.fence, e.first, e.count, e.at, e.frames) for e in entries]
    return [*map(list, zip(*rows, strict=True)), None]


async def is_waiting(task: asyncio.Future[Any], seconds: float = 0.3) -> bool:
    done, _ = await asyncio.wait([task], timeout=seconds)
    return not done


# -- the fence


@postgres_test
async def test_a_takeover_waits_for_an_uncommitted_append(url: str) -> None:
    async with open_postgres(url) as storage:
        harness = StorageHarness(storage)
        response_id, lease = await harness.start()
        other = await postgres.connect(url)
        append = other.transaction()
        await append.start()
        assert await other.fetchval(SQL["append_events"], *append_arguments(entry(lease, 2))) is None
        taking = asyncio.create_task(storage.ledger.take_over(response_id, "w2"))
        assert await is_waiting(taking)
        await append.commit()
        claim = await taking
        await other.close()
        assert claim is not None
        assert (
            len(split_frames(await harness.events(response_id))) == 3
        )  # all of it was written before the fence was raised
        assert await storage.ledger.append([entry(lease, 3)]) == [STALE]


@postgres_test
async def test_a_node_of_an_earlier_version_raises_no_fence_during_an_uncommitted_append(url: str) -> None:
    async with open_postgres(url) as storage:
        harness = StorageHarness(storage)
        other, earlier = await postgres.connect(url), await postgres.connect(url)
        for rows in (1, 129):  # with more than 128, an append locks the rows of the leases instead
            response_id, lease = await harness.start()
            append = other.transaction()
            await append.start()
            entries = [entry(lease, 2 + n) for n in range(rows)]
            assert await other.fetchval(SQL["append_events"], *append_arguments(*entries)) is None
            raise_fence = "UPDATE leases SET worker = 'w2', fence = fence + 1 WHERE response = $1"
            raising = asyncio.create_task(earlier.execute(raise_fence, lease.key))
            assert await is_waiting(raising)
            await append.commit()
            await raising
            assert await storage.ledger.append([entry(lease, 2 + rows)]) == [STALE]
            assert len(split_frames(await harness.events(response_id))) == 2 + rows
        await asyncio.gather(other.close(), earlier.close())


@postgres_test
async def test_an_append_of_an_earlier_version_holds_up_a_takeover(url: str) -> None:
    """It locks the rows of its leases, and knows of no other lock."""
    async with open_postgres(url) as storage:
        harness = StorageHarness(storage)
        response_id, lease = await harness.start()
        other = await postgres.connect(url)
        append = other.transaction()
        await append.start()
        await other.fetch(SQL["hold_leases"], [lease.key], None)
        taking = asyncio.create_task(storage.ledger.take_over(response_id, "w2"))
        assert await is_waiting(taking)
        await append.commit()
        assert await taking is not None
        await other.close()


@postgres_test
async def test_a_claim_during_an_uncommitted_append_does_not_get_the_response(url: str) -> None:
    """Its worker seemed dead, but one of its statements is still under way."""
    async with open_postgres(url) as storage:
        harness = StorageHarness(storage)
        response_id, lease = await harness.start()
        await storage.ledger.free_dead_leases()
        other = await postgres.connect(url)
        append = other.transaction()
        await append.start()
        await other.fetchval(SQL["append_events"], *append_arguments(entry(lease, 2)))
        assert await harness.claim() == []
        await append.commit()
        await other.close()
        (claim,) = await harness.claim()
        assert claim.lease.fence == lease.fence + 1
        assert len(split_frames(await harness.events(response_id))) == 3


@postgres_test
async def test_an_append_waits_for_an_uncommitted_takeover_and_is_stale_then(url: str) -> None:
    """The check of the fence alone, without the lock, would let it through."""
    async with open_postgres(url) as storage:
        harness = StorageHarness(storage)
        stale_id, stale = await harness.start()
        good_id, good = await harness.start()
        other = await postgres.connect(url)
        takeover = other.transaction()
        await takeover.start()
        await other.fetchrow(SQL["find_running"], stale_id)
        await other.fetch(SQL["take_leases"], "w2", 0, [stale.key])
        appending = asyncio.ensure_future(storage.ledger.append([entry(stale, 2), entry(good, 2)]))
        assert await is_waiting(appending)
        await takeover.commit()
        await other.close()
        assert await appending == [STALE, WRITTEN]
        assert len(split_frames(await harness.events(stale_id))) == 2
        assert len(split_frames(await harness.events(good_id))) == 3


@postgres_test
async def test_a_lease_of_another_worker_is_stale_even_with_the_same_fence(url: str) -> None:
    """A promoted standby may have lost a claim; then two nodes hold the same fence."""
    async with open_postgres(url) as storage:
        harness = StorageHarness(storage)
        response_id, lease = await harness.start(worker="w1")
        database = await postgres.PostgresDatabase.open(url)
        mine, theirs = PostgresLedger(database, "w1"), PostgresLedger(database, "w2")
        assert await theirs.append([entry(lease, 2)]) == [STALE]
        with pytest.raises(StaleFence):
            await StorageHarness(msgspec.structs.replace(storage, ledger=theirs)).close(lease)
        assert await mine.append([entry(lease, 2)]) == [WRITTEN]
        await storage.ledger.free_dead_leases()
        assert await mine.append([entry(lease, 3)]) == [WRITTEN]  # no worker has claimed it yet
        await database.close()
        assert len(split_frames(await harness.events(response_id))) == 4


# -- batches


@postgres_test
async def test_an_admission_that_postgres_refuses_fails_alone(url: str) -> None:
    """A key that is longer than a page of the index can hold; HTTP refuses it, but nothing may depend on that."""
    async with open_postgres(url) as storage:
        harness = StorageHarness(storage)
        long_key = secrets.token_hex(8000)
        admitting = [harness.admit(key=key) for key in ("one", long_key, "two")]
        one, refused, two = await asyncio.gather(*admitting, return_exceptions=True)
        assert isinstance(refused, StorageUnavailable)
        assert not isinstance(one, BaseException)
        assert not isinstance(two, BaseException)
        assert one[1].lease is not None
        assert two[1].lease is not None


# -- several nodes


@postgres_test
async def test_two_nodes_lock_a_conversation_once(url: str) -> None:
    async with open_postgres(url) as one, open_postgres(url) as two:
        nodes = harnesses(one, two)
        conversation = await nodes[0].converse()
        for turn in range(10):
            # Without input only the lock itself can collide.
            given: dict[str, Any] = {"items": []} if turn % 2 else {}
            work = [harness.start(conversation=conversation, **given) for harness in nodes for _ in range(4)]
            results = await asyncio.gather(*work, return_exceptions=True)
            started = [result for result in results if isinstance(result, tuple)]
            assert len(started) == 1
            assert sum(isinstance(result, ConversationLocked) for result in results) == 7
            await nodes[0].close(started[0][1])
        assert len(await nodes[0].texts_of(conversation)) == 15


@postgres_test
async def test_an_admission_waits_for_an_uncommitted_one_in_its_conversation(url: str) -> None:
    async with open_postgres(url) as storage:
        harness = StorageHarness(storage)
        conversation = await harness.converse()
        running, lease = await harness.start()
        other = await postgres.connect(url)
        admission = other.transaction()
        await admission.start()
        await other.execute("SELECT admit_all('{}', '{}', $1, '{}', NULL)", [conversation])  # its locks alone
        await other.execute("UPDATE conversations SET running = $1 WHERE id = $2", lease.key, conversation)
        # Without input only the lock itself can collide.
        admitting = asyncio.create_task(harness.admit(conversation=conversation, items=[]))
        assert await is_waiting(admitting)
        await admission.commit()
        await other.close()
        with pytest.raises(ConversationLocked, match=running):
            await admitting


@postgres_test
async def test_concurrent_repeats_on_two_nodes_admit_one_response(url: str) -> None:
    async with open_postgres(url) as one, open_postgres(url) as two:
        nodes = harnesses(one, two)
        for number in range(10):
            work = [harness.admit(key=f"k{number}") for harness in nodes for _ in range(4)]
            results = await asyncio.gather(*work)
            made = [response_id for response_id, admitted in results if admitted.lease is not None]
            assert len(made) == 1
            assert {admitted.attached for _, admitted in results if admitted.lease is None} == set(made)


@postgres_test
async def test_concurrent_continuations_leave_one_in_the_thread_and_fork_the_rest(url: str) -> None:
    async with open_postgres(url) as one, open_postgres(url) as two:
        nodes = harnesses(one, two)
        parent = await nodes[0].answer("one")
        work = [harness.admit(f"{n}", parent=parent) for harness in nodes for n in range(4)]
        places = [admitted.position for _, admitted in await asyncio.gather(*work)]
        assert len({place.thread for place in places if place is not None}) == 8
        for place in places:
            assert await nodes[0].history_of(place) == ["one", "answer"]


@postgres_test
async def test_nodes_with_mixed_writes_never_deadlock(url: str) -> None:
    """Batches of admissions and closes in the same few conversations and chains, with sweepers in between."""
    async with open_postgres(url) as one, open_postgres(url) as two:
        nodes = harnesses(one, two)
        conversations = [await nodes[0].converse() for _ in range(4)]
        parents = [await nodes[0].answer(f"{n}") for n in range(4)]

        async def talk(harness: StorageHarness, number: int) -> int:
            done = 0
            for turn in range(6):
                pick = (number + turn) % 4
                where = {"conversation": conversations[pick]} if number % 2 else {"parent": parents[pick]}
                try:
                    _, lease = await harness.start(key=f"{number % 3}-{turn}-{id(harness)}-{number}", **where)
                except ConversationLocked:
                    continue
                await harness.close(lease, status="failed" if turn % 3 == 0 else "completed")
                done += 1
            return done

        async def sweep(storage: Storage) -> None:
            for _ in range(15):
                await storage.retention.expire(responses_before=1.0, conversations_before=1.0, at=2.0, limit=10)
                await storage.retention.restore(3.0, 10)
                await storage.retention.delete_expired(1.0, 10)
                await storage.retention.erase(10)

        work = [talk(harness, number) for harness in nodes for number in range(8)]
        results = await asyncio.gather(*work, sweep(one), sweep(two))
        assert sum(count for count in results if count) > 48  # every chain's, and some conversations'


@postgres_test
async def test_sweepers_of_two_nodes_erase_everything_once(url: str) -> None:
    async with open_postgres(url) as one, open_postgres(url) as two:
        nodes = harnesses(one, two)
        for _ in range(30):
            await nodes[0].ledger.delete("ann", await nodes[0].answer())

        async def erase(storage: Storage) -> int:
            gone = 0
            while count := await storage.retention.erase(5):
                gone += count
            return gone

        await asyncio.gather(erase(one), erase(two))
        while await one.retention.erase(5):
            pass
        assert sum((await one.inspector.rows()).values()) == 0


@postgres_test
async def test_erasing_waits_for_an_admission_that_is_not_committed_yet(url: str) -> None:
    """The admission has checked its chain already, and found it complete."""
    async with open_postgres(url) as storage:
        harness = StorageHarness(storage)
        parent = await harness.answer("one")
        other = await postgres.connect(url)
        admission = other.transaction()
        await admission.start()
        await other.execute("SELECT admit_all('{}', '{}', '{}', $1, NULL)", [parent])  # its locks alone
        hiding = asyncio.create_task(storage.ledger.delete("ann", parent))
        assert await is_waiting(hiding)
        await admission.rollback()
        await other.close()
        await hiding
        assert await storage.retention.erase(10) == 1


# -- quotas


@postgres_test
async def test_an_owners_quota_of_running_responses_holds_on_all_nodes_together(url: str) -> None:
    quota = Quota(queued=100, running_per_owner=3)
    async with open_postgres(url, quota) as one, open_postgres(url, quota) as two:
        nodes = harnesses(one, two)
        work = [harness.start() for harness in nodes for _ in range(5)]
        results = await asyncio.gather(*work, return_exceptions=True)
        leases = [result[1] for result in results if isinstance(result, tuple)]
        assert len(leases) == 3
        assert sum(isinstance(result, MustWait) for result in results) == 7
        await nodes[0].start(owner="bob")
        for harness in nodes:
            await harness.admit(worker=None)
        assert await nodes[0].claim() == []
        await nodes[1].close(leases[0])
        claims = await asyncio.gather(*(harness.claim() for harness in nodes))
        assert sum(map(len, claims)) == 1


async def share_running(storage: Storage, owner: str, *values: Any) -> tuple[int, bool]:
    ((added, waits),) = await storage.database.change("share_running", owner, *values, lock_key("running", owner))
    return added, waits


async def find_running(storage: Storage, worker: str) -> dict[str, int]:
    return dict(await storage.database.fetch("find_running_unstored", worker))


@postgres_test
async def test_runs_that_are_not_stored_count_with_stored_ones_on_all_nodes(url: str) -> None:
    quota = Quota(queued=100, running_per_owner=4)
    async with open_postgres(url, quota) as one, open_postgres(url, quota) as two:
        nodes = harnesses(one, two)
        for worker in ("n1", "n2"):
            await one.inspector.set_alive(worker, True)
        starts = [asyncio.create_task(harness.start()) for harness in nodes for _ in range(3)]
        takes = [share_running(node, "ann", name, 0, 3, 4) for node, name in ((one, "n1"), (two, "n2"))]
        added = await asyncio.gather(*takes)
        results = await asyncio.gather(*starts, return_exceptions=True)
        leases = [result[1] for result in results if isinstance(result, tuple)]
        assert len(leases) + sum(number for number, _ in added) == 4
        for lease in leases:
            await nodes[0].close(lease)
        assert await share_running(two, "ann", "n2", 0, 0, 4) == (0, False)
        assert await share_running(one, "ann", "n1", 1, 9, 4) == (3, False)
        assert await find_running(one, "n1") == {"ann": 4}
        with pytest.raises(MustWait):
            await nodes[1].start()
        await nodes[1].admit(worker=None)
        assert await nodes[1].claim() == []
        assert await share_running(two, "ann", "n2", 0, 1, 4) == (0, True)
        # A node that is dead runs nothing.
        await one.inspector.set_alive("n1", False)
        assert await share_running(two, "ann", "n2", 0, 1, 4) == (1, True)
        assert len(await nodes[1].claim()) == 1
        await one.ledger.free_dead_leases()
        assert (await find_running(one, "n1"), await find_running(one, "n2")) == ({}, {"ann": 1})


@postgres_test
async def test_an_owner_at_its_limit_does_not_hold_up_those_queued_behind_it(url: str) -> None:
    quota = Quota(queued=100, running_per_owner=1)
    async with open_postgres(url, quota) as storage:
        harness = StorageHarness(storage)
        await storage.inspector.set_alive("elsewhere", True)
        for owner in ("ann", "bob"):
            assert (await share_running(storage, owner, "elsewhere", 0, 1, 1))[0] == 1
        for owner in ("ann", "bob", "ann", "carl"):
            await harness.admit(worker=None, owner=owner)
        assert [claim.owner for claim in await harness.claim(limit=1)] == ["carl"]
        assert await harness.claim(limit=1) == []


@postgres_test
async def test_a_policy_sets_an_owners_own_quota(url: str) -> None:
    quota = Quota(queued=100, running_per_owner=5, policies={"ann": Policy(max_running=1, max_waiting=1)})
    async with open_postgres(url, quota) as storage:
        harness = StorageHarness(storage)
        await harness.start(owner=join("ann", "zoe"))
        with pytest.raises(MustWait):
            await harness.start()
        await harness.admit(worker=None)
        with pytest.raises(TooMany, match="1 of your"):
            await harness.admit(worker=None)
        assert await harness.claim() == []
        for _ in range(2):
            await harness.start(owner="bob")


@postgres_test
async def test_the_end_users_of_an_owner_share_its_quota(url: str) -> None:
    users = [join("app", f"user-{number}") for number in range(3)]
    async with open_postgres(url, Quota(queued=100, running_per_owner=2, queued_per_owner=1)) as storage:
        harness = StorageHarness(storage)
        for user in users[:2]:
            await harness.start(owner=user)
        with pytest.raises(MustWait):
            await harness.start(owner=users[2])
        await harness.admit(worker=None, owner=users[2])
        assert await harness.claim() == []
        with pytest.raises(TooMany, match="of your"):
            await harness.admit(worker=None, owner=users[0])


@postgres_test
async def test_the_quota_limits_queued_responses(url: str) -> None:
    async with open_postgres(url, Quota(queued=3, queued_per_owner=2)) as storage:
        harness = StorageHarness(storage)
        await harness.admit(worker=None)
        await harness.admit(worker=None)
        with pytest.raises(TooMany, match="of your"):
            await harness.admit(worker=None)
        await harness.admit(worker=None, owner="bob")
        with pytest.raises(TooMany, match="3 responses"):
            await harness.admit(worker=None, owner="carl")
        await harness.start()  # a response that is not queued is not limited


@postgres_test
async def test_the_quota_limits_queued_responses_of_concurrent_admissions(url: str) -> None:
    for limit in (0, 5):
        async with open_postgres(url, Quota(queued=limit)) as one, open_postgres(url, Quota(queued=limit)) as two:
            work = [harness.admit(worker=None) for harness in harnesses(one, two) for _ in range(10)]
            results = await asyncio.gather(*work, return_exceptions=True)
            assert sum(isinstance(result, TooMany) for result in results) == 20 - limit
            assert sum((await one.ledger.count_queued()).values()) == limit


# -- lost connections


def lost(
    test: Callable[[StorageHarness, Proxy, postgres.PostgresDatabase], Awaitable[None]],
) -> Callable[[], None]:
    """Make a test whose harness writes over a connection that can be cut."""

    async def with_proxy(url: str) -> None:
        with Proxy(DATABASES.server.port) as proxy:
            proxied = url.replace(f":{DATABASES.server.port}/", f":{proxy.port}/")
            async with open_postgres(proxied) as storage:
                harness = StorageHarness(storage)
                await harness.answer()  # its statements are prepared, and its connections open
                await harness.claim()
                await test(harness, proxy, storage.inspector.database)  # type: ignore[attr-defined]

    with_proxy.__name__, with_proxy.__doc__ = test.__name__, test.__doc__
    return postgres_test(with_proxy)


@lost
async def test_an_admission_that_arrives_too_late_is_refused(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    async with asyncio.timeout(20):
        proxy.freeze()
        silent = asyncio.create_task(harness.admit("Hi", retry_digest=b"body"))
        await asyncio.sleep(0.1)
        behind = asyncio.create_task(harness.admit("Ho", retry_digest=b"other"))  # waits for the same connection
        keyed = asyncio.create_task(harness.admit("He", key="k1", retry_digest=b"keyed"))
        await asyncio.sleep(LATE_SECONDS + 0.2)
        proxy.thaw()
        for late in (silent, behind):
            with pytest.raises(StorageUnavailable):
                await late
        await keyed  # a retry would be found by its key
        assert await harness.storage.catalog.unanswered("ann", b"body", 0.0) == []
        await harness.admit("Hi", retry_digest=b"body")


@lost
async def test_a_changed_database_clock_refuses_at_most_one_admission(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    assert database.clock_offset is not None
    database.clock_offset -= 3600
    with pytest.raises(StorageUnavailable):
        await harness.admit("Hi", retry_digest=b"body")
    await harness.admit("Hi", retry_digest=b"body")


@lost
async def test_an_admission_with_a_lost_confirmation_is_found_again(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    proxy.drop_answer()
    response_id, admitted = await harness.admit("Hi")
    assert proxy.dropped.is_set()
    assert admitted.lease is not None and admitted.position is not None
    assert await harness.ledger.append([entry(admitted.lease, 2)]) == [WRITTEN]
    assert len(split_frames(await harness.events(response_id))) == 3


@lost
async def test_an_admission_cut_off_before_its_commit_fails(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    """It waits for a lock when its connection is lost: it must not be committed after the outcome was looked up."""
    before = await harness.storage.inspector.rows()
    conversation = await harness.converse()
    other = await postgres.connect(database.dsn.replace(f":{proxy.port}/", f":{DATABASES.server.port}/"))
    holding = other.transaction()
    await holding.start()
    await other.execute(SQL["hold_conversation"], conversation, "ann")
    admitting = asyncio.create_task(harness.admit(conversation=conversation))
    assert await is_waiting(admitting)
    proxy.cut()
    with pytest.raises(StorageUnavailable):
        await admitting
    await holding.rollback()
    await other.close()
    after = await harness.storage.inspector.rows()
    assert after["responses"] == before["responses"]
    assert after["leases"] == before["leases"]


@lost
async def test_a_large_admission_with_a_lost_confirmation_is_found_again(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    await harness.admit("x" * 300_000, large=True)
    drop_commit(proxy)
    response_id, admitted = await harness.admit("y" * 900_000, large=True)
    assert proxy.dropped.is_set()
    assert admitted.lease is not None
    assert await harness.ledger.append([entry(admitted.lease, 2)]) == [WRITTEN]
    page = await harness.storage.catalog.input_items("ann", response_id, Paging())
    assert len(page.data[0]["content"][0]["text"]) == 900_000
    assert (await harness.storage.inspector.rows())["stash"] == 0


@lost
async def test_a_claim_with_a_lost_confirmation_is_found_again(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    for _ in range(3):
        await harness.admit(worker=None)
    await harness.claim(1)
    drop_commit(proxy)
    claims = await harness.claim(2)
    assert proxy.dropped.is_set()
    assert len(claims) == 2
    assert await harness.ledger.append([entry(claim.lease, 2) for claim in claims]) == [WRITTEN, WRITTEN]
    assert await harness.ledger.count_queued() == {}


@lost
async def test_a_takeover_with_a_lost_confirmation_is_found_again(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    first, _ = await harness.start()
    await harness.ledger.take_over(first, "w3")
    response_id, _ = await harness.start()
    drop_commit(proxy)
    claim = await harness.ledger.take_over(response_id, "w3")
    assert proxy.dropped.is_set()
    assert claim is not None
    assert await harness.ledger.append([entry(claim.lease, 2)]) == [WRITTEN]


@lost
async def test_items_with_a_lost_confirmation_are_added_once(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    drop_commit(proxy)
    conversation = await harness.converse("one")
    assert proxy.dropped.is_set()
    drop_commit(proxy)
    added = await harness.storage.conversations.add_items("ann", conversation, [message("msg_a", "two")], 1.0, None)
    assert proxy.dropped.is_set()
    assert [item["id"] for item in added] == ["msg_a"]
    assert await harness.texts_of(conversation) == ["one", "two"]


@postgres_test
async def test_appends_do_not_wait_for_admissions_that_wait_for_a_conversation(url: str) -> None:
    async with open_postgres(url) as storage:
        harness = StorageHarness(storage)
        conversation = await harness.converse()
        _, lease = await harness.start()
        other = await postgres.connect(url)
        holding = other.transaction()
        await holding.start()
        await other.execute(SQL["hold_conversation"], conversation, "ann")
        add = storage.conversations.add_items
        adding = [asyncio.create_task(add("ann", conversation, [message(f"m{n}", "x")], 1.0, None)) for n in range(8)]
        assert await is_waiting(adding[0])
        async with asyncio.timeout(5):
            assert await storage.ledger.append([entry(lease, 2)]) == [WRITTEN]
            await harness.close(lease, first=3)
            await harness.start()
        await holding.rollback()
        await other.close()
        await asyncio.gather(*adding)


def drop_commit(proxy: Proxy) -> None:
    """Lose the answer to the first COMMIT; the statements before it in the transaction are answered."""
    proxy.drop_answer(to=b"COMMIT")


@lost
async def test_a_repeated_append_with_a_lost_confirmation_is_written_once(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    response_id, lease = await harness.start()
    other_id, other = await harness.start()
    await harness.ledger.append([entry(lease, 2)])
    proxy.drop_answer()
    with pytest.raises(StorageUnavailable):
        await harness.ledger.append([entry(lease, 3, 2), entry(other, 2)])
    assert proxy.dropped.is_set()
    # More events have gathered meanwhile.
    assert await harness.ledger.append([entry(lease, 3, 5), entry(other, 2)]) == [WRITTEN, WRITTEN]
    assert await harness.events(response_id) == await whole(harness, response_id, 8)
    assert len(split_frames(await harness.events(other_id))) == 3


async def whole(harness: StorageHarness, response_id: str, count: int) -> bytes:
    """Check the journal: the events of the admission, and then every number once."""
    batch = await harness.storage.journal.read(response_id, -1, 1)
    assert batch is not None
    return batch.frames + frames(2, count - 2)


@lost
async def test_a_repeated_long_append_replaces_all_rows_of_the_unconfirmed_one(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    """The second append is split differently."""
    response_id, lease = await harness.start()
    await harness.ledger.append([entry(lease, 2)])
    proxy.drop_answer()
    with pytest.raises(StorageUnavailable):
        await harness.ledger.append([entry(lease, 3, 3000)])
    assert await harness.ledger.append([entry(lease, 3, 4000)]) == [WRITTEN]
    assert await harness.events(response_id) == await whole(harness, response_id, 4003)


@lost
async def test_a_close_may_repeat_an_append_with_a_lost_confirmation(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    response_id, lease = await harness.start()
    await harness.ledger.append([entry(lease, 2)])
    proxy.drop_answer()
    with pytest.raises(StorageUnavailable):
        await harness.ledger.append([entry(lease, 3, 2)])
    await harness.close(lease, first=3)
    assert len(split_frames(await harness.events(response_id))) == 4


@lost
async def test_a_close_with_a_lost_confirmation_succeeds_when_repeated(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    response_id, lease = await harness.start()
    at, count = harness.now, harness._count
    proxy.drop_answer()
    with pytest.raises(StorageUnavailable):
        await harness.close(lease)
    assert proxy.dropped.is_set()
    harness.now, harness._count = at, count  # exactly the same
    await harness.close(lease)
    assert len(split_frames(await harness.events(response_id))) == 3
    with pytest.raises(StaleFence):
        await harness.close(lease)  # another is not


@lost
async def test_a_stopped_database_is_unavailable_at_once_and_available_after_its_start(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    response_id, lease = await harness.start()
    proxy.block()
    with pytest.raises(StorageUnavailable):
        await harness.ledger.append([entry(lease, 2)])
    with pytest.raises(StorageUnavailable):
        await harness.admit()
    with pytest.raises(StorageUnavailable):
        await harness.events(response_id)
    assert not await database.probe()
    proxy.unblock()
    assert await database.probe()
    assert await harness.ledger.append([entry(lease, 2)]) == [WRITTEN]
    await harness.close(lease, first=3)


# -- a promoted standby that lacks the last commits


@lost
async def test_a_shortened_journal_is_reported_as_behind(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    response_id, lease = await harness.start()
    whole_id, other = await harness.start()
    await harness.ledger.append([entry(lease, 2, 3), entry(other, 2, 3)])
    await forget(database, "DELETE FROM events WHERE response = $1 AND first >= 2", lease.key)
    proxy.cut()
    with pytest.raises(StorageUnavailable):
        await harness.ledger.append([entry(lease, 5), entry(other, 5)])
    kept = await harness.ledger.append([entry(lease, 5), entry(other, 5)])
    assert isinstance(kept[0], Behind) and kept[0].last == 1
    assert kept[1] is WRITTEN
    with pytest.raises(Behind):
        await harness.close(lease, first=5)
    assert await harness.ledger.append([entry(lease, 2, 3)]) == [WRITTEN]
    assert await harness.ledger.append([entry(lease, 5)]) == [WRITTEN]
    assert (
        len(split_frames(await harness.events(response_id))) == len(split_frames(await harness.events(whole_id))) == 6
    )


@lost
async def test_a_response_lost_in_a_failover_is_not_confused_with_the_new_holder_of_its_key(
    harness: StorageHarness, proxy: Proxy, database: postgres.PostgresDatabase
) -> None:
    lost_id, lease = await harness.start()
    other_id, other = await harness.start()
    mistaken = Lease(lost_id, other.key, other.fence)
    proxy.cut()
    with pytest.raises(StorageUnavailable):
        await harness.ledger.append([entry(lease, 2)])
    (kept,) = await harness.ledger.append([entry(mistaken, 2)])
    assert kept is not WRITTEN
    with pytest.raises(StaleFence):
        await harness.close(mistaken)
    assert len(split_frames(await harness.events(other_id))) == 2


@postgres_test
async def test_the_minutes_of_an_owner_before_the_last_are_forgotten(url: str) -> None:
    async with open_postgres(url) as storage:
        for minute in (10, 11, 12, 13):
            assert list(map(tuple, await storage.database.change("count_minute", "ann", minute, 1, 5))) == [(1, 5)]
        assert list(map(tuple, await storage.database.change("count_minute", "ann", 13, 1, 5))) == [(2, 10)]
        other = await postgres.connect(url)
        kept = await other.fetch("SELECT minute FROM owner_minutes ORDER BY minute")
        await other.close()
        assert [row[0] for row in kept] == [12, 13]


async def forget(database: postgres.PostgresDatabase, statement: str, key: int) -> None:
    await database.write("forget", lambda db: db.execute(statement, key))


# -- erasing


@postgres_test
async def test_a_conversation_that_is_erased_while_its_response_is_leaves_no_items(url: str) -> None:
    async with open_postgres(url) as storage:
        harness = StorageHarness(storage)
        conversation = await harness.converse("before")
        await harness.ledger.delete("ann", await harness.answer("Hi", conversation=conversation))
        other = await postgres.connect(url)
        erasing = other.transaction()
        await erasing.start()
        (key, thread) = await other.fetchrow("SELECT key, thread FROM conversations")
        await other.fetch(SQL["lock_threads"], [thread])
        waiting = asyncio.create_task(storage.retention.erase(10))  # has found the response
        assert await is_waiting(waiting)
        await other.execute("UPDATE conversations SET hidden = true")
        await other.fetch(SQL["erase_loose_items"], thread, 0, 10)
        await other.fetch(SQL["erase_conversation"], key)
        await erasing.commit()
        await waiting
        await other.close()
        assert {name: count for name, count in (await storage.inspector.rows()).items() if count} == {}


@postgres_test
async def test_a_response_that_ends_is_updated_in_place(url: str) -> None:
    # Otherwise every index of the table would get a new entry with each end.
    async with open_postgres(url) as storage:
        harness, inspector = StorageHarness(storage), storage.inspector
        assert isinstance(inspector, PostgresInspector)

        async def count() -> list[int]:
            async def work(db: postgres.Connection) -> list[int]:
                sql = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'responses'"
                return list(await db.fetchrow(sql))

            await inspector.flush_counts()
            return await inspector.database.read("count", work)

        before = await count()
        for _ in range(10):
            _, lease = await harness.start()
            await harness.close(lease)
        assert await count() == [number + 10 for number in before]

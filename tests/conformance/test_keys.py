"""Suite for keys: each is kept with its digest alone, every change changes the count, and every change is audited."""

from __future__ import annotations

from typing import Any

from outlive.core.usage import DAY
from outlive.engine.keys import NOTE_SECONDS, Keys, digest_of
from outlive.ports.storage import Key
from tests.conformance.harness import StorageHarness, storage_test
from tests.engine.harness import FixedClock
from tests.support.scripting import CountingIds


def make(harness: StorageHarness) -> tuple[Keys, FixedClock]:
    clock = FixedClock()
    return Keys(harness.storage.database, clock, CountingIds()), clock


async def count(harness: StorageHarness) -> tuple[int, ...]:
    (row,) = await harness.storage.database.fetch("count_keys")
    return tuple(row)


@storage_test
async def test_keys_are_found_as_they_were_added_oldest_first(harness: StorageHarness) -> None:
    keys, clock = make(harness)
    later = await keys.create("ops", "ann", "read", None, False)
    clock.time -= 5.0
    earlier = await keys.create("ops", "bob", "admin", 1.0, True)
    assert [each["id"] for each in await keys.find_all()] == [earlier["id"], later["id"]]
    digest, now = digest_of(earlier["key"]), clock.now()
    assert keys.find(digest) == Key(earlier["id"], "bob", "admin", True, digest, now, now + DAY)
    digest = digest_of(later["key"])
    assert keys.find(digest) == Key(later["id"], "ann", "read", False, digest, now + 5.0, None)


@storage_test
async def test_every_change_of_keys_changes_the_count(harness: StorageHarness) -> None:
    keys, clock = make(harness)
    counts, made = [await count(harness)], []
    for _ in range(2):
        made.append(await keys.create("ops", "ann", "user", None, False))
        counts.append(await count(harness))
        clock.time += 1.0
    await keys.revoke("ops", made[0]["id"])
    revoked_at, clock.time = int(clock.time), clock.time + 5.0
    await harness.storage.database.change("revoke_key", clock.now(), made[0]["id"])  # it is revoked already
    counts.append(await count(harness))
    assert counts == [(0, 0, 0), (1, 0, 1), (2, 0, 2), (2, 1, 2)]
    assert [each["revoked_at"] for each in await keys.find_all()] == [revoked_at, None]


@storage_test
async def test_the_last_use_of_a_key_never_moves_back(harness: StorageHarness) -> None:
    keys, clock = make(harness)
    made: list[Any] = []
    for _ in range(3):
        made.append(await keys.create("ops", "ann", "user", None, False))
        clock.time += 1.0
    began = int(clock.now())
    for first, second in ((500, 600), (400, 700)):
        for each, used_at in zip(made[:2], (first, second), strict=True):
            clock.time = began + used_at
            assert keys.find(digest_of(each["key"])) is not None
        keys._noted_at = -NOTE_SECONDS
        await keys.refresh()
    assert [each["last_used_at"] for each in await keys.find_all()] == [began + 500, began + 700, None]


@storage_test
async def test_the_audit_log_shows_the_newest_changes_first(harness: StorageHarness) -> None:
    keys, clock = make(harness)
    made = await keys.create("ops", "ann", "user", None, False)
    clock.time += 1.0
    await keys.revoke("eve", made["id"])
    await harness.storage.database.change("add_audit", clock.now() + 1.0, "ops", "owner.erased", "ann", "3 responses")
    now, (erased, revoked) = int(clock.now()), await keys.list_audit(2)
    assert tuple(erased.values()) == (now + 1, "ops", "owner.erased", "ann", "3 responses")
    assert tuple(revoked.values()) == (now, "eve", "key.revoked", made["id"], "owner ann, role user")
    assert [each["action"] for each in await keys.list_audit(100)][2:] == ["key.created"]

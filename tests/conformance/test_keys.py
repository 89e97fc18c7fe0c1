"""Suite for keys: each is kept with its digest alone, every change changes the count, and every change is audited."""

from __future__ import annotations

from outlive.ports.storage import AuditEntry, Key
from tests.conformance.harness import StorageHarness, storage_test


def make(number: int, expires_at: float | None = None) -> Key:
    return Key(f"key_{number}", "ann", "read", number % 2 == 1, b"\x00digest%d" % number, 1000.0 + number, expires_at)


def entry(action: str, subject: str, at: float = 1000.0) -> AuditEntry:
    return AuditEntry(at, "the command line", action, subject, "owner ann")


@storage_test
async def test_keys_are_found_as_they_were_added_oldest_first(harness: StorageHarness) -> None:
    keys = harness.storage.keys
    added = [make(2), make(1, 5000.0)]
    for key in added:
        await keys.add(key, entry("key.created", key.id))
    assert await keys.find_all() == added[::-1]


@storage_test
async def test_every_change_of_keys_changes_the_count(harness: StorageHarness) -> None:
    keys = harness.storage.keys
    counts = [await keys.count()]
    for number in range(2):
        await keys.add(make(number), entry("key.created", f"key_{number}"))
        counts.append(await keys.count())
    for at in (2000.0, 3000.0):  # the second time it is revoked already
        await keys.revoke("key_0", entry("key.revoked", "key_0", at))
    counts.append(await keys.count())
    assert counts == [(0, 0, 0), (1, 0, 1), (2, 0, 2), (2, 1, 2)]
    assert [key.revoked_at for key in await keys.find_all()] == [2000.0, None]


@storage_test
async def test_the_last_use_of_a_key_never_moves_back(harness: StorageHarness) -> None:
    keys = harness.storage.keys
    for number in range(3):
        await keys.add(make(number), entry("key.created", f"key_{number}"))
    await keys.note_uses({"key_0": 1500.0, "key_1": 1600.0})
    await keys.note_uses({"key_0": 1400.0, "key_1": 1700.0})
    assert [key.last_used_at for key in await keys.find_all()] == [1500.0, 1700.0, None]


@storage_test
async def test_the_audit_log_shows_the_newest_changes_first(harness: StorageHarness) -> None:
    keys = harness.storage.keys
    await keys.add(make(1), entry("key.created", "key_1"))
    await keys.revoke("key_1", entry("key.revoked", "key_1", 2000.0))
    await keys.note(AuditEntry(3000.0, "ops", "owner.erased", "ann", "3 responses"))
    assert await keys.list_audit(2) == [
        AuditEntry(3000.0, "ops", "owner.erased", "ann", "3 responses"),
        entry("key.revoked", "key_1", 2000.0),
    ]
    assert len(await keys.list_audit(100)) == 3

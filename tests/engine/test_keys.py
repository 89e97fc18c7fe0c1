"""Keys are found from their digest alone, void once they expire or are revoked, and their last use is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlive.core.errors import InvalidRequest, NotFound
from outlive.engine.keys import NOTE_SECONDS, Keys, digest_of
from tests.engine.harness import Harness, run_with_harness


def other_node(harness: Harness) -> Keys:
    return Keys(harness.database, harness.clock, harness.ids)


def test_a_key_is_valid_on_another_node_once_that_has_looked(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        here, there = harness.engine.keys, other_node(harness)
        assert not here.exist
        made = await here.create("ops", "ann", "user", None, False)
        assert here.exist and not there.exist and there.find(digest_of(made["key"])) is None
        await there.refresh()
        key = there.find(digest_of(made["key"]))
        assert key is not None and (key.id, key.owner, key.role) == (made["id"], "ann", "user")
        assert there.has_owner("ann") and not there.has_owner("bob")
        await here.revoke("ops", made["id"])
        assert here.find(digest_of(made["key"])) is None
        await there.refresh()
        assert there.find(digest_of(made["key"])) is None and not there.has_owner("ann")
        assert there.exist  # a server whose last key was revoked is open to none

    run_with_harness(tmp_path, body)


def test_a_key_expires_after_its_days(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        keys = harness.engine.keys
        made = await keys.create("ops", "ann", "user", 2, False)
        assert made["expires_at"] - made["created_at"] == 2 * 86_400
        harness.clock.time += 2 * 86_400 - 1
        assert keys.find(digest_of(made["key"])) is not None
        harness.clock.time += 1
        assert keys.find(digest_of(made["key"])) is None

    run_with_harness(tmp_path, body)


def test_what_a_void_key_has_open_is_stopped(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        keys, stopped = harness.engine.keys, []
        made = [await keys.create("ops", "ann", "user", days, False) for days in (1, None, None)]
        found = [keys.find(digest_of(each["key"])) for each in made]
        assert all(found)
        with (
            keys.watch(found[0], lambda: stopped.append("expired")),  # type: ignore[arg-type]
            keys.watch(found[1], lambda: stopped.append("revoked")),  # type: ignore[arg-type]
            keys.watch(found[2], lambda: stopped.append("valid")),  # type: ignore[arg-type]
        ):
            await keys.refresh()
            assert stopped == []
            await keys.revoke("ops", made[1]["id"])
            assert stopped == ["revoked"]
            harness.clock.time += 86_400
            await keys.refresh()
            assert stopped == ["revoked", "expired", "revoked"]
        await keys.refresh()
        assert len(stopped) == 3

    run_with_harness(tmp_path, body)


def test_the_last_use_is_written_once_a_minute(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        keys = harness.engine.keys
        made = await keys.create("ops", "ann", "user", None, False)

        async def use() -> float | None:
            keys.find(digest_of(made["key"]))
            await keys.refresh()
            (shown,) = await keys.find_all()
            return shown["last_used_at"]

        first = int(harness.clock.time)
        assert await use() == first
        harness.clock.time += NOTE_SECONDS - 1
        assert await use() == first
        harness.clock.time += 1
        assert await use() == first + NOTE_SECONDS

    run_with_harness(tmp_path, body)


def test_no_list_and_no_audit_entry_shows_a_key(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        keys = harness.engine.keys
        made = await keys.create("ops", "ann", "admin", 3, True)
        await keys.revoke("ops", made["id"])
        await keys.revoke("ops", made["id"])
        (shown,) = await keys.find_all()
        assert shown["revoked_at"] is not None and "key" not in shown and "digest" not in shown
        revoked, created = await keys.list_audit(10)
        assert (revoked["action"], revoked["subject"], revoked["actor"]) == ("key.revoked", made["id"], "ops")
        assert created["detail"] == "owner ann, role admin, acts for end users, for 3 days"
        secret = made["key"].removeprefix("olk_")
        assert len(secret) == 43 and secret not in f"{shown}{revoked}{created}"
        secrets.append(secret.encode())

    secrets: list[bytes] = []
    run_with_harness(tmp_path, body)
    assert secrets[0] not in b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())


def test_a_key_that_cannot_be_is_refused(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        keys = harness.engine.keys
        for owner, role, days, param in (
            ("", "user", None, "owner"),
            ("an\x1fna", "user", None, "owner"),
            ("ann", "root", None, "role"),
            ("ann", "user", 0, "expires_in_days"),
            ("ann", "user", 1e9, "expires_in_days"),
        ):
            with pytest.raises(InvalidRequest) as refused:
                await keys.create("ops", owner, role, days, False)  # type: ignore[arg-type]
            assert refused.value.param == param
        with pytest.raises(NotFound):
            await keys.revoke("ops", "key_none")
        assert await keys.find_all() == [] and await keys.list_audit(9) == []

    run_with_harness(tmp_path, body)

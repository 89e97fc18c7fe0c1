"""The key file beside the database: made when it is first needed, readable by one user, and never changed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from outlive.core.errors import BrokenSeal, StorageUnavailable
from outlive.storage.seal import SecretSeal, read_or_make


def test_no_key_file_is_written_before_the_first_seal(tmp_path: Path) -> None:
    seal = SecretSeal(tmp_path / "outlive.db.key")
    assert list(tmp_path.iterdir()) == []
    sealed = seal.close(b"canary", "for a test")
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert b"canary" not in sealed
    assert SecretSeal(file).open(sealed, "for a test") == b"canary"


def test_another_key_opens_nothing(tmp_path: Path) -> None:
    sealed = SecretSeal(tmp_path / "one").close(b"canary", "for a test")
    with pytest.raises(BrokenSeal):
        SecretSeal(tmp_path / "two").open(sealed, "for a test")


def test_a_key_file_is_kept_and_an_empty_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"")
    key = read_or_make(path)
    assert len(key) > 40
    assert read_or_make(path) == key


def test_an_unwritable_folder_raises_storage_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable):
        SecretSeal(tmp_path / "nowhere" / "key").close(b"x", "y")

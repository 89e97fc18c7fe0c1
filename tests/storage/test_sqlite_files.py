"""The files of a SQLite database: what was removed, replaced, damaged or opened to others is noticed."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from outlive.core.errors import SettingsError, StorageUnavailable
from outlive.storage.seal import read_or_make
from outlive.storage.sqlite.connection import SqliteDatabase


async def fill(path: Path, times: int = 20) -> SqliteDatabase:
    database = SqliteDatabase(str(path))
    for n in range(times):
        await database.find_secret(f"secret {n}")
    return database


def crash(path: Path) -> None:
    """Leave the files as a killed process leaves them."""
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(fill(path))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def open_and_close(path: Path) -> None:
    async def main() -> None:
        await SqliteDatabase(str(path)).close()

    asyncio.run(main())


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["outlive.db", "outlive.db-wal"])
def test_a_removed_file_is_not_written_any_more_until_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    async def main() -> None:
        database = await fill(tmp_path / "outlive.db")
        assert await database.probe()
        (tmp_path / name).rename(tmp_path / "elsewhere")
        assert not await database.probe()
        with pytest.raises(StorageUnavailable):
            await database.find_secret("new")
        assert not (tmp_path / name).exists()
        (tmp_path / "elsewhere").rename(tmp_path / name)
        assert await database.probe()
        await database.find_secret("new")
        await database.close()

    asyncio.run(main())
    assert "was removed or replaced" in caplog.text


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    async def main() -> None:
        database = await fill(tmp_path / "outlive.db")
        shutil.copy(tmp_path / "outlive.db", tmp_path / "copy")
        (tmp_path / "copy").replace(tmp_path / "outlive.db")
        assert not await database.probe()
        await database.close()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["hard link", "lock file removed"])
def test_a_second_server_on_the_same_file_is_refused(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        path = tmp_path / "outlive.db"
        database = await fill(path)
        second = path
        if how == "hard link":
            second = tmp_path / "linked.db"
            second.hardlink_to(path)
        else:
            (tmp_path / "outlive.db.lock").unlink()
        with pytest.raises(SettingsError, match="already running"):
            SqliteDatabase(str(second))
        await database.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: flip(path, 3), "damaged"),
        (lambda path: flip(path, 17), "damaged"),
        (lambda path: flip(path, path.stat().st_size // 2), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes()[:20]), "damaged"),
    ],
    ids=["missing", "magic", "salt", "middle", "header cut off"],
)
def test_a_lost_log_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], word: str
) -> None:
    path = tmp_path / "outlive.db"
    open_and_close(path)
    crash(path)
    damage(tmp_path / "outlive.db-wal")
    open_and_close(path)
    assert f"outlive.db-wal is {word}: commits since the last checkpoint may be lost" in caplog.text


def test_a_crash_and_a_proper_end_are_not_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "outlive.db"
    open_and_close(path)
    crash(path)
    log = tmp_path / "outlive.db-wal"
    log.write_bytes(log.read_bytes()[:-100])  # the last commit was not written wholly
    open_and_close(path)
    open_and_close(path)
    assert caplog.text == ""


def test_files_that_others_can_read_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, key = tmp_path / "outlive.db", tmp_path / "outlive.db.key"
    open_and_close(path)
    read_or_make(key)
    read_or_make(key)
    assert caplog.text == ""
    path.chmod(0o644)
    key.chmod(0o640)
    open_and_close(path)
    read_or_make(key)
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == 2
    assert str(path) in messages[0] and str(key) in messages[1]

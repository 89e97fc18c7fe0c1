"""Backups of a SQLite file: copied while its server runs, and verified by the hash of every replay."""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
from zstandard import ZstdError

from outlive.core.errors import OutliveError
from outlive.storage.packing import open_row
from outlive.storage.sqlite import SQL
from outlive.storage.sqlite.connection import check_content, connect_read_only
from outlive.storage.sqlite.files import DatabaseFile
from outlive.storage.sqlite.journal import read_rows

# Pages (of 4 KB) that are copied at once, and the seconds until the next: the server needs the disk too.
STEP_PAGES = 256
STEP_PAUSE = 0.002
FORMATS_SINCE = 8  # schema version
# The table of hashes in a backup. The database itself never has it.
_HASHES = "backup"
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
_REPLAYED = ("responses", "events", _HASHES)


class BackupError(OutliveError):
    """The backup cannot be made or read, or it is damaged."""


def back_up(database: Path, file: Path) -> int:
    """Write a backup of a database that a server may be using. Returns the number of responses in it."""
    with _draft(file) as target, closing(connect_read_only(database)) as source:
        # One transaction, which nothing waits for: without it every commit of the server would begin the copy anew.
        source.execute("BEGIN")
        _copy(source, target, f"database {database}")
        target.execute(f"CREATE TABLE {_HASHES} (name TEXT PRIMARY KEY, hash BLOB NOT NULL) WITHOUT ROWID")
        target.execute("BEGIN")
        target.executemany(f"INSERT INTO {_HASHES} VALUES (?, ?)", _hash_all(source))
        target.execute("COMMIT")
        return _verify(target)


def restore(file: Path, database: Path) -> int:
    """Put a backup in the place of a database that no server is using. Returns the number of responses in it."""
    lock = DatabaseFile(str(database))
    try:
        with _draft(database) as target, closing(connect_read_only(file)) as source:
            _copy(source, target, f"backup {file}")
            responses = _verify(target)
            target.execute(f"DROP TABLE IF EXISTS {_HASHES}")
            # Before the database is replaced: SQLite would take the log of the old one for its own.
            for ending in ("-wal", "-shm"):
                Path(f"{database}{ending}").unlink(missing_ok=True)
        return responses
    finally:
        if not database.stat().st_size:  # made by the lock
            database.unlink()
        lock.close()


@contextmanager
def _draft(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a database, for this user alone, that takes the place of `file` once it is complete."""
    draft = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        draft.touch(0o600)
        with closing(sqlite3.connect(draft, isolation_level=None)) as target:
            yield target
        draft.replace(file)
        folder = os.open(file.absolute().parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except (sqlite3.Error, OSError) as error:
        raise BackupError(f"{file} was not written: {getattr(error, 'strerror', None) or error}.") from error
    finally:
        draft.unlink(missing_ok=True)


def _copy(source: sqlite3.Connection, target: sqlite3.Connection, name: str) -> None:
    """Copy all pages. Raises SettingsError for what is no database of Outlive, or one of a later version."""
    check_content(source, name)
    source.backup(target, pages=STEP_PAGES, progress=lambda *_: time.sleep(STEP_PAUSE))
    target.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it


def _verify(db: sqlite3.Connection) -> int:
    """Compare a backup with the hashes in it, if `outlive backup` made it. Raises BackupError."""
    (found,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise BackupError(f"The backup is damaged: {found}.")
    hashed = (_HASHES,) in db.execute(_TABLES).fetchall()
    left, responses = db.execute(f"SELECT count(*) FROM {_HASHES}").fetchone()[0] if hashed else 0, 0
    for name, hash_ in _hash_all(db):
        if hashed and db.execute(f"SELECT hash FROM {_HASHES} WHERE name = ?", (name,)).fetchone() != (hash_,):
            raise BackupError(f"The backup is damaged: {name} is not as it was in the database.")
        left, responses = left - hashed, responses + (not name.startswith("table "))
    if left:
        raise BackupError(f"The backup is damaged: {left} responses are missing.")
    return responses


def _hash_all(db: sqlite3.Connection) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the hash of each response's replay, and of each other table. Raises BackupError for a gap."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    # A database that no server of this version has opened yet has no column for the format.
    statement = SQL["list_journals"] if version >= FORMATS_SINCE else SQL["list_journals"].replace(" format,", " 1,")
    for id_, key, first_era, last_era, journal_format, *values in db.execute(statement):
        hash_, number = sha256(msgspec.msgpack.encode(values)), 0
        for first, count, data, at in read_rows(db, key, range(first_era, last_era + 1), journal_format, 0):
            if first != number:
                raise BackupError(f"The journal of {id_} lacks the events {number} to {first - 1}.")
            try:
                hash_.update(open_row(first, at, data)[0])
            except ZstdError as error:
                raise BackupError(f"The journal of {id_} is not as it was written from event {first} on.") from error
            number += count
        yield id_, hash_.digest()
    for (table,) in db.execute(_TABLES).fetchall():
        if table not in _REPLAYED:
            hash_ = sha256()
            for row in db.execute(f"SELECT * FROM {table} NOT INDEXED"):
                hash_.update(msgspec.msgpack.encode(row))
            yield f"table {table}", hash_.digest()

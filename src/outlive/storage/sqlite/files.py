"""The files of one SQLite database: the locks that keep other servers out, and the signs that something was lost."""

import fcntl
import logging
import os
import struct
from pathlib import Path

from outlive.config.sources import warn_if_shared
from outlive.core.errors import SettingsError

log = logging.getLogger("outlive")

# The beginning of a write-ahead log, and of each frame in it: https://www.sqlite.org/fileformat2.html#walformat
_LOG_HEADER = struct.Struct(">8I")
_FRAME_HEADER = struct.Struct(">6I")
_MAGIC = (0x377F0682, 0x377F0683)  # checksums of little-endian and of big-endian words

REPLACED = (
    "The database %s or its log was removed or replaced. Nothing is written until it is back; its content is still in "
    "the files that process %d has open."
)
_OPEN = b"open"  # in the lock file, from the first start of a server until its proper end


class DatabaseFile:
    """A database file that this process alone may use, and that should stay where it is."""

    def __init__(self, path: str) -> None:
        self.lost = False  # True: what is written now would be gone with this process
        self._path = path
        try:
            # The same file by another name must have the same lock.
            real = Path(path).resolve()
            real.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(f"{real}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _flock(self._lock, path)
            # For this user alone, since it holds conversations. The log's files get the same rights.
            self._file = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(f"The database {path} cannot be opened: {error.strerror}.") from error
        # The lock file may have been removed, and a hard link has another. (SQLite's own locks are of another kind.)
        _flock(self._file, path)
        found = os.fstat(self._file)
        self._seen = {path: (found.st_dev, found.st_ino)}
        self._was_open = os.pread(self._lock, len(_OPEN), 0) == _OPEN
        self._log_was_there = Path(f"{path}-wal").exists()
        warn_if_shared(Path(path), "database")

    def warn_about_log(self, frames: int) -> None:
        """Warn if the write-ahead log of the last server is missing, or cannot be read beyond this many frames."""
        if self._was_open and not self._log_was_there:
            problem = "missing"
        elif self._log_was_there and is_damaged(Path(f"{self._path}-wal"), frames):
            problem = "damaged"
        else:
            return
        message = "The write-ahead log %s-wal is %s: commits since the last checkpoint may be lost."
        log.warning(message, self._path, problem)

    def mark_open(self) -> None:
        os.pwrite(self._lock, _OPEN, 0)

    def look(self) -> None:
        """Notice that the database or its log was removed, or replaced by another file; or that it is back."""
        lost = not all(map(self._is_unchanged, (self._path, f"{self._path}-wal")))
        if lost and not self.lost:
            log.error(REPLACED, self._path, os.getpid())
        self.lost = lost

    def close(self) -> None:
        """Release the locks. A proper end leaves no log that the next start would need."""
        if not self.lost and not Path(f"{self._path}-wal").exists():
            os.ftruncate(self._lock, 0)
        os.close(self._file)
        os.close(self._lock)

    def _is_unchanged(self, name: str) -> bool:
        try:
            found = Path(name).stat()
        except OSError:
            return name not in self._seen  # the log is made with the first write
        return self._seen.setdefault(name, (found.st_dev, found.st_ino)) == (found.st_dev, found.st_ino)


def _flock(descriptor: int, path: str) -> None:
    """Lock a file for as long as this process lives; the database's own locks do not last as long.

    The descriptor is not inherited, so a child that outlives the server does not keep the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise SettingsError(
            f"Another Outlive server is already running on {path}; stop it first, or give this one another --database."
        ) from error


def is_damaged(path: Path, frames: int) -> bool:
    """Return True for a write-ahead log with commits beyond those frames that SQLite could read.

    Each commit is synced before the next begins, so a crash leaves one commit at most that cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(_LOG_HEADER.size)
        if len(header) < _LOG_HEADER.size:
            return bool(header)
        magic, _, page, _, *salts_and_sums = _LOG_HEADER.unpack(header)
        salts, sums = salts_and_sums[:2], salts_and_sums[2:]
        if magic not in _MAGIC or list(_sum_up(header[:24], magic)) != sums:
            return True
        unread = 0
        file.seek(_LOG_HEADER.size + frames * (_FRAME_HEADER.size + page))
        while len(frame := file.read(_FRAME_HEADER.size)) == _FRAME_HEADER.size:
            _, pages_after_commit, *found = _FRAME_HEADER.unpack(frame)
            unread += found[:2] == salts and pages_after_commit > 0
            file.seek(page, os.SEEK_CUR)
        return unread > 1


def _sum_up(content: bytes, magic: int) -> tuple[int, int]:
    """Return the checksum of the log's format."""
    first = second = 0
    words = struct.unpack(f"{'>' if magic & 1 else '<'}{len(content) // 4}I", content)
    for at in range(0, len(words), 2):
        first = (first + words[at] + second) & 0xFFFFFFFF
        second = (second + words[at + 1] + first) & 0xFFFFFFFF
    return first, second

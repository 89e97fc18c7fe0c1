"""Searches everything that a server process may have written for some bytes."""

from __future__ import annotations

import stat
from pathlib import Path

from tests.support.server import OutliveServer


def find_on_disk(needle: bytes, server: OutliveServer, *folders: Path) -> list[str]:
    """Return the files with these bytes in the server's folder, in the other folders, and among its open files."""
    files = [file for folder in (server.folder, *folders) for file in folder.rglob("*") if file.is_file()]
    if server.is_running:
        files += open_files(server.pid)
    return sorted({str(file.resolve()) for file in files if contains(file, needle)})


def find_in_database(needle: bytes, server: OutliveServer) -> list[str]:
    """Return the names of the database's files with these bytes."""
    return [file.name for file in sorted(server.folder.glob(f"{server.database.name}*")) if contains(file, needle)]


def open_files(pid: int) -> list[Path]:
    """Return the regular files behind a process's descriptors, deleted ones included."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if stat.S_ISREG(descriptor.stat().st_mode):
                found.append(descriptor)
        except FileNotFoundError:
            pass  # closed meanwhile
    return found


def contains(file: Path, needle: bytes) -> bool:
    try:
        return needle in file.read_bytes()
    except (FileNotFoundError, PermissionError):
        return False  # deleted meanwhile, or open for writing only and so found in its folder

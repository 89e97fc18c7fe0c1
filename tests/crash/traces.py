"""Looking for bytes in everything a server process may have written."""

from __future__ import annotations

import stat
from pathlib import Path

from tests.support.server import OutliveServer


def find(needle: bytes, server: OutliveServer, *folders: Path) -> list[str]:
    """Where the bytes are: in the server's folder (database, log), other folders, or any file it has open."""
    places = [file for folder in (server.folder, *folders) for file in folder.rglob("*") if file.is_file()]
    if server.process is not None and server.process.poll() is None:
        places += open_files(server.pid)
    return sorted({str(place.resolve()) for place in places if holds(place, needle)})


def open_files(pid: int) -> list[Path]:
    """The regular files behind its descriptors, deleted ones too."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if stat.S_ISREG(descriptor.stat().st_mode):
                found.append(descriptor)
        except FileNotFoundError:
            pass  # closed meanwhile
    return found


def holds(file: Path, needle: bytes) -> bool:
    try:
        return needle in file.read_bytes()
    except (FileNotFoundError, PermissionError):
        return False  # gone meanwhile, or open for writing only and so found in its folder


def database_holds(needle: bytes, server: OutliveServer) -> list[str]:
    """The names of the database's files that hold the bytes."""
    return [file.name for file in sorted(server.folder.glob(f"{server.database.name}*")) if holds(file, needle)]

"""A seal whose key lies in a file of its own, made when it is first needed."""

from __future__ import annotations

import os
import secrets
from functools import cached_property
from pathlib import Path

from outlive.config.database_url import is_shared
from outlive.config.settings import Settings
from outlive.core.errors import StorageUnavailable
from outlive.ports.seal import Seal
from outlive.storage.seal import SecretSeal

BYTES = 32


class KeyFileSeal:
    """Beside the database, not in it: a copy of the database alone tells nobody the secrets in it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def close(self, content: bytes, purpose: str) -> bytes:
        return self._seal.close(content, purpose)

    def open(self, sealed: bytes, purpose: str) -> bytes:
        return self._seal.open(sealed, purpose)

    @cached_property
    def _seal(self) -> SecretSeal:
        try:
            return SecretSeal([read_or_make(self._path)])
        except OSError as error:
            raise StorageUnavailable("reading the key file", error.strerror or "") from error


def read_or_make(path: Path) -> bytes:
    """The key in the file; a new one where there is none yet, for the eyes of this user alone."""
    try:
        key = path.read_bytes().strip()
        if key:
            return key
    except FileNotFoundError:
        pass
    key = secrets.token_urlsafe(BYTES).encode()
    # Whole or not at all: half a key would be taken for another one after a crash.
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key + b"\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    return key


def make_seal(settings: Settings) -> Seal | None:
    """What the secrets of tools are sealed with. A database of this machine's own has its key beside it; one that nodes
    share needs one that they share, too."""
    if settings.seal_keys:
        return SecretSeal([key.encode() for key in settings.seal_keys])
    if not is_shared(settings.database):
        return KeyFileSeal(settings.database_path.with_name(f"{settings.database_path.name}.key"))
    return None

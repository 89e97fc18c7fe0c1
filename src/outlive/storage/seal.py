"""Seals with AES-256-GCM, under keys that are derived from secrets of any form."""

import hashlib
import os
import secrets
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from outlive.config.database_url import is_shared, path_of
from outlive.config.sources import warn_if_shared
from outlive.core.errors import BrokenSeal, StorageUnavailable
from outlive.ports.seal import Seal

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_NONCE_BYTES = 12


class SecretSeal:
    """Closes with the first secret and opens with any: a secret can be replaced while things it closed still exist."""

    def __init__(self, given: Sequence[bytes] | Path) -> None:
        """`given`: the secrets; or a file, made when it is first needed, with a key of its own, beside the database: a
        copy of the database alone reveals no secret."""
        self._given = given

    def close(self, content: bytes, purpose: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._ciphers[0].encrypt(nonce, content, purpose.encode())

    def open(self, sealed: bytes, purpose: str) -> bytes:
        from cryptography.exceptions import InvalidTag

        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        for cipher in self._ciphers:
            try:
                return cipher.decrypt(nonce, rest, purpose.encode())
            except (InvalidTag, ValueError):  # the latter: too short to be anything
                continue
        raise BrokenSeal

    @cached_property
    def _ciphers(self) -> list["AESGCM"]:
        # Loaded with the first seal: most servers never need one, and it is a large library.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            given = [read_or_make(self._given)] if isinstance(self._given, Path) else self._given
        except OSError as error:
            raise StorageUnavailable("reading the key file", error.strerror or "") from error
        return [AESGCM(hashlib.sha256(b"outlive seal\0" + secret).digest()) for secret in given]


def read_or_make(path: Path) -> bytes:
    """Read the key in the file; make one that only this user can read where there is none."""
    try:
        key = path.read_bytes().strip()
        if key:
            warn_if_shared(path, "key file")
            return key
    except FileNotFoundError:
        pass
    key = secrets.token_urlsafe(KEY_BYTES).encode()
    # Whole or not at all: half a key would pass for another key after a crash.
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key + b"\n")
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    return key


def make_seal(database_url: str, keys: Sequence[str]) -> Seal | None:
    """Make the seal for the secrets of tools. A SQLite file has its key beside it; nodes that share a database need a
    key from the settings, which they share too."""
    if keys:
        return SecretSeal([key.encode() for key in keys])
    if not is_shared(database_url):
        path = path_of(database_url)
        return SecretSeal(path.with_name(f"{path.name}.key"))
    return None

"""Seals with AES-256-GCM, under keys that are made from secrets of any form."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from outlive.core.errors import BrokenSeal

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12


class SecretSeal:
    """The first secret closes, every one opens: a secret can be replaced while what it has closed is still around."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._secrets = list(secrets)

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
    def _ciphers(self) -> list[AESGCM]:
        # Loaded with the first seal: most servers never need one, and it is a large library.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return [AESGCM(hashlib.sha256(b"outlive seal\0" + secret).digest()) for secret in self._secrets]

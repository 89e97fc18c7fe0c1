"""Seals: encrypt bytes that leave the server, or go into a file, so that only this server can read them."""

from typing import Protocol


class Seal(Protocol):
    def close(self, content: bytes, purpose: str) -> bytes:
        """Encrypt. `purpose` names the use and the owner: only with the same one can it be opened again."""

    def open(self, sealed: bytes, purpose: str) -> bytes:
        """Decrypt. Raises BrokenSeal if this server did not seal it for this purpose, or it was changed since."""

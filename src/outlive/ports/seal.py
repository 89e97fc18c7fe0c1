"""Sealing: bytes that go out of our hands, or into a file, and that nobody but this server can read."""

from __future__ import annotations

from typing import Protocol


class Seal(Protocol):
    def close(self, content: bytes, purpose: str) -> bytes:
        """`purpose` says what it is for and whose it is: only with the same one can it be opened again."""
        ...

    def open(self, sealed: bytes, purpose: str) -> bytes:
        """Raises BrokenSeal when this server did not seal it, or not for this purpose, or it was changed since."""
        ...

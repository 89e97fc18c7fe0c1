"""Reading what was written: the numbered events of a response."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Batch(msgspec.Struct, frozen=True):
    """Consecutive frames of one response."""

    first: int
    last: int
    frames: bytes


class Journal(Protocol):
    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        """The committed frames after number `after`, about `max_bytes` of them.

        None when there are none yet, an empty batch when there never will be: the response has ended. Raises NotFound
        when there is no such response, or no more.
        """
        ...

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        """What is new of several responses, in one go: for each that has frames after its number, or has ended there,
        what `read` would give. None for one that is gone; those with nothing new are left out."""
        ...

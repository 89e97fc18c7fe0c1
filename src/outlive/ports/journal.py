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

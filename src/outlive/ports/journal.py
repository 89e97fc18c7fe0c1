"""The journal: reads the numbered events of a response."""

from typing import Protocol

import msgspec


class Batch(msgspec.Struct, frozen=True):
    """Consecutive frames of one response."""

    first: int
    last: int
    frames: bytes
    times: list[tuple[int, float]] = []  # the first number of each commit, and its time; from a journal only


class Journal(Protocol):
    async def read(self, response_id: str, after: int, max_bytes: int) -> Batch | None:
        """Read the committed frames after number `after`, about `max_bytes` of them.

        None when there are none yet, an empty batch when the response has ended and there will be none. Raises NotFound
        when the response does not exist, or was erased.
        """

    async def read_many(self, after: dict[str, int], max_bytes: int) -> dict[str, Batch | None]:
        """Read several responses at once, each after its number. None: it was erased; left out: nothing is new."""

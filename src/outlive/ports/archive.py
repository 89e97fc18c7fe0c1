"""Everything a database holds, table by table, for moving it to another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

Row = tuple[Any, ...]

# In the order in which they are moved. What a database keeps elsewhere, or in another form, it gives and takes like
# this: items are whole, nobody holds a lease, requests lie with the leases, final objects with their responses.
TABLES: dict[str, tuple[str, ...]] = {
    "threads": ("key", "root", "parent", "fork", "head", "hole", "used_at"),
    "responses": (
        *("key", "id", "owner", "status", "background", "created_at", "ended_at", "hidden", "conversation"),
        *("thread", "first", "input_end", "last", "snapshot"),
    ),
    "leases": ("response", "owner", "background", "fence", "attempts", "notes", "sealed", "request"),
    "events": ("response", "first", "count", "at", "frames"),  # of each response together, from its first on
    "items": ("thread", "position", "id", "response", "body"),
    "conversations": ("key", "id", "owner", "created_at", "used_at", "hidden", "thread", "running", "metadata"),
    "idempotency": ("owner", "kind", "key", "digest", "target", "used_at"),
    "unanswered": ("response", "owner", "digest", "created_at"),
    "secrets": ("name", "value"),
}


class Archive(Protocol):
    """Reads in one view of the database, and writes in one transaction."""

    async def count(self, table: str) -> int: ...

    def read(self, table: str) -> AsyncIterator[list[Row]]:
        """All rows, some at a time."""
        ...

    async def write(self, table: str, rows: list[Row]) -> None: ...

    async def commit(self) -> None:
        """Everything was written: only now it is there."""
        ...

    async def close(self) -> None: ...

"""The port of a database: named statements, which stand in its `queries.sql`, and transactions of several."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from outlive.core.events import Json

SECRET_BYTES = 32
# More than this is decoded in a thread, so that streams do not wait for it.
MANY_BYTES = 256 * 1024

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode

T = TypeVar("T")
D = TypeVar("D", bound="Statements")
Change = tuple[str, tuple[Any, ...]]  # the name of a statement, and its values


class LoadedItems(NamedTuple):
    """Items that were read up to a number of bytes."""

    items: list[Json]
    whole: bool  # False: there are more bytes than were asked for


class Transaction(Protocol):
    """A transaction under way. On SQLite none of its methods waits."""

    async def fetch(self, name: str, *values: Any) -> list[Any]: ...

    async def run_all(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        """Run a statement with the values of each row."""

    async def lock(self, name: str, *values: Any) -> object:
        """Run a statement that takes locks; only where several transactions may be under way."""
        return None

    async def add_items(self, thread: int, first: int, items: list[Json]) -> None:
        """Add items to a thread, from a position on."""

    async def read_bodies(self, name: str, *values: Any) -> list[Any]:
        """Return rows whose only column is the whole body of an item."""

    async def erase_items(self, name: str, *values: Any) -> list[Any]:
        """Erase items, and let `erase_staged` erase what was staged with them. Returns a row for each."""

    async def drop_item(self, thread: int, item_id: str) -> bool:
        """Delete one item. False: there is none."""


Work = Callable[[Transaction], Coroutine[Any, Any, T]]


class Statements(Protocol):
    """A database that a server may be using. It runs statements, each by its name or whole. `parts` go into the braces
    of one: names of columns, say."""

    queries: dict[str, str]

    async def fetch(self, statement: str, *values: Any, **parts: str) -> list[Any]: ...

    async def change(self, statement: str, *values: Any, **parts: str) -> list[Any]:
        """Run a statement that writes, and return the rows that it returns."""

    async def atomically(
        self,
        operation: str,
        work: Work[T],
        *,
        find: Work[T | None] | None = None,
        large: list[Json] | None = None,
        heavy: bool = False,
    ) -> T:
        """Do work in one transaction. It must check before it writes: an OutliveError may undo nothing.

        `find` looks for the result of work that must not be done twice, if it is unknown whether it was committed.
        `large` are the items that it adds, if they are too large for one uninterrupted write. `heavy` work takes long.
        """

    async def load(self, statement: str, *values: Any, **parts: str) -> list[Json]:
        """Decode the items that the statement's only column holds."""

    async def change_all(self, operation: str, changes: list[Change]) -> None:
        """Run statements that write in one transaction."""

        async def work(transaction: Transaction) -> None:
            for name, values in changes:
                await transaction.fetch(name, *values)

        await self.atomically(operation, work)

    async def find_secret(self, name: str) -> bytes:
        """Return the secret of that name that all nodes share; the first node draws it."""

        async def work(transaction: Transaction) -> bytes:
            await transaction.fetch("add_secret", name, os.urandom(SECRET_BYTES))
            ((value,),) = await transaction.fetch("find_secret", name)
            return bytes(value)

        return await self.atomically("find secret", work)

    def find_statement(self, statement: str, parts: dict[str, str]) -> str:
        found = self.queries.get(statement, statement)
        return found.format(**parts) if parts else found


class Database(Statements, Protocol):
    """A database of this server."""

    sign: str  # of numbered parameters: `?1` or `$1`

    async def load_some(self, statement: str, *values: Any, most: int, **parts: str) -> LoadedItems:
        """Decode items as `load` does, in order, up to the one with which they have more bytes than `most`."""

    async def erase_staged(self) -> bool:
        """Erase some of what was staged with items that are erased, in a short step. False when this is done; Postgres
        stores items whole."""
        return False

    async def shrink(self) -> bool:
        """Give some free space back, in a short step, if a large part is free. False when this is done; on Postgres,
        autovacuum frees space, by the settings of each table."""
        return False

    async def scrub(self) -> None:
        """Make sure that erased bytes are in no file any more. On Postgres, erased rows stay in files until a vacuum,
        and only its administrator can read them there."""
        return

    def count_connections(self) -> dict[str, tuple[int, int]]:
        """Return by pool how many connections are in use, and how many there may be. SQLite has threads, not a pool."""
        return {}


class Stored(Generic[D]):
    """Base of what is stored in a database."""

    def __init__(self, database: D) -> None:
        self._database = database


def lock_key(*names: str) -> int:
    """Name an advisory lock, for work that nodes must do one after the other and that has no row to lock.

    Two names may share a lock, which costs a wait and nothing else. Nodes of two versions must agree on the names.
    """
    digest = blake2b("\0".join(names).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


async def decode_items(rows: Iterable[Any]) -> list[Json]:
    """Decode the items whose bodies are the first column of these rows."""
    bodies: list[bytes] = [row[0] for row in rows]
    if sum(map(len, bodies)) > MANY_BYTES:
        return await asyncio.to_thread(lambda: list(map(decode, bodies)))
    return list(map(decode, bodies))

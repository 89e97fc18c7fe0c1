"""Threads of items on SQLite: the history of a response, and the insertion point of new items."""

import sqlite3
from bisect import bisect_right

import msgspec

from outlive.core.events import Json
from outlive.ports.database import LoadedItems, decode, encode
from outlive.ports.ledger import Position
from outlive.ports.refusals import refuse
from outlive.ports.storage import UNBOUNDED
from outlive.storage.sqlite import SQL, staging
from outlive.storage.sqlite.staging import StagedItems

# Items of a history that is read with the admission, if each is short: some 100 µs.
NEAR_ITEMS = 20
# Lookups, besides one for each item, to find which items of a request its chain holds already: some 50 ms.
MAX_LOOKUPS = 10_000


class InsertionPoint(msgspec.Struct, frozen=True):
    """The point where new items go: after `first` in `thread`, or (thread None) in a new thread that may be a fork."""

    thread: int | None
    first: int
    root: int | None = None
    parent: int | None = None
    fork: int | None = None
    conversation: int | None = None  # its database key

    @property
    def position(self) -> Position | None:
        """The end of the history of a response at this point; None when it has no history."""
        if self.thread is not None:
            return Position(self.thread, self.first)
        return Position(self.parent, self.fork or 0) if self.parent is not None else None


def locate(
    db: sqlite3.Connection, owner: str, conversation: str | None, parent: str | None, locking: bool
) -> InsertionPoint:
    """Find the point where a response goes. Raises the error of `refuse` if it can go nowhere."""
    if conversation is not None:
        row = db.execute(SQL["locate_in_conversation"], (conversation, owner, locking)).fetchone()
    elif parent is not None:
        row = db.execute(SQL["locate_after"], (parent, owner)).fetchone()
    else:
        return InsertionPoint(None, 0)
    refusal, detail, *point = row
    if refusal is not None:
        raise refuse(refusal, detail, conversation=conversation, parent=parent)
    return InsertionPoint(*point)


def read_before(db: sqlite3.Connection, position: Position, most: int = UNBOUNDED) -> LoadedItems:
    newest_first: list[Json] = []
    for thread, upto in db.execute(SQL["find_lineage"], (position.thread, position.first)).fetchall():
        items, most = staging.load_some(db, db.execute(SQL["read_items"], (thread, upto)), most)
        newest_first += items
        if most < 0:
            break
    return LoadedItems(newest_first[::-1], most >= 0)


def read_near(db: sqlite3.Connection | sqlite3.Cursor, point: InsertionPoint) -> list[Json] | None:
    """Return the items before a point, oldest first, if they are few and short, else None."""
    is_near = point.thread is not None and 0 < point.first <= NEAR_ITEMS
    rows = db.execute(SQL["read_near"], (point.thread, point.first)).fetchall() if is_near else []
    return [decode(body) for (body,) in rows] if rows and (None,) not in rows else None


def add_items(
    db: sqlite3.Connection | sqlite3.Cursor,
    position: Position,
    items: list[Json],
    response: int | None = None,
    staged: StagedItems | None = None,
) -> None:
    bodies = staged.bodies if staged is not None else {}
    rows = [
        (position.thread, at, item["id"], response, bodies.get(item["id"]) or encode(item))
        for at, item in enumerate(items, position.first)
    ]
    db.executemany(SQL["add_item"], rows)
    if rows and staged is not None:
        db.execute(SQL["accept_pieces"], (staged.staging_id,))  # kept for as long as their items exist


def without_repeats(db: sqlite3.Connection, items: list[Json], position: Position | None) -> list[Json]:
    """Leave out the items that the thread holds already: sending one again is a no-op (D24)."""
    if position is None:
        return items
    ends: dict[int, int] = dict(db.execute(SQL["find_lineage"], (position.thread, position.first)).fetchall())
    lineage = sorted(ends)
    kept, lookups = [], 0
    for item in items:
        found, needed = _look_up(db, item["id"], lineage, ends)
        if not found:
            kept.append(item)
        lookups += needed
        if lookups > len(items) + MAX_LOOKUPS:
            raise refuse("too many branches")
    return kept


def _look_up(db: sqlite3.Connection, item_id: str, lineage: list[int], ends: dict[int, int]) -> tuple[bool, int]:
    """Return True if the lineage holds the item, and the number of lookups this took.

    From one thread that holds the id to the next of the lineage behind it: an id that a client chose may be in many
    other threads, and a lineage may have many forks.
    """
    at = lookups = 0
    while at < len(lineage):
        lookups += 1
        row = db.execute(SQL["find_holder"], (item_id, lineage[at], lineage[-1])).fetchone()
        if row is None:
            break
        thread, position = row
        if position < ends.get(thread, 0):
            return True, lookups
        at = bisect_right(lineage, thread)
    return False, lookups

"""Lines of items: where a response's items go, and what lies before them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from outlive.core.errors import ConversationLocked, InvalidRequest, NotFound
from outlive.core.events import Json
from outlive.ports.ledger import Position
from outlive.storage.sqlite import staging
from outlive.storage.sqlite.connection import load_queries
from outlive.storage.sqlite.staging import Stash

SQL = load_queries()

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


class InsertionPoint(msgspec.Struct, frozen=True):
    """Where new items would go: after `first` in `thread`, or (thread None) in a new thread that may be a fork."""

    thread: int | None
    first: int
    root: int | None = None
    parent: int | None = None
    fork: int | None = None
    conversation: int | None = None  # its database key

    @property
    def position(self) -> Position | None:
        """Where the history of a response at this spot ends; None when there is none."""
        if self.thread is not None:
            return Position(self.thread, self.first)
        return Position(self.parent, self.fork or 0) if self.parent is not None else None

    def aside(self) -> InsertionPoint:
        """For a response without input: nothing would show that its place in a chain is taken, so it gets a fork."""
        if self.thread is None or self.conversation is not None:
            return self
        return InsertionPoint(None, 0, root=self.root, parent=self.thread, fork=self.first)


def locate(
    db: sqlite3.Connection, owner: str, conversation: str | None, parent: str | None, locking: bool
) -> InsertionPoint:
    if conversation is not None:
        return _locate_in_conversation(db, owner, conversation, locking)
    if parent is not None:
        return _locate_after(db, owner, parent)
    return InsertionPoint(None, 0)


def segments(db: sqlite3.Connection, thread: int | None, upto: int) -> Iterator[tuple[int, int, int | None]]:
    """The segments of a line, newest first: thread, end position, and hole."""
    while thread is not None:
        # A thread that was erased with all that lay on it is nothing but a hole.
        _, parent, fork, _, hole = db.execute(SQL["find_thread"], (thread,)).fetchone() or (None, None, 0, 0, -1)
        yield thread, upto, hole
        thread, upto = parent, fork


def read_before(db: sqlite3.Connection, position: Position) -> list[Json]:
    parts = [
        staging.load_all(db, db.execute(SQL["read_items"], (thread, upto)))
        for thread, upto, _ in segments(db, position.thread, position.first)
    ]
    return [item for part in reversed(parts) for item in part]


def add_items(
    db: sqlite3.Connection,
    position: Position,
    items: list[Json],
    response: int | None = None,
    stashed: Stash | None = None,
) -> None:
    bodies = stashed.bodies if stashed is not None else {}
    rows = [
        (position.thread, position.first + i, item["id"], response, bodies.get(item["id"]) or encode(item))
        for i, item in enumerate(items)
    ]
    db.executemany(SQL["add_item"], rows)
    if rows:
        staging.keep(db, stashed)


def without_repeats(db: sqlite3.Connection, items: list[Json], position: Position | None) -> list[Json]:
    """Leave out the items that the line holds already: sending one again is a no-op (D24)."""
    if position is None:
        return items
    line = list(segments(db, position.thread, position.first))
    return [
        item
        for item in items
        if not any(db.execute(SQL["has_item"], (thread, item["id"], upto)).fetchone() for thread, upto, _ in line)
    ]


def _locate_in_conversation(db: sqlite3.Connection, owner: str, conversation: str, locking: bool) -> InsertionPoint:
    row = db.execute(SQL["find_conversation"], (conversation, owner)).fetchone()
    if row is None:
        raise NotFound(f"Conversation with id '{conversation}' not found.", param="conversation")
    key, thread, _, _, running, running_first, _ = row
    if running is not None and locking:
        raise ConversationLocked(conversation, running)
    head = db.execute(SQL["find_thread"], (thread,)).fetchone()[3]
    # A turn that has not ended is nobody's history (D6).
    return InsertionPoint(thread, head if running is None else running_first, conversation=key)


def _locate_after(db: sqlite3.Connection, owner: str, parent: str) -> InsertionPoint:
    row = db.execute(SQL["find_parent"], (parent, owner)).fetchone()
    if row is None:
        raise _parent_not_found(parent)
    status, thread, last, in_conversation = row
    if status in ("queued", "in_progress"):
        raise InvalidRequest(
            f"Previous response with id '{parent}' has not finished (it is {status}). Wait for it, or cancel it.",
            param="previous_response_id",
            code="response_not_finished",
        )
    if status == "failed":
        raise InvalidRequest(
            f"Previous response with id '{parent}' failed, so there is nothing to continue from.",
            param="previous_response_id",
            code="previous_response_failed",
        )
    for _, upto, hole in segments(db, thread, last):
        if hole is not None and hole < upto:
            raise _parent_not_found(parent, " (an earlier response of its chain was deleted or has expired)")
    root, _, _, head, _ = db.execute(SQL["find_thread"], (thread,)).fetchone()
    if head == last and not in_conversation:
        return InsertionPoint(thread, last, root=root or thread)
    return InsertionPoint(None, 0, root=root or thread, parent=thread, fork=last)


def _parent_not_found(parent: str, why: str = "") -> InvalidRequest:
    return InvalidRequest(
        f"Previous response with id '{parent}' not found{why}.",
        param="previous_response_id",
        code="previous_response_not_found",
    )

"""Large inputs: written ahead in pieces, so that no transaction is so long that other responses wait for it.

A body of many megabytes would hold the writer for a tenth of a second or more. So the items of a large request are put
into the stash first, piece by piece, with other people's commits in between; the transaction that accepts the request
then writes only where each item lies. What was put there for a request that was not accepted is taken out again.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterable

import msgspec

from outlive.core.errors import StorageUnavailable
from outlive.core.events import Json
from outlive.storage.sqlite.connection import Database, load_queries
from outlive.storage.sqlite.writer import T

SQL = load_queries()
PIECE_BYTES = 256 * 1024
# An item's JSON begins with a brace; what begins with this says where in the stash it lies: holder, offset, length.
MARK = b"@"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Json).decode


class Stash(msgspec.Struct, frozen=True):
    """The items of one large request, encoded and cut up."""

    holder: str
    pieces: list[bytes]
    bodies: dict[str, bytes]  # what an item's row says instead of the item, by the item's id


def cut(holder: str, items: list[Json]) -> Stash:
    bodies: dict[str, bytes] = {}
    encoded, offset = [_encode(item) for item in items], 0
    for item, body in zip(items, encoded, strict=True):
        bodies[item["id"]] = MARK + f"{holder}:{offset}:{len(body)}".encode()
        offset += len(body)
    whole = b"".join(encoded)
    return Stash(holder, [whole[at : at + PIECE_BYTES] for at in range(0, len(whole), PIECE_BYTES)], bodies)


async def write(
    database: Database, name: str, work: Callable[[sqlite3.Connection, Stash], T], holder: str, items: list[Json]
) -> T:
    """Put the items into the stash, each piece in a transaction of its own; then do the work that accepts them."""
    stash = await asyncio.to_thread(cut, holder, items)
    try:
        for number, piece in enumerate(stash.pieces):
            row = (stash.holder, number, piece)
            await database.write("stash", lambda db, row=row: db.execute(SQL["add_piece"], row))  # type: ignore[misc]
        return await database.write(name, lambda db: work(db, stash), heavy=True)
    finally:
        # What came of it is certain by now, and must be told; if the storage is down, the next start takes them out.
        with contextlib.suppress(StorageUnavailable):
            await database.write("stash", lambda db: db.execute(SQL["drop_if_loose"], (holder,)))


def keep(db: sqlite3.Connection, stash: Stash | None) -> None:
    """The request is accepted: from now on its pieces belong to somebody."""
    if stash is not None:
        db.execute(SQL["add_holder"], (stash.holder,))


def load(db: sqlite3.Connection, body: bytes) -> Json:
    """The item that a row's body is, or tells the place of."""
    return _decode(load_raw(db, body))


def load_raw(db: sqlite3.Connection, body: bytes) -> bytes:
    """The same, as it is stored."""
    if not body.startswith(MARK):
        return body
    holder, offset, length = _place(body)
    first, last = offset // PIECE_BYTES, (offset + length) // PIECE_BYTES
    pieces = b"".join(piece for (piece,) in db.execute(SQL["read_pieces"], (holder, first, last)))
    start = offset - first * PIECE_BYTES
    return pieces[start : start + length]


def load_all(db: sqlite3.Connection, rows: Iterable[tuple[bytes]]) -> list[Json]:
    return [load(db, body) for (body,) in rows]


def erase(db: sqlite3.Connection, bodies: Iterable[tuple[bytes]]) -> None:
    """The items with these bodies go, and so does everything their holders hold."""
    for holder in {_place(body)[0] for (body,) in bodies if body.startswith(MARK)}:
        db.execute(SQL["drop_pieces"], (holder,))
        db.execute(SQL["drop_holder"], (holder,))


def wipe(db: sqlite3.Connection, body: bytes) -> None:
    """One item goes, the others of its holder stay: zeros take its place."""
    if not body.startswith(MARK):
        return
    holder, offset, length = _place(body)
    for number in range(offset // PIECE_BYTES, (offset + length) // PIECE_BYTES + 1):
        row = db.execute(SQL["read_pieces"], (holder, number, number)).fetchone()
        if row is not None:
            at = number * PIECE_BYTES
            start, end = max(offset - at, 0), min(offset + length - at, len(row[0]))
            cleared = row[0][:start] + bytes(end - start) + row[0][end:]
            db.execute(SQL["change_piece"], (cleared, holder, number))


def _place(body: bytes) -> tuple[str, int, int]:
    holder, offset, length = body[len(MARK) :].decode().split(":")
    return holder, int(offset), int(length)

"""Staging of large inputs: written ahead in pieces, so that no transaction makes other responses wait for long.

A body of many megabytes would hold the writer for a tenth of a second or more. So the items of a large request are
staged first, piece by piece, with other commits in between; the transaction that accepts the request then writes only
references to them. Pieces of a request that was not accepted are dropped again. (The tables are `stash` and `holders`.)
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from outlive.core.events import Json
from outlive.ports.database import decode, encode
from outlive.storage.rows import weigh
from outlive.storage.sqlite import SQL

PIECE_BYTES = 256 * 1024
ERASED_PIECES = 8  # in one transaction
# An item's JSON begins with a brace; a body that begins with this refers to staged pieces: staging id, offset, length.
MARK = b"@"


class StagedItems(msgspec.Struct, frozen=True):
    """The items of one large request, encoded and cut into pieces."""

    staging_id: str
    pieces: list[bytes]
    bodies: dict[str, bytes]  # the references that items' rows hold, by the items' ids


def stage(staging_id: str, items: list[Json]) -> StagedItems:
    bodies: dict[str, bytes] = {}
    pieces: list[bytes] = []
    rest, offset = b"", 0
    for item in items:
        body = encode(item)
        bodies[item["id"]] = MARK + f"{staging_id}:{offset}:{len(body)}".encode()
        offset += len(body)
        body = rest + body
        cut = len(body) // PIECE_BYTES * PIECE_BYTES
        pieces += [body[at : at + PIECE_BYTES] for at in range(0, cut, PIECE_BYTES)]
        rest = body[cut:]
    return StagedItems(staging_id, [*pieces, rest] if rest else pieces, bodies)


def load_raw(db: sqlite3.Connection, body: bytes) -> bytes:
    """Return the encoded item that a row's body holds or refers to."""
    if not body.startswith(MARK):
        return body
    staging_id, offset, length = _parse(body)
    first, last = offset // PIECE_BYTES, (offset + length) // PIECE_BYTES
    pieces = b"".join(piece for (piece,) in db.execute(SQL["read_pieces"], (staging_id, first, last)))
    start = offset - first * PIECE_BYTES
    return pieces[start : start + length]


def load_some(db: sqlite3.Connection, rows: Iterable[tuple[bytes]], most: int) -> tuple[list[Json], int]:
    """Decode items until they have more than `most` bytes. Returns them, and the bytes left (negative: may be more)."""
    items: list[Json] = []
    for (body,) in rows:
        raw = load_raw(db, body)
        items.append(decode(raw))
        most -= weigh(raw)
        if most < 0:
            break
    return items, most


def mark_erased(db: sqlite3.Connection, rows: Iterable[Sequence[Any]]) -> None:
    """Let `erase_some` erase all pieces of the requests that items came with. Rows begin with the bodies that refer to
    them, or None."""
    for staging_id in {_parse(row[0])[0] for row in rows if row[0] is not None}:
        db.execute(SQL["mark_erased"], (staging_id,))


def erase_some(db: sqlite3.Connection) -> None:
    """Erase some pieces of the requests that are marked."""
    if len(db.execute(SQL["drop_pieces"], (ERASED_PIECES,)).fetchall()) < ERASED_PIECES:
        db.execute(SQL["drop_erased"])


def wipe(db: sqlite3.Connection, body: bytes) -> None:
    """Overwrite one item with zeros in the pieces that it shares with other items."""
    if not body.startswith(MARK):
        return
    staging_id, offset, length = _parse(body)
    for number in range(offset // PIECE_BYTES, (offset + length) // PIECE_BYTES + 1):
        row = db.execute(SQL["read_pieces"], (staging_id, number, number)).fetchone()
        if row is not None:
            at = number * PIECE_BYTES
            start, end = max(offset - at, 0), min(offset + length - at, len(row[0]))
            cleared = row[0][:start] + bytes(end - start) + row[0][end:]
            db.execute(SQL["change_piece"], (cleared, staging_id, number))


def _parse(body: bytes) -> tuple[str, int, int]:
    staging_id, offset, length = body[len(MARK) :].decode().split(":")
    return staging_id, int(offset), int(length)

"""Staging of large inputs: sent in pieces, so that no single message is so long that it blocks the event loop.

The transaction that accepts the request first writes the pieces to an unlogged table (`stash`) and then joins them: if
it is undone, so are they.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from outlive.core.events import Json
from outlive.storage.postgres.schema import SQL
from outlive.storage.rows import encode

PIECE_BYTES = 256 * 1024

Pieces = tuple[list[int], list[int], list[bytes]]


async def write(connection: Any, staging_id: str, items: list[Json]) -> None:
    """Write the items in pieces, about PIECE_BYTES at a time; they are numbered from 1."""
    for numbers, pieces, parts in await asyncio.to_thread(lambda: list(_cut(items))):
        await connection.execute(SQL["add_pieces"], staging_id, numbers, pieces, parts)


def _cut(items: list[Json]) -> Iterator[Pieces]:
    numbers: list[int] = []
    pieces: list[int] = []
    parts: list[bytes] = []
    size = 0
    for number, item in enumerate(items, 1):
        body = encode(item)
        for piece, at in enumerate(range(0, len(body), PIECE_BYTES)):
            part = body[at : at + PIECE_BYTES]
            numbers.append(number)
            pieces.append(piece)
            parts.append(part)
            size += len(part)
            if size >= PIECE_BYTES:
                yield numbers, pieces, parts
                numbers, pieces, parts, size = [], [], [], 0
    if parts:
        yield numbers, pieces, parts

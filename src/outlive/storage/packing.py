"""Packed journals: the rows of an ended response, joined and compressed as blocks.

A block is one byte for its format, and the compressed flushes: how many events each had and when it was committed, then
the frames, byte for byte as they were sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

import msgspec
import zstandard

# Formats of journals, in `responses.format`: rows as they were committed, or blocks. On Postgres each node announces in
# `workers.reads` the newest one that it reads, before any other may write it.
PLAIN, PACKED = 1, 2
JOURNAL_FORMAT = PACKED
_MARK = bytes([PACKED])  # a frame never begins with it
BLOCK_BYTES = 64 * 1024  # of frames: a reader holds one block at a time
LEVEL = 3
MOST_BYTES = 1 << 31  # of one block; its frames are as long as their longest event


class Flush(msgspec.Struct, frozen=True):
    """A row of a journal: the frames of one response that one commit made durable."""

    first: int
    count: int
    at: float
    frames: bytes


class Block(msgspec.Struct, frozen=True):
    """Consecutive flushes of one response, compressed."""

    first: int
    count: int
    at: float  # time of the first flush
    data: bytes


class _Flushes(msgspec.Struct, array_like=True):
    counts: list[int]
    millis: list[int]  # from the first flush of the block on
    frames: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Flushes).decode


def pack(flushes: Iterable[Flush]) -> Iterator[Block]:
    """Join consecutive rows to blocks of about BLOCK_BYTES."""
    gathered: list[Flush] = []
    size = 0
    for flush in flushes:
        gathered.append(flush)
        size += len(flush.frames)
        if size >= BLOCK_BYTES:
            yield _pack(gathered)
            gathered, size = [], 0
    if gathered:
        yield _pack(gathered)


def _pack(flushes: list[Flush]) -> Block:
    first, at = flushes[0].first, flushes[0].at
    counts = [flush.count for flush in flushes]
    millis = [round((flush.at - at) * 1000) for flush in flushes]
    content = _encode(_Flushes(counts, millis, b"".join(flush.frames for flush in flushes)))
    return Block(first, sum(counts), at, _MARK + zstandard.ZstdCompressor(level=LEVEL).compress(content))


def _unpack(data: bytes) -> _Flushes:
    return _decode(zstandard.ZstdDecompressor().decompress(memoryview(data)[1:], MOST_BYTES))


def open_row(first: int, at: float, data: bytes) -> tuple[bytes, list[tuple[int, float]]]:
    """Return the frames of a row, packed or not, and of each flush in it the first number and the time."""
    if data[:1] != _MARK:
        return data, [(first, at)]
    found = _unpack(data)
    firsts = accumulate(found.counts[:-1], initial=first)
    return found.frames, [(number, at + millis / 1000) for number, millis in zip(firsts, found.millis, strict=True)]

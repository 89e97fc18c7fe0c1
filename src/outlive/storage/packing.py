"""Stored forms of journals: rows as they are committed, each compressed alone, and packed blocks of an ended response.

A row is one byte for its format, and its frames compressed with a dictionary of what frames have in common. A block is
one byte for its format, and the compressed flushes: how many events each had and when it was committed, then frames.
Both hold the frames byte for byte as they were sent.
"""

import threading
from collections.abc import Iterable
from importlib import resources
from itertools import accumulate

import msgspec
import zstandard

from outlive.storage.batching import cut

# Formats of journals, in `responses.format`: plain rows, blocks, or rows that may be compressed. On Postgres each node
# announces in `workers.reads` the newest one that it reads, before any other may write it.
PLAIN, PACKED, SHORT = 1, 2, 3
JOURNAL_FORMAT = SHORT
# Begin a stored value; a frame never begins with them.
_MARK = bytes([PACKED])
_SHORT_MARK = bytes([SHORT])
BLOCK_BYTES = 64 * 1024  # of frames: a reader holds one block at a time
LEVEL = 3
MOST_BYTES = 1 << 31  # of one block; its frames are as long as their longest event

MOST_SHORT = 256 * 1024  # bytes to compress on the event loop: 0.5 ms

# Made by tools/train_dictionary.py. Rows in databases depend on it: it must never change.
_FRAMES = zstandard.ZstdCompressionDict(resources.files(__package__).joinpath("frames.dict").read_bytes())
_ROW = zstandard.ZstdCompressionParameters.from_level(
    1, format=zstandard.FORMAT_ZSTD1_MAGICLESS, write_content_size=True, write_dict_id=False
)
_FRAMES.precompute_compress(compression_params=_ROW)


class _Codec(threading.local):
    """Compresses and opens rows; the library's objects belong to one thread at a time."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(dict_data=_FRAMES, compression_params=_ROW).compress
        self.open = zstandard.ZstdDecompressor(dict_data=_FRAMES, format=zstandard.FORMAT_ZSTD1_MAGICLESS).decompress


_codec = _Codec()


# Consecutive events in a journal: first number, count, frames or a block of them, and the time of their (first) commit.
Row = tuple[int, int, bytes, float]


class _Flushes(msgspec.Struct, array_like=True):
    counts: list[int]
    millis: list[int]  # from the first flush of the block on
    frames: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Flushes).decode


def pack(rows: Iterable[Row]) -> tuple[list[Row], int]:
    """Join the rows of a journal to blocks of about BLOCK_BYTES. Returns them, and the bytes of all frames."""
    blocks: list[Row] = []
    total = 0
    opened = ((first, count, lengthen(data), at) for first, count, data, at in rows)
    for gathered in cut(opened, lambda row: len(row[2]), BLOCK_BYTES):
        firsts, counts, frames, times = zip(*gathered, strict=True)
        millis = [round((at - times[0]) * 1000) for at in times]
        content = _encode(_Flushes(list(counts), millis, b"".join(frames)))
        block = _MARK + zstandard.ZstdCompressor(level=LEVEL).compress(content)
        blocks.append((firsts[0], sum(counts), block, times[0]))
        total += sum(map(len, frames))
    return blocks, total


def shorten(frames: bytes) -> bytes:
    """Compress the frames of one row (0.6 µs for a delta), unless that would take long."""
    return _SHORT_MARK + _codec.compress(frames) if len(frames) <= MOST_SHORT else frames


def lengthen(data: bytes) -> bytes:
    """Return the frames of one row, compressed or not."""
    return _codec.open(data[1:]) if data[:1] == _SHORT_MARK else data


def open_row(first: int, at: float, data: bytes) -> tuple[bytes, list[tuple[int, float]]]:
    """Return the frames of a row or block, and of each flush in it the first number and the time."""
    if data[:1] != _MARK:
        return lengthen(data), [(first, at)]
    found = _decode(zstandard.ZstdDecompressor().decompress(memoryview(data)[1:], MOST_BYTES))
    firsts = accumulate(found.counts[:-1], initial=first)
    return found.frames, [(number, at + millis / 1000) for number, millis in zip(firsts, found.millis, strict=True)]

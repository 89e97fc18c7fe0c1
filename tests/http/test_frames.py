"""The splitter of frames gives the same bytes however they arrive, and frames that hold the same payload."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from outlive.http.transport import MAX_FRAGMENT_BYTES, FrameSplitter

SIZES = st.sampled_from([0, 1, 125, 126, 127, 65535, 65536, 65537, 65539, 131072, 200_001])


def read_frames(data: bytes) -> list[tuple[Opcode, bool, bytes]]:
    reader = StreamReader()
    reader.feed_data(data)
    frames = []
    while len(reader.buffer):
        parsing = Frame.parse(reader.read_exact, mask=True)
        try:
            next(parsing)
            raise AssertionError("a frame is not whole")
        except StopIteration as parsed:
            frames.append((parsed.value.opcode, parsed.value.fin, bytes(parsed.value.data)))
    return frames


@given(st.lists(st.tuples(SIZES, st.booleans(), st.binary(min_size=4, max_size=4)), max_size=4), st.integers(1, 70_000))
def test_frames_are_split_alike_in_pieces_of_any_size(given_frames: list[tuple[int, bool, bytes]], step: int) -> None:
    data = b""
    for size, final, mask in given_frames:
        short = size if size < 126 else 126 if size < 65536 else 127
        extended = b"" if size < 126 else struct.pack("!H" if size < 65536 else "!Q", size)
        data += bytes([0x02 | (0x80 if final else 0), 0x80 | short]) + extended + mask + bytes(size)
    splitter = FrameSplitter(10_000_000)
    split = b"".join(splitter.split(data[start : start + step]) for start in range(0, len(data), step))
    assert split == FrameSplitter(10_000_000).split(data)

    joined: list[tuple[bool, bytes]] = []
    for opcode, final, payload in read_frames(split):
        assert len(payload) <= MAX_FRAGMENT_BYTES
        if opcode is Opcode.CONT:
            joined[-1] = (final, joined[-1][1] + payload)
        else:
            joined.append((final, payload))
    assert joined == [(final, payload) for _, final, payload in read_frames(data)]

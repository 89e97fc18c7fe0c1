"""Frames of WebSockets (RFC 6455, 5.2): large ones are cut into fragments, so that no step of parsing them is long."""

import struct

# Bytes of a fragment. A multiple of four: the mask of a frame fits each of its fragments.
MAX_FRAGMENT_BYTES = 64 * 1024
_FINAL, _MASKED, _LENGTH, _CONTROL = 0x80, 0x80, 0x7F, 0x08  # bits of the first two bytes


class FrameSplitter:
    """Rewrites the bytes that a client sends. Nothing of a payload is kept, and small frames are not changed."""

    __slots__ = ("_behind", "_final", "_head", "_mask", "_max_bytes", "left")

    def __init__(self, max_bytes: int) -> None:
        self.left = 0  # bytes of the fragment that are still to come
        self._max_bytes = max_bytes  # of a message: a larger frame is left to be refused as it is
        self._head = b""  # of a frame, as far as it has come
        self._behind = 0  # bytes of the frame behind the fragment
        self._final = 0  # the frame's own bit
        self._mask = b""

    def split(self, data: bytes) -> bytes:
        """Return the bytes with which the parser goes on."""
        pieces: list[bytes] = []
        position = 0
        while position < len(data):
            if self.left:
                piece = data[position : position + self.left]
                self.left -= len(piece)
                pieces.append(piece)
            elif self._behind:
                pieces.append(self._begin_fragment(0))
                continue
            else:
                piece = data[position : position + _count_head(self._head) - len(self._head)]
                self._head += piece
                if len(self._head) == _count_head(self._head):
                    pieces.append(self._begin_frame())
            position += len(piece)
        return b"".join(pieces)

    def _begin_frame(self) -> bytes:
        head, self._head = self._head, b""
        length = head[1] & _LENGTH
        if length > 125:
            (length,) = struct.unpack_from("!H" if length == 126 else "!Q", head, 2)
        if length <= MAX_FRAGMENT_BYTES or length > self._max_bytes or head[0] & _CONTROL or not head[1] & _MASKED:
            self.left = length
            return head
        self._behind, self._final, self._mask = length, head[0] & _FINAL, head[-4:]
        return self._begin_fragment(head[0] & ~_FINAL)

    def _begin_fragment(self, first: int) -> bytes:
        self.left = min(MAX_FRAGMENT_BYTES, self._behind)
        self._behind -= self.left
        if not self._behind:
            first |= self._final
        return struct.pack("!BBQ", first, _MASKED | 127, self.left) + self._mask


def _count_head(head: bytes) -> int:
    """Return the length of a frame's head, as far as it shows."""
    if len(head) < 2:
        return 2
    return 2 + {126: 2, 127: 8}.get(head[1] & _LENGTH, 0) + (4 if head[1] & _MASKED else 0)

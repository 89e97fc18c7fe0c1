"""Request bodies: decoded from JSON, and encoded: canonically, so that two can be compared, or in pieces."""

import re
from collections.abc import Iterable, Iterator

import msgspec

from outlive.core.errors import InvalidRequest, TooLarge

_decode = msgspec.json.Decoder().decode
# Encodes equal bodies as equal bytes: sorted keys, no white space.
canonical = msgspec.json.Encoder(order="sorted").encode

# Values of a body: each takes time and memory that its length does not show (`[],` takes 27 times its length).
MAX_VALUES = 200_000
# A body is searched in pieces: between two of them other threads may run.
PIECE_BYTES = 256 * 1024
_MARKS = (b",", b"[", b"{")
# Bytes of all texts of a body in memory. One character above U+FFFF makes each of its text take four: it begins with
# one of these bytes in UTF-8, or is a pair of escapes.
MAX_TEXTS = 96 * 1024 * 1024
_WIDEST = 4
_WIDE = (*(bytes([first]) for first in range(0xF0, 0xF5)), rb"\ud", rb"\uD")

_encode = msgspec.json.Encoder().encode
EncodedBody = bytes | list[bytes]
# A body that is encoded in fewer pieces is joined; and the depth to which its values are looked at one by one.
_FEW = 4
_DEPTH = 8

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Every escape in a string is matched, from left to right, so that the second half of `\\` never begins one. A whole
# pair is matched before a half; only a half that is alone is group 1.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def decode_body(raw: bytes | bytearray) -> object:
    """Decode JSON; half surrogate pairs become U+FFFD, because UTF-8 cannot encode them."""
    if len(raw) > MAX_VALUES and has_too_many_values(raw):
        raise InvalidRequest(f"The request body has more than {MAX_VALUES:,} JSON values.")
    try:
        value = _decode(raw)
    except RecursionError as error:
        raise InvalidRequest("The request body is nested too deeply.") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest("The request body is not valid UTF-8.", code="invalid_json") from error
    except msgspec.DecodeError as error:
        if _SURROGATE.search(raw):
            whole = bytearray(raw)
            for escape in _ESCAPE.finditer(raw):
                if escape[1]:
                    whole[escape.start() : escape.end()] = rb"\ufffd"  # as long as what it stands for
            if whole != raw:
                return decode_body(whole)
        raise InvalidRequest(f"The request body is not valid JSON: {error}", code="invalid_json") from error
    if len(raw) > MAX_TEXTS // _WIDEST and _weigh(value) > MAX_TEXTS:
        raise TooLarge(
            f"The texts of the request body take more than {MAX_TEXTS:,} bytes of memory. In a text with an emoji, or "
            "another character above U+FFFF, each character takes four."
        )
    return value


def weigh_raw(raw: bytes | bytearray) -> int:
    """Return how many bytes JSON takes when it is decoded, at most."""
    return _WIDEST * len(raw) if any(mark in raw for mark in _WIDE) else len(raw)


def _weigh(value: object) -> int:
    """Return the bytes that the texts of a decoded body take."""
    total, left = 0, [value]
    while left:
        each = left.pop()
        if isinstance(each, str):
            total += each.__sizeof__()
        elif isinstance(each, dict):
            left += [*each, *each.values()]
        elif isinstance(each, list):
            left += each
    return total


def encode_body(value: object) -> EncodedBody:
    """Encode a body, a long one in pieces, by calls that are all short: a thread in a long call would keep the event
    loop from running."""
    pieces, last = [], bytearray()
    for part in _encode_parts(value, _DEPTH):
        last += part
        if len(last) >= PIECE_BYTES:
            pieces.append(bytes(last))
            last.clear()
    pieces.append(bytes(last))
    return pieces if len(pieces) > _FEW else b"".join(pieces)


def encode_raw(value: object) -> msgspec.Raw:
    """Encode a part of a body likewise."""
    return msgspec.Raw(b"".join(_encode_parts(value, _DEPTH)))


def encode_joined(texts: Iterable[str], seam: str) -> msgspec.Raw:
    """Encode the text that these make when they are joined: the text itself would take up to four times as much."""
    inner = _encode(seam)[1:-1].join(b"".join(_encode_parts(text, 0))[1:-1] for text in texts)
    return msgspec.Raw(b'"%b"' % inner)


def _encode_parts(value: object, depth: int) -> Iterator[bytes | memoryview]:
    if isinstance(value, str) and len(value) > PIECE_BYTES:
        yield b'"'
        yield from (_encode(value[at : at + PIECE_BYTES])[1:-1] for at in range(0, len(value), PIECE_BYTES))
        yield b'"'
    elif isinstance(value, msgspec.Raw):
        yield from (memoryview(value)[at : at + PIECE_BYTES] for at in range(0, len(memoryview(value)), PIECE_BYTES))
    elif depth and value and isinstance(value, dict):
        for n, (name, each) in enumerate(value.items()):
            yield b"%b%b:" % (b"," if n else b"{", _encode(name))
            yield from _encode_parts(each, depth - 1)
        yield b"}"
    elif depth and value and isinstance(value, list):
        for n, each in enumerate(value):
            yield b"," if n else b"["
            yield from _encode_parts(each, depth - 1)
        yield b"]"
    else:
        yield _encode(value)


def has_too_many_values(raw: bytes | bytearray) -> bool:
    """Return True if JSON has too many values: there is at most one for each comma and each opening bracket."""
    pieces = range(0, len(raw), PIECE_BYTES)
    # Most bodies have few, even with those in their texts.
    if sum(raw.count(mark, at, at + PIECE_BYTES) for at in pieces for mark in _MARKS) <= MAX_VALUES:
        return False
    count, inside, rest = 0, False, b""
    for at in pieces:
        # Without escapes, each quotation mark begins or ends a text.
        piece = (rest + raw[at : at + PIECE_BYTES]).replace(b"\\\\", b"")
        rest = b"\\" if piece.endswith(b"\\") else b""
        parts = piece.removesuffix(rest).replace(rb"\"", b"").split(b'"')
        outside = b"".join(parts[inside::2])
        count += sum(map(outside.count, _MARKS))
        inside ^= len(parts) % 2 == 0
        if count > MAX_VALUES:
            return True
    return False

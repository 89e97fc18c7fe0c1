"""Request bodies: decoded from JSON, and encoded canonically so that two can be compared."""

from __future__ import annotations

import re

import msgspec

from outlive.core.errors import InvalidRequest

_decode = msgspec.json.Decoder().decode
# Encodes equal bodies as equal bytes: sorted keys, no white space.
canonical = msgspec.json.Encoder(order="sorted").encode

# Values of a body: each takes time and memory that its length does not show (`[],` takes 27 times its length).
MAX_VALUES = 200_000
# A body is searched in pieces: between two of them other threads may run.
PIECE_BYTES = 256 * 1024
_MARKS = (b",", b"[", b"{")

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
        return _decode(raw)
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

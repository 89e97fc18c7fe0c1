"""Request bodies: decoded from JSON, and encoded canonically so that two can be compared."""

from __future__ import annotations

import re

import msgspec

from outlive.core.errors import InvalidRequest

_decode = msgspec.json.Decoder().decode
# Encodes equal bodies as equal bytes: sorted keys, no white space.
canonical = msgspec.json.Encoder(order="sorted").encode

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Every escape in a string is matched, from left to right, so that the second half of `\\` never begins one. A whole
# pair is matched before a half; only a half that is alone is group 1.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def decode_body(raw: bytes) -> object:
    """Decode JSON; half surrogate pairs become U+FFFD, because UTF-8 cannot encode them."""
    try:
        return _decode(raw)
    except RecursionError as error:
        raise InvalidRequest("The request body is nested too deeply.") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest("The request body is not valid UTF-8.", code="invalid_json") from error
    except msgspec.DecodeError as error:
        if _SURROGATE.search(raw):
            whole = _ESCAPE.sub(_replace_half, raw)
            if whole != raw:
                return decode_body(whole)
        raise InvalidRequest(f"The request body is not valid JSON: {error}", code="invalid_json") from error


def _replace_half(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]

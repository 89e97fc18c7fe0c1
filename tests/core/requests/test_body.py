"""Request bodies as bytes."""

from __future__ import annotations

import contextlib
import json
import re
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.errors import InvalidRequest, TooLarge
from outlive.core.requests import body
from outlive.core.requests.body import (
    MAX_VALUES,
    canonical,
    decode_body,
    encode_body,
    encode_joined,
    encode_raw,
    weigh_raw,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
# Text as JavaScript has it: any sequence of UTF-16 units, halves of pairs included.
units = st.lists(st.sampled_from([0xD800, 0xDBFF, 0xDC00, 0xDFFF, 0xD83D, 0xDE00, 0x5C, 0x22, 0x75, 0x41]), max_size=8)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b"[1,]",
        b"nope",
        b"NaN",
        b'{"a":Infinity}',
        b"-Infinity",
        b"1e400",
        b'{"a":1}x',
        b'"a\nb"',
        b"9" * 9999,
    ],
)
def test_a_body_that_is_not_json_is_refused(raw: bytes):
    with pytest.raises(InvalidRequest) as caught:
        decode_body(raw)
    assert caught.value.code == "invalid_json"


@pytest.mark.parametrize("raw", [b'"\xff"', b'{"\xc3":1}', b'"\xed\xa0\x80"'])
def test_a_body_that_is_not_utf8_is_refused(raw: bytes):
    with pytest.raises(InvalidRequest, match="UTF-8"):
        decode_body(raw)


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000])
def test_a_bomb_of_brackets_is_refused(raw: bytes):
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        decode_body(raw)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (rb'"\ud800"', "\ufffd"),
        (rb'"a\uDC00b"', "a\ufffdb"),
        (rb'"\ud83d\ude00"', "\U0001f600"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (rb'"\\ud800"', "\\ud800"),
        (rb'"\ud800\\ud800"', "\ufffd\\ud800"),
        (rb'"\\\ud800\u0041"', "\\\ufffdA"),
    ],
)
def test_half_a_surrogate_pair_becomes_the_replacement_character(raw: bytes, text: str):
    assert decode_body(raw) == text


def test_replacing_half_a_pair_takes_no_memory_for_the_other_escapes():
    raw = b'"' + rb"\u00e4" * 200_000 + rb'\ud800"'
    tracemalloc.start()
    try:
        assert decode_body(raw) == "\u00e4" * 200_000 + "\ufffd"
        assert tracemalloc.get_traced_memory()[1] < 3 * len(raw)
    finally:
        tracemalloc.stop()


def test_half_a_surrogate_pair_does_not_excuse_other_faults():
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        decode_body(rb'{"a":"\ud800",}')


@given(units)
def test_surrogates_are_read_as_the_standard_library_reads_them(codes: list[int]):
    raw = b'"' + b"".join(rb"\u%04x" % code for code in codes) + b'"'
    expected = "".join("\ufffd" if 0xD800 <= ord(char) <= 0xDFFF else char for char in json.loads(raw))
    assert decode_body(raw) == expected


@given(json_values)
def test_every_json_value_is_read_as_it_was_written(value: Any):
    assert decode_body(json.dumps(value).encode()) == value


@given(st.binary(max_size=40))
def test_random_bytes_raise_nothing_but_invalid_request(raw: bytes):
    with contextlib.suppress(InvalidRequest):
        decode_body(raw)


def test_the_last_of_equal_keys_counts():
    assert decode_body(b'{"a":1,"a":2}') == {"a": 2}


@given(st.dictionaries(st.text(), json_values))
def test_the_order_of_keys_does_not_matter_to_the_canonical_form(body: dict[str, Any]):
    backwards = dict(reversed(body.items()))
    assert canonical(body) == canonical(backwards)
    assert decode_body(canonical(body)) == body


def test_different_bodies_have_different_canonical_forms():
    assert canonical({"a": [1, 2]}) != canonical({"a": [2, 1]})


@given(json_values, st.integers(1, 9))
def test_values_are_counted_without_the_marks_in_texts(value: object, piece: int) -> None:
    raw = json.dumps(value).encode()
    outside = re.sub(rb'"(?:[^"\\]|\\.)*"', b"", raw)
    count = sum(outside.count(mark) for mark in (b",", b"[", b"{"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "PIECE_BYTES", piece)
        patch.setattr(body, "MAX_VALUES", count)
        assert not body.has_too_many_values(raw)
        patch.setattr(body, "MAX_VALUES", count - 1)
        assert body.has_too_many_values(raw)


def test_a_body_of_too_many_values_is_refused_before_it_is_decoded() -> None:
    raw = b"[" + b"[]," * MAX_VALUES + b"[]]"
    tracemalloc.start()
    with pytest.raises(InvalidRequest, match="200,000 JSON values"):
        decode_body(raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000  # 16 MB when decoded


def test_a_long_text_with_many_commas_is_one_value() -> None:
    text = ',[{"\\' * MAX_VALUES
    assert decode_body(json.dumps([text]).encode()) == [text]


# -- encoding in pieces


@given(json_values, st.integers(1, 9))
def test_a_body_in_pieces_is_the_same_body(value: object, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "PIECE_BYTES", piece)
        whole = encode_body({"value": value, "raw": encode_raw(value)})
    assert decode_body(whole if isinstance(whole, bytes) else b"".join(whole)) == {"value": value, "raw": value}


@given(st.lists(st.text()), st.sampled_from(["", "\n\n", '"']), st.integers(1, 9))
def test_joined_texts_are_encoded_as_the_text_that_they_make(texts: list[str], seam: str, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "PIECE_BYTES", piece)
        assert decode_body(msgspec.json.encode([encode_joined(texts, seam)])) == [seam.join(texts)]


def test_a_long_text_of_wide_characters_takes_no_memory_but_that_of_its_pieces() -> None:
    text = "x" * 2_000_000 + "\N{GRINNING FACE}"
    tracemalloc.start()
    whole = encode_body({"text": text})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(whole, list) and len(whole) > 4
    assert peak < 5_000_000  # the text has 8 MB, and would keep its UTF-8 if it were encoded at once


# -- texts that grow when they are decoded


@pytest.mark.parametrize("wide", ["\N{GRINNING FACE}", "\U0010ffff", "\\ud83d\\ude00", "\\uD83D\\uDE00"])
def test_a_body_whose_texts_take_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch, wide: str) -> None:
    monkeypatch.setattr(body, "MAX_TEXTS", 30_000)
    narrow = '["' + "x" * 20_000 + '"]'
    assert weigh_raw(narrow.encode()) == len(narrow)
    assert decode_body(narrow.encode()) == ["x" * 20_000]
    raw = ('["' + "x" * 20_000 + wide + '"]').encode()
    assert weigh_raw(raw) == 4 * len(raw)
    with pytest.raises(TooLarge, match="30,000 bytes of memory"):
        decode_body(raw)
    assert decode_body(('["' + "x" * 20_000 + '", "' + wide + '"]').encode())  # only a text that holds it grows
    with pytest.raises(TooLarge):
        decode_body(('{"' + "x" * 20_000 + wide + '": [{}]}').encode())

"""Secrets that other servers repeat are replaced in what is kept and shown."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.redactor import MIN_LENGTH, MIN_LENGTH_IN_ANSWERS, Redactor


def test_a_secret_is_hidden_with_and_without_its_scheme() -> None:
    redactor = Redactor(["Bearer canary-123456", "canary-1234567890"])
    assert redactor.redact("got canary-123456 and canary-1234567890") == "got *** and ***"
    assert redactor.redact("got Bearer canary-123456") == "got ***"


def test_every_text_in_a_json_value_is_searched() -> None:
    redactor = Redactor(["canary-123456"])
    value = {"error": [{"text": "it is canary-123456", "code": 5}], "fine": True}
    assert redactor.redact(value) == {"error": [{"text": "it is ***", "code": 5}], "fine": True}


def test_the_type_of_an_object_stays() -> None:
    assert Redactor(["text"]).redact({"type": "text", "text": "a text"}) == {"type": "text", "text": "a ***"}


def test_a_secret_of_four_characters_is_hidden_and_a_shorter_one_is_not() -> None:
    assert MIN_LENGTH == 4
    assert Redactor(["k3y!"]).redact("with k3y!") == "with ***"
    assert Redactor([None, "", "abc"]).redact("abc") == "abc"


@pytest.mark.parametrize("switch", ["true", "False", "null", "none"])
def test_a_header_that_is_a_switch_is_no_secret(switch: str) -> None:
    assert Redactor([switch]).redact(f'{{"done": {switch}}}') == f'{{"done": {switch}}}'


@given(st.lists(st.integers(0, 60)), st.sampled_from(["canary/99", "aab", 'quo"te', "aabaabaa"]))
def test_a_stream_is_searched_wherever_it_is_cut(cuts: list[int], secret: str) -> None:
    written = secret.replace('"', '\\"').replace("/", "\\/")
    whole = f"aa{written}, aa{secret}aa{secret[:3]}".encode()
    stream = Redactor(["aab1", secret, "canary/9"]).make_stream()
    bounds = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    shown = b"".join(stream.feed(whole[start:end]) for start, end in itertools.pairwise(bounds)) + stream.end()
    if len(secret) < MIN_LENGTH:
        assert shown == whole
    else:
        assert shown == f"aa***, aa***aa{secret[:3]}".encode()


def test_a_stream_holds_nothing_that_cannot_be_a_secret() -> None:
    stream = Redactor(["canary-123456"]).make_stream(MIN_LENGTH_IN_ANSWERS)
    assert stream.feed(b"data: {}\n\n") == b"data: {}\n\n"
    assert stream.feed(b"data: can") == b"data: "
    assert stream.feed(b"not\n\n") == b"cannot\n\n"


def test_short_words_of_an_answer_stay() -> None:
    assert Redactor(["json"]).make_stream(MIN_LENGTH_IN_ANSWERS).feed(b"some json") == b"some json"

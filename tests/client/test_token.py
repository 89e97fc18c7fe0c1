"""Continuation tokens: round trips and refusals."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.client import InvalidToken, Token

tokens = st.builds(Token, st.text(min_size=1), st.none() | st.integers(0), st.booleans())


@given(tokens)
def test_token_is_url_safe_and_survives_a_round_trip(token: Token) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]+", str(token))
    assert Token.parse(token.encode()) == token
    assert Token.of(f" {token}\n") == token


@given(tokens, st.data())
def test_truncated_or_changed_token_is_refused(token: Token, data: st.DataObject) -> None:
    text = token.encode()
    with pytest.raises(InvalidToken):
        Token.parse(text[: data.draw(st.integers(0, len(text) - 1))])
    place = data.draw(st.integers(4, len(text) - 1))
    other = data.draw(st.sampled_from("AZaz09-_").filter(lambda each: each != text[place]))
    changed = text[:place] + other + text[place + 1 :]
    with contextlib.suppress(InvalidToken):  # the last character may hold bits that mean nothing
        assert Token.parse(changed) == token


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("resp_123", "is the id of a response"),
        ("ot2_AAAA", "version 2"),
        ("hello", "begins with 'ot1_'"),
        ("ot1_!!!!", "characters that no token has"),
        ("ot1_AAAAAAAA", "cut short or changed"),
        ("ot1_", "cut short or changed"),
    ],
)
def test_string_that_is_no_token_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidToken, match=re.escape(why)):
        Token.parse(text)


def test_bare_id_is_a_token_for_the_first_event() -> None:
    assert Token.of("resp_1") == Token("resp_1")
    assert Token.of("other-id") == Token("other-id")
    assert Token.of(Token("resp_1", 3)) == Token("resp_1", 3)
    with pytest.raises(InvalidToken, match="version 7"):
        Token.of("ot7_abc")

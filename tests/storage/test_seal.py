"""Sealed content opens with its secret alone, for the same purpose, and only unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.core.errors import BrokenSeal
from outlive.storage.seal import SecretSeal

SEAL = SecretSeal([b"a secret"])


@given(st.binary(max_size=200), st.text(max_size=20))
def test_sealed_content_opens_again(content: bytes, purpose: str) -> None:
    sealed = SEAL.close(content, purpose)
    assert SecretSeal([b"a secret"]).open(sealed, purpose) == content


def test_a_seal_hides_its_content_and_is_never_the_same_twice() -> None:
    sealed = SEAL.close(b"the canary sings", "")
    assert b"canary" not in sealed
    assert sealed != SEAL.close(b"the canary sings", "")


@given(st.data())
def test_changed_content_does_not_open(data: st.DataObject) -> None:
    sealed = bytearray(SEAL.close(b"content", "ann"))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BrokenSeal):
        SEAL.open(bytes(sealed), "ann")


@pytest.mark.parametrize("sealed", [b"", b"short", b"x" * 12, b"x" * 100])
def test_unsealed_content_does_not_open(sealed: bytes) -> None:
    with pytest.raises(BrokenSeal):
        SEAL.open(sealed, "ann")


def test_a_seal_does_not_open_for_another_purpose() -> None:
    with pytest.raises(BrokenSeal):
        SEAL.open(SEAL.close(b"content", "compaction of ann"), "compaction of bob")


def test_an_older_secret_opens_but_does_not_close() -> None:
    both = SecretSeal([b"new", b"a secret"])
    assert both.open(SEAL.close(b"content", ""), "") == b"content"
    with pytest.raises(BrokenSeal):
        SEAL.open(both.close(b"content", ""), "")

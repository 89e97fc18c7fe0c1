"""Secrets that other servers repeat are replaced in what is kept and shown."""

from __future__ import annotations

import pytest

from outlive.core.redactor import MIN_LENGTH, Redactor


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

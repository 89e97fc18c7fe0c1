"""Secrets that servers repeat are hidden in what is kept and shown."""

from __future__ import annotations

from outlive.core.toolcalls.calls import ToolOutcome, fail
from outlive.tooling.mcp.redactor import Redactor


def test_a_secret_is_hidden_with_and_without_its_first_word() -> None:
    veil = Redactor(["Bearer canary-123456", "canary-1234567890"])
    assert veil("got canary-123456 and canary-1234567890") == "got *** and ***"


def test_what_is_too_short_to_be_a_secret_stays() -> None:
    assert Redactor(["", "abc"])("abc") == "abc"


def test_outputs_and_errors_are_looked_through() -> None:
    veil = Redactor(["canary-123456"])
    assert veil.from_outcome(ToolOutcome("it is canary-123456")) == ToolOutcome("it is ***")
    assert veil.from_outcome(fail("it is canary-123456")) == fail("it is ***")

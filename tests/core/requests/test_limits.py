"""Limits of one request, and their defaults."""

from __future__ import annotations

import msgspec
import pytest

from outlive.core.requests.limits import Limits


def test_limits_have_defaults() -> None:
    assert Limits() == Limits(max_items=10_000, max_depth=100, max_text=10_485_760, max_tools=512)


def test_limits_cannot_be_changed_while_the_server_runs() -> None:
    with pytest.raises(AttributeError):
        Limits().max_items = 1  # type: ignore[misc]


def test_limits_can_be_read_from_settings() -> None:
    assert msgspec.convert({"max_items": 5}, Limits) == Limits(max_items=5)

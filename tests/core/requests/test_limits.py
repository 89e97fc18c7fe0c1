"""What one request may hold, unless the settings say otherwise."""

from __future__ import annotations

import msgspec
import pytest

from outlive.core.requests.limits import Limits


def test_the_limits_that_hold_when_nobody_sets_any() -> None:
    assert Limits() == Limits(max_items=10_000, max_depth=100, max_text=10_485_760, max_tools=512)


def test_limits_cannot_be_moved_while_the_server_runs() -> None:
    with pytest.raises(AttributeError):
        Limits().max_items = 1  # type: ignore[misc]


def test_limits_can_be_read_from_settings() -> None:
    assert msgspec.convert({"max_items": 5}, Limits) == Limits(max_items=5)

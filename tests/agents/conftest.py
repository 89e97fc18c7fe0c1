"""Fixtures: a live server, a scripted upstream, a server other than Outlive; tracing is off."""

from __future__ import annotations

import pytest
from agents import set_trace_processors

from tests.support.fixtures import server, stub, upstream

__all__ = ["server", "stub", "upstream"]


@pytest.fixture(scope="session", autouse=True)
def _untraced() -> None:
    set_trace_processors([])

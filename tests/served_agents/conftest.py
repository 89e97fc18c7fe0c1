"""Fixtures for the tests of served agents."""

from __future__ import annotations

from tests.support.fixtures import upstream

__all__ = ["upstream"]

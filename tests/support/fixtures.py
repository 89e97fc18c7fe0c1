"""Fixtures for several folders of tests. A conftest takes them by importing them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.upstream import FakeUpstream


@pytest.fixture(scope="session")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake

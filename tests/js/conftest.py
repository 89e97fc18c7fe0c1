"""Fixtures: a JavaScript runtime, a live server and a scripted upstream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fixtures import server, upstream
from tests.support.javascript import JavaScript, find_program
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream

__all__ = ["server", "upstream"]


@pytest.fixture
def killable(upstream: FakeUpstream, tmp_path: Path) -> Iterator[OutliveServer]:
    """A server that the test may kill."""
    with OutliveServer(tmp_path / "killable", upstream.url) as running:
        yield running


@pytest.fixture(scope="session")
def node() -> Iterator[JavaScript]:
    with JavaScript(find_program("node")) as running:
        yield running

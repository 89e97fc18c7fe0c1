"""Fixtures: a JavaScript runtime, a live server and a scripted upstream."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.javascript import JavaScript, find_program
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream


@pytest.fixture(scope="session")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as running:
        yield running


@pytest.fixture(scope="session")
def server(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutliveServer]:
    """A server that stays up; tests that kill a server start their own."""
    with OutliveServer(tmp_path_factory.mktemp("server"), upstream.url) as running:
        yield running
    assert "Traceback" not in running.log, running.log


@pytest.fixture
def killable(upstream: FakeUpstream, tmp_path: Path) -> Iterator[OutliveServer]:
    """A server that the test may kill."""
    with OutliveServer(tmp_path / "killable", upstream.url) as running:
        yield running


@pytest.fixture(scope="session")
def node() -> Iterator[JavaScript]:
    with JavaScript(find_program("node")) as running:
        yield running

"""Fixtures for several folders of tests. A conftest takes them by importing them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.stub import Stub
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream


@pytest.fixture(scope="session")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake


@pytest.fixture(scope="session")
def server(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutliveServer]:
    """A server that stays up; tests that kill a server start their own."""
    with OutliveServer(tmp_path_factory.mktemp("server"), upstream.url) as running:
        yield running
    assert "Traceback" not in running.log, running.log


@pytest.fixture
def stub() -> Iterator[Stub]:
    """A server other than Outlive, whose answers the test scripts."""
    with Stub() as running:
        yield running

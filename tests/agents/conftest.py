"""Fixtures: a live server, a scripted upstream, a server other than Outlive; tracing is off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from agents import set_trace_processors

from tests.client.stub import Stub
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream


@pytest.fixture(scope="session", autouse=True)
def _untraced() -> None:
    set_trace_processors([])


@pytest.fixture(scope="session")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as running:
        yield running


@pytest.fixture(scope="session")
def server(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutliveServer]:
    with OutliveServer(tmp_path_factory.mktemp("server"), upstream.url) as running:
        yield running
    assert "Traceback" not in running.log, running.log


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as running:
        yield running

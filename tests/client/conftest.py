"""A live server, an upstream that plays scripts, proxies between, and both clients of the official SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from outlive.client import Patience
from tests.client.stub import Stub
from tests.support.proxy import Proxies
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(60))


@pytest.fixture(scope="session")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as running:
        yield running


@pytest.fixture(scope="session")
def server(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutliveServer]:
    """The one that stays up; tests that kill start their own."""
    with OutliveServer(tmp_path_factory.mktemp("server"), upstream.url) as running:
        yield running
    assert "Traceback" not in running.log, running.log


@pytest.fixture(scope="session")
def proxies() -> Iterator[Proxies]:
    with Proxies() as running:
        yield running


@pytest.fixture
def stub() -> Iterator[Stub]:
    """Somebody else's server: whatever the test says it answers."""
    with Stub() as running:
        yield running


@pytest.fixture
def client(server: OutliveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as opened:
        yield opened


@pytest.fixture
def quick() -> Patience:
    """As patient as ever, but without long waits."""
    return Patience(first_delay=0.005, longest_delay=0.1)

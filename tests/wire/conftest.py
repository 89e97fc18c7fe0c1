"""A live server for the wire tests, an upstream that plays scripts, and clients of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream
from tests.wire.raw import Wire

Servers = Callable[..., OutliveServer]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What hangs here hangs for good: there is nothing in this folder that takes long."""
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(40))


@pytest.fixture(scope="session")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as running:
        yield running


@pytest.fixture(scope="session")
def servers(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Servers by their flags: tests that need the same flags share one process."""
    running: dict[tuple[str, ...], OutliveServer] = {}

    def serve(*flags: str) -> OutliveServer:
        if flags not in running:
            folder: Path = tmp_path_factory.mktemp("server")
            running[flags] = OutliveServer(folder, upstream.url, *flags).start()
        return running[flags]

    yield serve
    for server in running.values():
        server.kill()
    for server in running.values():
        assert "Traceback" not in server.log, server.log


@pytest.fixture
def server(servers: Servers) -> OutliveServer:
    """One without any flags."""
    return servers()


@pytest.fixture
def wire(server: OutliveServer) -> Iterator[Wire]:
    """Plain HTTP to the server."""
    with Wire(server.port) as opened:
        yield opened


@pytest.fixture
def client(server: OutliveServer) -> Iterator[OpenAI]:
    """The official SDK, without retries of its own."""
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as opened:
        yield opened

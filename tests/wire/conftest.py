"""A live server for the wire tests, an upstream that plays scripts, and clients of both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support import nesting
from tests.support.postgres import SHELF
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream
from tests.wire.raw import Wire

Servers = Callable[..., OutliveServer]

# What depends on the database is tried on both. (OUTLIVE_TEST_ON=postgres tries everything on Postgres alone.)
ON_BOTH = ("cancelling", "chains", "conversations", "retries", "streaming")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "servers" in metafunc.fixturenames:
        both = Path(metafunc.module.__file__ or "").stem.removeprefix("test_") in ON_BOTH
        databases = ["sqlite", "postgres"] if both and "OUTLIVE_TEST_ON" not in os.environ else [None]
        metafunc.parametrize(
            "database", databases, indirect=True, scope="session", ids=[n or "usual" for n in databases]
        )


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
def database(request: pytest.FixtureRequest) -> str | None:
    """The kind of database that servers run on; None: the usual one."""
    kind: str | None = getattr(request, "param", None)
    return kind


@pytest.fixture(scope="session")
def servers(
    upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory, database: str | None
) -> Iterator[Servers]:
    """Servers by their flags: tests that need the same flags share one process."""
    running: dict[tuple[str, ...], OutliveServer] = {}

    def serve(*flags: str) -> OutliveServer:
        if flags not in running:
            folder: Path = tmp_path_factory.mktemp("server")
            url = SHELF.lasting() if database == "postgres" else None
            running[flags] = OutliveServer(folder, upstream.url, *flags, database_url=url).start()
        return running[flags]

    yield serve
    for server in running.values():
        server.kill()
    for server in running.values():
        assert "Traceback" not in server.log, server.log
        nesting.check_journals(server.database_url)


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

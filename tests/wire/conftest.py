"""Fixtures: a live server, a scripted upstream, and clients of the server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support import nesting
from tests.support.http_client import HttpClient
from tests.support.postgres import DATABASES
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream

Servers = Callable[..., OutliveServer]

# These files run on both databases. (OUTLIVE_TEST_ON=postgres runs all files on Postgres alone.)
ON_BOTH = ("cancelling", "chains", "conversations", "filters", "options", "retries", "streaming")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "servers" in metafunc.fixturenames:
        both = Path(metafunc.module.__file__ or "").stem.removeprefix("test_") in ON_BOTH
        databases = ["sqlite", "postgres"] if both and "OUTLIVE_TEST_ON" not in os.environ else [None]
        metafunc.parametrize(
            "database", databases, indirect=True, scope="session", ids=[n or "usual" for n in databases]
        )


@pytest.fixture(scope="session")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as running:
        yield running


@pytest.fixture(scope="session")
def database(request: pytest.FixtureRequest) -> str | None:
    """The database that servers run on; None for the default."""
    kind: str | None = getattr(request, "param", None)
    return kind


@pytest.fixture(scope="session")
def servers(
    upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory, database: str | None
) -> Iterator[Servers]:
    """Starts servers by their flags: tests with the same flags share one process."""
    running: dict[tuple[str, ...], OutliveServer] = {}

    def serve(*flags: str) -> OutliveServer:
        if flags not in running:
            folder: Path = tmp_path_factory.mktemp("server")
            url = DATABASES.create() if database == "postgres" else None
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
    """A server without flags."""
    return servers()


@pytest.fixture
def http(server: OutliveServer) -> Iterator[HttpClient]:
    """A plain HTTP client of the server."""
    with HttpClient(server.port) as opened:
        yield opened


@pytest.fixture
def client(server: OutliveServer) -> Iterator[OpenAI]:
    """The official SDK without its retries."""
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as opened:
        yield opened


@pytest.fixture(scope="session")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags with a seal key, which servers on Postgres need for webhooks."""
    path = tmp_path_factory.mktemp("seal") / "key"
    path.touch(0o600)
    path.write_text("a-seal-key-of-the-nodes-that-share-a-database\n")
    return "--seal-key-file", str(path)

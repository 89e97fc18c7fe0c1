"""Fixtures: a scripted upstream, and servers that can be killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.fixtures import upstream
from tests.support.http_client import HttpClient
from tests.support.postgres import DATABASES
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream

MakeServer = Callable[..., OutliveServer]

__all__ = ["upstream"]


@pytest.fixture
def make_server(tmp_path: Path, upstream: FakeUpstream) -> Iterator[MakeServer]:
    """Makes servers that are not running yet, and kills them at the end of the test.

    With `continuation` the upstream can continue an answer. On `postgres` a server that was killed counts as dead after
    a second.
    """
    with ExitStack() as stack:

        def make(*flags: str, continuation: str | None = None, on: str = "", **env: str) -> OutliveServer:
            url: str | None = upstream.url
            database = DATABASES.create() if on == "postgres" else None
            flags = (*flags, "--lease-seconds", "1") if database is not None else flags
            if continuation is not None:
                config = tmp_path / "outlive.toml"
                config.write_text(f'[upstreams.scripted]\nurl = "{url}"\ncontinuation = "{continuation}"\n')
                flags, url = (*flags, "--config", str(config)), None
            server = OutliveServer(tmp_path / "server", url, *flags, env=env, database_url=database)
            stack.push(server)  # kills it, and checks its journals
            return server

        yield make


@pytest.fixture
def server(make_server: MakeServer) -> OutliveServer:
    """A running server with an upstream that cannot continue an answer."""
    return make_server().start()


@pytest.fixture
def client(server: OutliveServer) -> HttpClient:
    return HttpClient(server.port)

"""Fixtures: a server with a scripted upstream, and a browser that shows its console."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.browser import browser, complaints, context
from tests.support.fixtures import upstream
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream

__all__ = ["browser", "complaints", "context", "upstream"]

MakeServer = Callable[..., OutliveServer]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, upstream: FakeUpstream) -> Iterator[MakeServer]:
    """Starts servers, and kills them after the tests of the file. With `continuation` the upstream can continue."""
    with ExitStack() as stack:

        def start(*flags: str, continuation: str = "none", database_url: str | None = None) -> OutliveServer:
            folder: Path = tmp_path_factory.mktemp("server")
            (folder / "console_tools.py").write_text(TOOLS)
            config = folder / "outlive.toml"
            config.write_text(f'[upstreams.scripted]\nurl = "{upstream.url}"\ncontinuation = "{continuation}"\n')
            flags = ("--config", str(config), *flags)
            env = {"PYTHONPATH": str(folder)}
            server = OutliveServer(folder, None, *flags, env=env, database_url=database_url)
            stack.callback(server.kill)
            return server.start()

        yield start


@pytest.fixture(scope="module")
def server(servers: MakeServer) -> OutliveServer:
    return servers("--tools", "console_tools")


TOOLS = '''
from outlive.tools import tool

@tool
def weather(city: str) -> dict:
    """The weather in a city."""
    return {"city": city, "degrees": 19}
'''

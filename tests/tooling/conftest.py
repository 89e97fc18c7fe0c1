"""What the tests of tools share: a scripted model, real MCP servers, and Outlive servers that may call them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.mcp_server import McpServer
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream

# Whatever is said at the loudest: none of it may be a secret.
LOUD = ("--log-level", "debug")

Serve = Callable[..., OutliveServer]


@pytest.fixture(scope="session")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake


@pytest.fixture(scope="session", params=["http", "sse"])
def mcp(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpServer]:
    """A real MCP server, once with each transport."""
    with McpServer(tmp_path_factory.mktemp("mcp"), request.param) as running:
        running.open_gate()
        yield running


@pytest.fixture
def make_server(tmp_path: Path, upstream: FakeUpstream) -> Iterator[Serve]:
    """Makes servers that do not run yet, and sees that none is left when the test is over."""
    with ExitStack() as stack:

        def make(*flags: str, config: str = "", **env: str) -> OutliveServer:
            path = tmp_path / "outlive.toml"
            path.write_text(config)
            server = OutliveServer(tmp_path / "server", upstream.url, *LOUD, "--config", str(path), *flags, env=env)
            stack.push(server)  # kills it, and looks through what it has journaled
            return server

        yield make


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: FakeUpstream, mcp: McpServer) -> Iterator[OutliveServer]:
    """One that may be sent to private addresses, and knows the MCP server as `desk`."""
    folder = tmp_path_factory.mktemp("tools")
    config = folder / "outlive.toml"
    config.write_text(
        f'mcp_private = true\n[mcp.desk]\nurl = "{mcp.url}"\nauthorization = "env:DESK_TOKEN"\n'
        'allowed_tools = ["add", "remember", "set_to"]\nheaders = { X-Team = "the-desk" }\n'
    )
    running = OutliveServer(folder, upstream.url, *LOUD, "--config", str(config), env={"DESK_TOKEN": "desk-token"})
    with running:
        yield running
        assert "Traceback" not in running.log, running.log


@pytest.fixture
def client(server: OutliveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as opened:
        yield opened

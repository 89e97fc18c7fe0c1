"""Fixtures for the tests of tools: a scripted model, real MCP servers, and Outlive servers that use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.fixtures import upstream
from tests.support.mcp_server import McpServer
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream

# The most detailed log: it may not hold a secret either.
DEBUG = ("--log-level", "debug")

Serve = Callable[..., OutliveServer]

__all__ = ["upstream"]


@pytest.fixture(scope="session", params=["http", "sse"])
def mcp(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpServer]:
    """Start a real MCP server, once with each transport."""
    with McpServer(tmp_path_factory.mktemp("mcp"), request.param) as running:
        running.open_gate()
        yield running


@pytest.fixture
def make_server(tmp_path: Path, upstream: FakeUpstream) -> Iterator[Serve]:
    """Give a function that makes servers without starting them. They are killed after the test."""
    with ExitStack() as stack:

        def make(*flags: str, config: str = "", **env: str) -> OutliveServer:
            path = tmp_path / "outlive.toml"
            path.write_text(config)
            server = OutliveServer(tmp_path / "server", upstream.url, *DEBUG, "--config", str(path), *flags, env=env)
            stack.push(server)  # kills it, and checks its journal
            return server

        yield make


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: FakeUpstream, mcp: McpServer) -> Iterator[OutliveServer]:
    """Start a server that may use private addresses, with the MCP server registered as `notes`."""
    folder = tmp_path_factory.mktemp("tools")
    config = folder / "outlive.toml"
    config.write_text(
        f'mcp_private = true\n[mcp.notes]\nurl = "{mcp.url}"\nauthorization = "env:NOTES_TOKEN"\n'
        'allowed_tools = ["add", "remember", "set_to"]\nheaders = { X-Team = "notes-team" }\n'
    )
    running = OutliveServer(folder, upstream.url, *DEBUG, "--config", str(config), env={"NOTES_TOKEN": "notes-token"})
    with running:
        yield running
        assert "Traceback" not in running.log, running.log


@pytest.fixture
def client(server: OutliveServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=0) as opened:
        yield opened

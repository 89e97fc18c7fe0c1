"""Requests cannot send this server to private addresses."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import httpx2
import pytest

from outlive.config.settings import Settings
from outlive.core.errors import InvalidRequest
from outlive.ports.toolbox import ToolServer
from outlive.tooling.mcp.connection import GuardedTransport, PrivateAddress
from outlive.tooling.mcp.servers import McpSource
from outlive.tooling.sender import is_private, names_private
from tests.support.scripting import CountingIds

PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "::1",
    "::",
    "fe80::1%eth0",
    "fd00::1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "64:ff9b:1::7f00:1",
    "64:ff9b:1:fffe::a00:1",
    "::127.0.0.1",
    "::10.1.2.3",
    "::ffff:0:127.0.0.1",
    "::ffff:0:10.1.2.3",
    "fec0::1",
    "feff::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_a_private_address_is_recognised_in_every_spelling(address: str) -> None:
    assert is_private(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
def test_a_public_address_is_not_private(address: str) -> None:
    assert not is_private(address)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "db.internal", "printer.local", "[::1]", "127.0.0.1"])
def test_a_host_is_recognised_as_private_by_its_name(host: str) -> None:
    assert names_private(host)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/mcp", "http://localhost/mcp", "https://[::1]/mcp"])
def test_a_private_url_is_refused_in_a_request(url: str) -> None:
    servers = McpSource(Settings(), CountingIds())
    with pytest.raises(InvalidRequest) as refused:
        servers.check({"type": "mcp", "server_label": "x", "server_url": url}, "tools[0]")
    assert refused.value.param == "tools[0].server_url"
    McpSource(Settings(mcp_private=True), CountingIds()).check(
        {"type": "mcp", "server_label": "x", "server_url": url}, "tools[0]"
    )


def test_a_registered_server_may_have_a_private_address() -> None:
    servers = McpSource(Settings(mcp=[ToolServer(label="notes", url="http://127.0.0.1/mcp")]), CountingIds())
    entry = {"type": "mcp", "server_label": "notes"}
    assert servers.owns(entry)
    servers.check(entry, "tools[0]")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0x7f000001", "2130706433", "127.1"])
def test_a_name_that_resolves_to_a_private_address_is_not_connected_to(host: str) -> None:
    async def ask() -> None:
        async with httpx2.AsyncClient(transport=GuardedTransport(private=False)) as client:
            await client.get(f"http://{host}:9/")

    with pytest.raises((PrivateAddress, httpx2.ConnectError, httpx2.InvalidURL)) as refused:
        asyncio.run(ask())
    assert "refused" not in str(refused.value).lower()  # no connection was tried


@pytest.mark.parametrize("host", ["mcp.example.com", "MCP.example.com.", "a.tools.example.com"])
def test_an_allowed_host_is_accepted_in_a_request(host: str) -> None:
    settings = Settings(mcp_requests="allow-list", mcp_hosts=["mcp.example.com", "*.Tools.example.com"])
    entry = {"type": "mcp", "server_label": "x", "server_url": f"https://{host}/mcp"}
    McpSource(settings, CountingIds()).check(entry, "tools[0]")


@pytest.mark.parametrize("host", ["example.com", "evilmcp.example.com", "tools.example.com", "93.184.216.34"])
@pytest.mark.parametrize("requests", ["off", "allow-list"])
def test_another_host_is_refused_by_name_in_a_request(requests: Any, host: str) -> None:
    settings = Settings(mcp_requests=requests, mcp_hosts=["mcp.example.com", "*.tools.example.com"])
    entry = {"type": "mcp", "server_label": "x", "server_url": f"https://{host}/mcp"}
    with pytest.raises(InvalidRequest) as refused:
        McpSource(settings, CountingIds()).check(entry, "tools[0]")
    assert refused.value.param == "tools[0].server_url"


def test_connections_share_one_tls_context(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ssl.SSLContext] = []

    class WatchedContext(ssl.SSLContext):
        def __init__(self, *given: object) -> None:
            made.append(self)

    monkeypatch.setattr(ssl, "SSLContext", WatchedContext)
    for private in (False, True):
        GuardedTransport(private=private)
    assert made == []

"""Tools of MCP servers: those that requests name by their address, and those that the settings name by a label."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.requests.checks import refuse
from outlive.core.toolcalls.calls import ToolOutcome, ToolSpec
from outlive.ports.toolbox import Invocation, SessionRequest, ToolServer
from outlive.tooling.mcp.addresses import names_private
from outlive.tooling.registry import Opened

if TYPE_CHECKING:
    from outlive.tooling.mcp.connection import Line


class McpTool:
    """One tool of a server."""

    def __init__(self, line: Line, server: ToolServer, listed: Json) -> None:
        hints = listed.get("annotations") or {}
        self._line = line
        self.spec = ToolSpec(
            server.label, listed["name"], listed.get("description") or "", listed.get("input_schema") or {}
        )
        self.read_only = hints.get("readOnlyHint") is True
        self.idempotent = self.read_only or hints.get("idempotentHint") is True or listed["name"] in server.idempotent
        self.seconds = server.seconds

    async def call(self, invocation: Invocation) -> ToolOutcome:
        return await self._line.call(self.spec.name, invocation, self.idempotent)


class McpServers:
    """All the MCP servers that this one may talk to."""

    def __init__(self, registered: Sequence[ToolServer], ids: IdSource, *, private: bool, seconds: float) -> None:
        self._registered = {server.label: server for server in registered}
        self._ids = ids
        self._private = private
        self._seconds = seconds

    def owns(self, entry: Json) -> bool:
        return "server_url" in entry or entry["server_label"] in self._registered

    def check(self, entry: Json, param: str) -> None:
        if "server_url" not in entry:
            return
        if entry["server_label"] in self._registered:
            refuse(
                f"This server has tools of its own with the label '{entry['server_label']}': leave out server_url.",
                f"{param}.server_url",
            )
        parts = _split(entry["server_url"])
        if parts is None:
            refuse("server_url must be a URL such as https://example.com/mcp.", f"{param}.server_url")
        host, has_user = parts
        if has_user:
            refuse("server_url must not hold a password: use authorization or headers.", f"{param}.server_url")
        if not self._private and names_private(host):
            refuse("This server may not be sent to a private address.", f"{param}.server_url")

    def default_approval(self, entry: Json) -> str:
        server = self._registered.get(entry["server_label"])
        return "always" if server is None else server.approval

    async def open(self, entry: Json, session_request: SessionRequest) -> Opened:
        server = self._find(entry, session_request)
        private = self._private or server.label in self._registered
        # The SDK takes half a second to load, and most servers never need it.
        lines = await asyncio.to_thread(importlib.import_module, "outlive.tooling.mcp.connection")
        line: Line = lines.Line(server, private=private)
        listed = _find_list(session_request.items, server.label)
        new = listed is None
        if listed is None:
            try:
                listed = await self._list(server, line)
            except BaseException:
                await line.close()
                raise
        names = server.allowed
        tools = [McpTool(line, server, tool) for tool in listed["tools"] if names is None or tool["name"] in names]
        return Opened(tools, listed if new else None, line.close)

    def _find(self, entry: Json, session_request: SessionRequest) -> ToolServer:
        secrets = session_request.secrets.get(entry["server_label"], {})
        server = self._registered.get(entry["server_label"])
        if server is not None and "server_url" not in entry:
            # A caller may be somebody of his own there.
            return msgspec.structs.replace(
                server,
                headers=_add(server.headers, secrets.get("headers", {})),
                authorization=secrets.get("authorization", server.authorization),
            )
        return ToolServer(
            label=entry["server_label"],
            url=entry["server_url"],
            headers=secrets.get("headers", {}),
            authorization=secrets.get("authorization"),
            seconds=self._seconds,
        )

    async def _list(self, server: ToolServer, line: Line) -> Json:
        """A server that does not answer has no tools: the model goes on without, and the client sees why."""
        item: Json = {"id": self._ids.new("mcpl"), "type": "mcp_list_tools", "server_label": server.label}
        found, error = await line.try_list()
        return item | {
            "tools": [t for t in found if server.allowed is None or t["name"] in server.allowed],
            "error": error,
        }


def _split(url: str) -> tuple[str, bool] | None:
    """The host of a URL, and whether a user stands in it; None for what is none."""
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    return (parts.hostname or "", "@" in parts.netloc) if right else None


def _add(own: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """A caller may say more than the settings, and nothing else."""
    said = {name.lower() for name in own} | {"authorization"}
    return own | {name: text for name, text in given.items() if name.lower() not in said}


def _find_list(items: Sequence[Json], label: str) -> Json | None:
    """The newest list of that server's tools in this conversation, so that it need not be asked again."""
    for item in reversed(items):
        if item.get("type") == "mcp_list_tools" and item.get("server_label") == label and not item.get("error"):
            tools = item.get("tools")
            if isinstance(tools, list) and all(isinstance(tool, dict) and "name" in tool for tool in tools):
                return item
    return None

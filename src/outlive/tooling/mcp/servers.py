"""Tools of MCP servers: those that requests name by their address, and those that the settings name by a label."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import Sequence
from secrets import token_hex
from typing import TYPE_CHECKING

import msgspec

from outlive.config.network import find_proxy
from outlive.config.settings import Settings
from outlive.core.events import Json
from outlive.core.ids import IdSource
from outlive.core.requests.checks import refuse, shorten
from outlive.core.toolcalls import ToolOutcome, ToolSpec
from outlive.ports.toolbox import Invocation, SessionRequest, ToolServer
from outlive.tooling.registry import OpenedSource
from outlive.tooling.sender import names_private, split_url

if TYPE_CHECKING:
    from outlive.tooling.mcp.connection import McpConnection


class McpTool:
    """One tool of a server."""

    needs_approval = False

    def __init__(self, connection: McpConnection, server: ToolServer, listed: Json) -> None:
        name, hints = listed["name"], listed.get("annotations") or {}
        self._connection = connection
        self.spec = ToolSpec(server.label, name, listed.get("description") or "", listed.get("input_schema") or {})
        self.read_only = hints.get("readOnlyHint") is True
        self.idempotent = self.read_only or hints.get("idempotentHint") is True or name in server.idempotent_tools
        self.seconds = server.seconds

    async def call(self, invocation: Invocation) -> ToolOutcome:
        return await self._connection.call(self.spec.name, invocation, self.idempotent)


class McpSource:
    """All MCP servers that this server may use."""

    def __init__(self, settings: Settings, ids: IdSource) -> None:
        self._settings = settings
        self._ids = ids
        self._registered = {server.label: server for server in settings.mcp}
        self._slots = asyncio.Semaphore(settings.max_mcp_connections)

    def owns(self, entry: Json) -> bool:
        return "server_url" in entry or entry["server_label"] in self._registered

    def check(self, entry: Json, param: str) -> None:
        if "server_url" not in entry:
            return
        param = f"{param}.server_url"
        if entry["server_label"] in self._registered:
            label = entry["server_label"]
            refuse(f"This server has tools of its own with the label '{label}': leave out server_url.", param)
        parts = split_url(entry["server_url"])
        if parts is None:
            refuse("server_url must be a URL such as https://example.com/mcp.", param)
        host, has_user = parts
        if has_user:
            refuse("server_url must not hold a password: use authorization or headers.", param)
        if not self._settings.mcp_private and names_private(host):
            refuse("This server may not be sent to a private address.", param)
        if self._settings.mcp_requests == "off":
            refuse("This server uses only MCP servers of its own settings: leave out server_url.", param)
        if self._settings.mcp_requests == "allow-list":
            name, patterns = host.lower().rstrip("."), [pattern.lower() for pattern in self._settings.mcp_hosts]
            # A pattern names a host, or a domain above it: `*.example.com`.
            if not any(name == each or (each[:2] == "*." and name.endswith(each[1:])) for each in patterns):
                shown = shorten(host)
                refuse(f"'{shown}' is not among the hosts of MCP servers that this server may be sent to.", param)

    async def open(self, entry: Json, session_request: SessionRequest) -> OpenedSource:
        server = self._resolve(entry, session_request.secrets.get(entry["server_label"], {}))
        # The SDK takes half a second to load, and most servers never need it.
        module = await asyncio.to_thread(importlib.import_module, "outlive.tooling.mcp.connection")
        registered = server.label in self._registered
        connection: McpConnection = module.McpConnection(
            server,
            session_request.request.origin.headers(token_hex(4)),
            private=registered or self._settings.mcp_private,
            proxy=find_proxy(server.url, os.environ) if self._settings.mcp_proxy else None,
            slots=self._slots,
        )
        known, error = _find_tools(session_request.lists, server.label), None
        listed: Json | None = None
        if (found := known) is None:
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(connection.close)
                found, error = await connection.try_list()
                stack.pop_all()  # from here on the session closes it
        allowed = server.allowed_tools
        offered = [tool for tool in found if allowed is None or tool["name"] in allowed]
        if known is None:
            # A server that does not answer has no tools: the model goes on without them, and this shows the client why.
            listed = {"id": self._ids.new("mcpl"), "type": "mcp_list_tools", "server_label": server.label}
            listed |= {"tools": offered, "error": error}
        tools = [McpTool(connection, server, tool) for tool in offered]
        insists = registered and server.require_approval == "always"
        return OpenedSource(tools, server.require_approval, listed, connection.close, insists)

    def _resolve(self, entry: Json, secrets: Json) -> ToolServer:
        server = self._registered.get(entry["server_label"])
        if server is not None and "server_url" not in entry:
            # A caller may have an account of its own there. The headers of the settings win over those of the caller.
            taken = {name.lower() for name in server.headers} | {"authorization"}
            added = {name: text for name, text in secrets.get("headers", {}).items() if name.lower() not in taken}
            authorization = secrets.get("authorization", server.authorization)
            return msgspec.structs.replace(server, headers=server.headers | added, authorization=authorization)
        return ToolServer(
            label=entry["server_label"],
            url=entry["server_url"],
            require_approval="always",
            headers=secrets.get("headers", {}),
            authorization=secrets.get("authorization"),
            seconds=self._settings.tool_seconds,
        )


def _find_tools(lists: Sequence[Json], label: str) -> list[Json] | None:
    """Return the newest list of that server's tools, which saves asking the server again."""
    for item in reversed(lists):
        if item.get("type") == "mcp_list_tools" and item.get("server_label") == label and not item.get("error"):
            tools = item.get("tools")
            if isinstance(tools, list) and all(isinstance(tool, dict) and "name" in tool for tool in tools):
                return tools
    return None

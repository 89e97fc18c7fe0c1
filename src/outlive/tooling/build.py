"""Assembly of the server's own tools from its settings."""

from __future__ import annotations

import importlib.util

from outlive.config.settings import Settings
from outlive.core.errors import SettingsError
from outlive.core.ids import IdSource
from outlive.ports.seal import Seal
from outlive.ports.toolbox import Tools
from outlive.tooling.functions import LABEL, FunctionSource, load_tools
from outlive.tooling.mcp.servers import McpSource
from outlive.tooling.registry import ToolRegistry, ToolSource


def build_tools(settings: Settings, ids: IdSource, seal: Seal | None) -> Tools:
    """Build what runs need to use the server's own tools. Raises SettingsError for a tool that cannot be one."""
    sources: list[ToolSource] = []
    always = []
    if settings.tools:
        sources.append(FunctionSource(load_tools(settings.tools, settings.tool_seconds)))
        if settings.offer_tools:
            always.append({"type": "mcp", "server_label": LABEL})
    if importlib.util.find_spec("mcp") is not None:
        private, seconds = settings.mcp_private, settings.tool_seconds
        sources.append(McpSource(settings.mcp, ids, private=private, seconds=seconds))
    elif settings.mcp:
        raise SettingsError("[mcp] needs the MCP SDK: install outlive[mcp].")
    return Tools(
        toolbox=ToolRegistry(sources, always),
        ids=ids,
        seal=seal,
        max_steps=settings.max_steps,
        max_output=settings.max_tool_output,
    )

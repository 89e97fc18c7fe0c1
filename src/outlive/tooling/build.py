"""The server's own tools, as its settings name them."""

from __future__ import annotations

import importlib.util

from outlive.config.settings import Settings
from outlive.config.user_modules import load_module, load_object
from outlive.core.errors import SettingsError
from outlive.core.ids import IdSource
from outlive.ports.seal import Seal
from outlive.ports.toolbox import Tools
from outlive.tooling.functions import LABEL, Functions, FunctionTool, read_function, read_module
from outlive.tooling.mcp.servers import McpServers
from outlive.tooling.registry import Source, ToolRegistry
from outlive.tooling.threads import Threads

_WHERE = "--tools"


def build_tools(settings: Settings, ids: IdSource, seal: Seal | None) -> Tools:
    """Whatever runs need to use the server's own tools. Raises SettingsError for a tool that cannot be one."""
    sources: list[Source] = []
    always = []
    if settings.tools:
        sources.append(Functions(read_tools(settings)))
        if settings.offer_tools:
            always.append({"type": "mcp", "server_label": LABEL})
    if importlib.util.find_spec("mcp") is not None:
        private, seconds = settings.mcp_private, settings.tool_seconds
        sources.append(McpServers(settings.mcp, ids, private=private, seconds=seconds))
    elif settings.mcp:
        raise SettingsError("[mcp] needs the MCP SDK: install outlive[mcp].")
    return Tools(
        toolbox=ToolRegistry(sources, always),
        ids=ids,
        seal=seal,
        max_steps=settings.max_steps,
        max_output=settings.max_tool_output,
    )


def read_tools(settings: Settings) -> list[FunctionTool]:
    """The functions of all modules, each under a name of its own."""
    tools: dict[str, FunctionTool] = {}
    threads = Threads()
    for reference in settings.tools:
        for tool in _read(reference, settings.tool_seconds, threads):
            if tool.spec.name in tools:
                raise SettingsError(f"There are two tools named {tool.spec.name}, one of them in {reference}.")
            tools[tool.spec.name] = tool
    return list(tools.values())


def _read(reference: str, seconds: float, threads: Threads) -> list[FunctionTool]:
    if ":" in reference:
        return [read_function(load_object(reference, _WHERE)[1], reference, seconds, threads)]
    return read_module(load_module(reference, _WHERE), seconds, threads)

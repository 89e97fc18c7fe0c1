"""Read the MCP servers of the settings, [mcp.LABEL] in the TOML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outlive.config.options import Given, convert, read_options
from outlive.config.sources import Sources, read_tables, resolve, resolve_all, unknown
from outlive.core.errors import SettingsError
from outlive.ports.toolbox import ToolServer

# Key of [mcp.LABEL] -> field of ToolServer.
_FIELDS = {
    "url": "url",
    "transport": "transport",
    "require_approval": "approval",
    "seconds": "seconds",
    "allowed_tools": "allowed",
    "idempotent_tools": "idempotent",
}
_KEYS = [*_FIELDS, "headers", "authorization"]
_OPTIONS = read_options(ToolServer)

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_RESERVED = "outlive"  # the label of the server's own tools


def read_tool_servers(sources: Sources, seconds: float) -> list[ToolServer]:
    """Return the servers that requests may name by their labels; `seconds` is the default time limit of a call."""
    tables = read_tables(sources, "mcp", "LABEL")
    return [_read_server(label, table, seconds, sources.environ) for label, table in tables.items()]


def _read_server(label: str, table: dict[str, Any], seconds: float, environ: Mapping[str, str]) -> ToolServer:
    where = f"in [mcp.{label}]"
    if not _LABEL.match(label) or label == _RESERVED:
        allowed = f"may hold only letters, digits, '_' and '-', and not be {_RESERVED!r}"
        raise SettingsError(f"The label {label!r} of an MCP server {allowed}.")
    for key in table:
        if key not in _KEYS:
            raise unknown(f"{key} {where}", key, _KEYS)
    if "url" not in table:
        raise SettingsError(f"[mcp.{label}] has no url.")
    fields: dict[str, Any] = {"seconds": seconds}
    for key, field in _FIELDS.items():
        if key in table:
            fields[field] = convert(_OPTIONS[field], Given(table[key], f"{key} {where}"))
    if not fields["url"].startswith(("http://", "https://")):
        raise SettingsError(f"url {where} must be a URL such as https://example.com/mcp.")
    if "authorization" in table:
        fields["authorization"] = resolve(table["authorization"], f"authorization {where}", environ)
    return ToolServer(label=label, headers=resolve_all(table.get("headers", {}), f"headers {where}", environ), **fields)

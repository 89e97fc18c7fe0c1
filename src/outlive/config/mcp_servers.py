"""From what was written about MCP servers, [mcp.LABEL] in the TOML file, to the servers themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from outlive.config.options import Given, Option, convert
from outlive.config.sources import Sources, resolve, unknown
from outlive.core.errors import SettingsError
from outlive.ports.toolbox import ToolServer

# The scalar keys of [mcp.LABEL], and the fields they are of.
SCALARS: dict[str, tuple[str, Option]] = {
    "url": ("url", Option("text", "Its address.")),
    "transport": ("transport", Option("text", "How it is spoken to.", choices=("auto", "http", "sse"))),
    "require_approval": (
        "approval",
        Option(
            "text",
            "Whether a person is asked before a call, where a request does not say.",
            choices=("always", "never"),
        ),
    ),
    "seconds": ("seconds", Option("number", "How long a call may take.", above=0)),
}
LISTS = {"allowed_tools": "allowed", "idempotent_tools": "idempotent"}
KEYS = (*SCALARS, *LISTS, "headers", "authorization")

_LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_RESERVED = "outlive"


def read_tool_servers(sources: Sources, seconds: float) -> list[ToolServer]:
    """All servers that requests may name by their label alone."""
    given = sources.given.get("mcp")
    if given is None:
        return []
    if not isinstance(given.value, dict) or not all(isinstance(table, dict) for table in given.value.values()):
        raise SettingsError(f"{given.where} must be tables: [mcp.LABEL].")
    return [_read(label, table, seconds, sources.environ) for label, table in given.value.items()]


def _read(label: str, table: dict[str, Any], seconds: float, environ: Mapping[str, str]) -> ToolServer:
    if not _LABEL.match(label) or label == _RESERVED:
        allowed = f"may hold only letters, digits, '_' and '-', and not be {_RESERVED!r}"
        raise SettingsError(f"The label {label!r} of an MCP server {allowed}.")
    for key in table:
        if key not in KEYS:
            raise unknown(f"{key} in [mcp.{label}]", key, list(KEYS))
    if "url" not in table:
        raise SettingsError(f"[mcp.{label}] has no url.")
    fields: dict[str, Any] = {"seconds": seconds}
    for key, (field, option) in SCALARS.items():
        if key in table:
            fields[field] = convert(option, Given(table[key], f"{key} in [mcp.{label}]"))
    if not fields["url"].startswith(("http://", "https://")):
        raise SettingsError(f"url in [mcp.{label}] must be a URL such as https://example.com/mcp.")
    for key, field in LISTS.items():
        if key in table:
            fields[field] = _read_names(table[key], f"{key} in [mcp.{label}]")
    if "authorization" in table:
        fields["authorization"] = resolve(table["authorization"], f"authorization in [mcp.{label}]", environ)
    return ToolServer(label=label, headers=_read_headers(label, table.get("headers", {}), environ), **fields)


def hide_secrets(server: ToolServer) -> ToolServer:
    """The same, fit to be shown."""
    return msgspec.structs.replace(
        server,
        headers=dict.fromkeys(server.headers, "***"),
        authorization=None if server.authorization is None else "***",
    )


def _read_names(value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise SettingsError(f'{where} must be a list of names such as ["search"].')
    return value


def _read_headers(label: str, value: object, environ: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SettingsError(f'headers in [mcp.{label}] must be a table such as {{ name = "value" }}.')
    return {name: resolve(text, f"{name} of headers in [mcp.{label}]", environ) for name, text in value.items()}

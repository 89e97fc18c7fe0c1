"""Secrets in a request's tools: split off before anything of the request is kept or shown."""

from __future__ import annotations

import msgspec

from outlive.core.events import Json

FIELDS = ("headers", "authorization")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Json]).decode


def split_secrets(tools: list[Json]) -> tuple[list[Json], dict[str, Json]]:
    """Return the tools without their secrets, and the secrets by the label of their server."""
    if not any(tool["type"] == "mcp" for tool in tools):
        return tools, {}
    secrets: dict[str, Json] = {}
    clean: list[Json] = []
    for tool in tools:
        if tool["type"] == "mcp":
            found = {name: tool[name] for name in FIELDS if tool.get(name)}
            if found:
                secrets[tool["server_label"]] = found
            tool = {name: value for name, value in tool.items() if name not in FIELDS}
        clean.append(tool)
    return clean, secrets


def purpose_of(response_id: str) -> str:
    """Name the purpose that secrets are sealed for: only this response can open them."""
    return f"secrets of the tools of {response_id}"


def pack_secrets(secrets: dict[str, Json]) -> bytes:
    return _encode(secrets)


def unpack_secrets(raw: bytes) -> dict[str, Json]:
    return _decode(raw)

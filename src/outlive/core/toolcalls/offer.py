"""The tools in a request to the model: the client's tools as they are, the server's tools as functions."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse
from outlive.core.toolcalls.calls import ToolSpec

# The type of the tools in a request that this server calls itself.
SERVER_TOOL_TYPE = "mcp"


def without_server_tools(request: CreateResponse) -> CreateResponse:
    """Return the request without the server's tools."""
    if not any(tool["type"] == SERVER_TOOL_TYPE for tool in request.tools):
        return request
    tools = [tool for tool in request.tools if tool["type"] != SERVER_TOOL_TYPE]
    return msgspec.structs.replace(request, tools=tools, tool_choice="auto")


def add_server_tools(
    request: CreateResponse, specs: Mapping[str, ToolSpec], *, first: bool, spent: bool, max_output_tokens: int | None
) -> CreateResponse:
    """Return the request for one step, with the server's tools as functions.

    `first`: it is the first step. A choice that makes the model call a tool counts only there, or it would never end.
    `spent`: no more calls of server tools may be made.
    """
    client_tools = [tool for tool in request.tools if tool["type"] != SERVER_TOOL_TYPE]
    choice = _resolve_choice(request.tool_choice, specs)
    if not first:
        choice = _relax(choice)
    if spent and not client_tools:
        choice = "none"
    elif spent:
        specs = {}
        choice = choice if choice == "none" else "auto"
    tools = [*client_tools, *(_as_function(alias, spec) for alias, spec in specs.items())]
    return msgspec.structs.replace(request, tools=tools, tool_choice=choice, max_output_tokens=max_output_tokens)


def _as_function(alias: str, spec: ToolSpec) -> Json:
    described = {"description": spec.description, "parameters": spec.parameters}
    return {"type": "function", "name": alias, **described, "strict": False}


def _resolve_choice(choice: str | Json, specs: Mapping[str, ToolSpec]) -> str | Json:
    """Return the choice with the server's tools under the names that the model knows."""
    if isinstance(choice, str):
        return choice
    if choice["type"] == SERVER_TOOL_TYPE:
        return {"type": "allowed_tools", "mode": "required", "tools": _find(choice, specs)}
    if choice["type"] == "allowed_tools":
        named = [
            one
            for entry in choice["tools"]
            for one in (_find(entry, specs) if entry["type"] == SERVER_TOOL_TYPE else [entry])
        ]
        return {**choice, "tools": named}
    return choice


def _find(entry: Json, specs: Mapping[str, ToolSpec]) -> list[Json]:
    return [
        {"type": "function", "name": alias}
        for alias, spec in specs.items()
        if spec.label == entry.get("server_label") and entry.get("name") in (None, spec.name)
    ]


def _relax(choice: str | Json) -> str | Json:
    if isinstance(choice, str):
        return "none" if choice == "none" else "auto"
    if choice["type"] == "allowed_tools":
        return {**choice, "mode": "auto"}
    return "auto"

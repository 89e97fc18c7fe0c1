"""A real MCP server, run as a program: python mcp_program.py TRANSPORT PORT FOLDER.

Each call leaves a line in FOLDER/calls: the tool, its argument, the call's key, whether it is said to be a repeat, and
the Authorization header that came with it. A call of `wait` is over when FOLDER/gate exists.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations

transport, port, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
# Spelled so that the SDK does not compare the Host header with it: some tests use another name of this machine.
HOST = "127.1"

server = MCPServer("test", instructions="For tests.")


def write(tool: str, value: Any, context: Context[Any, Any]) -> None:
    request = context.request_context
    meta: Any = request.meta or {}
    headers = getattr(request.request, "headers", {})
    line = {
        "tool": tool,
        "value": value,
        "key": meta.get("outlive/call-key"),
        "repeated": meta.get("outlive/repeated"),
        "traceparent": meta.get("traceparent"),
        "headers": {name: text for name, text in headers.items() if name in ("traceparent", "x-request-id")},
        "authorization": headers.get("authorization"),
        "team": headers.get("x-team"),
    }
    with (folder / "calls").open("a") as calls:
        calls.write(json.dumps(line) + "\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int, context: Context[Any, Any]) -> str:
    """Add two numbers."""
    write("add", [a, b], context)
    return str(a + b)


@server.tool()
def remember(text: str, context: Context[Any, Any]) -> str:
    """Remember something."""
    write("remember", text, context)
    return f"remembered {text}"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
async def set_to(value: str, context: Context[Any, Any]) -> str:
    """Set something."""
    write("set_to", value, context)
    await opened()
    return f"set to {value}"


@server.tool()
async def wait(text: str, context: Context[Any, Any]) -> str:
    """Take long."""
    write("wait", text, context)
    await context.report_progress(1, 2, "half way")
    try:
        await opened()
    except asyncio.CancelledError:
        write("stopped", text, context)
        raise
    return f"waited for {text}"


@server.tool()
def break_down(context: Context[Any, Any]) -> str:
    """Fail."""
    write("break_down", None, context)
    raise ValueError("the tool is broken")


@server.tool()
def flood(context: Context[Any, Any]) -> str:
    """Answer at length."""
    write("flood", None, context)
    return "x" * (6 * 1024 * 1024)


async def opened() -> None:
    while not (folder / "gate").exists():
        await asyncio.sleep(0.01)


if transport == "sse":
    server.run("sse", host=HOST, port=port)
else:
    server.run("streamable-http", host=HOST, port=port)

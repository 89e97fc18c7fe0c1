"""What a tool of an MCP server answers, as the one text that a call's output is."""

from __future__ import annotations

from typing import Any

import msgspec
from mcp_types import CallToolResult, TextContent

from outlive.core.events import Json
from outlive.core.toolcalls.calls import ToolOutcome

# So much of an image or a sound is kept, in characters of its base64.
MAX_DATA = 128 * 1024


def read_result(result: CallToolResult) -> ToolOutcome:
    """Text as it is; anything else as JSON, block by block."""
    blocks = result.content
    if result.is_error:
        return ToolOutcome(error={"type": "mcp_tool_execution_error", "content": [_show(block) for block in blocks]})
    if all(isinstance(block, TextContent) for block in blocks) and (blocks or result.structured_content is None):
        return ToolOutcome("\n".join(block.text for block in blocks if isinstance(block, TextContent)))
    whole = [_show(block) for block in blocks] if blocks else result.structured_content
    return ToolOutcome(msgspec.json.encode(whole).decode())


def _show(block: Any) -> Json:
    shown: Json = block.model_dump(mode="json", by_alias=True, exclude_none=True)
    resource = shown.get("resource") or {}
    length = len(shown.get("data") or resource.get("blob") or "")
    if length <= MAX_DATA:
        return shown
    kind = shown.get("mimeType") or resource.get("mimeType") or "binary"
    return {"type": "text", "text": f"[{kind}, {length * 3 // 4} bytes: too long to be kept]"}

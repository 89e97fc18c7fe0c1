"""Scripts in which a model requests a tool call, and the call's item in the response."""

from __future__ import annotations

import json
from typing import Any

from tests.support.upstream import Script, call, ending


def request_call(tool: str, call_id: str = "call_1", **arguments: Any) -> Script:
    """A step of the model that requests one call."""
    return [call(0, json.dumps(arguments), call_id, tool), *ending("tool_calls")]


def find_call(response: dict[str, Any]) -> dict[str, Any]:
    """Return the only call of a response."""
    (made,) = [item for item in response["output"] if item["type"] == "mcp_call"]
    return dict(made)

"""Tools for servers that know functions only: which may be called, and how one that takes free text is put."""

from __future__ import annotations

from outlive.core.events import Json
from outlive.core.requests.create import CreateResponse

_INPUT: Json = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}


def allow(request: CreateResponse) -> tuple[list[Json], str | Json]:
    """The tools to send, and the choice among them. What is not sent cannot be called: the constraint is a hard one."""
    tools, choice = request.tools, request.tool_choice
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools, choice
    allowed = {(tool.get("type"), tool.get("name")) for tool in choice["tools"]}
    return [tool for tool in tools if (tool["type"], tool.get("name")) in allowed], choice.get("mode") or "auto"


def custom_tools(request: CreateResponse) -> frozenset[str]:
    """The names of the tools that take free text, and are sent as functions."""
    return frozenset(tool["name"] for tool in request.tools if tool["type"] == "custom")


def describe_custom(tool: Json) -> tuple[str, Json]:
    """A custom tool's description and parameters, as a function's."""
    return "\n\n".join(filter(None, (tool.get("description"), _describe(tool.get("format") or {})))), _INPUT


def _describe(form: Json) -> str:
    """A grammar in words: such servers cannot be made to keep to it, but the model can be told."""
    if form.get("type") != "grammar":
        return ""
    return f"The input must follow this {form.get('syntax')} grammar:\n{form.get('definition')}"

"""For modules of tools: the decorator, the context that a tool may take, and the error that speaks to the model."""

from outlive.tooling.functions import Context, ToolError, tool

__all__ = ["Context", "ToolError", "tool"]
